# SPDX-License-Identifier: Apache-2.0
"""What an action may do: the whole chunk is checked before any of it becomes a target."""

from __future__ import annotations

import math
import pickle
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from contracts import contract, two_arms, written

from openeta_ros.control import ActionError, ActionPipeline
from openeta_ros.embodiment import Embodiment, Kinematics, load

# An arm with the gripper that closes upwards, as a Robotiq 2F-85 does.
CLOSES_UPWARDS = """\
<robot name="upwards"><link name="base"/><link name="tool"/>
<joint name="lift" type="prismatic"><parent link="base"/><child link="tool"/><axis xyz="0 0 1"/>
<limit lower="0" upper="0.5" effort="1" velocity="1"/></joint></robot>
"""


def pipeline(embodiment: Embodiment) -> ActionPipeline:
    return ActionPipeline(embodiment, Kinematics(embodiment))


@pytest.fixture(scope='module')
def light() -> Embodiment:
    return load('light_arm')


def light_with(folder: Path, limits: dict[str, Any] | None = None, **safety: Any) -> Embodiment:
    data = contract('light_arm')
    data['arms']['arm']['limits'].update(limits or {})
    data['safety'] = safety
    return written(data, folder)


def closes_upwards(folder: Path, **safety: Any) -> Embodiment:
    (folder / 'upwards.urdf').write_text(CLOSES_UPWARDS, encoding='utf-8')
    data = contract('light_arm')
    data['description'] = {'file': 'upwards.urdf'}
    data['arms']['arm'] = {
        'joints': ['lift'],
        'gripper': {'joint': 'finger_joint', 'open': 0.0, 'closed': 0.8, 'mimics': {'right_knuckle': -1.0}},
        'base_frame': 'base',
        'tool_frame': 'tool',
        'home': [0.1, 1],
        'limits': {'velocity': [1]},
    }
    del data['simulation']
    data['safety'] = safety
    return written(data, folder)


def chunk(embodiment: Embodiment, rows: int = 8, step: float = 0.01) -> np.ndarray:
    """Return rows that move the first joint a little each row from home."""
    actions = np.tile(embodiment.home_qpos, (rows, 1))
    actions[:, 0] += step * np.arange(1, rows + 1)
    return actions


def refused(embodiment: Embodiment, actions: Any, action_type: str = 'qpos') -> ActionError:
    with pytest.raises(ActionError) as caught:
        pipeline(embodiment).plan(actions, action_type, embodiment.home_qpos)
    return caught.value


def test_a_chunk_becomes_targets_of_all_commanded_joints(light):
    actions = chunk(light)
    actions[:, -1] = 0.25
    plan = pipeline(light).plan(actions, 'qpos', light.home_qpos)
    assert plan.joints == (*light.wire_joints, 'finger_right')
    assert plan.mimics == {'finger_right'}
    assert len(plan) == 8
    assert np.array_equal(plan.qpos, actions)
    assert np.array_equal(plan.targets[:, :6], actions[:, :6])
    assert plan.targets[:, 6:] == pytest.approx(0.01)
    assert plan.clamped == ((),) * len(plan)


def test_one_row_is_a_chunk_of_one(light):
    one = pipeline(light).plan(light.home_qpos, 'qpos', light.home_qpos)
    assert one.targets.shape == (1, 8)


def test_the_chunk_of_the_caller_is_neither_changed_nor_kept(light):
    actions = chunk(light)
    before = actions.copy()
    plan = pipeline(light).plan(actions, 'qpos', light.home_qpos)
    actions[:] = 0
    assert np.array_equal(plan.qpos, before)


@pytest.mark.parametrize('dtype', [np.float16, np.float32, np.float64, np.longdouble])
def test_every_real_dtype_is_taken(light, dtype):
    plan = pipeline(light).plan(chunk(light).astype(dtype), 'qpos', light.home_qpos)
    assert plan.qpos.dtype == np.float64


