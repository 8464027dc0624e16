# SPDX-License-Identifier: Apache-2.0
"""Recorded actions once more: in any env, through the same checks, and compared with the recorded run."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from openeta_ros.embodiment import Embodiment
from openeta_ros.embodiment.schema import ActionType
from openeta_ros.episodes.bag import Bag
from openeta_ros.episodes.bag_demonstration import convert
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.demonstration import Demonstration
from openeta_ros.episodes.files import EpisodeWriter
from openeta_ros.episodes.recording import executed_rows, facts, sent_chunks
from openeta_ros.episodes.results import EpisodeResult
from openeta_ros.episodes.runner import EpisodeEnv, run_episode
from openeta_ros.observation import Observation
from openeta_ros.vector_policy import PolicyUnavailable

Array = NDArray[Any]
# Single rows that become one chunk for an arm.
JOINED = 20


class RecordedPolicy:
    """An `EpisodePolicy` that answers what was recorded, chunk by chunk.

    Of our recordings these are the chunks as they were sent, of each the rows that were to be executed; of
    others the rows that were commanded, one at a time.

    Attributes:
        chunks: action type and rows (H, A) of each.
        rows: how many rows were executed.
        max_steps: the budget of a run of the same length.
    """

    def __init__(self, bag: Bag, embodiment: Embodiment) -> None:
        """Take the actions of `bag`, whose robot has the contract `embodiment`.

        Raises:
            BagError: there are none.
        """
        self.chunks = [(chunk.action_type, chunk.rows[: chunk.horizon or None]) for chunk in sent_chunks(bag)]
        self._of_ours = bool(self.chunks)
        if not self.chunks:
            with tempfile.TemporaryDirectory() as scratch:
                convert(bag, embodiment, Path(scratch) / 'arrays')
                rows = np.load(Path(scratch) / 'arrays' / 'actions.npy')
            self.chunks = [('qpos', row[None]) for row in rows]
        self._next = 0
        self.rows = executed_rows(bag) if self._of_ours else len(self.chunks)
        refused = (facts(bag).episode.get('error') or {}).get('kind', '') != ''
        # The chunk that was refused is sent again, to see whether it is refused again.
        self.max_steps = max(1, self.rows + refused)

    @property
    def action_type(self) -> ActionType:
        """The type of the rows answered last."""
        kind = self.chunks[max(0, self._next - 1)][0]
        return 'ee' if kind == 'ee' else 'qpos'

    def reset(self, seed: int) -> None:
        """Begin from the first chunk."""
        self._next = 0

    def set_demonstration(self, demonstration: Demonstration) -> None:
        """Do nothing: what will be done is known."""

    def act(self, observation: Observation) -> Array:
        """Return the next chunk.

        Raises:
            PolicyUnavailable: there is none left; the episode ends with that.
        """
        if self._next == len(self.chunks):
            raise PolicyUnavailable('the recording has no more actions', remote_type='EndOfRecording')
        self._next += 1
        return self.chunks[self._next - 1][1]

    def descriptor(self) -> Mapping[str, Any]:
        """Return what it is."""
        return {'policy': 'recorded actions', 'action_type': self.action_type}


# The recorded actions as a policy directory, for those who run a policy in a process of its own.
SERVED = """\
import pathlib

import numpy as np


class Recorded:
    action_type = {action_type!r}

    def __init__(self):
        files = pathlib.Path(__file__).parent.glob('chunk_*.npy')
        self._chunks = [np.load(file) for file in sorted(files)]

    def set_demonstration(self, arrays, info):
        pass

    def reset(self, seed):
        self._next = 0

    def act(self, observation):
        if self._next == len(self._chunks):
            raise RuntimeError('the recording has no more actions')
        self._next += 1
        return {{'action': self._chunks[self._next - 1]}}
