# SPDX-License-Identifier: Apache-2.0
"""Run episodes: observation, policy, rows, env, until the task succeeds, the budget ends or a row is refused.

The runner knows no transport. `EpisodeEnv` and `EpisodePolicy` are all it speaks to: `EnvFacade` and
`episodes.policy.LocalPolicy` in one process, the graph's proxies over ROS.
"""

from __future__ import annotations

import hashlib
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any, Protocol

from numpy.typing import NDArray

from openeta_ros.control import ActionError, Execution
from openeta_ros.embodiment.schema import ActionType
from openeta_ros.envs import EnvError, Sensors, StepResult
from openeta_ros.envs.errors import HOLDS
from openeta_ros.episodes.demonstration import Demonstration
from openeta_ros.episodes.results import EpisodeResult, Failure, Latency
from openeta_ros.observation import Observation
from openeta_ros.vector_policy import PolicyUnavailable

RowObserver = Callable[[StepResult, Sensors], None]


class EpisodeEnv(Protocol):
    """What the runner needs of an env; `EnvFacade` is one.

    Raises everywhere: `EnvError` when the env cannot go on.
    """

    @property
    def sensors(self) -> Sensors:
        """Pictures, joint positions and velocities of the last observation, as the env publishes them."""

    def reset(self, seed: int) -> Observation:
        """Put the scene of `seed` in its start state and return what is seen there."""

    def chunk_step(
        self,
        actions: NDArray[Any],
        action_type: ActionType,
        on_row: RowObserver | None = None,
        execution: Execution | None = None,
    ) -> list[StepResult]:
        """Execute rows (H, A) until the last or the end of the episode: one result per executed row.

        `on_row` is called after each row, in order, with its result and the sensors it was made from.
        `execution` says how much of the chunk is executed, see `EnvFacade.chunk_step`; None: all of it.

        Raises:
            ActionError: the chunk was refused; nothing of it moved.
        """

    def expert(self) -> NDArray[Any]:
        """Return the scripted expert's (H, D) float64 qpos rows from the scene as it is after reset."""

    def conditions(self) -> Mapping[str, int]:
        """Return what was wrong with its streams since the reset: how many messages or moments, by stream and
        kind of `observation.Condition`."""

    def descriptor(self) -> Mapping[str, Any]:
        """Return what this env is, JSON-safe."""


class EpisodePolicy(Protocol):
    """What the runner needs of a policy.

    Raises everywhere: `PolicyUnavailable`; with `remote_type` set when the policy answered with an error (the
    episode is lost and the evaluation goes on), without it when the policy is gone (the evaluation ends).
    """

    @property
    def action_type(self) -> ActionType:
        """What the rows of `act` hold: 'qpos' or 'ee'."""

    def reset(self, seed: int) -> None:
        """Start an episode; `seed` is for the policy's own random numbers."""

    def set_demonstration(self, demonstration: Demonstration) -> None:
        """Show how the task is done."""

    def act(self, observation: Observation) -> NDArray[Any]:
        """Return the rows (H, A), or (A,) for one, to execute next; numbers of the policy's own dtype."""

    def descriptor(self) -> Mapping[str, Any]:
        """Return what this policy is, JSON-safe: at least `policy` (module:Class) and `action_type`."""


class EpisodeObserver(Protocol):
    """Someone who looks at an episode while it runs: the recorder, the progress line. It must be quick."""

    def started(self, sensors: Sensors) -> None:
        """The scene is set; this is what there is to see."""

    def chunk(self, actions: NDArray[Any], action_type: ActionType, stamp_ns: int, latency_ms: float) -> None:
        """The policy answered these rows to the observation of this stamp, after `latency_ms`."""

    def row(self, result: StepResult, sensors: Sensors) -> None:
        """A row was executed."""


def run_episode(
    env: EpisodeEnv,
    policy: EpisodePolicy,
    seed: int,
    *,
    demonstration: Demonstration | None = None,
    observers: Sequence[EpisodeObserver] = (),
    latencies_ms: list[float] | None = None,
    execution: Execution | None = None,
) -> EpisodeResult:
    """Run one episode of the scene `seed` to its end.

    A refused action, an error that the policy answered and the end of an arm's motion (`HOLDS`) end the
    episode without success; its `error` says which. Each latency is also appended to `latencies_ms`.
    `execution` says how much of each chunk is executed (None: all). Asynchronously the policy is asked while
    an arm moves.

    Raises:
        PolicyUnavailable: the policy is gone (`remote_type` is None).
        EnvError: the env cannot go on.
    """
    how = {} if execution is None else {'execution': execution}
    started_at, begin = utc_now(), time.monotonic()
    durations: list[float] = []
    clamped: Counter[str] = Counter()
    reward, steps, success = 0.0, 0, False
    error = None

    def on_row(result: StepResult, sensors: Sensors) -> None:
        nonlocal reward, steps, success
        reward += float(result.reward)
        steps += 1
        success = bool(result.info['success'])
        clamped.update(result.info['clamped'])
        for observer in observers:
            observer.row(result, sensors)

    try:
        policy.reset(policy_seed(seed))
        if demonstration is not None:
            policy.set_demonstration(demonstration)
        observation = env.reset(seed)
        for observer in observers:
            observer.started(env.sensors)
        done = False
        while not done:
            asked = time.perf_counter()
            actions = policy.act(observation)
            durations.append((time.perf_counter() - asked) * 1e3)
            for observer in observers:
                observer.chunk(actions, policy.action_type, observation.stamp_ns, durations[-1])
            results = env.chunk_step(actions, policy.action_type, on_row, **how)
            observation = results[-1].observation
            done = results[-1].terminated or results[-1].truncated
    except ActionError as refused:
        error = Failure(kind=refused.kind, message=str(refused))
    except EnvError as ended:
        if ended.kind not in HOLDS:
            raise
        error = Failure(kind=ended.kind, message=ended.message)
    except PolicyUnavailable as failed:
        if failed.remote_type is None:
            raise
        error = Failure(kind='policy', message=failed.message)
    if latencies_ms is not None:
        latencies_ms += durations
    return EpisodeResult(
        seed=seed,
        policy_seed=policy_seed(seed),
        scored=True,
        success=success and error is None,
        steps=steps,
        reward=reward,
        clamped=dict(sorted(clamped.items())),
        conditions=dict(sorted(env.conditions().items())),
        error=error,
        latency_ms=Latency.of(durations),
        started_at=started_at,
        wall_s=round(time.monotonic() - begin, 3),
    )


def policy_seed(scene_seed: int) -> int:
    """Return the seed that a policy is given for a scene: 32 bits that do not tell the scene's own seed."""
    return int.from_bytes(hashlib.sha256(f'policy of scene {scene_seed}'.encode()).digest()[:4], 'big')


def utc_now() -> str:
    """Return the time of the day, ISO 8601, UTC, whole seconds."""
    return datetime.now(timezone.utc).isoformat(timespec='seconds')
