# SPDX-License-Identifier: Apache-2.0
"""A recorded bag to the arrays of a demonstration, by the code that makes observations of live topics."""

from __future__ import annotations

import json
import os
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from openeta_ros.embodiment import Embodiment, EmbodimentError, Kinematics, KinematicsError
from openeta_ros.episodes import demonstration
from openeta_ros.episodes.account import Account, Ages, TopicAccount
from openeta_ros.episodes.arrays import ArraysError, ArraysWriter
from openeta_ros.episodes.bag import Bag, decoder
from openeta_ros.episodes.bag_description import with_description
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.bag_static import static_first
from openeta_ros.episodes.demonstration import Demonstration
from openeta_ros.episodes.expected_rows import Rate, expected_rows
from openeta_ros.episodes.frames import GAP_PERIODS
from openeta_ros.episodes.frozen import FrozenCheck
from openeta_ros.episodes.units import UnitCheck
from openeta_ros.observation import CHUNK_TOPIC, COMMAND_TYPES, NS_PER_S, ObservationError, Row, Rows
from openeta_ros.observation.buffers import IMAGE_TYPES, TF_STATIC

Progress = Callable[[float], None]

# Rows whose pictures are being decoded: enough to keep the threads busy, few enough to fit into memory.
IN_FLIGHT = 6
PICTURE_TYPES = tuple(name for names in IMAGE_TYPES.values() for name in names)
# What the arrays of a recording are called where an evaluation shows them.
MADE = 'demonstration.npz'
# Frames that are told, of a topic with pictures of several.
MOST_FRAMES = 4


class RowSink(Protocol):
    """What takes rows as they are made: `ArraysWriter`, or who makes something else of them.

    `append` is called with the arrays of an observation and its time `times` (), seconds from the first; from
    the second on it is followed by a call with `actions` (D,), what was commanded between the two.
    """

    def append(self, rows: Mapping[str, NDArray[Any]]) -> None:
        """Take one row of some arrays; ArraysError refuses it, so that it is dropped and counted."""

    def cut(self) -> None:
        """Know that the next row does not follow the one before: time went back between them."""

    def complete(self, scalars: Mapping[str, NDArray[Any]], info: Mapping[str, Any]) -> None:
        """Take what holds for all rows: these were all."""


def convert(
    bag: Bag,
    embodiment: Embodiment,
    output: Path,
    *,
    rate: Rate = 'contract',
    from_s: float = 0.0,
    to_s: float | None = None,
    progress: Progress = lambda share: None,
) -> Account:
    """Write the demonstration in a bag, and return what became of its messages.

    Args:
        bag: open for reading.
        embodiment: the contract of the robot that was recorded.
        output: an .npz file, or (with another name) a folder of .npy files.
        rate: rows at the contract's rate, or one for each picture of the clock camera.
        from_s, to_s: what of the bag, in seconds of recording from its first message.
        progress: told now and then how much is done, 0 to 1.

    Raises:
        BagError: the bag lacks a topic of the contract, is damaged, or gives fewer than two rows.
        EmbodimentError, KinematicsError: the contract needs a robot description, and has none that fits.
    """
    with ArraysWriter(output, expected_rows(bag, embodiment, rate, from_s, to_s)) as arrays:
        return convert_into(arrays, bag, embodiment, rate=rate, from_s=from_s, to_s=to_s, progress=progress)


def convert_into(
    sink: RowSink,
    bag: Bag,
    embodiment: Embodiment,
    *,
    rate: Rate = 'contract',
    from_s: float = 0.0,
    to_s: float | None = None,
    progress: Progress = lambda share: None,
) -> Account:
    """As `convert`, with each row handed to `sink` when it is made; what the sink raises passes through."""
    conversion = _Conversion(bag, embodiment, rate)
    with ThreadPoolExecutor(_threads(), 'decode') as pool:
        conversion.run(sink, pool, from_s, to_s, progress)
    return conversion.account


def load_any(path: Path, embodiment: Embodiment, folder: Path, *, namespace: str = '') -> Demonstration:
    """Return the demonstration in `path`: an .npz file, a folder of .npy files, or an episode: a bag folder,
    a folder with bag/ in it, a single .mcap or .db3. That of an episode is written into `folder` first.

    Raises:
        DemonstrationError: there is none.
    """
    if not is_episode(path):
        return demonstration.load(path)
    target = folder / MADE
    try:
        with Bag(path, namespace=namespace) as bag:
            convert(bag, embodiment, target)
    except (BagError, EmbodimentError, KinematicsError) as error:
        raise demonstration.DemonstrationError(str(error)) from None
    return demonstration.load(target)


