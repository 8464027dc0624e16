# SPDX-License-Identifier: Apache-2.0
"""A physical arm over ROS 2: the contract's streams and controllers as a `Robot`.

It has a node of its own, spun by a thread of its own, so that nothing that an env does keeps it from hearing
the robot. It publishes commands, and nothing that is the drivers' to publish.
"""

from __future__ import annotations

import sys
import threading
import time
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import rclpy
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rclpy.qos import QoSProfile, ReliabilityPolicy
from std_msgs.msg import Bool

from openeta_msgs.srv import Expert, Reset
from openeta_ros.control import ActionPipeline
from openeta_ros.control.commands import SERVOS, Command, Commands, channels
from openeta_ros.embodiment import Embodiment, EmbodimentError, Kinematics
from openeta_ros.envs import EnvError, EnvSpec, Sensors
from openeta_ros.envs.arm import ArmWorld
from openeta_ros.envs.arm_motion import Motion
from openeta_ros.envs.arm_operator import Operator
from openeta_ros.envs.arm_robot import ArmStatus, Vitals
from openeta_ros.envs.arm_servo import Servo
from openeta_ros.envs.backend import Array
from openeta_ros.nodes import messages
from openeta_ros.nodes.robot_commands import CommandSender
from openeta_ros.nodes.robot_node import arguments_without_name, make_node
from openeta_ros.nodes.robot_operator import OperatorServices
from openeta_ros.nodes.runtime import make_executor
from openeta_ros.nodes.servo import RemoteFollower
from openeta_ros.nodes.streams import Bridge
from openeta_ros.observation import NS_PER_S, MissingStream, ObservationError
from openeta_ros.observation.joints import JointReader
from openeta_ros.observation.messages import stamp_ns

# How often publishers, subscribers and clocks are looked at.
LOOK_S = 0.05
# How often pictures of a new scene are looked for.
SHOWN_S = 0.01
# Seconds that streams and controllers may take to be found, a picture to be paired, a scene to be made.
READY_S, PAIR_S, SCENE_S = 15.0, 2.0, 120.0
# Pictures of each camera that are kept: an asynchronous chunk's rows are looked at after an inference.
HISTORY = 64
# ROS time that jumps by more against the monotonic clock has been set.
JUMP_S = 0.5
# So long a jump of the clock is remembered, for the control thread to see it.
REMEMBERED_S = 1.0
SPIN_S = 0.1
OPTIONS = {
    'node': None,
    'operator': None,
    'speed': 1.0,
    'dry_run': False,
    'servo_hz': 100.0,
    'success': 'auto',
}


def make_world(spec: EnvSpec, kinematics: Kinematics) -> ArmWorld:
    """Make the world of a physical arm.

    Options: `node` (the env node: names are those that it would have), `operator` (an `Operator`; without one
    nobody needs to enable the arm), `speed`, `dry_run`, `servo_hz`, `success` ('auto', 'topic', 'person').

    Raises:
        EnvError: 'option', 'embodiment'.
    """
    unknown = set(spec.options) - set(OPTIONS)
    if unknown:
        raise EnvError('option', f"env 'arm' has no option {', '.join(sorted(unknown))}")
    options = {**OPTIONS, **spec.options}
    operator = options['operator']
    if operator is None:
        operator = Operator(enabled=True)
        operator.active = True
    try:
        found = channels(spec.embodiment)
    except EmbodimentError as error:
        raise EnvError('embodiment', str(error)) from error
    pipeline = ActionPipeline(spec.embodiment, kinematics)
    own = Kinematics(spec.embodiment)  # the control thread's
    if options['dry_run']:
        found = ()
    robot = GraphRobot(spec.embodiment, found, operator, success=options['success'], parent=options['node'])
    follower = None
    try:
        if any(channel.interface in SERVOS for channel in found):
            follower = robot.start_follower(pipeline.native.joints, 1 / options['servo_hz'])
    except BaseException:
        robot.close()
        raise
    motion = Motion(
        pipeline,
        Commands(spec.embodiment, own, pipeline.native.joints),
        robot,
        operator,
        period_s=1 / options['servo_hz'],
        speed=options['speed'],
        dry_run=options['dry_run'],
        follower=follower,
    )
    robot.tell(motion.status)
    servo = Servo(motion.tick, motion.failed, 1 / options['servo_hz'])
    robot.show(follower.priority if follower is not None else servo.priority)
    robot.discover()
    driven = {name: options[name] for name in ('speed', 'dry_run', 'servo_hz')}
    return ArmWorld(spec, kinematics, robot, motion, operator, servo.close, driven)


