# SPDX-License-Identifier: Apache-2.0
"""The recorder node on a live graph: what is on the topics is in the file, and what is lost is counted."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from ros_graph import environment, node_process, run_openeta, spinning, wait_until
from streams import contract

pytest.importorskip('rclpy')

from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy
from rclpy.serialization import serialize_message
from sensor_msgs.msg import CameraInfo, Image, JointState
from std_msgs.msg import String

from openeta_msgs.msg import ActionChunk, RecorderStatus
from openeta_msgs.srv import StartRecording, StopRecording
from openeta_ros.cli.main import main as openeta
from openeta_ros.episodes.bag import Bag
from openeta_ros.episodes.recorded_qos import offered
from openeta_ros.episodes.recording import facts
from openeta_ros.nodes.messages import chunk_message

# Of a depth that keeps what a recorder does not take at once on a busy machine.
RELIABLE = QoSProfile(depth=1000, reliability=ReliabilityPolicy.RELIABLE)
BEST_EFFORT = QoSProfile(depth=5, reliability=ReliabilityPolicy.BEST_EFFORT)
LATCHED = QoSProfile(depth=1, durability=DurabilityPolicy.TRANSIENT_LOCAL)
FRONT, JOINTS, CHUNKS = '/camera/front/image_raw', '/joint_states', '/policy/action_chunk'


@pytest.fixture
def graph() -> Iterator[Any]:
    with environment(), spinning('robot') as (node, _):
        yield node


class Robot:
    """Publishes what a robot's drivers do, and keeps the bytes as they are sent."""

    def __init__(self, node: Any) -> None:
        self.node = node
        self.sent: dict[str, list[bytes]] = {}
        self.publishers = {
            FRONT: node.create_publisher(Image, FRONT, BEST_EFFORT),
            '/camera/front/camera_info': node.create_publisher(
                CameraInfo, '/camera/front/camera_info', LATCHED
            ),
            JOINTS: node.create_publisher(JointState, JOINTS, RELIABLE),
            CHUNKS: node.create_publisher(ActionChunk, CHUNKS, RELIABLE),
            '/note': node.create_publisher(String, '/note', RELIABLE),
        }

    def publish(self, topic: str, message: Any) -> None:
        if hasattr(message, 'header'):
            message.header.stamp = self.node.get_clock().now().to_msg()
        data = serialize_message(message)
        data += bytes(-len(data) % 4)  # as DDS does
        self.publishers[topic].publish(data)  # these bytes: what is between fields differs each time
        self.sent.setdefault(topic, []).append(data)

    def round(self, value: int) -> None:
        """Publish one of each stream."""
        self.publish(
            JOINTS, JointState(name=['shoulder', 'elbow', 'finger'], position=[value / 100, 0.1, 0.2])
        )
        pixels = bytes([value % 256]) * (6 * 4 * 3)
        self.publish(FRONT, Image(height=4, width=6, encoding='rgb8', step=18, data=pixels))

    def matched(self, *topics: str) -> bool:
        return all(self.publishers[topic].get_subscription_count() for topic in topics)


def call(node: Any, kind: Any, name: str, request: Any) -> Any:
    client = node.create_client(kind, name)
    assert client.wait_for_service(60.0)
    future = client.call_async(request)
    wait_until(future.done)
    node.destroy_client(client)
    return future.result()