def test_lists_integers_and_tensors_are_taken(light):
    torch = pytest.importorskip('torch')
    actions = chunk(light)
    mixed = actions.tolist()
    mixed[0][-1] = 1
    for same in (actions.tolist(), mixed, list(actions), torch.from_numpy(actions)):
        assert np.array_equal(pipeline(light).plan(same, 'qpos', light.home_qpos).qpos, actions)


@pytest.mark.parametrize(
    ('value', 'kind'),
    [
        (math.nan, 'not_finite'),
        (math.inf, 'not_finite'),
        (-math.inf, 'not_finite'),
        (1e300, 'limit'),
        (-1e308, 'limit'),
        ('nan', 'dtype'),
        (True, 'dtype'),
        (None, 'dtype'),
        (1j, 'dtype'),
    ],
)
@pytest.mark.parametrize('action_type', ['qpos', 'ee'])
def test_a_value_that_is_no_sane_number_refuses_the_chunk_by_row_and_joint(light, action_type, value, kind):
    actions = chunk(light).tolist()
    joint = 'elbow'
    if action_type == 'ee':
        pose = Kinematics(light).forward('arm', light.home_qpos[:6])
        actions, joint, kind = [[*pose, 1.0]] * 8, 'arm.z', 'unreachable' if kind == 'limit' else kind
    actions = [list(row) for row in actions]
    actions[3][2] = value
    error = refused(light, actions, action_type)
    assert (error.kind, error.row) == (kind, 3)
    assert 'row 3' in str(error)
    if kind != 'unreachable':
        assert error.joint == joint
        assert joint in str(error)


@pytest.mark.parametrize('value', [math.nan, 1e300])
def test_a_contract_that_clamps_still_refuses_what_is_not_finite(tmp_path, value):
    clamping = light_with(tmp_path, on_limit='clamp')
    actions = chunk(clamping)
    actions[3, 2] = value
    if math.isnan(value):
        assert refused(clamping, actions).kind == 'not_finite'
    else:
        plan = pipeline(clamping).plan(actions, 'qpos', clamping.home_qpos)
        assert np.isfinite(plan.targets).all()
        assert plan.clamped == tuple(('elbow',) if row == 3 else () for row in range(len(plan)))


@pytest.mark.parametrize('dtype', [bool, str, complex, 'datetime64[s]'])
def test_an_array_of_another_kind_is_refused(light, dtype):
    assert refused(light, np.ones((2, 7)).astype(dtype)).kind == 'dtype'


@pytest.mark.parametrize(
    'actions',
    [
        np.zeros(6),
        np.zeros((2, 8)),
        np.zeros((0, 7)),
        np.zeros((1, 2, 7)),
        np.float64(1),
        3.0,
        'text',
        None,
        [],
        {},
        [[0.0] * 7, [0.0] * 6],
        [np.zeros(7), np.zeros((2, 7))],
    ],
)
def test_another_shape_is_refused(light, actions):
    assert refused(light, actions).kind == 'shape'


def test_an_unknown_action_type_is_refused(light):
    error = refused(light, light.home_qpos, 'delta_ee')
    assert error.kind == 'action_type'
    assert 'qpos, ee' in str(error)


def test_a_position_beyond_its_limit_is_told_with_value_limit_unit_and_remedy(light):
    actions = chunk(light)
    actions[2, 2] = 2.8
    error = refused(light, actions)
    assert (error.kind, error.row, error.joint) == ('limit', 2, 'elbow')
    assert str(error) == (
        'row 2: elbow would be 2.8 rad, above its limit 2.75; '
        'send -0.3 to 2.75, or let the contract clamp (safety.on_limit)'
    )


def test_a_limit_rounded_to_float32_is_no_violation():
    panda = load('franka_genesis')
    high = Kinematics(panda).position_limits[0, 1]
    now = panda.home_qpos
    now[0] = high
    assert float(np.float32(high)) > high
    plan = pipeline(panda).plan(now.astype(np.float32), 'qpos', now)
    assert plan.qpos[0, 0] == high
    assert plan.clamped == ((),) * len(plan)


