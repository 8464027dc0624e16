# SPDX-License-Identifier: Apache-2.0
"""What a snippet gets as `api`: five methods of an env, and helpers that become rows of it.

The object lives with the host, which owns the env, the limits and the trace; a snippet holds a stand-in with
the same methods (`child`). Their docstrings are what a model is shown.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np

from openeta_ros.code_policy import describe, tools
from openeta_ros.code_policy.detect import detect
from openeta_ros.code_policy.meter import Meter, Stop
from openeta_ros.code_policy.mover import Mover
from openeta_ros.code_policy.tools import Tool, ToolError, mounted
from openeta_ros.code_policy.trace import Trace, plain, printable
from openeta_ros.code_policy.types import Budgets
from openeta_ros.code_policy.values import Array, Step, size
from openeta_ros.control import ActionError
from openeta_ros.embodiment import Embodiment, Kinematics
from openeta_ros.envs import EnvError, EnvFacade
from openeta_ros.envs.backend import CameraPose
from openeta_ros.episodes.runner import EpisodeEnv
from openeta_ros.observation import Observation

Method = TypeVar('Method', bound=Callable[..., Any])


# What a message quotes of a call may be of any length.
MAX_MESSAGE = 2000
#: What moves, and what `safe_check` knows.
MOVING = ('step', 'chunk_step', 'move_arm', 'open_gripper', 'close_gripper')


def offered(method: Method) -> Method:
    """Make a method one that snippets may call: it is counted and traced, whoever calls it."""

    @functools.wraps(method)
    def call(self: CodePolicyApi, *arguments: Any, **keywords: Any) -> Any:
        return self.call(method.__name__, arguments, keywords)

    return cast(Method, call)


class BadCall(TypeError):
    """A call of a method that is not there, or with arguments that it does not take."""


class CodePolicyApi:
    """The api of one env.

    Args:
        env: what rows go to: an `EnvFacade`, or whatever else the episode runner drives.
        embodiment, kinematics: the contract of its robot.
        tools: functions of (view, keywords) that `call_tool` reaches; by default the detector.
        camera_poses: where cameras are, for tools; of others the contract may say so (`mount`).
        observation: what was seen last, where an episode is under way.
        rows_per_call: give the env at most this many rows at once, so that a run can be stopped between them;
            None where the env tells of each row while a call goes on, and may be stopped from there.

    Attributes:
        trace: every call and what came of it.
        meter: what was used of the budgets. A sandbox puts its own in place for each run, as it does `trace`.
        checkpoints: those of the run.
        mover: drives the env.
        seed: of the last reset.
    """

    def __init__(
        self,
        env: EpisodeEnv,
        embodiment: Embodiment,
        kinematics: Kinematics | None = None,
        *,
        tools: Mapping[str, Tool] | None = None,
        camera_poses: Mapping[str, CameraPose] | None = None,
        observation: Observation | None = None,
        rows_per_call: int | None = None,
    ) -> None:
        self.env = env
        self.embodiment = embodiment
        self.kinematics = kinematics or Kinematics(embodiment)
        self.tools = dict({'detect': detect} if tools is None else tools)
        self.trace = Trace()
        self.meter = Meter(Budgets())
        self.checkpoints: list[dict[str, Any]] = []
        self.seed = 0
        self.mover = Mover(env, embodiment, self.kinematics, observation, rows_per_call)
        self._camera_poses = {**mounted(embodiment), **(camera_poses or {})}

    @classmethod
    def of_facade(cls, facade: EnvFacade, tools: Mapping[str, Tool] | None = None) -> CodePolicyApi:
        """Return the api of a facade, in whatever state it is."""
        try:
            observation = facade.observe()
        except EnvError as error:
            if error.kind != 'not_reset':
                raise
            observation = None
        api = cls(
            facade,
            facade.spec.embodiment,
            tools=tools,
            camera_poses=facade.camera_poses,
            observation=observation,
        )
        state, commanded = api.mover.state, facade.commanded
        state.step, state.done = facade.progress
        if commanded is not None:
            state.now, state.before = commanded
        return api

    def call(self, name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]) -> Any:
        """Call one of `METHODS` as a snippet does: counted, traced, with a checkpoint after what moves.

        Raises:
            BadCall: there is no such method, or the arguments do not fit it.
            Stop: a budget is used up, or the run was stopped from outside. What had moved by then has.
            ActionError, EnvError, ToolError: as the method says.
        """
        entry = self.trace.begin(name)
        self.mover.executed = []
        try:
            self.meter.spend('calls', 1)
            self.meter.spend('sent_bytes', size([*arguments, *keywords.values()]))
            self.meter.check()
            bound = self._bound(entry, name, arguments, keywords)
            value = getattr(type(self), name).__wrapped__(*bound.args, **bound.kwargs)
        except (BadCall, Stop, ActionError, EnvError, ToolError) as error:
            self._end(entry, error=error_dict(error))
            raise
        except Exception as error:  # of an env that raises what it should not
            broken = EnvError('failed', f'{type(error).__name__}: {error}')
            self._end(entry, error=error_dict(broken))
            raise broken from error
        self._end(entry, result=self.trace.told(value))
        return value

    # What a snippet may call. Docstrings are shown to whoever writes snippets.

    @offered
    def reset(self, seed: int | None = None) -> Mapping[str, Array]:
        """Begin an episode: the scene of `seed` (None: that of the last reset), the arm at home and at rest.
        Returns the observation."""
        if self.trace.by == 'snippet':
            self.meter.spend('resets', 1)
        if seed is not None:
            if isinstance(seed, bool) or not isinstance(seed, int) or seed < 0:
                raise EnvError('seed', f'a seed is an integer from 0 on, not {seed!r}')
            self.seed = seed
        return self.mover.reset(self.seed)

    @offered
    def observe(self) -> Mapping[str, Array]:
        """Return the newest observation, names to arrays, without moving anything."""
        return self.mover.observe()

    @offered
    def step(self, action: Any, action_type: str = 'qpos') -> Step:
        """Execute one row: absolute targets, 'qpos' or 'ee' as `actions` lays them out, for 1 / rate_hz."""
        return self._move('step', action=action, action_type=action_type)[-1]

    @offered
    def chunk_step(self, actions: Any, action_type: str = 'qpos') -> list[Step]:
        """Execute rows (H, A), oldest first, until they or the episode end; return one step for each."""
        return self._move('chunk_step', actions=actions, action_type=action_type)

    @offered
    def move_arm(self, pose: Any, arm: str | None = None, speed: float = 1.0) -> Step:
        """Move a tool point on a straight line to `pose`, from rest to rest: x y z (m, base frame; the tool
        stays turned as it is) or x y z qw qx qy qz. `arm` may be left out when there is one; `speed` is part
        of the fastest, up to 1. The gripper stays. Returns the last step."""
        return self._move('move_arm', pose=pose, arm=arm, speed=speed)[-1]

    @offered
    def open_gripper(self, arm: str | None = None) -> Step:
        """Open a gripper and let it come to rest. Returns the last step."""
        return self._move('open_gripper', arm=arm)[-1]

    @offered
    def close_gripper(self, arm: str | None = None) -> Step:
        """Close a gripper, on whatever is in it. Returns the last step, whose qpos tells how far it went."""
        return self._move('close_gripper', arm=arm)[-1]

    @offered
    def call_tool(self, name: str, **kwargs: Any) -> Any:
        """Call a tool of `tools` on the newest observation. It moves nothing."""
        if not isinstance(name, str) or name not in self.tools:
            raise ToolError(f'there is no tool {name!r}; there are {", ".join(self.tools) or "none"}')
        view = tools.View(self.mover.observe(), self.embodiment, self._camera_poses)
        return tools.call(self.tools[name], name, view, kwargs)

    @offered
    def safe_check(self, name: str, **kwargs: Any) -> dict[str, Any]:
        """Say whether a call that moves (such as 'move_arm', pose=[0.5, 0, 0.2]) would be accepted now:
        {'ok': True, 'rows': how many it takes} or {'ok': False, 'kind', 'message'}. Nothing moves."""
        if name not in MOVING:
            raise ToolError(f'safe_check knows {", ".join(MOVING)}; not {name!r}')
        try:
            plan = self.mover.plan(name, kwargs)
        except (ActionError, EnvError) as error:
            return {'ok': False, **error_dict(error)}
        except TypeError as error:
            return {'ok': False, 'kind': 'exception', 'message': str(error).removeprefix('Mover._plan_')}
        return {'ok': True, 'rows': len(plan)}

    @offered
    def checkpoint(self, label: str) -> dict[str, Any]:
        """Keep what is seen now under a label, for whoever reads the result. Returns what is kept."""
        self.meter.spend('checkpoints', 1)
        return self._checkpoint(str(label)[:200])

    @offered
    def log(self, text: str) -> None:
        """Put a line into the trace; `print` does as well, and is shown with the result."""
        del text  # it is in the entry, as every argument is

    @offered
    def descriptor(self) -> dict[str, Any]:
        """Return all that there is: methods, tools, observation, actions, limits, budgets."""
        return describe.describe(self)

    # For the host.

    def begin(self, trace: Trace, meter: Meter) -> None:
        """Begin a run: with a trace, a meter and checkpoints of its own."""
        self.trace, self.meter, self.checkpoints = trace, meter, []
        self.mover.reward, self.mover.success = 0.0, False

    def hold(self) -> None:
        """Bring the arm to rest where it is, within its limits: the end of every run.

        Raises:
            EnvError: the env cannot go on.
        """
        mover = self.mover
        if mover.state.observation is None or mover.state.done or mover.pretend:
            return
        rows = mover.rest()
        if not len(rows):
            return
        entry = self.trace.begin('hold')
        mover.executed = []
        try:
            mover.execute(mover.plan('chunk_step', {'actions': rows}), meter=None)
        except EnvError as error:
            self._end(entry, error=error_dict(error))
            raise
        self._end(entry, result=self.state)

    @property
    def state(self) -> dict[str, Any]:
        """Where things are: the newest observation's numbers, the row of the episode, whether it ended."""
        state, mover = self.mover.state, self.mover
        seen: Mapping[str, Array] = {} if state.observation is None else state.observation
        told = {name: seen[name].tolist() for name in ('qpos', 'endpose') if name in seen}
        return {
            **told,
            'step': state.step,
            'done': state.done,
            'reward': mover.reward,
            'success': mover.success,
        }

    def _move(self, name: str, **keywords: Any) -> list[Step]:
        plan = self.mover.plan(name, keywords)
        self.meter.spend('rows', len(plan))
        return self.mover.execute(plan, self.meter)

    def _checkpoint(self, label: str) -> dict[str, Any]:
        seen = self.mover.state.observation
        checkpoint = {
            'label': label,
            'by': self.trace.by,
            'seq': len(self.trace.calls),
            **self.state,
            'observation': {} if seen is None else self.trace.observation(seen),
        }
        self.checkpoints.append(checkpoint)
        return checkpoint

    def _bound(
        self, entry: dict[str, Any], name: str, arguments: Sequence[Any], keywords: Mapping[str, Any]
    ) -> inspect.BoundArguments:
        """Return the arguments of a call by their names, having put them into its entry."""
        told: Mapping[str, Any] = {'arguments': arguments, **keywords}
        try:
            if name not in METHODS:
                raise BadCall(f'api has no method {name!r:.100}; it has {", ".join(METHODS)}')
            try:
                bound = _signature(name).bind(self, *arguments, **keywords)
            except TypeError as error:
                raise BadCall(f'api.{name}: {error}') from None
            told = {k: v for k, v in bound.arguments.items() if k != 'self'} if arguments else keywords
            return bound
        finally:
            entry['arguments'] = plain(told)

    def _end(self, entry: dict[str, Any], **outcome: Any) -> None:
        """Complete an entry of the trace, and add a checkpoint where it moved something."""
        executed, step = self.mover.executed, self.mover.state.step
        if executed:
            entry['steps'] = [step - len(executed) + 1, step]
            entry['executed'] = np.array(executed).tolist()
        began = entry['call'] == 'reset' and 'result' in outcome
        if began:
            entry['seed'] = self.seed
        if executed or began:
            entry['observed'] = self.trace.observation(self.mover.observe())
        self.trace.end(entry, **outcome)
        if executed or began:
            by, self.trace.by = self.trace.by, 'runtime'
            self._checkpoint(f'after {entry["call"]}')
            self.trace.by = by


#: What snippets may call, in the order of the class.
METHODS = tuple(
    name
    for name, method in vars(CodePolicyApi).items()
    if inspect.isfunction(method) and hasattr(method, '__wrapped__')
)


@functools.cache
def _signature(name: str) -> inspect.Signature:
    return inspect.signature(getattr(CodePolicyApi, name))


def error_dict(error: Exception) -> dict[str, Any]:
    """Return an error of a call as JSON: `kind`, `message`, and what the kind adds."""
    message = printable(str(error)[:MAX_MESSAGE])
    if isinstance(error, ActionError):
        told = {'action_kind': error.kind, 'row': error.row, 'joint': error.joint}
        return {'kind': 'action', 'message': message, **told}
    if isinstance(error, EnvError):
        return {'kind': 'env', 'message': message, 'env_kind': error.kind}
    if isinstance(error, BadCall):
        return {'kind': 'exception', 'message': message}
    return {'kind': error.kind if isinstance(error, Stop) else 'tool', 'message': message}
