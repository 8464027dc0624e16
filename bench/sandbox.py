# SPDX-License-Identifier: Apache-2.0
"""What the sandbox adds to a call: the same calls from a snippet in its process, and directly.

The env is trivial, so that the numbers are the sandbox's own: a row that only remembers its target, with two
pictures of 240 x 320 in every answer. Beside it the start of a snippet's process, and the same call without
pictures.

    python bench/sandbox.py [--calls 300] [--rounds 5]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from openeta_ros.code_policy import (
    Budgets,
    CodePolicyApi,
    CodePolicyExecutionRequest,
    CodePolicySandbox,
    SandboxConfig,
)
from openeta_ros.code_policy.meter import Meter
from openeta_ros.code_policy.trace import Trace
from openeta_ros.embodiment import load
from openeta_ros.envs import Sensors, StepResult
from openeta_ros.observation import Observation

SNIPPET = """
import time
took = {'observe': [], 'step': [], 'log': []}
qpos = np.array(api.observe()['qpos'])
for i in range(policy_context['calls']):
    for name, argument in (('observe', ()), ('step', (qpos,)), ('log', ('',))):
        begin = time.perf_counter()
        getattr(api, name)(*argument)
        took[name].append(time.perf_counter() - begin)
RESULT = {name: np.array(values) for name, values in took.items()}
"""


class StillEnv:
    """The arm is where it was told to be, and the pictures never change."""

    def __init__(self) -> None:
        self.embodiment = load('franka_genesis')
        self._pictures = {name: np.zeros((240, 320, 3), np.uint8) for name in self.embodiment.cameras}
        self._step = 0

    @property
    def sensors(self) -> Sensors:
        return Sensors(0, self._pictures, {}, {})

    def reset(self, seed: int) -> Observation:
        self._step = 0
        return self._seen(np.array(self.embodiment.home_qpos))

    def chunk_step(self, actions: Any, action_type: Any, on_row: Any = None) -> list[StepResult]:
        results = []
        for row in actions:
            self._step += 1
            info = {'success': False, 'step': self._step, 'clamped': ()}
            results.append(StepResult(self._seen(row), 0.0, False, False, info))
            if on_row is not None:
                on_row(results[-1], self.sensors)
        return results

    def expert(self) -> Any:
        raise NotImplementedError

    def descriptor(self) -> dict[str, Any]:
        return {'backend': 'still', 'task': 'none'}

    def _seen(self, qpos: Any) -> Observation:
        frames = {f'frames_{name}': picture for name, picture in self._pictures.items()}
        return Observation({**frames, 'qpos': qpos, 'endpose': np.zeros(8)}, 0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument('--calls', type=int, default=300, help='of each kind, in each round')
    parser.add_argument('--rounds', type=int, default=5)
    args = parser.parse_args()
    env = StillEnv()
    api = CodePolicyApi(env, env.embodiment)
    qpos = api.reset(0)['qpos']
    calls = {'observe': [], 'step': [qpos], 'log': ['']}
    facade = median(timed(lambda: env.chunk_step(qpos[None], 'qpos'), args.calls))
    print(f'{"":28}{"observe":>12}{"step":>12}{"log":>12}   medians of {args.rounds} rounds, ms')
    print(f'{"env itself":28}{"":>12}{facade:12.3f}')
    for isolation in ('process', 'bubblewrap'):
        sandbox = CodePolicySandbox(SandboxConfig(isolation=isolation))  # type: ignore[arg-type]
        if isolation == 'bubblewrap' and not sandbox.descriptor()['bubblewrap']:
            print('bubblewrap is not there')
            continue
        budgets = Budgets(calls=10 * args.calls + 10, rows=10 * args.calls + 10)
        context = {'calls': args.calls}
        request = CodePolicyExecutionRequest(SNIPPET, context, api=api, seed=0, budgets=budgets)
        direct, inside = [], []
        for _ in range(args.rounds):  # by turns: whatever else the machine does is in both
            api.begin(Trace(), Meter(budgets))
            direct.append({name: median(timed(partial(api.call, name, given, {}), args.calls))
                           for name, given in calls.items()})  # fmt: skip
            result = sandbox.execute(request)
            assert result.status == 'executed', result.content
            inside.append({name: median(took['values']) for name, took in result.details['result'].items()})
        added = [
            {name: one[name] - other[name] for name in calls}
            for one, other in zip(inside, direct, strict=True)
        ]
        for title, rounds in (
            ('api, no sandbox', direct),
            (f'snippet, {isolation}', inside),
            ('  added', added),
        ):
            told = (statistics.median(one[name] for one in rounds) for name in calls)
            print(f'{title:28}' + ''.join(f'{number:12.3f}' for number in told))
        empty = CodePolicyExecutionRequest('pass', api=api)
        print(f'{"  a whole run of `pass`":28}{median(timed(partial(sandbox.execute, empty), 10)):12.1f}')


def timed(call: Callable[[], Any], count: int) -> list[float]:
    """Return the seconds of each of `count` calls."""
    took = []
    for _ in range(count):
        begin = time.perf_counter()
        call()
        took.append(time.perf_counter() - begin)
    return took


def median(values: list[float]) -> float:
    """Return the median in milliseconds."""
    return statistics.median(values) * 1e3


if __name__ == '__main__':
    main()