@pytest.mark.parametrize(
    ('openness', 'panda', 'upwards'),
    [(0, 0, 0.8), (0.25, 0.01, 0.6), (1, 0.04, 0), (1.2, None, None), (-0.1, None, None)],
)
def test_one_is_open_and_beyond_is_refused_whichever_way_a_gripper_turns(tmp_path, openness, panda, upwards):
    for embodiment, expected in ((load('franka_genesis'), panda), (closes_upwards(tmp_path), upwards)):
        row = embodiment.home_qpos
        row[-1] = openness
        if expected is None:
            error = refused(embodiment, row)
            assert (error.kind, error.joint) == ('limit', embodiment.wire_joints[-1])
            continue
        plan = pipeline(embodiment).plan(row, 'qpos', embodiment.home_qpos)
        column = plan.joints.index(embodiment.wire_joints[-1])
        assert plan.targets[0, column] == pytest.approx(expected)
        (mimic,) = plan.mimics
        ratio = embodiment.arms['arm'].gripper.mimics[mimic]
        assert plan.targets[0, plan.joints.index(mimic)] == pytest.approx(ratio * expected)


@pytest.mark.parametrize(('openness', 'native'), [(1.2, 0.0), (-0.1, 0.8)])
def test_a_gripper_beyond_its_range_is_clamped_and_named(tmp_path, openness, native):
    embodiment = closes_upwards(tmp_path, on_limit='clamp')
    plan = pipeline(embodiment).plan([[0.1, openness]] * 3, 'qpos', embodiment.home_qpos)
    assert plan.targets[:, 1] == pytest.approx(native)
    assert plan.clamped == (('finger_joint',),) * 3


def test_a_jump_within_a_chunk_and_from_where_the_arm_is_are_refused(light):
    actions = chunk(light)
    actions[4:, 1] += 0.2
    error = refused(light, actions)
    assert (error.kind, error.row, error.joint) == ('step', 4, 'shoulder_pitch')
    assert (
        'would step +0.2 rad from row 3 (0.1 rad), its limit is 0.11 rad a row (2.2 rad/s at 20 Hz)'
        in str(error)
    )
    error = refused(light, actions[4:])
    assert (error.kind, error.row) == ('step', 0)
    assert 'from where the arm is (0.1 rad)' in str(error)


def test_the_fastest_allowed_motion_passes_also_as_float32(light):
    actions = chunk(light, rows=20, step=2.2 / 20)
    for same in (actions, actions.astype(np.float32)):
        assert not any(pipeline(light).plan(same, 'qpos', light.home_qpos).clamped)
    assert refused(light, chunk(light, rows=20, step=2.21 / 20)).kind == 'step'


def test_the_largest_step_of_the_contract_comes_before_the_velocity(tmp_path):
    careful = light_with(tmp_path, max_step_rad=0.05)
    error = refused(careful, chunk(careful, step=0.06))
    assert (error.kind, error.row) == ('step', 0)
    assert '0.05 rad a row (safety.max_step_rad)' in str(error)


def test_a_gripper_may_open_at_once(light):
    row = light.home_qpos
    row[-1] = 0
    assert pipeline(light).plan(row, 'qpos', light.home_qpos).targets[0, 6] == 0


