# SPDX-License-Identifier: Apache-2.0
"""The env node: the facade over services and topics, bit for bit; nothing moves unless it is ACTIVE."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from contracts import QUICK_ARM, contract, small_pictures, written
from lifecycle_msgs.msg import State, Transition
from rclpy.node import Node
from ros_graph import environment, node_process, spinning, wait_until

from openeta_msgs.action import StepChunk
from openeta_ros.control import ActionError
from openeta_ros.embodiment import load
from openeta_ros.envs import EnvError, EnvFacade, EnvSpec, Sensors, StepResult
from openeta_ros.nodes import messages
from openeta_ros.nodes.peer import bring_up
from openeta_ros.nodes.remote import GraphEnv, PatientActionClient
from openeta_ros.nodes.runtime import Process
from openeta_ros.nodes.subscription import on_executor

# As many rows as no test executes: a busy machine may take its time to cancel.
MAX_STEPS = 100_000
PARAMETERS = {'env': 'mujoco', 'task': 'reach', 'embodiment': QUICK_ARM, 'max_steps': MAX_STEPS}
SEED = 3
# Rows that are not done before they are cancelled.
ROWS = 20_000
# Longer than a busy machine takes for a row; and longer than any test lives.
ROW_S, NEVER_S = 60.0, 3600.0


@pytest.fixture(scope='module')
def graph(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Node, Process, GraphEnv]]:
    """A node of ours, and an env node that was never configured."""
    log = tmp_path_factory.mktemp('env') / 'env.log'
    with environment(), node_process('env', log, **PARAMETERS), spinning('tester') as (node, process):
        env = GraphEnv(node, process, 'env', load(QUICK_ARM), row_timeout_s=ROW_S)
        env.wait_until_found(time.monotonic() + 120.0)
        yield node, process, env


@pytest.fixture
def env(graph: tuple[Node, Process, GraphEnv]) -> GraphEnv:
    """The env node, active."""
    bring_up([graph[2].peer], 120.0, print)
    return graph[2]


def test_nothing_moves_before_it_is_active(graph: tuple[Node, Process, GraphEnv]) -> None:
    env = graph[2]
    assert env.peer.state() == State.PRIMARY_STATE_UNCONFIGURED
    with pytest.raises(EnvError, match='only while ACTIVE') as refused:
        env.reset(SEED)
    assert refused.value.kind == 'state'


def test_a_transition_that_does_not_lead_out_of_its_state_is_refused_and_the_node_lives(
    env: GraphEnv,
) -> None:
    for transition in (Transition.TRANSITION_CONFIGURE, Transition.TRANSITION_CLEANUP, 200):
        assert not env.peer.wait(env.peer.begin_transition(transition), 60.0, 'the transition').success
    assert env.peer.state() == State.PRIMARY_STATE_ACTIVE
    env.reset(SEED)


def test_the_graph_gives_the_arrays_of_the_facade(env: GraphEnv) -> None:
    spec = EnvSpec(backend='mujoco', task='reach', embodiment=load(QUICK_ARM), max_steps=MAX_STEPS)
    told: list[tuple[StepResult, Sensors]] = []
    with EnvFacade.from_spec(spec) as local:
        assert env.descriptor() == local.descriptor()
        for seed in (SEED, SEED + 1):  # twice: nothing of an episode is left in the next
            first, mine = env.reset(seed), local.reset(seed)
            assert first.keys() == mine.keys()
            assert all(np.array_equal(first[name], mine[name]) for name in mine)
            rows = env.expert()
            np.testing.assert_array_equal(rows, local.expert())
            told.clear()
            results = env.chunk_step(rows, 'qpos', lambda result, sensors: told.append((result, sensors)))
            expected = local.chunk_step(rows, 'qpos')
            assert len(results) == len(expected) == len(told)
            for got, want in zip(results, expected, strict=True):
                assert (got.reward, got.terminated, got.truncated) == (
                    want.reward,
                    want.terminated,
                    want.truncated,
                )
                assert got.info == want.info
                assert all(np.array_equal(got.observation[name], want.observation[name]) for name in first)
            sensors = told[-1][1]
            assert sensors.positions == local.sensors.positions
            assert sensors.velocities == local.sensors.velocities
            assert results[-1].terminated


def test_a_refused_chunk_comes_back_as_the_action_error_and_nothing_moved(env: GraphEnv) -> None:
    before = env.reset(SEED)
    rows = np.repeat(before['qpos'][None], 3, axis=0)
    rows[1, 0] = np.nan
    with pytest.raises(ActionError) as refused:
        env.chunk_step(rows, 'qpos')
    assert (refused.value.kind, refused.value.row) == ('not_finite', 1)
    result = env.chunk_step(before['qpos'][None], 'qpos')[0]
    assert result.info['step'] == 1


def test_the_episode_is_over_when_it_is_over(env: GraphEnv) -> None:
    env.reset(SEED)
    rows = env.expert()
    env.chunk_step(rows, 'qpos')
    with pytest.raises(EnvError) as over:
        env.chunk_step(rows[-1:], 'qpos')
    assert over.value.kind == 'done'


def test_step_chunk_reports_rows_and_ends_when_cancelled(
    graph: tuple[Node, Process, GraphEnv], env: GraphEnv
) -> None:
    node = graph[0]
    before = env.reset(SEED)
    client = PatientActionClient(node, StepChunk, 'env/step_chunk')
    wait_until(client.server_is_ready)
    rows = np.repeat(before['qpos'][None], ROWS, axis=0)
    goal = StepChunk.Goal(chunk=messages.chunk_message(rows, 'qpos', embodiment='light_arm'))
    reported: list[int] = []
    enough = threading.Event()

    def on_feedback(message: object) -> None:
        reported.append(message.feedback.result.step)  # type: ignore[attr-defined]
        if len(reported) == 3:
            enough.set()

    handle = env.peer.wait(client.send_goal_async(goal, on_feedback), 60.0, 'goal')
    assert enough.wait(60.0)
    env.peer.wait(handle.cancel_goal_async(), 60.0, 'cancel')
    answer = env.peer.wait(handle.get_result_async(), 60.0, 'result')
    steps = [row.step for row in answer.result.results]
    assert steps == list(range(1, len(steps) + 1)) and 3 <= len(steps) < ROWS
    assert not answer.result.failure.kind
    # The rows that were executed for someone else must have come, or they would be taken for this chunk's.
    wait_until(lambda: env._rows and env._rows[-1].step == len(steps))
    assert env.chunk_step(before['qpos'][None], 'qpos')[0].info['step'] == len(steps) + 1
    on_executor(node, client.destroy)


def test_deactivated_it_refuses_and_activated_it_goes_on(env: GraphEnv) -> None:
    before = env.reset(SEED)
    future = env.peer.begin_transition(Transition.TRANSITION_DEACTIVATE)
    assert env.peer.wait(future, 60.0, 'deactivate').success
    with pytest.raises(EnvError, match='only while ACTIVE'):
        env.chunk_step(before['qpos'][None], 'qpos')
    bring_up([env.peer], 120.0, print)
    assert env.chunk_step(before['qpos'][None], 'qpos')[0].info['step'] == 1


def test_why_it_cannot_be_configured_is_told(tmp_path: Path) -> None:
    wrong = {**PARAMETERS, 'task': 'fold_laundry'}
    with environment(), node_process('env', tmp_path / 'log', **wrong), spinning('tester') as (node, process):
        env = GraphEnv(node, process, 'env', load(QUICK_ARM), row_timeout_s=ROW_S)
        env.wait_until_found(time.monotonic() + 120.0)
        with pytest.raises(EnvError, match='fold_laundry') as wrong_task:
            bring_up([env.peer], 120.0, print)
        assert wrong_task.value.kind == 'task'


def test_a_killed_env_is_noticed(tmp_path: Path) -> None:
    with (
        environment(),
        node_process('env', tmp_path / 'log', **PARAMETERS) as killed,
        spinning('tester') as (node, process),
    ):
        # Without word of its end, a row would be waited for until the test is ended.
        env = GraphEnv(node, process, 'env', load(QUICK_ARM), row_timeout_s=NEVER_S)
        env.wait_until_found(time.monotonic() + 120.0)
        bring_up([env.peer], 120.0, print)
        before = env.reset(SEED)
        seen: list[StepResult] = []

        def kill(result: StepResult, sensors: Sensors) -> None:
            seen.append(result)
            if len(seen) == 3:
                killed.kill()

        with pytest.raises(EnvError, match='/env is gone') as gone:
            while True:
                env.chunk_step(np.repeat(before['qpos'][None], 20, axis=0), 'qpos', kill)
        assert gone.value.kind == 'gone' and len(seen) >= 3


def test_a_camera_that_never_comes_is_named(tmp_path: Path) -> None:
    data = contract('light_arm')
    data['cameras']['wrist'] = {'topic': 'camera/wrist/image_raw', 'transport': 'raw'}
    data = small_pictures(data)
    with (
        environment(),
        node_process('env', tmp_path / 'log', **PARAMETERS),
        spinning('tester') as (node, process),
    ):
        env = GraphEnv(node, process, 'env', written(data, tmp_path), row_timeout_s=1.0)
        env.wait_until_found(time.monotonic() + 120.0)
        bring_up([env.peer], 120.0, print)

        def refusal() -> str:
            with pytest.raises(EnvError) as missing:
                env.reset(SEED)
            assert missing.value.kind == 'stream'
            return str(missing.value)

        wanted = 'camera wrist (topic camera/wrist/image_raw): nobody publishes /camera/wrist/image_raw'
        wait_until(lambda: wanted in (told := refusal()) and '/camera/front/image_raw' in told)
