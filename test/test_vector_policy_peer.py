# SPDX-License-Identifier: Apache-2.0
"""Our client and our server understand, and are understood by, the published robotensor-vector-policy."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Listener
from pathlib import Path

import numpy as np
import pytest
from ports import held_port

from openeta_ros.vector_policy import client as our_client
from openeta_ros.vector_policy import manifest as our_manifest
from openeta_ros.vector_policy import wire as our_wire

pytest.importorskip('vector_policy', reason='the peer robotensor-vector-policy is not installed')

from vector_policy import client as peer_client
from vector_policy import manifest as peer_manifest
from vector_policy import wire as peer_wire

ROOT = Path(__file__).parents[1]
# For what is sure to happen, however busy the machine is.
SURE_S = 120.0
PAIRS = [('openeta_ros.vector_policy', peer_client), ('vector_policy', our_client)]

POLICY = """
import numpy as np

class Echo:
    action_type = 'ee'

    def reset(self, seed):
        if seed < 0:
            raise ValueError('the seed is negative' if seed == -1 else 'long ' * 2000)
        self.seed = seed

    def set_demonstration(self, arrays, info):
        self.info = info
        self.demo = arrays

    def act(self, observation):
        what = bytes(observation['want']).decode() if 'want' in observation else 'echo'
        if what == 'exit':
            raise SystemExit(3)
        return {
            'echo': {'action': np.full((2, 3), self.seed % 8), **observation, **self.demo},
            'none': None,
            'list': {'action': [1, 2]},
            'scalar': {'action': 1.0},
            'empty': {'action': np.zeros((0, 3))},
            'deep': {'action': np.zeros((1, 1, 1))},
            'nothing': {'b': 1, 'a': 2},
            'text': {'action': ['a', 'b']},
            'ragged': {'action': [1.0], 'aux': [[1], [2, 3]]},
            'name': {'action': [1.0], '': 1},
        }[what]