def test_acceleration_is_limited_within_a_chunk_and_across_the_seam(tmp_path):
    soft = light_with(tmp_path, {'acceleration': [8.0] * 6})  # 0.02 rad of change a row
    plans = pipeline(soft)
    home = soft.home_qpos
    error = refused(soft, chunk(soft, step=0.05))
    assert (error.kind, error.row, error.joint) == ('step', 0, 'shoulder_yaw')
    assert 'accelerate by +20 rad/s^2, its limit is 8 rad/s^2' in str(error)
    gentle = np.tile(home, (3, 1))
    gentle[:, 0] += [0.02, 0.06, 0.12]
    first = plans.plan(gentle, 'qpos', home)
    onward = first.qpos[-1].copy()
    onward[0] += 0.06
    seam = plans.plan(onward, 'qpos', first.qpos[-1], first.qpos[-2])
    assert len(seam) == 1
    with pytest.raises(ActionError, match='accelerate'):  # from rest the same row is a jerk
        plans.plan(onward, 'qpos', first.qpos[-1])
    with pytest.raises(ActionError, match=r'accelerate by -24 rad/s\^2'):  # and so is stopping at once
        plans.plan(first.qpos[-1], 'qpos', first.qpos[-1], first.qpos[-2])


def test_clamping_follows_at_the_limits_and_names_the_joints_of_each_row(tmp_path):
    clamping = light_with(tmp_path, on_limit='clamp')
    actions = chunk(clamping, rows=6, step=0.0)
    actions[2:, 1] += 0.3
    actions[5, 2] = 2.8
    plan = pipeline(clamping).plan(actions, 'qpos', clamping.home_qpos)
    assert plan.qpos[:, 1] == pytest.approx([0.1, 0.1, 0.21, 0.32, 0.4, 0.4])
    assert plan.qpos[5, 2] == pytest.approx(1.7 + 0.11)
    assert plan.clamped == ((), (), ('shoulder_pitch',), ('shoulder_pitch',), (), ('elbow',))


def test_clamped_rows_keep_every_limit(tmp_path):
    clamping = light_with(tmp_path, {'acceleration': [8.0] * 6}, on_limit='clamp')
    home = clamping.home_qpos
    wild = home + np.random.default_rng(3).normal(0, 0.3, size=(50, 7))
    plan = pipeline(clamping).plan(wild, 'qpos', home)
    steps = np.diff(plan.qpos[:, :6], axis=0, prepend=home[None, :6])
    assert np.abs(steps).max() <= 2.6 / 20 + 1e-9
    assert np.abs(np.diff(steps, axis=0, prepend=0)).max() <= 8 / 400 + 1e-9
    again = pipeline(clamping).plan(plan.qpos, 'qpos', home)
    assert again.clamped == ((),) * len(again)


@pytest.mark.parametrize('name', ['franka_genesis', 'light_arm'])
def test_ee_rows_bring_the_tool_point_where_they_say(name):
    embodiment = load(name)
    kinematics = Kinematics(embodiment)
    home = embodiment.home_qpos
    rows = np.tile([*kinematics.forward('arm', home[:-1]), 0.5], (10, 1))
    rows[:, 2] -= 0.02 * np.arange(1, 11)
    rows[:, 3:7] *= np.linspace(-2, -0.5, 10)[:, None]  # neither length nor sign matters
    plan = ActionPipeline(embodiment, kinematics).plan(rows, 'ee', home)
    assert plan.qpos[:, -1] == pytest.approx(0.5)
    for row, wire in zip(rows, plan.qpos, strict=True):
        assert kinematics.forward('arm', wire[:-1])[:3] == pytest.approx(row[:3], abs=1e-6)


def test_an_ee_row_out_of_reach_or_without_rotation_refuses_the_chunk(light):
    pose = [*Kinematics(light).forward('arm', light.home_qpos[:-1]), 1.0]
    rows = np.tile(pose, (4, 1))
    rows[2, 0] = 1.5
    error = refused(light, rows, 'ee')
    assert (error.kind, error.row) == ('unreachable', 2)
    rows[1, 3:7] = 1e-9
    error = refused(light, rows, 'ee')
    assert (error.kind, error.row, error.joint) == ('quaternion', 1, 'arm.qw')


def test_an_ee_jump_is_refused_as_a_step(light):
    row = np.array([*Kinematics(light).forward('arm', light.home_qpos[:-1]), 1.0])
    row[1] += 0.2
    assert refused(light, row, 'ee').kind == 'step'