def recorded(path: Path) -> dict[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    with Bag(path) as bag:
        for one in bag.messages(list(bag.topics)):
            found.setdefault(one.topic, []).append(bytes(one.data))
    return found


def test_every_topic_of_the_contract_is_written_as_it_came(graph: Any, tmp_path: Path) -> None:
    robot, statuses = Robot(graph), []
    graph.create_subscription(RecorderStatus, '/recorder/status', statuses.append, 10)
    file = str(contract(tmp_path).path)
    calibration = CameraInfo(width=6, height=4)
    robot.publish('/camera/front/camera_info', calibration)  # before anybody records
    with node_process('recorder', tmp_path / 'log', embodiment=file, topics='/note') as process:
        info = json.dumps({'task': 'pick', 'seed': 3})
        path = tmp_path / 'recordings/one'
        begun = call(
            graph, StartRecording, '/recorder/start', StartRecording.Request(path=str(path), info=info)
        )
        assert begun.path == str(path) and not begun.failure.kind
        again = call(
            graph, StartRecording, '/recorder/start', StartRecording.Request(path=str(tmp_path / 'two'))
        )
        assert 'stop it first' in again.failure.message
        wait_until(lambda: robot.matched(*robot.publishers))
        for k in range(20):
            robot.round(k)
            time.sleep(0.01)
        robot.publish(CHUNKS, chunk_message([[0.1, 0.2, 1.0]], 'qpos', embodiment='two_joints'))
        robot.publish('/note', String(data='hello'))
        total = sum(map(len, robot.sent.values()))
        wait_until(lambda: statuses and statuses[-1].recording and statuses[-1].messages == total)
        assert statuses[-1].path == str(path) and not statuses[-1].lost and not statuses[-1].troubles
        assert not path.exists() and path.with_name('one.partial').is_dir()
        outcome = json.dumps({'success': True, 'steps': 20})
        ended = call(graph, StopRecording, '/recorder/stop', StopRecording.Request(outcome=outcome))
        assert ended.path == str(path) and not ended.failure.kind
        assert not call(graph, StopRecording, '/recorder/stop', StopRecording.Request()).path
        process.terminate()
        assert process.wait(60.0) == 0, (tmp_path / 'log').read_text()
    assert recorded(path) == robot.sent
    account = json.loads(ended.account)
    assert {name: topic['messages'] for name, topic in account['topics'].items()} == {
        name: len(sent) for name, sent in robot.sent.items()
    }
    assert all(not any(topic['lost'].values()) for topic in account['topics'].values())
    least, most = account['topics'][FRONT]['reception_after_header_s']
    begin, end = (account['clocks'][name]['wall_ns'] for name in ('begin', 'end'))
    assert 0 <= least <= most <= (end - begin) / 1e9
    with Bag(path) as bag:
        carried, qualities = facts(bag), offered(bag)
    assert carried.contract == Path(file).read_text() and carried.info == {'task': 'pick', 'seed': 3}
    assert carried.episode == {'success': True, 'steps': 20} and 'openeta_ros' in carried.versions
    assert not qualities[FRONT].reliable and qualities[JOINTS].reliable
    assert qualities['/camera/front/camera_info'].transient_local and not qualities[JOINTS].transient_local


def test_it_sleeps_while_nothing_comes(graph: Any, tmp_path: Path) -> None:
    robot, file = Robot(graph), str(contract(tmp_path).path)
    record = str(tmp_path / 'one')
    with node_process('recorder', tmp_path / 'log', embodiment=file, record=record) as process:
        wait_until(lambda: robot.matched(FRONT, JOINTS, CHUNKS))

        def processor_s() -> float:
            fields = Path(f'/proc/{process.pid}/stat').read_text().rpartition(')')[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf('SC_CLK_TCK')

        time.sleep(1.0)  # it may have had to do with the matching
        begin, used = time.monotonic(), processor_s()
        time.sleep(3.0)
        assert processor_s() - used < 0.1 * (time.monotonic() - begin)


def test_what_a_stopped_recorder_misses_is_counted(graph: Any, tmp_path: Path) -> None:
    robot, statuses = Robot(graph), []
    graph.create_subscription(RecorderStatus, '/recorder/status', statuses.append, 10)
    path, file = tmp_path / 'one', str(contract(tmp_path).path)
    with node_process('recorder', tmp_path / 'log', embodiment=file, record=str(path)) as process:
        wait_until(lambda: robot.matched(FRONT), 60.0)
        while not (statuses and statuses[-1].messages):
            robot.round(0)
            time.sleep(0.02)
        process.send_signal(signal.SIGSTOP)
        for k in range(600):  # more than wait for one that does not take them
            robot.round(k)
        process.send_signal(signal.SIGCONT)
        while not (statuses and statuses[-1].lost):
            robot.round(1)
            time.sleep(0.02)
            assert len(robot.sent[FRONT]) < 10_000
        process.terminate()
        assert process.wait(60.0) == 0
    account = json.loads(facts_of(path)['account'])['topics'][FRONT]
    kept, sent = recorded(path)[FRONT], robot.sent[FRONT]
    assert set(kept) <= set(sent)
    lost = account['lost']['unreceived']
    assert lost == sent.index(kept[-1]) - sent.index(kept[0]) + 1 - len(kept) > 0
    assert f'{FRONT}: {lost} messages did not reach the recorder' in (tmp_path / 'log').read_text()


def facts_of(path: Path) -> Any:
    with Bag(path) as bag:
        return bag.custom_data


def running(robot: Robot, file: str, output: Path, until: Callable[[], bool]) -> Any:
    """Start `openeta record` and publish until something is so."""
    command = run_openeta(
        ['record', '--embodiment', file, '--output', str(output), '--info', 'task=pick'], {}
    )
    wait_until(lambda: robot.matched(FRONT, JOINTS), 120.0)
    k, deadline = 0, time.monotonic() + 120.0
    while not until():
        robot.round(k := k + 1)
        time.sleep(0.005)
        assert time.monotonic() < deadline
    return command


def test_ctrl_c_ends_it_in_order_and_a_publisher_that_went_is_named(graph: Any, tmp_path: Path) -> None:
    robot, file, output = Robot(graph), str(contract(tmp_path).path), tmp_path / 'a.b'
    statuses: list[RecorderStatus] = []
    graph.create_subscription(RecorderStatus, '/recorder/status', statuses.append, 10)
    command = running(robot, file, output, lambda: len(robot.sent.get(FRONT, ())) > 20)
    graph.destroy_publisher(robot.publishers.pop(FRONT))
    gone = f'{FRONT} is published no more since'
    wait_until(lambda: statuses and any(text.startswith(gone) for text in statuses[-1].troubles))
    mark = len(statuses)
    wait_until(lambda: len(statuses) > mark + 1 and statuses[-1].messages == statuses[-2].messages)
    before = statuses[-1].messages
    robot.publish(JOINTS, JointState(name=['shoulder', 'elbow', 'finger'], position=[0.0, 0.0, 0.0]))
    wait_until(lambda: statuses[-1].messages > before)
    command.send_signal(signal.SIGINT)
    text, _ = command.communicate(timeout=120.0)
    assert command.returncode == 0 and 'Traceback' not in text, text
    assert f'{output}: ' in text and f'{FRONT} is published no more since' in text
    assert recorded(output)[JOINTS][-1] == robot.sent[JOINTS][-1]
    assert openeta(['show', str(output)]) == 0


def test_a_killed_one_is_shown_and_repaired_with_its_contract(
    graph: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    robot, file, output = Robot(graph), str(contract(tmp_path).path), tmp_path / 'one'
    partial = tmp_path / 'one.partial'

    def has_chunks() -> bool:
        file = partial / 'one.mcap'
        return file.exists() and file.stat().st_size > 30_000

    command = running(robot, file, output, has_chunks)
    command.kill()
    command.communicate()
    assert openeta(['show', str(output)]) == 0  # which is not there yet
    shown = capsys.readouterr().out
    assert 'it did not come to its end' in shown and 'task pick' in shown and FRONT in shown
    assert openeta(['repair', str(partial), '--output', str(output)]) == 0
    kept = recorded(output)
    assert kept[JOINTS] == robot.sent[JOINTS][: len(kept[JOINTS])] and len(kept[JOINTS]) > 10
    with Bag(output) as bag:
        assert facts(bag).contract == Path(file).read_text() and not offered(bag)[FRONT].reliable
    demo = tmp_path / 'demo.npz'
    assert openeta(['demonstration', str(output), '--embodiment', file, '--output', str(demo)]) == 0


def test_what_cannot_be_recorded_is_told_in_one_sentence(graph: Any, tmp_path: Path) -> None:
    (tmp_path / 'there').mkdir()
    with node_process(
        'recorder', tmp_path / 'log', embodiment='light_arm', record=str(tmp_path / 'there')
    ) as process:
        assert process.wait(60.0) == 1
    text = (tmp_path / 'log').read_text()
    assert 'there exists: name another folder' in text and 'Traceback' not in text
    assert openeta(['record', '--embodiment', 'light_arm', '--output', str(tmp_path / 'there')]) == 2
    assert openeta(['record', '--embodiment', str(tmp_path / 'absent.yaml')]) == 2
    assert openeta(['record', '--embodiment', 'light_arm', '--info', 'nothing']) == 2


def test_a_second_publisher_of_another_quality_costs_no_message_and_brings_none_twice(
    graph: Any, tmp_path: Path
) -> None:
    """The recorder subscribes anew then, and for a while two subscriptions receive the same."""
    robot, file, path = Robot(graph), str(contract(tmp_path).path), tmp_path / 'one'
    statuses: list[RecorderStatus] = []
    graph.create_subscription(RecorderStatus, '/recorder/status', statuses.append, 10)
    other = None
    with node_process('recorder', tmp_path / 'log', embodiment=file, record=str(path)) as process:
        wait_until(lambda: robot.matched(JOINTS), 60.0)
        for k in range(300):
            if k == 100:
                other = graph.create_publisher(JointState, JOINTS, BEST_EFFORT)
            robot.publish(
                JOINTS, JointState(name=['shoulder', 'elbow', 'finger'], position=[k / 1000, 0.0, 0.0])
            )
            time.sleep(0.005)
        wait_until(lambda: statuses and statuses[-1].messages >= 300)
        process.terminate()
        assert process.wait(60.0) == 0
    assert other is not None and recorded(path)[JOINTS] == robot.sent[JOINTS]
    assert not any(json.loads(facts_of(path)['account'])['topics'][JOINTS]['lost'].values())
    with Bag(path) as bag:
        assert offered(bag)[JOINTS].reliable  # whoever asked for that was served then
