# SPDX-License-Identifier: Apache-2.0
"""The replay node: a recording on a live graph, in its time, and what the graph makes of it."""

from __future__ import annotations

import fcntl
import os
import pty
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from recorded import recorded
from ros_graph import environment, node_process, run_openeta, spinning, wait_until
from streams import bag, header, make, recording

from openeta_ros.episodes.demonstration import load

pytest.importorskip('rclpy')

from rclpy.action import ActionClient
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import Image, JointState
from std_srvs.srv import SetBool, Trigger

from openeta_msgs.action import Replay
from openeta_msgs.msg import ActionChunk, Observation, StepResult
from openeta_ros.cli.main import main as openeta
from openeta_ros.nodes.messages import arrays_of, time_ns

EVERYTHING = QoSProfile(depth=500, reliability=ReliabilityPolicy.RELIABLE)
ANY = QoSProfile(depth=500, reliability=ReliabilityPolicy.BEST_EFFORT)


@pytest.fixture(scope='module')
def episode(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recorded(tmp_path_factory.mktemp('replay') / 'out') / 'episodes/0'


@pytest.fixture(scope='module')
def reliable(episode: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same as if all its streams had been offered reliably: a busy machine loses none of its messages."""
    folder = tmp_path_factory.mktemp('reliable') / '0'
    shutil.copytree(episode, folder)
    metadata = folder / 'bag/metadata.yaml'
    metadata.write_text(metadata.read_text().replace('reliability: best_effort', 'reliability: reliable'))
    return folder


class Listener:
    """Keeps what comes on some topics, with the time of its coming."""

    def __init__(self, node: Any, **topics: tuple[Any, str]) -> None:
        self.came: dict[str, list[tuple[float, Any]]] = {name: [] for name in topics}
        for name, (kind, topic) in topics.items():

            def keep(message: Any, name: str = name) -> None:
                self.came[name].append((time.monotonic(), message))

            wanted = EVERYTHING if (kind, topic) in TOPICS.values() and kind is not Clock else ANY
            node.create_subscription(kind, topic, keep, wanted)

    def count(self, name: str) -> int:
        return len(self.came[name])


TOPICS = {
    'front': (Image, '/camera/front/image_raw'),
    'joints': (JointState, '/joint_states'),
    'chunks': (ActionChunk, '/policy/action_chunk'),
    'rows': (StepResult, '/env/step_result'),
    'clock': (Clock, '/clock'),
}


# So that none of it is played before the listener is found, which may take seconds.
HEARD = ' '.join(topic for _, topic in TOPICS.values())


@pytest.fixture
def graph() -> Iterator[Any]:
    with environment(), spinning('listener') as (node, _):
        yield node


def test_it_plays_everything_in_its_time_with_a_clock_and_ends(
    graph: Any, reliable: Path, tmp_path: Path
) -> None:
    listener = Listener(graph, **TOPICS)
    with node_process('replay', tmp_path / 'log', bag=str(reliable), rate=0.2, wait_for=HEARD) as process:
        assert process.wait(60.0) == 0, (tmp_path / 'log').read_text()
    wait_until(lambda: listener.count('front') == 9)
    assert {name: listener.count(name) for name in ('joints', 'chunks', 'rows')} == {
        'joints': 9, 'chunks': 3, 'rows': 8
    }  # fmt: skip
    came = [at for at, _ in listener.came['front']]
    assert came[-1] - came[0] > 8 * 0.05 / 0.2 / 2  # and not all at once, however late the first came
    stamps = [time_ns(message.header.stamp) for _, message in listener.came['front']]
    clock = [time_ns(message.clock) for _, message in listener.came['clock']]
    assert clock == sorted(clock) and clock[0] >= stamps[0] and clock[-1] == stamps[-1]
    assert len(clock) > 2 * len(stamps)  # also between the messages
    log = (tmp_path / 'log').read_text()
    assert '38 messages' in log and 'left out' not in log


def test_the_bridge_makes_the_same_observations_of_it_as_of_the_bag(
    graph: Any, reliable: Path, tmp_path: Path
) -> None:
    demo = tmp_path / 'demo.npz'
    assert openeta(['demonstration', str(reliable), '--embodiment', 'light_arm', '--output', str(demo)]) == 0
    arrays = load(demo).arrays
    listener = Listener(graph, seen=(Observation, '/bridge/observation'))
    with (
        node_process('bridge', tmp_path / 'bridge.log', embodiment='light_arm'),
        node_process(
            'replay',
            tmp_path / 'log',
            bag=str(reliable),
            rate=0.5,
            wait_for='/camera/front/image_raw /joint_states',
            delay_s=3.0,
        ) as process,
    ):
        assert process.wait(60.0) == 0
        wait_until(lambda: listener.count('seen') >= 8)
    for row, (_, message) in enumerate(listener.came['seen']):
        for name, array in arrays_of(message.arrays).items():
            assert np.array_equal(array, arrays[name][row]), (row, name)


def test_pause_step_rate_loop_and_cancel(graph: Any, reliable: Path, tmp_path: Path) -> None:
    listener = Listener(graph, **TOPICS)
    client = ActionClient(graph, Replay, '/replay/replay')
    pause, step = graph.create_client(SetBool, '/replay/pause'), graph.create_client(Trigger, '/replay/step')
    with node_process('replay', tmp_path / 'log', wait_for=HEARD, delay_s=0.5):
        assert client.wait_for_server(60.0) and pause.wait_for_service(60.0) and step.wait_for_service(60.0)

        def call(one: Any, request: Any) -> Any:
            future = one.call_async(request)
            wait_until(future.done)
            return future.result()

        assert call(step, Trigger.Request()).message == 'nothing is played'
        sent = client.send_goal_async(Replay.Goal(path=str(reliable), paused=True, loop=True, rate=20.0))
        wait_until(sent.done)
        wait_until(lambda: call(step, Trigger.Request()).success)
        wait_until(lambda: listener.count('front') == 1)
        assert call(step, Trigger.Request()).success
        wait_until(lambda: listener.count('front') == 2)
        assert call(step, Trigger.Request()).success
        wait_until(lambda: listener.count('front') == 3)
        time.sleep(0.3)
        assert listener.count('front') == 3
        assert call(pause, SetBool.Request(data=False)).success
        wait_until(lambda: listener.count('front') > 30)  # three times around
        assert not call(step, Trigger.Request()).success
        result = sent.result().get_result_async()
        sent.result().cancel_goal_async()
        wait_until(result.done)
        assert result.result().result.messages > 3 * 38


def test_qualities_of_service_are_those_that_were_offered(graph: Any, episode: Path, tmp_path: Path) -> None:
    with node_process('replay', tmp_path / 'log', bag=str(episode), paused=True):
        wait_until(lambda: graph.count_publishers('/policy/action_chunk') == 1)
        (camera,) = graph.get_publishers_info_by_topic('/camera/front/image_raw')
        (chunk,) = graph.get_publishers_info_by_topic('/policy/action_chunk')
    assert camera.qos_profile.reliability == ReliabilityPolicy.BEST_EFFORT
    assert chunk.qos_profile.reliability == ReliabilityPolicy.RELIABLE
    assert camera.qos_profile.durability == DurabilityPolicy.VOLATILE


def test_there_is_one_clock_or_none(graph: Any, tmp_path: Path) -> None:
    messages = recording(5)
    clock = make('rosgraph_msgs/msg/Clock', clock=header(5).stamp)
    bag(tmp_path / 'bag', [*messages, ('/clock', clock, messages[-1][2])])
    listener = Listener(graph, clock=(Clock, '/clock'))
    played = {'bag': str(tmp_path / 'bag'), 'wait_for': '/clock'}

    def clocks() -> list[int]:
        return [time_ns(message.clock) for _, message in listener.came['clock']]

    with node_process('replay', tmp_path / 'log', **played) as process:
        assert process.wait(60.0) == 0
    wait_until(clocks)
    assert 5 not in clocks()  # the one that was recorded
    with node_process('replay', tmp_path / 'log', clock_hz=0.0, **played) as process:
        assert process.wait(60.0) == 0
    wait_until(lambda: clocks()[-1] == 5)
    assert clocks().count(5) == 1
    other = graph.create_publisher(Clock, '/clock', 1)
    # On a busy machine it takes a while to be found.
    with node_process('replay', tmp_path / 'log', bag=str(tmp_path / 'bag'), delay_s=30.0) as process:
        code = process.wait(60.0)
    assert (code, 'another node publishes /clock' in (tmp_path / 'log').read_text()) == (1, True)
    graph.destroy_publisher(other)


@pytest.mark.parametrize(
    ('wrong', 'said'),
    [
        ({'bag': 'absent'}, 'absent does not exist'),
        ({'wait_for': '/joint_state'}, 'wait_for: /joint_state is not played; what is: '),
    ],
)
def test_what_cannot_be_played_is_told_in_one_sentence(
    wrong: dict[str, str], said: str, graph: Any, episode: Path, tmp_path: Path
) -> None:
    with node_process('replay', tmp_path / 'log', **{'bag': str(episode), **wrong}) as process:
        assert process.wait(60.0) == 1
    text = (tmp_path / 'log').read_text()
    assert said in text and 'Traceback' not in text


def test_it_waits_for_who_should_listen(graph: Any, reliable: Path, tmp_path: Path) -> None:
    with node_process('replay', tmp_path / 'log', bag=str(reliable), wait_for=HEARD, delay_s=0.0) as process:
        wait_until(lambda: graph.count_publishers('/policy/action_chunk') == 1)
        time.sleep(2.0)  # longer than the recording
        assert process.poll() is None
        listener = Listener(graph, **TOPICS)
        assert process.wait(60.0) == 0
        wait_until(lambda: listener.count('front') == 9)


def test_the_command_plays_to_who_is_there(graph: Any, reliable: Path) -> None:
    listener = Listener(graph, **TOPICS)
    stream = ['replay', str(reliable), '--mode', 'stream']
    wait_for = [f'--wait-for={topic}' for topic in HEARD.split()]
    command = run_openeta([*stream, *wait_for, '--rate', '4', '--from', '0.2'], {})
    output, _ = command.communicate(timeout=60.0)
    assert command.returncode == 0, output
    wait_until(lambda: listener.count('front') == 5)
    looping = run_openeta([*stream, '--loop'], {})
    wait_until(lambda: listener.count('front') > 20)
    looping.send_signal(signal.SIGINT)
    output, _ = looping.communicate(timeout=60.0)
    assert 'Traceback' not in output
    main, terminal = pty.openpty()
    before = termios.tcgetattr(terminal)
    paused = subprocess.Popen(
        [sys.executable, '-m', 'openeta_ros.cli', *stream, *wait_for, '--paused'],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        start_new_session=True,
        preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
    )
    said = os.read(main, 200)
    assert b'keys: ' in said
    listener.came['front'].clear()

    def pressed(key: bytes) -> bool:
        os.write(main, key)
        time.sleep(0.3)
        return listener.count('front') > 0

    wait_until(lambda: pressed(b's'))
    few = 0

    def settled() -> bool:
        nonlocal few
        before, few = few, listener.count('front')
        time.sleep(0.3)
        return before == few

    wait_until(settled)
    assert few < 9
    os.write(main, b' ')  # goes on, to its end
    assert paused.wait(60.0) == 0
    wait_until(lambda: listener.count('front') > few)
    assert termios.tcgetattr(terminal) == before
    for wrong in (['--rate', '0'], ['--from', '2', '--to', '1']):
        assert openeta(['replay', str(reliable), '--mode', 'stream', *wrong]) == 2
