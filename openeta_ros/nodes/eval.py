# SPDX-License-Identifier: Apache-2.0
"""The eval node: runs episodes with the env and the policy of the graph.

The episode runner is the one of `openeta eval --transport local`; it runs on the worker thread. With
`autostart` the process ends with the evaluation: 0 it was carried out, whatever the score; 1 it was not; 2 it
was asked for wrongly; 128 + n it was stopped by signal n.
"""

from __future__ import annotations

import dataclasses
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from rclpy.action.server import ServerGoalHandle
from rclpy.node import Node
from rich.console import Console

from openeta_msgs.action import Evaluate, RunEpisode
from openeta_msgs.msg import Failure
from openeta_ros.embodiment import EmbodimentError
from openeta_ros.embodiment.resources import local_policy
from openeta_ros.envs import EnvError, Sensors, StepResult
from openeta_ros.episodes import (
    EpisodeResult,
    EvalSettings,
    EvaluationError,
    Progress,
    Report,
    Results,
    SettingsError,
    evaluate,
)
from openeta_ros.episodes.results import FILENAME
from openeta_ros.episodes.settings import ARM
from openeta_ros.nodes import messages, runtime
from openeta_ros.nodes.arm_env import ArmEnv
from openeta_ros.nodes.description import load_contract
from openeta_ros.nodes.goals import serve_goals
from openeta_ros.nodes.peer import bring_up
from openeta_ros.nodes.remote import GraphEnv, GraphPolicy
from openeta_ros.vector_policy import PolicyUnavailable

# What the wait for a simulator that starts slowly is explained with.
SLOW_START = {'genesis': 'the first start of Genesis compiles its kernels for two to four minutes'}
# Kinds of EnvError that say that the request was wrong, not that something broke.
USAGE = ('backend', 'missing', 'task', 'option', 'embodiment')