class GraphRobot:
    """The `Robot` of a contract.

    Args:
        found: the channels that commands are sent on; none in a dry run.
        success: where success is told: 'topic' scene/success, 'person', or 'auto': the topic where it is.
        parent: the node that this one's names follow.
    """

    def __init__(
        self,
        embodiment: Embodiment,
        found: Sequence[Any],
        operator: Operator,
        *,
        success: str,
        parent: Node | None,
    ) -> None:
        self._embodiment, self._success_source = embodiment, success
        self._end = threading.Event()
        self._node = make_node(parent)
        prefix = parent.get_fully_qualified_name() if parent is not None else '/env'
        self.version = f'ROS 2 {rclpy.get_rmw_implementation_identifier()}'
        self._heard = _heard_at_first(embodiment, sim_time=self._sim_time())
        self._positions: dict[str, float] = {}
        self._readers = [
            (state.topic, JointReader(state, embodiment.wire_joints)) for state in embodiment.state
        ]
        self._stamps: dict[str, int] = {}
        self._shown: Counter[str] = Counter()  # pictures by topic
        self._pictures: deque[tuple[float, int]] = deque(maxlen=4 * HISTORY)
        self._faults: Mapping[str, str] = {}
        self._jumped: tuple[float, str] | None = None
        self._clock_before: tuple[float, int] | None = None
        self._sensors: Sensors | None = None
        self._solved = False
        servos = [channel for channel in found if channel.interface in SERVOS]
        others = [channel for channel in found if channel not in servos]
        self._servo_name = f'{self._node.get_name().removesuffix("_robot")}_servo'
        self._sender = CommandSender(self._node, others, servos, [self._servo_name])
        self._follower: RemoteFollower | None = None
        self._services = OperatorServices(self._node, prefix, operator, embodiment.safety.stop_topic)
        self._alive = f'{prefix}/alive'
        self._reset = self._node.create_client(Reset, 'scene/reset')
        self._expert = self._node.create_client(Expert, 'scene/expert')
        reliable = QoSProfile(depth=10, reliability=ReliabilityPolicy.RELIABLE)
        self._node.create_subscription(Bool, 'scene/success', self._on_success, reliable)
        self._bridge = Bridge(
            self._node, embodiment, Kinematics(embodiment), history=HISTORY, on_message=self._on_message
        )
        self._node.create_timer(LOOK_S, self._look, clock=Clock(clock_type=ClockType.STEADY_TIME))
        self._executor = make_executor()
        self._executor.add_node(self._node)
        self._thread = threading.Thread(target=self._spin, name='robot', daemon=True)
        self._thread.start()

    def start_follower(self, joints: Sequence[str], period_s: float) -> RemoteFollower:
        """Start the process that commands forward controllers."""
        self._follower = RemoteFollower(
            self._embodiment,
            joints,
            period_s=period_s,
            namespace=self._node.get_namespace(),
            name=self._servo_name,
            arguments=arguments_without_name(sys.argv[1:]),
        )
        return self._follower

    def tell(self, status: Callable[[], ArmStatus]) -> None:
        """Publish what `status` returns from now on."""
        self._services.status = status

    def discover(self) -> None:
        """Wait until all streams have come, or for a while: to know who is there."""
        deadline = time.monotonic() + READY_S / 3
        while self._silent() and time.monotonic() < deadline:
            time.sleep(LOOK_S)

    def vitals(self) -> Vitals:
        """See `Robot`."""
        return Vitals(self._positions, self._heard, self._faults)

    def prepared(self, commands: Sequence[Command]) -> Callable[[], None]:
        """See `Robot`."""
        senders = [self._sender.prepared(command) for command in commands]

        def send() -> None:
            for one in senders:
                one()

        return send

    def show(self, text: str) -> None:
        """See `Robot`."""
        self._node.get_logger().info(text)

    def wait_ready(self, check: Callable[[], None]) -> None:
        """See `Robot`."""
        deadline = time.monotonic() + READY_S
        while True:
            check()
            others = self._sender.others()
            if others:
                raise EnvError('commander', f'{others[0]}: two at once would throw the arm about; end one')
            # The faults are what the guard goes by: they may be a look older than what is asked here.
            lacking = [*{*self._unheard(), *self._faults.values()}, *map(self._told, self._silent())]
            if not lacking:
                return
            if time.monotonic() > deadline:
                raise EnvError('absent', f'waited {READY_S:g} s for the robot: {"; ".join(lacking)}')
            time.sleep(LOOK_S)

    def driver(self) -> str:
        """See `Robot`."""
        return self._alive if self._node.count_publishers(self._alive) else ''

    def new_episode(self, check: Callable[[], None]) -> None:
        """See `Robot`."""
        cameras = self._embodiment.cameras
        topics = {camera.topic: _camera(name, camera.topic) for name, camera in cameras.items()}
        # The picture that comes next may have been taken before the scene was put in order, and what the
        # clock camera's is paired with must be none of those. Stamps do not tell: clocks differ.
        self._wait_shown({topic: self._shown[topic] + 2 for topic in topics}, topics, check)
        if clock := cameras.get(self._embodiment.align.clock):
            self._wait_shown({clock.topic: self._shown[clock.topic] + 2}, topics, check)
        self._bridge.new_episode()
        self._sensors = None

    def sense(self, time_s: float, check: Callable[[], None]) -> Sensors:
        """See `Robot`. A picture that cannot be paired any more gives way to the newest that can."""
        pictures = list(self._pictures)
        index = bisect_right(pictures, (time_s, sys.maxsize)) - 1
        stamp = pictures[max(index, 0)][1] if pictures else 0
        before = self._sensors
        if before is not None and stamp == before.stamp_ns:
            return before
        for wanted, patience_s in ((stamp, PAIR_S / 10), (0, PAIR_S)):
            try:
                streams, observation = self._bridge.wait_for(wanted, patience_s, check)
                break
            except MissingStream as missing:
                why: Exception = missing
            except ObservationError as error:
                raise EnvError('no_observation', str(error)) from error
        else:
            raise EnvError('no_observation', f'waited {PAIR_S:g} s for an observation: {why}')
        if before is not None and streams.stamp_ns <= before.stamp_ns:
            return before
        self._sensors = Sensors(
            streams.stamp_ns, streams.pictures, streams.positions, streams.velocities, observation
        )
        return self._sensors

    def has_scene(self) -> bool:
        """See `Robot`."""
        return bool(self._reset.service_is_ready())

    def reset_scene(self, seed: int, check: Callable[[], None]) -> None:
        """See `Robot`."""
        self._call(self._reset, Reset.Request(seed=seed), check)
        self._solved = False

    def expert(self, check: Callable[[], None]) -> Array:
        """See `Robot`."""
        if not self._expert.service_is_ready():
            raise EnvError('no_expert', f'nobody offers {self._expert.srv_name}: show the policy a recording')
        rows = messages.array_of(self._call(self._expert, Expert.Request(), check).actions)
        if rows is None:
            raise EnvError('no_expert', f'{self._expert.srv_name} answered without rows')
        return rows

    def judges(self) -> bool:
        """See `Robot`."""
        if self._success_source != 'auto':
            return self._success_source == 'topic'
        return bool(self._node.count_publishers(self._node.resolve_topic_name('scene/success')))

    def success(self) -> bool:
        """See `Robot`."""
        return self._solved

    def close(self) -> None:
        """See `Robot`."""
        if self._follower is not None:
            self._follower.close()
        self._end.set()
        self._executor.wake()
        self._thread.join(2.0)
        if not self._thread.is_alive():
            self._executor.remove_node(self._node)
            self._node.destroy_node()

    def _spin(self) -> None:
        while not self._end.is_set() and rclpy.ok():
            try:
                self._executor.spin_once(timeout_sec=SPIN_S)
            except Exception as error:  # what one message or look did wrong must not make the others deaf
                if not self._end.is_set():
                    self._node.get_logger().error(
                        f'{type(error).__name__}: {error}', throttle_duration_sec=1.0
                    )

    def _sim_time(self) -> bool:
        return bool(self._node.get_parameter('use_sim_time').value)

    def _on_success(self, message: Bool) -> None:
        self._solved = bool(message.data)

    def _on_message(self, topic: str, message: Any) -> None:
        """Note that a stream lives: something new of it has come. What comes again and again is frozen."""
        now_s = time.monotonic()
        stamp = stamp_ns(message) if hasattr(message, 'header') else 0
        if stamp and self._stamps.get(topic) == stamp:
            return
        self._stamps[topic] = stamp
        for name, camera in self._embodiment.cameras.items():
            if camera.topic == topic:
                self._heard['stale_camera', _camera(name, topic)] = now_s
                self._shown[topic] += 1
                if name == self._embodiment.align.clock:
                    self._pictures.append((now_s, stamp))
        for state_topic, reader in self._readers:
            if state_topic == topic:
                for joint, sample in reader.read(message, lambda reason: None).items():
                    key = 'stale_state', _joint(self._embodiment, joint)
                    if not sample.absent:
                        self._positions[joint] = sample.position
                        if key in self._heard:
                            self._heard[key] = now_s

    def _wait_shown(
        self, counts: Mapping[str, int], names: Mapping[str, str], check: Callable[[], None]
    ) -> None:
        """Wait until so many pictures have come of each of these topics."""
        deadline = time.monotonic() + READY_S
        while lacking := [topic for topic, count in counts.items() if self._shown[topic] < count]:
            check()
            if time.monotonic() > deadline:
                told = '; '.join(self._told(names[topic]) for topic in lacking)
                raise EnvError('absent', f'waited {READY_S:g} s for pictures of the new scene: {told}')
            time.sleep(SHOWN_S)

    def _unheard(self) -> list[str]:
        """Return a sentence for each channel that no controller listens on."""
        return [*self._sender.unheard(), *(self._follower.unheard if self._follower else ())]

    def _look(self) -> None:
        now_s = time.monotonic()
        self._look_at_clock(now_s)
        faults: dict[str, str] = {}
        others, unheard = self._sender.others(), self._unheard()
        if others:
            faults['commander'] = others[0]
        if unheard:
            faults['controller'] = unheard[0]
        if self._jumped is not None and now_s - self._jumped[0] < REMEMBERED_S:
            faults['clock_jump'] = self._jumped[1]
        self._faults = faults
        self._services.look()

    def _look_at_clock(self, now_s: float) -> None:
        ros_ns = self._node.get_clock().now().nanoseconds
        before, self._clock_before = self._clock_before, (now_s, ros_ns)
        if before is None:
            return
        passed_s, ros_s = now_s - before[0], (ros_ns - before[1]) / NS_PER_S
        if self._sim_time():
            if ros_s:
                self._heard['stale_clock', '/clock'] = now_s
            jump_s = min(ros_s, 0.0)  # forward it goes as fast as the simulator does
        else:
            jump_s = ros_s - passed_s
        if abs(jump_s) > JUMP_S:
            self._jumped = now_s, f'ROS time jumped by {jump_s:+.3f} s'

    def _silent(self) -> list[str]:
        """Return the streams of which nothing new has come for the contract's watchdog time."""
        now_s, safety = time.monotonic(), self._embodiment.safety
        cameras_s = safety.camera_watchdog_s or safety.watchdog_s
        return [
            name
            for (kind, name), heard_s in self._heard.items()
            if now_s - heard_s > (cameras_s if kind == 'stale_camera' else safety.watchdog_s)
        ]

    def _told(self, stream: str) -> str:
        why = self._bridge.trouble(stream)
        return f'nothing new of {stream}{f": {why}" if why else ""}'

    def _call(self, client: Any, request: Any, check: Callable[[], None]) -> Any:
        done = threading.Event()
        future = client.call_async(request)
        future.add_done_callback(lambda _: done.set())
        deadline = time.monotonic() + SCENE_S
        while not done.wait(LOOK_S):
            check()
            if time.monotonic() > deadline:
                raise EnvError('absent', f'{client.srv_name} gave no answer within {SCENE_S:g} s')
        answer = future.result()
        error = messages.error_of(answer.failure)
        if error is not None:
            raise error
        return answer


def _camera(name: str, topic: str) -> str:
    return f'camera {name} (topic {topic})'


def _joint(embodiment: Embodiment, joint: str) -> str:
    return f'joint {joint} (topic {", ".join(state.topic for state in embodiment.state)})'


def _heard_at_first(embodiment: Embodiment, *, sim_time: bool) -> dict[tuple[str, str], float]:
    """Return everything that must not fall silent, as never heard."""
    heard = {('stale_state', _joint(embodiment, joint)): -1e9 for joint in embodiment.wire_joints}
    heard |= {('stale_camera', _camera(name, one.topic)): -1e9 for name, one in embodiment.cameras.items()}
    return heard | ({('stale_clock', '/clock'): -1e9} if sim_time else {})
