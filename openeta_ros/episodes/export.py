# SPDX-License-Identifier: Apache-2.0
"""Recordings to data sets, by the code that makes observations of live topics.

Memory holds a few pictures and the numbers of one episode, however many there are. A data set gets its name
when it is complete.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

from openeta_ros.embodiment import Embodiment, EmbodimentError, KinematicsError
from openeta_ros.episodes.account import Account
from openeta_ros.episodes.appearing import appearing
from openeta_ros.episodes.bag import Bag
from openeta_ros.episodes.bag_demonstration import convert, convert_into
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.frames import Frames
from openeta_ros.episodes.lerobot import LeRobotWriter
from openeta_ros.episodes.lerobot_read import LeRobotReader
from openeta_ros.episodes.parquet import ParquetWriter
from openeta_ros.episodes.recording import embodiment_of, facts

Format = Literal['lerobot', 'npz', 'parquet']
FORMATS: tuple[Format, ...] = ('lerobot', 'npz', 'parquet')
Progress = Callable[[float], None]


@dataclass
class Exported:
    """What became of each recording, by path: its account, or why it is not in the data set."""

    output: str
    accounts: dict[str, Account] = field(default_factory=dict)
    failures: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """Return it as JSON-safe data."""
        accounts = {path: account.json() for path, account in self.accounts.items()}
        return {
            'output': self.output,
            'accounts': accounts,
            'failures': self.failures,
            'notes': self.notes,
        }


def missing(form: str) -> str | None:
    """Return what is not installed of what a format needs, and how to get it; None when all is there."""
    if form == 'npz' or importlib.util.find_spec('pyarrow') is not None:
        return None
    return f'{form} needs pyarrow: pip install pyarrow'


def export(
    paths: Sequence[Path],
    form: Format,
    output: Path,
    *,
    embodiment: str | None = None,
    instruction: str | None = None,
    recover: bool = False,
    namespace: str = '',
    progress: Progress = lambda share: None,
) -> Exported:
    """Write recordings into the folder `output`; return what became of each.

    Args:
        paths: episodes, bag folders, single files.
        form: `lerobot` is one data set; `npz` and `parquet` are a file for each recording.
        output: must not exist.
        embodiment: the contract's name or file; None takes the one that a recording carries.
        instruction: what was to be done, for recordings that do not carry it.
        recover, namespace: as `Bag` has them.
        progress: told how much is done, 0 to 1.

    Raises:
        BagError: none of the recordings could be exported.
        OSError: the data set cannot be written.
    """
    exported = Exported(str(output))
    with appearing(output) as folder, tempfile.TemporaryDirectory() as scratch:
        target: _Target = _DataSet(folder) if form == 'lerobot' else _Files(folder, form)
        for index, path in enumerate(paths):

            def told(share: float, index: int = index) -> None:
                progress((index + share) / len(paths))

            try:
                with Bag(path, recover=recover, namespace=namespace) as bag:
                    robot = embodiment_of(bag, embodiment, Path(scratch))
                    carried = str(facts(bag).env.get('instruction', ''))
                    exported.accounts[str(path)] = target.add(bag, robot, instruction or carried, told)
            except (BagError, EmbodimentError, KinematicsError) as error:
                exported.failures[str(path)] = str(error)
        if not exported.accounts:
            raise BagError(f'nothing was exported: {"; ".join(exported.failures.values())}')
        target.complete(exported)
    return exported


class _Target(Protocol):
    def add(self, bag: Bag, embodiment: Embodiment, instruction: str, progress: Progress) -> Account: ...

    def complete(self, exported: Exported) -> None: ...


class _Files:
    """A file for each recording."""

    def __init__(self, folder: Path, form: Format) -> None:
        self._folder, self._form, self._count = folder, form, 0

    def add(self, bag: Bag, embodiment: Embodiment, instruction: str, progress: Progress) -> Account:
        path = self._folder / f'episode_{self._count:06d}.{self._form}'
        if self._form == 'npz':
            account = convert(bag, embodiment, path, progress=progress)
        else:
            with ParquetWriter(path) as writer:
                account = convert_into(Frames(writer, embodiment.rate_hz), bag, embodiment, progress=progress)
                writer.complete(_info(bag, embodiment, instruction, account))
        self._count += 1
        return account

    def complete(self, exported: Exported) -> None:
        exported.notes.append(f'{self._count} files')


class _DataSet:
    """A LeRobot data set of all recordings."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writer: LeRobotWriter | None = None
        self._embodiment: Embodiment | None = None
        self._sources: list[Mapping[str, Any]] = []
        self._depths: set[str] = set()
        self._partly: list[str] = []

    def add(self, bag: Bag, embodiment: Embodiment, instruction: str, progress: Progress) -> Account:
        if not instruction:
            raise BagError(
                f'{bag.path} carries no instruction, which LeRobot needs: give one (--instruction)'
            )
        if self._embodiment is None or self._writer is None:
            self._embodiment, self._writer = embodiment, LeRobotWriter(self._folder, embodiment)
        elif _streams(self._embodiment) != _streams(embodiment):
            raise BagError(f'{bag.path} is of another robot or rate than the data set ({embodiment.name})')
        before = self._writer.episodes
        self._writer.begin(instruction)
        try:
            account = convert_into(
                Frames(self._writer, embodiment.rate_hz), bag, embodiment, progress=progress
            )
            self._writer.end()
            if self._writer.episodes == before:
                raise BagError(f'{bag.path}: no two rows follow each other')
        except BaseException:
            self._writer.abandon()
            if self._writer.episodes > before:  # those before a gap were written already
                self._partly.append(
                    f'{self._writer.episodes - before} episodes of {bag.path} are in it all the same'
                )
            raise
        self._depths |= {name for name, camera in embodiment.cameras.items() if camera.depth is not None}
        info = _info(bag, embodiment, instruction, account)
        self._sources.append({'episodes': [before, self._writer.episodes], **info})
        return account

    def complete(self, exported: Exported) -> None:
        assert self._writer is not None
        assert self._embodiment is not None
        self._writer.complete(
            {'contract': self._embodiment.path.read_text('utf-8'), 'sources': self._sources}
        )
        exported.notes.append(f'{self._writer.episodes} episodes, {self._writer.frames} frames')
        exported.notes += self._partly
        if self._depths:
            exported.notes.append(
                f'depth of {", ".join(sorted(self._depths))} is left out: LeRobot has no place'
            )


def _info(bag: Bag, embodiment: Embodiment, instruction: str, account: Account) -> dict[str, Any]:
    carried = facts(bag)
    return {
        'bag': str(bag.path),
        'embodiment': embodiment.name,
        'joints': embodiment.wire_joints,
        'quaternion': 'wxyz',
        'rate_hz': float(embodiment.rate_hz),
        'instruction': instruction,
        'episode': dict(carried.episode),
        'policy': dict(carried.policy),
        'account': account.json(),
    }


def _streams(embodiment: Embodiment) -> tuple[Any, ...]:
    return embodiment.rate_hz, embodiment.wire_joints, list(embodiment.cameras), embodiment.endpose.source


def import_lerobot(
    folder: Path, output: Path, embodiment: Embodiment, *, progress: Progress = lambda share: None
) -> tuple[int, int]:
    """Write the episodes of a LeRobot data set as bags, `output`/episodes/<n>/bag; return how many episodes
    and moments there are.

    Raises:
        BagError: it is no data set of this robot.
    """
    reader = LeRobotReader(folder, embodiment)
    with appearing(output) as made:
        moments = reader.write(made, progress)
    return len(reader.episodes), moments
