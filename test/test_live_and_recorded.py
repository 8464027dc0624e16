# SPDX-License-Identifier: Apache-2.0
"""What a policy saw live is what its recordings give, byte for byte: its own and the recorder's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from ros_graph import environment, node_process, run_openeta, wait_until

pytest.importorskip('rclpy')

from openeta_ros.cli.main import main as openeta
from openeta_ros.episodes.bag import Bag, decoder
from openeta_ros.episodes.bag_demonstration import convert
from openeta_ros.episodes.record import RESULT_TOPIC
from openeta_ros.episodes.recording import executed_rows, facts, sent_chunks

EMBODIMENT, STEPS, ROWS = 'light_arm', 6, 2
NS_PER_S = 1_000_000_000

POLICY = """
import os
import pathlib
import numpy as np

class Looking:
    action_type = 'qpos'
    calls = 0

    def set_demonstration(self, arrays, info):
        pass

    def reset(self, seed):
        pass

    def act(self, observation):
        np.savez(pathlib.Path(__file__).parent / f'seen_{self.calls}.npz', **observation)
        self.calls += 1
        step = np.zeros(observation['qpos'].shape)
        step[0] = 0.01
        return {'action': observation['qpos'] + step * np.arange(1, 3)[:, None]}
"""


def test_observations_of_a_live_evaluation_are_those_of_its_recordings(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """And the recorded actions lead there again."""
    from openeta_ros.embodiment import load

    policy, output = tmp_path / 'policy', tmp_path / 'out'
    policy.mkdir()
    (policy / 'policy.py').write_text(POLICY)
    (policy / 'policy.yaml').write_text('api: 1\npolicy: policy:Looking\n')
    live = tmp_path / 'live'
    with (
        environment(),
        node_process(
            'recorder', tmp_path / 'log', embodiment=EMBODIMENT, record=str(live), use_sim_time=True
        ) as recorder,
    ):
        wait_until(lambda: live.with_name('live.partial').is_dir(), 60.0)
        arguments = [
            '--env',
            'mujoco',
            '--task',
            'reach',
            '--embodiment',
            EMBODIMENT,
            '--policy',
            str(policy),
        ]
        arguments += ['--demonstration', 'none', '--episodes', '1', '--max-steps', str(STEPS)]
        command = run_openeta(['eval', *arguments, '--output', str(output)], {})
        text, _ = command.communicate(timeout=240.0)
        assert command.returncode == 0, text
        recorder.terminate()
        assert recorder.wait(60.0) == 0, (tmp_path / 'log').read_text()
    embodiment = load(EMBODIMENT)
    seen = [dict(np.load(policy / f'seen_{call}.npz')) for call in range(STEPS // ROWS)]
    assert not (policy / f'seen_{STEPS // ROWS}.npz').exists()
    for name, path in (('evaluation', output / 'episodes/0'), ('recorder', live)):
        with Bag(path) as bag:
            convert(bag, embodiment, tmp_path / name, rate='clock')
            assert executed_rows(bag) == STEPS
            assert [chunk.rows.shape[0] for chunk in sent_chunks(bag)] == [ROWS] * len(seen)
            decoded = decoder()
            executed = [decoded(one).executed for one in bag.messages([RESULT_TOPIC])]
            assert np.array_equal(executed, np.concatenate([chunk.rows for chunk in sent_chunks(bag)]))
            assert facts(bag).contract == embodiment.path.read_text()
            account = facts(bag).account
            assert facts(bag).policy['policy'] == 'policy:Looking'
            assert (facts(bag).env['backend'], facts(bag).env['task']) == ('mujoco', 'reach')
            first, last = bag.span() or (0, 0)
            assert 0 < first < last < 60 * NS_PER_S  # simulated time
        for call, observation in enumerate(seen):
            for stream, array in observation.items():
                recorded = np.load(tmp_path / name / f'{stream}.npy', mmap_mode='r')
                assert len(recorded) == STEPS + 1
                found = np.asarray(recorded[call * ROWS])
                assert found.dtype == array.dtype and np.array_equal(found, array), (name, call, stream)
    assert not any(count for topic in account['topics'].values() for count in topic['lost'].values())
    assert {'/clock', '/camera/front/camera_info'} <= set(account['topics']), json.dumps(account)
    monkeypatch.setenv('MUJOCO_GL', 'egl')
    again = ['replay', str(live), '--mode', 'actuate', '--seed', '0', '--output', str(tmp_path / 'again')]
    assert openeta([*again, '--json']) == 0
    compared = json.loads(capsys.readouterr().out)
    assert compared['rows'] == [STEPS + 1, STEPS + 1] and compared['same'], compared