def test_tool_points_stay_in_the_workspace(tmp_path):
    box = {'min': [0.2, -0.3, 0.1], 'max': [0.6, 0.3, 0.5]}
    boxed = light_with(tmp_path, workspace=box)
    kinematics = Kinematics(boxed)
    home = boxed.home_qpos
    rows = np.tile([*kinematics.forward('arm', home[:-1]), 1.0], (20, 1))
    rows[:, 2] -= 0.02 * np.arange(1, 21)
    error = refused(boxed, rows, 'ee')
    assert (error.kind, error.row, error.joint) == ('workspace', 11, 'arm.z')
    assert '0.1 to 0.5 m' in str(error)
    free = pipeline(load('light_arm')).plan(rows, 'ee', home)
    error = refused(boxed, free.qpos)
    assert (error.kind, error.row) == ('workspace', 11)
    clamping = light_with(tmp_path, workspace=box, on_limit='clamp')
    plan = pipeline(clamping).plan(rows, 'ee', home)
    assert kinematics.forward('arm', plan.qpos[-1, :-1])[2] == pytest.approx(0.1, abs=1e-6)
    assert plan.clamped == ((),) * 11 + (('arm.workspace',),) * 9
    assert refused(clamping, free.qpos).kind == 'workspace'


def test_two_arms_are_checked_and_solved_each_by_its_own(tmp_path):
    pair = two_arms(tmp_path)
    kinematics = Kinematics(pair)
    plans = ActionPipeline(pair, kinematics)
    home = pair.home_qpos
    rows = np.tile(home, (3, 1))
    rows[:, 7] += [0.05, 0.1, 0.15]
    rows[:, 13] = 0.5
    plan = plans.plan(rows, 'qpos', home)
    assert plan.joints[6:8] == ('left_finger_left', 'left_finger_right')
    assert plan.targets[-1, plan.joints.index('right_shoulder_yaw')] == pytest.approx(0.15)
    assert plan.targets[-1, -2:] == pytest.approx(0.02)
    assert plan.targets[-1, 6:8] == pytest.approx(0.04)
    poses = [
        [*kinematics.forward('left', row[:6]), row[6], *kinematics.forward('right', row[7:13]), row[13]]
        for row in rows
    ]
    solved = plans.plan(poses, 'ee', home)
    assert solved.qpos == pytest.approx(rows, abs=1e-6)
    rows[1, 12] = 3.5
    assert refused(pair, rows).joint == 'right_wrist_yaw'


@pytest.mark.parametrize('now', [np.zeros(6), np.full(7, np.nan)])
def test_where_the_arm_is_must_be_known(light, now):
    with pytest.raises(ValueError, match='qpos_now must be 7 finite numbers'):
        pipeline(light).plan(light.home_qpos, 'qpos', now)


def test_an_error_survives_the_way_to_another_process():
    error = ActionError('limit', 'row 1: too far', row=1, joint='elbow')
    copy = pickle.loads(pickle.dumps(error))
    assert (copy.kind, str(copy), copy.row, copy.joint) == ('limit', 'row 1: too far', 1, 'elbow')


def test_a_long_chunk_is_planned_in_as_few_calls_as_a_short_one():
    """A control loop waits for it: its rows are checked together, not one by one."""
    panda = load('franka_genesis')
    plans, home = pipeline(panda), panda.home_qpos

    def calls(rows: int) -> int:
        actions, count = chunk(panda, rows=rows, step=0.001), 0

        def note(frame: Any, event: str, argument: Any) -> None:
            nonlocal count
            count += event in ('call', 'c_call')

        sys.setprofile(note)
        try:
            plans.plan(actions, 'qpos', home)
        finally:
            sys.setprofile(None)
        return count

    assert calls(500) <= 1.1 * calls(50) < 1000