class EvalNode(Node):
    """See openeta_msgs for what the actions mean, and `parameters` for the parameters."""

    def __init__(self, process: runtime.Process) -> None:
        super().__init__('eval')
        self._process = process
        self._values = runtime.declare(self, 'eval')
        self._env: GraphEnv | None = None
        self._policy: GraphPolicy | None = None
        self._goals = 0
        serve_goals(self, process, Evaluate, '~/evaluate', self._evaluate)
        serve_goals(self, process, RunEpisode, '~/run_episode', self._run_episode)
        if self._values['autostart']:
            process.submit(self._autostart)

    def _autostart(self) -> None:
        code = 1  # if even telling of a failure fails, since nobody reads any more
        try:
            code = self._evaluated()
        finally:
            self._process.end(code)

    def _evaluated(self) -> int:
        """Carry out the evaluation that the parameters describe, telling of it on stdout; return the exit
        code."""
        try:
            settings = self._settings()
            with Report(Console(), settings.episodes) as report:
                results = self._carry_out(settings, [report], report.note)
            report.finished(results)
        except (SettingsError, EmbodimentError) as error:
            return _failed(str(error), 2)
        except EvaluationError as error:
            kept = (
                f'{error.episodes} of {settings.episodes} episodes are in {Path(settings.output) / FILENAME}'
            )
            return _failed(f'{error}; {kept}', 1)
        except PolicyUnavailable as error:
            told = f'\n--- policy log (tail) ---\n{error.log_tail}' if error.log_tail else ''
            return _failed(f'the policy could not be started: {error.message}{told}', 1)
        except EnvError as error:
            code = 2 if error.kind in USAGE else 1
            return _failed(f'{settings.env} could not be started: {error}', code)
        except KeyboardInterrupt:
            return 130
        except Exception as error:
            return _failed(f'a fault of the eval node: {type(error).__name__}: {error}', 1)
        return 0

    def _carry_out(self, settings: EvalSettings, progress: Sequence[Progress], note: Any) -> Results:
        env, policy = self._graph(note)
        return evaluate(env, policy, settings, progress)

    def _graph(self, note: Any) -> tuple[GraphEnv, GraphPolicy]:
        """Return env and policy, found and active."""
        values = self._values
        if self._env is None or self._policy is None:
            contract = load_contract(self, self._process, values)
            row_timeout_s = values['row_timeout_s']
            timeout_s = values['policy_timeout_s']
            name = values['env_node']
            self._env = (
                ArmEnv(self, self._process, name, contract, row_timeout_s=row_timeout_s, note=note)
                if values['env'] == ARM
                else GraphEnv(self, self._process, name, contract, row_timeout_s=row_timeout_s)
            )
            self._policy = GraphPolicy(self, self._process, values['policy_node'], timeout_s=timeout_s)
        deadline = time.monotonic() + values['discovery_timeout_s']
        self._env.wait_until_found(deadline)
        self._policy.wait_until_found(deadline)
        hint = SLOW_START.get(values['env'])
        bring_up(
            [self._env.peer, self._policy.peer],
            values['configure_timeout_s'],
            lambda text: note(f'{text} ({hint})' if hint else text),
        )
        return self._env, self._policy

    def _settings(self, **changes: Any) -> EvalSettings:
        """Return the settings that the parameters describe, with absolute paths."""
        values = {**self._values, **changes}
        output = values['output'] or f'results/{time.strftime("%Y-%m-%d_%H-%M-%S")}'
        if (Path(output) / FILENAME).exists():
            raise SettingsError(f'{output} already holds {FILENAME}; name another output')
        os.makedirs(output, exist_ok=True)
        names = {field.name for field in dataclasses.fields(EvalSettings)} & values.keys()
        return EvalSettings(
            **{name: values[name] for name in names}
            | {
                'output': str(Path(output).absolute()),
                'policy': str(local_policy(values['policy']) or values['policy']),
                'embodiment': _absolute(values['embodiment']),
                'demonstration': _absolute(values['demonstration']),
                'max_steps': values['max_steps'] or None,
                'execution_horizon': values['execution_horizon'] or None,
                'hardware': values['hardware'] if values['env'] == ARM else None,
            }
        )

    def _evaluate(self, goal: ServerGoalHandle) -> Any:
        result = Evaluate.Result()
        try:
            episodes = goal.request.episodes or self._values['episodes']
            settings = self._goal_settings(episodes, goal.request.seed)
            results = self._carry_out(settings, [_Feedback(goal, Evaluate.Feedback())], self._log)
            result.results_path = str(Path(settings.output) / FILENAME)
            result.episodes = len(results.episodes)
            result.successes = sum(episode.success for episode in results.episodes)
        except (Exception, KeyboardInterrupt) as error:
            result.failure = self._not_carried_out(error)
        return result

    def _run_episode(self, goal: ServerGoalHandle) -> Any:
        result = RunEpisode.Result()
        try:
            settings = self._goal_settings(1, goal.request.seed)
            results = self._carry_out(settings, [_Feedback(goal, RunEpisode.Feedback())], self._log)
            result.result = results.episodes[0].model_dump_json()
        except (Exception, KeyboardInterrupt) as error:
            result.failure = self._not_carried_out(error)
        return result

    def _goal_settings(self, episodes: int, seed: int) -> EvalSettings:
        """Return the settings of a goal, whose results get a directory of their own in the output
        directory."""
        self._goals += 1
        name = f'{time.strftime("%Y-%m-%d_%H-%M-%S")}_goal{self._goals}'
        output = Path(self._values['output'] or 'results') / name
        return self._settings(episodes=episodes, seed=seed, output=str(output))

    def _not_carried_out(self, error: BaseException) -> Failure:
        failure = messages.failure_message(error)
        if isinstance(error, KeyboardInterrupt):
            failure.kind, failure.message = 'interrupted', 'cancelled, or the node was told to end'
        self.get_logger().error(f'not carried out: {failure.message}')
        return failure

    def _log(self, text: str) -> None:
        self.get_logger().info(text)


class _Feedback:
    """A `Progress` that publishes a goal's feedback, and ends the run when the goal is cancelled."""

    def __init__(self, goal: ServerGoalHandle, feedback: Any) -> None:
        self._goal, self._feedback = goal, feedback

    def episode_started(self, index: int, seed: int, note: str) -> None:
        self._feedback.step, self._feedback.reward = 0, 0.0
        if hasattr(self._feedback, 'episode'):
            self._feedback.episode = index

    def started(self, sensors: Sensors) -> None:
        self._tell()

    def chunk(self, actions: np.ndarray, action_type: str, stamp_ns: int, latency_ms: float) -> None:
        self._feedback.latency_ms = float(latency_ms)

    def row(self, result: StepResult, sensors: Sensors) -> None:
        self._feedback.step = int(result.info['step'])
        self._feedback.reward += float(result.reward)
        self._tell()

    def episode_ended(self, index: int, result: EpisodeResult) -> None:
        self._tell()

    def _tell(self) -> None:
        self._goal.publish_feedback(self._feedback)
        if self._goal.is_cancel_requested:
            raise KeyboardInterrupt


def _absolute(text: str) -> str:
    """Return a path as absolute, and a name as it is."""
    return str(Path(text).absolute()) if Path(text).is_file() else text


def _failed(message: str, code: int) -> int:
    print(f'openeta eval: {message}', file=sys.stderr)
    return code


def main() -> None:
    """Run the node."""
    runtime.main(EvalNode, signal_code=lambda number: 128 + number)


if __name__ == '__main__':
    main()
