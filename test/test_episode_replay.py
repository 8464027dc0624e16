# SPDX-License-Identifier: Apache-2.0
"""A recorded episode again: what a policy would have done, and the same actions once more."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts import QUICK_ARM
from point_env import MAX_STEPS, PointEnv, ReplayPolicy
from recorded import recorded
from streams import CONTRACT, bag, recording
from streams import contract as contract_of

from openeta_ros.cli.main import main
from openeta_ros.embodiment import load
from openeta_ros.episodes import record_demonstration, run_episode
from openeta_ros.episodes.actuate import RecordedPolicy, _compared, actuate, write_policy
from openeta_ros.episodes.bag import Bag
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.open_loop import open_loop
from openeta_ros.episodes.policy import LocalPolicy
from openeta_ros.episodes.recording import embodiment_of, sent_chunks
from openeta_ros.observation import Observation
from openeta_ros.vector_policy.process import open_policy


@pytest.fixture(scope='module')
def episode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp('replay') / 'out') / 'episodes/0'


class Constant:
    """Answers `rows` rows of what it is told to."""

    def __init__(self, action_type: str, row: list[float], rows: int) -> None:
        self.action_type: Any = action_type
        self.answer = np.tile(np.array(row), (rows, 1))
        self.seen: list[Observation] = []

    def reset(self, seed: int) -> None:
        self.seen.clear()

    def set_demonstration(self, demonstration: Any) -> None: ...

    def act(self, observation: Observation) -> np.ndarray:
        self.seen.append(observation)
        return self.answer

    def descriptor(self) -> Mapping[str, Any]:
        return {'policy': 'test:Constant', 'action_type': self.action_type}


def robot(folder: Path) -> Any:
    path = folder / 'robot.yaml'
    path.write_text(CONTRACT)
    return load(path)


def test_the_same_policy_answers_what_was_recorded(episode: Path) -> None:
    policy, shown = ReplayPolicy(), record_demonstration(PointEnv(), 0)
    with Bag(episode) as opened:
        found = open_loop(
            opened,
            load('light_arm'),
            policy,
            policy_seed=3,
            demonstration=shown,
        )
    assert policy.seeds == [3]
    assert (found.calls, found.rows, len(found.by_step)) == (3, 8, 3)
    assert max(column.largest for column in found.columns) < 1e-12
    assert found.columns[-1].name == 'finger_left' and found.columns[-1].agreement == 1.0
    assert found.latency_ms is not None and found.latency_ms.count == 3


def test_differences_are_by_joint_and_by_row_of_the_answer(tmp_path: Path) -> None:
    bag(tmp_path / 'bag', recording(7))  # elbow k / 100, so that 0.01 ... 0.06 were commanded; gripper open
    policy = Constant('qpos', [0.0, 0.0, 0.2], rows=3)
    with Bag(tmp_path / 'bag') as opened:
        found = open_loop(opened, robot(tmp_path), policy, policy_seed=0)
    assert [seen['qpos'][1] for seen in policy.seen] == pytest.approx([0.0, 0.03])
    by_name = {column.name: column for column in found.columns}
    assert by_name['elbow'].mean == pytest.approx(0.035) and by_name['elbow'].largest == pytest.approx(0.06)
    assert by_name['shoulder'].largest == 0 and by_name['shoulder'].agreement is None
    assert by_name['finger'].mean == pytest.approx(0.8) and by_name['finger'].agreement == 0.0
    expected = np.array([[0.01, 0.02, 0.03], [0.04, 0.05, 0.06]]).mean(axis=0) / 2
    assert found.by_step == pytest.approx(expected)


def test_every_row_is_asked_for_when_wanted_and_overlapping_answers_all_count(tmp_path: Path) -> None:
    bag(tmp_path / 'bag', recording(7))
    policy = Constant('qpos', [0.0, 0.0, 1.0], rows=3)
    with Bag(tmp_path / 'bag') as opened:
        found = open_loop(opened, robot(tmp_path), policy, policy_seed=0, every=1)
    assert (found.calls, found.rows) == (6, 6 + 5 + 4)
    assert found.by_step == pytest.approx([0.035 / 2, 0.04 / 2, 0.045 / 2])


def test_poses_are_compared_with_those_that_were_reached(episode: Path) -> None:
    with Bag(episode) as opened:
        found = open_loop(opened, load('light_arm'), Constant('ee', [0.0] * 8, 1), policy_seed=0)
    assert found.reference == 'the poses that were reached' and found.rows == 7
    assert [column.name for column in found.columns][:2] == ['arm.x', 'arm.y']


def test_a_policy_of_another_robot_is_refused(episode: Path) -> None:
    with Bag(episode) as opened, pytest.raises(BagError, match=r'light_arm is \(H, 7\)'):
        open_loop(opened, load('light_arm'), Constant('qpos', [0.0] * 6, 1), policy_seed=0)


def test_the_same_actions_in_the_same_scene_see_the_same(episode: Path, tmp_path: Path) -> None:
    with Bag(episode) as opened:
        robot = embodiment_of(opened, None, tmp_path)
        policy = RecordedPolicy(opened, robot)
        assert (policy.rows, policy.max_steps) == (8, 8)
        again = actuate(opened, robot, PointEnv(), policy, 0, tmp_path / 'new', env_embodiment=robot)
    assert again.same and again.rows == (9, 9)
    assert {one.name: one.largest for one in again.differences} == {
        'qpos': 0, 'endpose': 0, 'frames_front': 0, 'frames_top': 0
    }  # fmt: skip
    assert (tmp_path / 'new/episodes/0/front.mp4').is_file()
    assert list(again.lines())[-1] == 'both runs are the same, bit for bit'


def test_rows_that_were_not_executed_are_not_executed_again(tmp_path: Path) -> None:
    out = recorded(tmp_path / 'out', execution_horizon=2, max_steps=MAX_STEPS)
    with Bag(out / 'episodes/0') as opened:
        assert {(len(chunk.rows), chunk.horizon) for chunk in sent_chunks(opened)} >= {(3, 2)}
        robot = embodiment_of(opened, None, tmp_path)
        policy = RecordedPolicy(opened, robot)
        again = actuate(opened, robot, PointEnv(), policy, 0, tmp_path / 'new', env_embodiment=robot)
    assert again.same


def test_another_scene_differs_and_that_is_told(episode: Path, tmp_path: Path) -> None:
    with Bag(episode) as opened:
        robot = embodiment_of(opened, None, tmp_path)
        policy = RecordedPolicy(opened, robot)
        again = actuate(opened, robot, PointEnv(), policy, 1, tmp_path / 'new', env_embodiment=robot)
    assert not again.same
    pictures = {one.name: one.largest for one in again.differences}
    assert pictures['frames_front'] == 255
    # the goal is elsewhere: the rows end before it is reached
    assert any(text.startswith('success: True then, False now') for text in again.outcome_differs())


def test_rows_of_others_are_executed_one_at_a_time(tmp_path: Path) -> None:
    bag(tmp_path / 'bag', recording(4))
    with Bag(tmp_path / 'bag') as opened:
        policy = RecordedPolicy(opened, robot(tmp_path))
    assert policy.rows == 3
    rows = [policy.act(Observation({}, 0)) for _ in range(3)]
    assert [row.shape for row in rows] == [(1, 3)] * 3
    assert [row[0, 1] for row in rows] == pytest.approx([0.01, 0.02, 0.03])


def test_a_refused_chunk_is_sent_again_and_refused_again(tmp_path: Path) -> None:
    out = recorded(tmp_path / 'out', policy=ReplayPolicy(poison=np.nan), max_steps=MAX_STEPS)
    with Bag(out / 'episodes/0') as opened:
        robot = embodiment_of(opened, None, tmp_path)
        policy = RecordedPolicy(opened, robot)
        again = actuate(opened, robot, PointEnv(), policy, 0, tmp_path / 'new', env_embodiment=robot)
    assert again.again.error is not None and again.again.error.kind == 'not_finite'
    assert again.outcome_differs() == []


def test_the_command_replays_in_a_simulator_bit_for_bit(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip('mujoco')
    out = tmp_path / 'out'
    arm = ('--env', 'mujoco', '--embodiment', QUICK_ARM, '--task', 'reach')
    assert main(['eval', '--transport', 'local', *arm, '--episodes', '1', '--output', str(out)]) == 0
    capsys.readouterr()
    arguments = ['replay', str(out / 'episodes/0'), '--mode']
    assert main([*arguments, 'actuate', '--output', str(tmp_path / 'again'), '--json']) == 0
    again = json.loads(capsys.readouterr().out)
    assert again['same'] and again == json.loads((tmp_path / 'again/comparison.json').read_text())
    assert main([*arguments, 'open-loop', '--policy', 'examples/replay_policy', '--json']) == 0
    compared = json.loads(capsys.readouterr().out)
    assert max(column['largest'] for column in compared['columns']) < 1e-9
    assert main([*arguments, 'open-loop']) == 2
    assert main([*arguments, 'actuate', '--task', 'fly']) == 2
    assert main([*arguments, 'open-loop', '--policy', 'examples/zero_policy', '--every', '0']) == 2


@pytest.mark.parametrize(
    ('arguments', 'words'),
    [
        (('open-loop', '--rate', '3'), '--rate is of --mode stream, and does nothing in open-loop'),
        (('open-loop', '--output', 'here'), '--output is of --mode actuate'),
        (('actuate', '--policy', 'examples/zero_policy'), '--policy is of --mode open-loop'),
        (('stream', '--json'), '--json is of --mode open-loop and actuate'),
        (('stream', '--to', '3', '--recover'), '--recover is of --mode'),
        (('stream', '--clock-hz', '-1'), '--clock-hz must be between 0 and 10000'),
        (('actuate', '--hardware', 'mock', '--env', 'mujoco', '--task', 'reach'), "env 'mujoco' has none"),
        (('open-loop', '--policy', 'examples/zero_policy', '--policy-timeout', 'nan'), "'nan' is not"),
    ],
)
def test_options_that_would_do_nothing_are_refused(
    episode: Path, capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], words: str
) -> None:
    try:
        code: Any = main(['replay', str(episode), '--mode', *arguments])
    except SystemExit as error:
        code = error.code
    assert code == 2 and words in capsys.readouterr().err


def test_recorded_actions_are_a_policy_in_a_process_of_its_own_too(episode: Path, tmp_path: Path) -> None:
    """As they go to an arm, whose policy is on the graph."""
    robot = load('light_arm')
    with Bag(episode) as opened:
        write_policy(RecordedPolicy(opened, robot), tmp_path / 'policy')
    with open_policy(tmp_path / 'policy', timeout_s=300.0, log_file=tmp_path / 'log') as remote:
        result = run_episode(PointEnv(), LocalPolicy(remote, robot), 0)
        assert (result.success, result.steps) == (True, 8)
    foreign = bag(tmp_path / 'bag', recording(45))
    with Bag(foreign) as opened:
        write_policy(RecordedPolicy(opened, contract_of(tmp_path)), tmp_path / 'joined')
    joined = [np.load(file) for file in sorted((tmp_path / 'joined').glob('*.npy'))]
    assert [len(chunk) for chunk in joined] == [20, 20, 4]
    assert np.allclose(np.concatenate(joined)[:, 1], np.arange(1, 45) / 100)


def test_moments_are_compared_at_the_same_time_when_one_is_missing(tmp_path: Path) -> None:
    times = np.arange(6) / 20
    for name, kept in (('then', [0, 1, 2, 3, 4, 5]), ('now', [0, 1, 3, 4, 5])):
        (tmp_path / name).mkdir()
        np.save(tmp_path / name / 'times.npy', times[kept])
        np.save(tmp_path / name / 'qpos.npy', np.array(kept, dtype=float)[:, None] + (name == 'now') * 0.25)
    counts, (difference,), _ = _compared(tmp_path / 'then', tmp_path / 'now', 20.0)
    assert counts == (6, 5) and (difference.largest, difference.last) == (0.25, 0.25)