"""


def write_policy(policy: RecordedPolicy, folder: Path) -> None:
    """Write recorded actions as a policy directory.

    Rows that come one by one become chunks of a second or so: an arm comes to rest at the end of each.

    Raises:
        BagError: some of them are qpos and some ee.
    """
    kinds = {kind for kind, _ in policy.chunks}
    if len(kinds) > 1:
        raise BagError('the recording has chunks of qpos and of ee: a policy has one of them')
    rows = [chunk for _, chunk in policy.chunks]
    if all(len(chunk) == 1 for chunk in rows):
        rows = [np.concatenate(rows[start : start + JOINED]) for start in range(0, len(rows), JOINED)]
    folder.mkdir()
    for index, chunk in enumerate(rows):
        np.save(folder / f'chunk_{index:06d}.npy', chunk)
    (folder / 'policy.py').write_text(SERVED.format(action_type=kinds.pop()), encoding='utf-8')
    (folder / 'policy.yaml').write_text('api: 1\npolicy: policy:Recorded\n', encoding='utf-8')


@dataclass(frozen=True)
class Difference:
    """How far one array of the two runs differs: the largest absolute difference, the row in which it is, and
    the largest in the last row that both have. Pictures are compared in levels, 0 to 255."""

    name: str
    largest: float
    row: int
    last: float


@dataclass(frozen=True)
class Again:
    """A recorded run, and the new one of the same actions.

    `differences` are of what both runs saw in the same form; `not_compared` says what is not, and why.
    """

    recorded: Mapping[str, Any]
    again: EpisodeResult
    rows: tuple[int, int]
    differences: tuple[Difference, ...]
    not_compared: tuple[str, ...]

    @property
    def same(self) -> bool:
        """Whether both runs saw the same, bit for bit, and ended alike."""
        return (
            self.rows[0] == self.rows[1]
            and not self.not_compared
            and all(one.largest == 0 for one in self.differences)
            and self.outcome_differs() == []
        )

    def outcome_differs(self) -> list[str]:
        """Return in what of the outcome the new run differs; nothing where the recording does not say."""
        ours = self.again.model_dump()
        names = [name for name in ('success', 'steps', 'reward', 'error') if name in self.recorded]
        return [
            f'{name}: {_brief(self.recorded[name])} then, {_brief(ours[name])} now'
            for name in names
            if _brief(self.recorded[name]) != _brief(ours[name])
        ]

    def json(self) -> dict[str, Any]:
        """Return it as JSON-safe data."""
        return {
            'same': self.same,
            'recorded': dict(self.recorded),
            'again': self.again.model_dump(),
            'rows': list(self.rows),
            'differences': [asdict(one) for one in self.differences],
            'not_compared': list(self.not_compared),
        }

    def lines(self) -> Iterator[str]:
        """Yield it as text."""
        word = 'success' if self.again.success else 'failed'
        yield f'now        {word} after {self.again.steps} steps, reward {self.again.reward:g}'
        if self.again.error is not None:
            yield f'           {self.again.error.kind}: {self.again.error.message}'
        yield from (f'differs    {text}' for text in self.outcome_differs())
        yield f'compared   {min(self.rows)} moments ({self.rows[0]} then, {self.rows[1]} now)'
        for one in self.differences:
            unit = ' levels' if one.name.startswith('frames_') else ''
            where = f' at moment {one.row}' if one.largest else ''
            end = f'at the end {one.last:g}{unit}'
            yield f'  {one.name}  largest difference {one.largest:g}{unit}{where}, {end}'
        yield from (f'  {text}' for text in self.not_compared)
        if self.same:
            yield 'both runs are the same, bit for bit'


def actuate(
    bag: Bag,
    embodiment: Embodiment,
    env: EpisodeEnv,
    policy: RecordedPolicy,
    seed: int,
    output: Path,
    *,
    env_embodiment: Embodiment,
) -> Again:
    """Execute recorded actions in an env and compare what was seen; the new run is recorded in `output`.

    Args:
        bag, embodiment: the recording and the contract of its robot.
        env: of `env_embodiment`; its budget of rows is the policy's `max_steps`.
        policy: made of the same recording.
        seed: of the scene.

    Raises:
        BagError: the runs cannot be compared.
        EnvError: the env cannot go on.
    """
    writer = EpisodeWriter(output, 0, env_embodiment, {'contract': env_embodiment.path.read_text('utf-8')})
    try:
        result = run_episode(env, policy, seed, observers=[writer])
    except BaseException:
        writer.abandon()
        raise
    files = writer.complete({'episode': result.model_dump_json()})
    return compared(bag, embodiment, policy, result, output / files.bag, env_embodiment)


def compared(
    bag: Bag,
    embodiment: Embodiment,
    policy: RecordedPolicy,
    result: EpisodeResult,
    recording: Path,
    env_embodiment: Embodiment,
) -> Again:
    """Compare a recorded run with a new one of the same actions: its result, and its recording.

    Raises:
        BagError: the runs cannot be compared.
    """
    with tempfile.TemporaryDirectory() as scratch:
        then, now = Path(scratch) / 'then', Path(scratch) / 'now'
        rows = policy.rows + 1, result.steps + 1
        differences: list[Difference] = []
        not_compared: list[str] = []
        if policy.rows and result.steps:
            convert(bag, embodiment, then, rate='clock')
            with Bag(recording) as new:
                convert(new, env_embodiment, now, rate='clock')
            rows, differences, not_compared = _compared(then, now, env_embodiment.rate_hz)
    return Again(
        recorded=dict(facts(bag).episode),
        again=result,
        rows=rows,
        differences=tuple(differences),
        not_compared=tuple(not_compared),
    )


def _compared(then: Path, now: Path, rate_hz: float) -> tuple[tuple[int, int], list[Difference], list[str]]:
    """Return the moments of both runs, where their arrays differ, and which have no equal form."""
    pairs = _paired(np.load(then / 'times.npy'), np.load(now / 'times.npy'), 0.5 / rate_hz)
    differences, not_compared = [], []
    counts = (0, 0)
    names = sorted({file.stem for folder in (then, now) for file in folder.glob('*.npy')})
    for name in names:
        if not name.startswith(('qpos', 'endpose', 'frames_', 'depth_')):
            continue
        files = [folder / f'{name}.npy' for folder in (then, now)]
        if not all(file.is_file() for file in files):
            not_compared.append(f'{name} is only in the {"recorded" if files[0].is_file() else "new"} run')
            continue
        old, new = (np.load(file, mmap_mode='r') for file in files)
        counts = len(old), len(new)
        if old.shape[1:] != new.shape[1:]:
            not_compared.append(f'{name} has other sizes: {old.shape[1:]} then, {new.shape[1:]} now')
            continue
        differences.append(_difference(name, old, new, pairs))
    if not counts[0] or not len(pairs):
        raise BagError('the two runs have nothing in common that could be compared')
    return counts, differences, not_compared


def _paired(then: Array, now: Array, within_s: float) -> Array:
    """Return (K, 2) the moments of both runs at the same time from their first: a moment of an arm's run may
    be missing, because a picture came too late."""
    nearest = np.abs(then[:, None] - now[None, :]).argmin(axis=1)
    near = np.abs(then - now[nearest]) < within_s
    return np.stack([np.flatnonzero(near), nearest[near]], axis=1)


def _difference(name: str, old: Array, new: Array, pairs: Array) -> Difference:
    largest, row, last = 0.0, 0, 0.0
    kind = np.int16 if old.dtype == np.uint8 else np.float64
    for before, after in pairs:
        last = float(np.abs(old[before].astype(kind) - new[after].astype(kind)).max(initial=0))
        if last > largest:
            largest, row = last, int(before)
    return Difference(name, largest, row, last)


def _brief(value: Any) -> Any:
    """Return what of an outcome is compared: of an error its kind."""
    return value.get('kind') if isinstance(value, dict) else value
