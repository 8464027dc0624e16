# SPDX-License-Identifier: Apache-2.0
"""What passes between a snippet's process and the runtime comes out as it went in, or is refused."""

from __future__ import annotations

import json
import os
import socket
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from test_code_policy_runs import run

from openeta_ros.code_policy import Budgets, CodePolicyStatus
from openeta_ros.code_policy.child import Line
from openeta_ros.code_policy.confine import WALLS
from openeta_ros.code_policy.run import greeting
from openeta_ros.code_policy.shared import LEAST_BYTES, SHARED_BYTES, SharedMemory, SharedReader
from openeta_ros.code_policy.values import MOST_NUMBERS, Step, pack, unpack
from openeta_ros.vector_policy import WireError, wire
from openeta_ros.vector_policy.frames import FrameSocket
from openeta_ros.vector_policy.wire import DTYPES


def passed(value: Any) -> Any:
    arrays: dict[str, np.ndarray] = {}
    told = json.loads(json.dumps(pack(value, arrays), allow_nan=False))
    return unpack(told, arrays)


@pytest.mark.parametrize('size', [0, 1, MOST_NUMBERS, MOST_NUMBERS + 1])
@pytest.mark.parametrize('dtype', sorted(DTYPES))
def test_arrays_of_every_kind_and_size_come_out_bit_for_bit(dtype: str, size: int) -> None:
    raw = np.random.default_rng(size).integers(0, 256, size * np.dtype(dtype).itemsize, dtype=np.uint8)
    array = (raw % 2).astype(bool) if dtype == '|b1' else raw.view(dtype)
    for sent in (array, array.reshape(1, -1), np.asfortranarray(array.reshape(-1, 1))):
        got = passed({'a': [sent]})['a'][0]
        assert got.dtype == sent.dtype and got.shape == sent.shape
        assert got.tobytes() == sent.tobytes()
        assert got is sent or not got.flags.writeable  # what the wire carries it makes so itself


def test_numbers_that_json_lacks_come_out_too() -> None:
    array = np.array([np.nan, -np.inf, -0.0, 5e-324])
    assert passed(array).tobytes() == array.tobytes()
    assert np.isnan(passed(float('nan'))) and passed(np.int64(-3)) == -3
    assert passed(np.uint64(2**64 - 1)) == 2**64 - 1
    step = passed(Step({'qpos': np.array([-0.0])}, 1.0, True, info={'step': 3}))
    assert step.done and step.info == {'step': 3} and np.signbit(step.observation['qpos'][0])


@pytest.mark.parametrize(
    'told',
    [
        {'$array': 'nowhere'},
        {'$numbers': 3},
        {'$numbers': [[1.0], '<f8']},
        {'$numbers': [[1.0], '|O', [1]]},
        {'$numbers': [[1.0], ['<f8'], [1]]},
        {'$numbers': [['1'], '<f8', [1]]},
        {'$numbers': [[[1.0]], '<f8', [1]]},
        {'$numbers': [[1.0], '<f8', [2]]},
        {'$numbers': [[1.0], '<f8', [1e9]]},
        {'$numbers': [[1.0], '<f8', [10**30]]},
        {'$numbers': [[10**400], '<f8', [1]]},
        {'$numbers': [[-1], '<u8', [1]]},
        {'$step': 3},
        {'$step': {'nothing': 1}},
    ],
)
def test_what_was_not_packed_is_refused(told: Any) -> None:
    with pytest.raises((ValueError, TypeError)):
        unpack([told], {})


def test_a_picture_stays_as_long_as_any_view_of_it() -> None:
    writer = SharedMemory()
    reader = SharedReader(os.dup(writer.descriptor))
    os.close(writer.descriptor)
    pictures = [np.full((100, 200), number % 256, np.uint8) for number in range(SHARED_BYTES // 20_000 + 1)]
    kept = []
    for picture in pictures:
        writer.begin(set(reader.held()))
        place = writer.place(picture)
        if place is None:
            break
        got = reader.fetch(place)
        assert got.base is not None and not got.flags.writeable
        with pytest.raises(ValueError, match='WRITEABLE'):
            got.flags.writeable = True
        kept.append(got[10:20].T[::2])
        del got
    assert len(kept) >= SHARED_BYTES // 20_032 - 1, 'it was not filled'
    for number, view in enumerate(kept):
        assert (view == number % 256).all()
    del kept[3], view
    writer.begin(set(reader.held()))
    place = writer.place(pictures[7])
    assert place is not None and place[0] > 0, 'what is free again is not used again'
    assert (reader.fetch(place) == 7).all() and (kept[3] == 4).all()
    assert writer.place(np.zeros(LEAST_BYTES - 1, np.uint8)) is None


def test_a_snippet_may_keep_more_pictures_than_there_is_memory_for() -> None:
    result = run(
        """
kept = []
for turn in range(8):
    api.reset(turn)
    q = np.array(api.observe()['qpos'])
    for i in range(11):
        q[0] -= 0.02
        seen = api.step(q).observation['frames_front']
        kept.append((seen, seen.copy()))
assert all(np.array_equal(seen, copy) for seen, copy in kept)
assert len({copy.tobytes() for _, copy in kept}) > 10, 'they are all the same'
RESULT = sum(seen.nbytes for seen, _ in kept)
""",
        budgets=Budgets(resets=8),
    )
    assert result.status is CodePolicyStatus.EXECUTED, result.content
    assert result.details['result'] * 2 > SHARED_BYTES


def test_an_answer_that_is_not_read_to_its_end_is_not_continued_by_the_next_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def full(connection: FrameSocket) -> Any:
        raise MemoryError

    ours, theirs = socket.socketpair()
    with ours, theirs:
        line, runtime = Line(FrameSocket(theirs)), FrameSocket(ours)
        wire.send(runtime, 'ok', {'value': 1})
        assert line.ask({'call': 'observe'}, {})[:2] == ('ok', {'value': 1})
        monkeypatch.setattr('openeta_ros.code_policy.child.wire', SimpleNamespace(send=wire.send, recv=full))
        with pytest.raises(MemoryError):
            line.ask({'call': 'observe'}, {})
        with pytest.raises(RuntimeError, match='not read to its end'):
            line.ask({'call': 'observe'}, {})
        line.send('close', {})
        told = [wire.recv(runtime)[:2] for _ in range(3)]
    assert [(op, fields['number']) for op, fields in told] == [('act', 0), ('act', 1), ('close', 2)]


@pytest.mark.parametrize(
    ('problems', 'findings'),
    [
        (None, []),
        ({}, []),
        (dict.fromkeys((*WALLS, 'more'), ''), []),
        (dict.fromkeys(WALLS), []),
        (dict.fromkeys(WALLS, ''), None),
        (dict.fromkeys(WALLS, ''), ['none']),
        (dict.fromkeys(WALLS, ''), [{'kind': 'planned', 'line': 1, 'message': ''}]),
        (dict.fromkeys(WALLS, ''), [{'kind': 'syntax', 'line': True, 'message': ''}]),
        (dict.fromkeys(WALLS, ''), [{'kind': 'syntax', 'line': 1, 'message': 3}]),
    ],
)
def test_a_greeting_that_is_none_is_refused(problems: Any, findings: Any) -> None:
    with pytest.raises(WireError):
        greeting({'problems': problems, 'findings': findings})