def is_episode(path: Path) -> bool:
    """Whether a path is meant as a recording, not as the arrays of a demonstration."""
    if path.is_dir():
        return not any(path.glob('*.npy'))
    return path.suffix != '.npz'


class _Finished(NamedTuple):
    """A row whose observation is made, waiting for the next one, which ends its action."""

    moment_s: float
    qpos: NDArray[np.float64]


class _Conversion:
    def __init__(self, bag: Bag, embodiment: Embodiment, rate: Rate) -> None:
        self.account = Account(notes=list(bag.notes))
        self._bag, self._embodiment, self._rate = bag, embodiment, rate
        kinematics = self._kinematics()
        self._rows = Rows(embodiment, kinematics, embodiment.rate_hz if rate == 'contract' else None)
        self._units = UnitCheck(embodiment, kinematics)
        self._frozen = FrozenCheck()
        self._decoded = decoder()
        self._topics: dict[str, TopicAccount] = {}
        self._commands: dict[str, TopicAccount] = {}
        self._ages = Ages()
        self._decoding: dict[str, tuple[Any, Future[NDArray[Any]]]] = {}  # newest picture of each camera
        self._frames: dict[str, set[str]] = defaultdict(set)  # that pictures are in, by topic
        self._before: _Finished | None = None
        self._times: list[float] = []
        self._origin_ns: int | None = None
        self._part, self._part_origin_s, self._last_s = 0, 0.0, 0.0
        self._from_next_state: Counter[str] = Counter()
        self._commanded = False
        self._find_topics()

    def run(
        self,
        arrays: RowSink,
        pool: ThreadPoolExecutor,
        from_s: float,
        to_s: float | None,
        progress: Progress,
    ) -> None:
        first, last = self._bag.span() or (0, 0)
        start = first + round(from_s * NS_PER_S)
        stop = last + 1 if to_s is None else first + round(to_s * NS_PER_S)
        flight: deque[tuple[Row, dict[str, Future[NDArray[Any]]]]] = deque()

        def land(most: int) -> None:
            while len(flight) > most:
                self._land(*flight.popleft(), arrays)

        wanted = self._bag.messages([*self._topics, *self._commands], start, stop)
        static = [topic.topic for topic in self._topics.values() if topic.contract == TF_STATIC]
        if static:
            wanted = static_first(self._bag, static, wanted, first, start, self.account.notes)
        for count, recorded in enumerate(wanted):
            if count % 256 == 0:
                progress((recorded.log_ns - start) / max(1, min(stop, last + 1) - start))
            account = self._topics.get(recorded.topic) or self._commands[recorded.topic]
            account.read += 1
            try:
                message = self._decoded(recorded)
            except BagError as error:
                account.rejected[str(error)] = account.rejected.get(str(error), 0) + 1
                continue
            if recorded.topic in self._commands:
                self._rows.add_command(account.contract, message, recorded.log_ns)
            if recorded.topic in self._topics:
                if account.message_type in PICTURE_TYPES:
                    self._frames[recorded.topic].add(str(message.header.frame_id))
                for row in self._rows.add(account.contract, message, recorded.log_ns):
                    flight.append((row, self._submitted(row, pool)))
                    land(IN_FLIGHT)
        for row in self._rows.finish():
            flight.append((row, self._submitted(row, pool)))
            land(IN_FLIGHT)
        land(0)
        progress(1.0)
        self._complete_account(whole=from_s == 0 and to_s is None)
        if self.account.rows < 2:
            raise BagError(f'{self._bag.path} gives no demonstration: {self._why_none()}')
        arrays.complete({'frequency': np.array(self._frequency())}, self._info())

    def _submitted(self, row: Row, pool: ThreadPoolExecutor) -> dict[str, Future[NDArray[Any]]]:
        """Begin to decode the pictures of a row, but for those that it shares with the row before."""
        frames: dict[str, Future[NDArray[Any]]] = {}
        for messages, depth in ((row.paired.images, False), (row.paired.depths, True)):
            for camera, message in messages.items():
                key = f'{"depth" if depth else "frames"}_{camera}'
                before = self._decoding.get(key)
                if before is None or before[0] is not message:
                    before = message, pool.submit(self._rows.assembler.frame, camera, message, depth=depth)
                    self._decoding[key] = before
                frames[key] = before[1]
        return frames

    def _land(self, row: Row, frames: Mapping[str, Future[NDArray[Any]]], arrays: RowSink) -> None:
        try:
            made = {name: future.result() for name, future in frames.items()}
            observation = self._rows.assembler.observed(row.paired, made)
            moment_s = self._moment_s(row)
            if self._before is not None and row.part != self._part:
                arrays.cut()
            arrays.append({**observation, 'times': np.array(moment_s)})
            if self._before is not None:
                arrays.append({'actions': self._action(row, observation['qpos'])})
        except (ObservationError, ArraysError) as error:
            self.account.dropped += 1
            self.account.dropped_because[getattr(error, 'reason', str(error))] += 1
            return
        self._before = _Finished(moment_s, observation['qpos'])
        self._units.look(observation['qpos'])
        self._frozen.look(row.paired.images, observation['qpos'], moment_s)
        self._times.append(moment_s)
        self._last_s = moment_s
        self._part = row.part
        self.account.rows += 1
        self.account.held_rows += row.held
        self._ages.add(row.paired.ages_ns)

    def _moment_s(self, row: Row) -> float:
        """Return seconds from the first row; where time went back they go on one period later."""
        stamp = row.paired.stamp_ns
        if self._origin_ns is None:
            self._origin_ns = stamp
        elif row.part != self._part:
            self._origin_ns = stamp
            self._part_origin_s = self._last_s + 1 / self._embodiment.rate_hz
        return self._part_origin_s + (stamp - self._origin_ns) / NS_PER_S

    def _action(self, row: Row, next_qpos: NDArray[Any]) -> NDArray[np.float64]:
        """Return the wire row (D,) that was commanded before a row; what was not is taken from its state."""
        action, index = next_qpos.copy(), 0
        self._commanded |= not row.commanded.keys().isdisjoint(self._embodiment.wire_joints)
        grippers: list[int] = []
        for arm in self._embodiment.arms.values():
            for joint in arm.joints:
                if joint in row.commanded:
                    action[index] = row.commanded[joint]
                else:
                    self._from_next_state[joint] += 1
                index += 1
            if arm.gripper is not None:
                if arm.gripper.joint in row.commanded:
                    action[index] = arm.gripper.to_openness(row.commanded[arm.gripper.joint])
                else:
                    self._from_next_state[arm.gripper.joint] += 1
                grippers.append(index)
                index += 1
        self._units.look(action)
        action[grippers] = action[grippers].clip(0.0, 1.0)
        return action

    def _kinematics(self) -> Kinematics | None:
        try:
            return Kinematics(with_description(self._bag, self._embodiment))
        except (BagError, EmbodimentError, KinematicsError) as error:
            if self._embodiment.endpose.source == 'fk':
                raise
            told = ' '.join(str(error).split())
            self.account.notes.append(f'joints without end cannot be told from others: {told}')
            return None

    def _find_topics(self) -> None:
        for name, types in self._rows.assembler.topics.items():
            found = self._bag.find(name)
            if found is None and name.startswith('/tf'):
                continue
            if found is None:
                raise BagError(self._bag.not_there(name, types))
            if found.messages == 0:
                raise BagError(f'{self._bag.path}: topic {found.name} has no messages')
            if found.message_type not in types:
                transports = [name for name, known in IMAGE_TYPES.items() if found.message_type in known]
                remedy = f' (transport: {transports[0]} of the camera reads it)' if transports else ''
                raise BagError(
                    f'{self._bag.path}: topic {found.name} is {found.message_type}, and the contract '
                    f'({self._embodiment.path}) needs {" or ".join(types)}{remedy}'
                )
            self._topics[found.name] = TopicAccount(found.name, name, found.message_type, found.messages)
        wanted = [topic.topic for topic in self._embodiment.action.topics]
        for name in wanted or [CHUNK_TOPIC.lstrip('/')]:  # in the namespace, like all of them
            found = self._bag.find(name)
            if found is not None and found.message_type in COMMAND_TYPES:
                self._commands[found.name] = TopicAccount(
                    found.name, name, found.message_type, found.messages
                )
            elif wanted:
                there = 'not there' if found is None else f'{found.message_type}, which is no command'
                self.account.notes.append(f'the command topic {name} is {there}; actions are the next state')
        self.account.topics = list({**self._commands, **self._topics}.values())

    def _complete_account(self, *, whole: bool) -> None:
        account, rows = self.account, self._rows
        self._frozen.finish()
        account.notes += [*self._units.notes, *self._frozen.notes]
        account.dropped += rows.dropped.pop('moments', 0)
        account.dropped_because += rows.dropped
        account.surplus = rows.surplus
        account.parts = rows.part + 1
        account.ages_ms = self._ages.figures()
        account.conditions = list(rows.assembler.conditions)
        for topic in account.topics:
            marker = f'(topic {topic.contract}): '
            for text, count in rows.assembler.rejected.items():
                if marker in text:
                    topic.rejected[text.split(marker, 1)[1]] = count
            for text, count in rows.commands.rejected.items():
                if text.startswith(f'{topic.contract}: '):
                    topic.rejected[text.split(': ', 1)[1]] = count
            if len(frames := self._frames[topic.topic] - {''}) > 1:
                told = ', '.join(sorted(frames)[:MOST_FRAMES])
                account.notes.append(
                    f'{topic.topic} has pictures of the frames {told}: of several cameras, the rows mix them'
                )
            if whole and topic.messages is not None and topic.read != topic.messages:
                account.notes.append(f'{topic.topic}: {topic.read} of {topic.messages} messages were read')
        if self._times:
            distances = np.diff(self._times)
            wide = distances[distances > GAP_PERIODS / self._frequency()]
            if wide.size:
                account.gaps = {'count': float(wide.size), 'longest_s': float(wide.max())}
        used = [topic.topic for topic in self._commands.values() if rows.commands.counts[topic.contract]]
        if used and not self._commanded:
            account.notes.append(f'{self._why_not_commanded(used)}; actions are the next state')
            used = []
        account.actions = {
            'source': ', '.join(used) or 'next_state',
            'from_next_state': dict(self._from_next_state) if used else 'all',
        }

    def _why_not_commanded(self, topics: list[str]) -> str:
        given, wanted = self._rows.commands.joints, self._embodiment.wire_joints
        if set(given) & set(wanted):
            return (
                f'no command of {", ".join(topics)} was in force at any row: they are stamped later than all'
            )
        return (
            f'the commands of {", ".join(topics)} are for {", ".join(given)}, and the joints of the contract '
            f'are {", ".join(wanted)}'
        )

    def _frequency(self) -> float:
        if self._rate == 'contract' or len(self._times) < 2:
            return float(self._embodiment.rate_hz)
        return float(1 / np.median(np.diff(self._times)))

    def _info(self) -> dict[str, Any]:
        """Return what the file says of itself; of our own recordings also what they are of."""
        embodiment = self._embodiment
        custom = {}
        for key in ('env', 'episode'):
            try:
                custom[key] = dict(json.loads(self._bag.custom_data.get(key, '{}')))
            except ValueError:
                custom[key] = {}
        info = {
            'frequency': self._frequency(),
            'cameras': list(embodiment.cameras),
            'embodiment': embodiment.name,
            'action_dims': {kind: embodiment.action_size(kind) for kind in ('qpos', 'ee')},
            'instruction': custom['env'].get('instruction', ''),
            'quaternion': 'wxyz',
            'bag': str(self._bag.path),
            'rate': self._rate,
            'actions': self.account.actions,
            'account': self.account.json(),
        }
        return info | {key: custom['episode'][key] for key in ('seed', 'success') if key in custom['episode']}

    def _why_none(self) -> str:
        account = self.account
        reasons = [f'{count} x {reason}' for reason, count in account.dropped_because.most_common(3)]
        reasons += [
            f'{topic.topic}: {count} x {reason}'
            for topic in account.topics
            for reason, count in topic.rejected.items()
        ]
        stamps = any('no stamp' in topic.rejected for topic in account.topics)
        remedy = ' (align: {timeline: receive} goes by the time of recording)' if stamps else ''
        otherwise = 'two are needed' if account.rows else 'no picture of the clock camera in this part of it'
        told = '; '.join(dict.fromkeys(reasons)) or otherwise
        return f'{account.rows} rows; {told}{remedy}'


def _threads() -> int:
    return max(1, min(4, os.cpu_count() or 1))