"""


@pytest.fixture
def serve(tmp_path):
    """serve(package, transport): (address, key) of the Echo policy served by that package, listening."""
    (tmp_path / 'echo.py').write_text(POLICY)
    (tmp_path / 'policy.yaml').write_text('api: 1\npolicy: echo:Echo\n')
    processes, held = [], contextlib.ExitStack()

    def start(package: str, transport: str = 'unix') -> tuple[str, bytes]:
        address = str(tmp_path / f's{len(processes)}')  # pytest's folders are short enough for this one
        if transport == 'tcp':
            address = f'127.0.0.1:{held.enter_context(held_port())}'
        key = secrets.token_bytes(32)
        command = [sys.executable, '-m', f'{package}.serve', '--manifest', tmp_path / 'policy.yaml']
        command += ['--address', address, '--authkey-env', 'KEY', '--log-file', tmp_path / f'{package}.log']
        environment = {**os.environ, 'KEY': key.hex(), 'PYTHONPATH': str(ROOT)}
        processes.append(subprocess.Popen(command, env=environment))
        return address, key

    with held:
        yield start
    for process in processes:
        process.kill()
        process.wait()


def observation() -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    return {
        'frames_front': random.integers(0, 255, (48, 64, 3), np.uint8),
        'qpos': random.standard_normal(8),
        'empty': np.zeros((0, 4), np.float32),
        'flag': np.array(True),
        'turned': np.asfortranarray(random.standard_normal((3, 5)).astype('>f4')),
        'кадр': np.float16([np.nan, -0.0, np.inf]),
    }


@pytest.mark.parametrize('transport', ['unix', 'tcp'])
@pytest.mark.parametrize(('server', 'client'), PAIRS, ids=['peer-drives-ours', 'ours-drives-peer'])
def test_each_client_drives_the_other_server_through_a_whole_episode(serve, server, client, transport):
    address, key = serve(server, transport)
    sent = observation()
    with client.RemotePolicy(address, key, timeout_s=SURE_S) as policy:
        assert policy.hello() == {'protocol': 1, 'action_type': 'ee', 'policy': 'echo:Echo'}
        policy.set_demonstration({'actions': np.arange(12.0).reshape(4, 3)}, {'frequency': 20.0})
        policy.reset(2**70)
        policy.reset(np.int64(7))
        got = policy.act(sent)
        assert got['action'].tolist() == [[7] * 3] * 2
        assert got['actions'].shape == (4, 3)
        for name, value in sent.items():
            assert got[name].shape == np.shape(value)
            assert got[name].astype(value.dtype).tobytes() == value.tobytes()


@pytest.mark.parametrize(('server', 'client'), PAIRS, ids=['peer-drives-ours', 'ours-drives-peer'])
def test_an_error_of_the_policy_reaches_the_other_client_and_serving_goes_on(serve, server, client):
    address, key = serve(server)
    with client.RemotePolicy(address, key, timeout_s=SURE_S) as policy:
        policy.hello()
        with pytest.raises(RuntimeError, match='ValueError: reset: the seed is negative') as caught:
            policy.reset(-1)
        assert caught.value.remote_type == 'ValueError'
        assert 'reset raised' in caught.value.log_tail
        policy.reset(1)


def conversation(wire, client, address: str, key: bytes) -> list:
    """Every answer of a server to one list of odd requests, without the log."""
    policy = client.RemotePolicy(address, key, timeout_s=SURE_S)
    conn = policy._conn
    requests = [
        ('reset', {'seed': 1}, {}),
        ('ok', {}, {}),
        ('hello', {'client': 5}, {'x': 1}),
        ('hello', {}, {}),
    ]
    requests += [('reset', {'seed': seed}, {}) for seed in (True, '3', 1.0, None, -1, -2, 2**70, 4)]
    requests += [
        ('reset', {}, {}),
        ('prompt', {'info': [1]}, {}),
        ('prompt', {'info': None}, {}),
        ('prompt', {}, {}),
    ]
    wants = ['none', 'scalar', 'empty', 'deep', 'nothing', 'text', 'ragged', 'name', 'exit', 'list', 'echo']
    requests += [('act', {}, {'want': np.frombuffer(want.encode(), np.uint8)}) for want in wants]
    requests += [('act', {'extra': 1}, {'q': 1.5}), ('close', {}, {'x': 1})]
    answers = []
    for op, fields, arrays in requests:
        wire.send(conn, op, fields, arrays)
        reply, facts, results = wire.recv(conn)
        facts.pop('log_tail', None)
        shown = {name: (array.dtype.str, array.shape, array.tobytes()) for name, array in results.items()}
        answers.append((op, reply, list(facts.items()), shown))
    return answers


def test_both_servers_answer_every_odd_request_with_the_same_words(serve):
    ours = conversation(our_wire, our_client, *serve('openeta_ros.vector_policy'))
    peers = conversation(our_wire, our_client, *serve('vector_policy'))
    assert ours == peers


REPLIES = [
    our_wire.encode('ok', {'protocol': 2, 'action_type': 'ee'}),
    our_wire.encode('ok', {'protocol': True, 'action_type': 'ee'}),
    our_wire.encode('ok', {'protocol': 1, 'action_type': 'torque'}),
    our_wire.encode('ok'),
    our_wire.encode('action', {}, {'action': [1.0]}),
    our_wire.encode('action', {}, {'x': [1.0]}),
    our_wire.encode('action', {}, {'action': 1.0}),
    our_wire.encode('action', {}, {'action': np.zeros((0, 3))}),
    our_wire.encode('error', {'type': 'ValueError', 'message': 'act: no', 'log_tail': 'one\ntwo\n'}),
    our_wire.encode('error', {'type': None, 'message': 3, 'log_tail': None}),
    our_wire.encode('error'),
    [b'{}'],
    [b'not JSON'],
]


@pytest.mark.parametrize('op', ['hello', 'reset', 'act'])
def test_both_clients_take_every_odd_reply_with_the_same_words(op, tmp_path):
    address = str(tmp_path / 's')

    def told(client, reply) -> list:
        """What the call answered with this reply says, and whether it ended the connection."""
        key = secrets.token_bytes(16)
        with Listener(address, 'AF_UNIX', authkey=key) as listener, ThreadPoolExecutor() as threads:
            accepted = threads.submit(listener.accept)
            policy = client.RemotePolicy(address, key, timeout_s=SURE_S)
            with accepted.result() as conn:
                for frame in reply:  # they wait in the socket for the question
                    conn.send_bytes(frame)
                calls = {
                    'hello': policy.hello,
                    'reset': lambda: policy.reset(1),
                    'act': lambda: policy.act({}),
                }
                try:
                    said = calls[op]() and policy.action_type
                except RuntimeError as exc:
                    said = str(exc), exc.op, exc.remote_type, exc.log_tail
            with pytest.raises(RuntimeError) as after:  # nobody is there any more
                policy.reset(2)
            return [said, 'is closed after an earlier failure' in str(after.value)]

    for reply in REPLIES:
        assert told(our_client, reply) == told(peer_client, reply)


def outcome(call, *args, **kwargs):
    """What a call returned, as plain bytes, or the class and words of what it raised."""
    try:
        result = call(*args, **kwargs)
    except (ValueError, EOFError) as exc:
        return type(exc).__name__, str(exc)
    if isinstance(result, list):
        return [bytes(frame) for frame in result]
    if len(result) == 3:
        arrays = {k: (v.dtype.str, v.shape, v.tobytes(), v.flags.writeable) for k, v in result[2].items()}
        return result[0], result[1], arrays
    return result


MESSAGES = [
    ('hello', None, None),
    ('ok', {'b': (1, {2: 3}), 'a': [True, None, 1.5, 'é😀\ud800']}, {}),
    ('act', {}, observation() | {'B': 1, '_': 2.5, '😀': np.zeros((2, 0)), 'i': np.arange(4, dtype='>i4')}),
    ('exec', {}, {}),
    ('act', [1], {}),
    ('act', {1: 2}, {}),
    ('act', {'x': float('nan')}, {}),
    ('act', {'x': np.int64(1)}, {}),
    ('act', {'x': 'y' * (5 << 20)}, {}),
    ('act', {}, [1]),
    ('act', {}, dict.fromkeys(map(str, range(1025)), 0)),
    ('act', {}, {'': 1}),
    ('act', {}, {3: 1, 'a': 'text'}),
    ('act', {}, {3: 1}),
    ('act', {}, {'a': [[1], [2, 3]]}),
    ('act', {}, {'a': 1 + 2j}),
    ('act', {}, {'a': np.longdouble(1)}),
]


@pytest.mark.parametrize('message', MESSAGES, ids=range(len(MESSAGES)))
def test_both_encode_the_same_bytes_or_refuse_with_the_same_words(message):
    assert outcome(our_wire.encode, *message) == outcome(peer_wire.encode, *message)


class Frames:
    """A connection that holds what was sent before."""

    def __init__(self, frames):
        self.frames = list(frames)

    def recv_bytes(self, maxlength=None):
        if not self.frames:
            raise EOFError
        return self.frames.pop(0)


def header(**changes) -> bytes:
    return json.dumps({'protocol': 1, 'op': 'act', 'fields': {}, 'arrays': [], **changes}).encode()


def entry(**changes) -> bytes:
    return header(arrays=[{'name': 'x', 'dtype': '<f8', 'shape': [1], **changes}])


RECEIVED = [
    *(
        [frame]
        for frame in (b'', b'\xff', b'{', b'[]', b'{}', b'\xef\xbb\xbf{}', b'{"a":NaN}', b'[' * 200_000)
    ),
    *([header(protocol=value)] for value in (2, True, 1.0, None, 'x' * 1000)),
    *([header(op=value)] for value in ('', 1, 'anything')),
    *(
        [header(**change)]
        for change in ({'extra': 1}, {'fields': 1}, {'arrays': {}}, {'arrays': [{}] * 1025})
    ),
    *([entry(name=value), b'8' * 8] for value in ('', 3, 'n' * 300, "a'b", 'é')),
    *([entry(dtype=value), b'8' * 8] for value in ('f8', '>f8', '|O', 3, ['<f8'], 'D' * 500)),
    *([entry(shape=value), b'8' * 8] for value in (3, [1.0], [True], [-1], [1] * 33, [1] * 32, [2], [], [0])),
    *([entry(shape=value), b''] for value in ([0], [0, 2**63], [2**40, 2**40], [0, 2**30, 5], [10**4000])),
    [header(arrays=[{'name': 'x', 'dtype': '<f8', 'shape': [0]}] * 2), b'', b''],
    [header(arrays=[{'name': n, 'dtype': '|u1', 'shape': [2**33]} for n in 'abc'])],
]


@pytest.mark.parametrize('frames', RECEIVED, ids=range(len(RECEIVED)))
def test_both_read_the_same_message_or_refuse_it_with_the_same_words(frames):
    for limit in ({}, {'max_bytes': 16}):
        assert outcome(our_wire.recv, Frames(frames), **limit) == outcome(
            peer_wire.recv, Frames(frames), **limit
        )


@pytest.mark.parametrize(
    'address',
    [
        '',
        'a',
        ':80',
        'host:',
        'host:port',
        'tcp://h:80',
        '[::1]:80',
        '::1:80',
        'h:0',
        'h:65535',
        'h:65536',
        './a:1',
    ],
)
def test_both_take_an_address_for_the_same(address):
    assert outcome(our_wire.parse_address, address) == outcome(peer_wire.parse_address, address)


GOOD = 'api: 1\npolicy: a:B\n'
MANIFESTS = [
    '',
    '[]',
    'kwargs: {}\n',
    'api: true\npolicy: a\nkwargs: [1]\nrequirements: ../x\nbenchmarks: x\nentry: 1\n2: 3\n',
    *(f'api: {value}\npolicy: a:B\n' for value in ("'1'", '1.0', 'null', '2', '[1]')),
    *(f'api: 1\npolicy: {value}\n' for value in ('a.b:C', 'a:B.c', 'a..b:C', 'é:C', "'a:B '", '[a]', 'null')),
    *(
        GOOD + f'kwargs: {value}\n'
        for value in ('', 'x', '{1: 2, a-b: 3, ok: 5}', '{x: 1, x: 2}', '{1: 1, 0x1: 2}')
    ),
    *(
        GOOD + f'requirements: {value}\n'
        for value in ("''", '3', '"a\\0b"', '/x', '~/x', 'none', 'r.txt', '.', 'loop')
    ),
    *(GOOD + f'benchmarks: {value}\n' for value in ('', '[1]', "['']", '[a, b]')),
    GOOD + 'kwargs: {a: &a {x: 1}, b: &b {<<: *a, x: 2}, c: {<<: *b}, d: {<<: [*a, *b], x: 3}}\n',
    GOOD + 'kwargs: {a: &a {x: 1}, b: {<<: *a, x: 2, x: 3}}\n',
    GOOD + 'kwargs: {when: 2026-02-30}\n',
    GOOD + 'kwargs: {x: !!python/name:os.system }\n',
    GOOD + 'x: [\n',
    GOOD + 'kwargs: {x: ' + '[' * 1000 + '\n',
]


@pytest.mark.parametrize('text', MANIFESTS, ids=range(len(MANIFESTS)))
def test_both_read_the_same_manifest_or_list_the_same_problems(text, tmp_path):
    (tmp_path / 'r.txt').write_text('numpy\n')
    (tmp_path / 'loop').symlink_to('loop')
    path = tmp_path / 'policy.yaml'
    path.write_text(text)

    def read(manifest):
        try:
            loaded = manifest.load(path)
        except ValueError as exc:
            return exc.path, exc.problems, str(exc)
        names = (
            'path',
            'api',
            'policy',
            'kwargs',
            'requirements',
            'benchmarks',
            'root',
            'module',
            'attribute',
        )
        return [getattr(loaded, name) for name in (*names, 'requirements_path')]

    assert read(our_manifest) == read(peer_manifest)
