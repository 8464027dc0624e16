# SPDX-License-Identifier: Apache-2.0
"""Round trip of one act(): ours, the reference implementation, openpi-client and a bare socket, side by side.

    python bench/vector_policy.py [--rounds 12] [--calls 25] [--malloc default|kept|both] [--short]

The full observation is three 480x640x3 uint8 cameras, qpos (14) and endpose (16) float64, 2.77 MB; the small
one is qpos and endpose. The policy answers one precomputed (50, 14) float32. Every pair of a client and a
server has two processes of its own, and all pairs take turns in short rounds, so that what else the machine
does meets all of them alike. What counts are the ratios within one run.

A bare socket is the limit: the same bytes through one sendall() into memory used before, no messages.
With `--malloc kept`, malloc of *every* process is told not to give large blocks back to the kernel, which is
what the others lose most of their time with; ours uses received memory again by itself (see blocks.py).

openpi-client is wanted without its dependencies, as it asks for NumPy 1; where it is missing it is left out:
    pip install --no-deps --target .venv/bench -r environment/requirements-bench.txt
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import importlib.util
import json
import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path[0] = str(ROOT)  # not this file's folder: the reference has the same name
sys.path.append(str(ROOT / '.venv' / 'bench'))

OURS, REFERENCE = 'openeta_ros.vector_policy', 'vector_policy'
#: name -> (client, server) of the protocol; the other two have their own start below.
PAIRS = {
    'ours': (OURS, OURS),
    'reference': (REFERENCE, REFERENCE),
    'ours -> reference': (OURS, REFERENCE),
    'reference -> ours': (REFERENCE, OURS),
}
TRANSPORTS = {
    'raw socket': ['unix', 'tcp'],
    **{name: ['unix', 'tcp'] for name in PAIRS},
    'openpi-client': ['tcp'],
}
MALLOC = {
    'default': {},
    # The largest threshold glibc takes, so that no block is mapped, and no trimming of the heap.
    'kept': {'MALLOC_MMAP_THRESHOLD_': str(32 << 20), 'MALLOC_TRIM_THRESHOLD_': str(1 << 30)},
}
CAMERAS = ('head_camera', 'left_camera', 'right_camera')
REPLY = np.linspace(-1, 1, 700, dtype=np.float32).reshape(50, 14)
#: Before anything is measured: the first calls fill caches, and grow socket buffers.
WARM_UP_CALLS = 10
START_TIMEOUT_S = 120.0

POLICY = """
import numpy as np

class Fixed:
    action_type = 'qpos'
    reply = {'action': np.linspace(-1, 1, 700, dtype=np.float32).reshape(50, 14)}
    def reset(self, seed): pass
    def set_demonstration(self, arrays, info): pass
    def act(self, observation): return self.reply
"""


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument('--rounds', type=int, default=12, help='turns of every pair (default %(default)s)')
    parser.add_argument('--calls', type=int, default=25, help='calls in a turn (default %(default)s)')
    parser.add_argument('--malloc', choices=[*MALLOC, 'both'], default='both')
    parser.add_argument(
        '--short', action='store_true', help='few calls: shows that it runs, measures nothing'
    )
    parser.add_argument('--json', type=Path, help='also write the figures to this file')
    parser.add_argument('--worker', nargs=3, help=argparse.SUPPRESS)
    parser.add_argument('--serve', nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return work(*options.worker)
    if options.serve:
        return SERVERS[options.serve[0]](options.serve[1])
    rounds, calls = (1, 3) if options.short else (options.rounds, options.calls)
    results = {}
    for setting in MALLOC if options.malloc == 'both' else [options.malloc]:
        results[setting] = {
            payload: measure(payload, setting, rounds, calls) for payload in ('full', 'small')
        }
        report(setting, results[setting])
    if options.json:
        options.json.write_text(json.dumps(results, indent=1))
    return 0


def measure(payload: str, setting: str, rounds: int, calls: int) -> dict[str, dict[str, float]]:
    """Return 'pair, transport' -> {'p50': ms, 'p90': ms} of all calls of all rounds."""
    with contextlib.ExitStack() as stack:
        workers = {
            f'{pair}, {transport}': stack.enter_context(worker(pair, transport, payload, setting))
            for pair, transports in TRANSPORTS.items()
            if pair != 'openpi-client' or importlib.util.find_spec('openpi_client')
            for transport in transports
        }
        times: dict[str, list[float]] = {name: [] for name in workers}
        for _ in range(rounds):
            for name, turn in workers.items():
                times[name] += turn(calls)
    return {
        name: dict(zip(('p50', 'p90'), np.percentile(of_one, [50, 90]) * 1e3, strict=True))
        for name, of_one in times.items()
    }


def report(setting: str, results: dict[str, dict[str, dict[str, float]]]) -> None:
    what = 'as it comes' if setting == 'default' else 'told, on both ends of every pair, to keep large blocks'
    print(f'\nact() round trip, milliseconds; malloc {what}')
    print(f'{"payload":8}{"transport":10}{"client -> server":20}', end='')
    print(f'{"p50":>8}{"p90":>8}{"x raw":>9}{"x reference":>13}')
    for payload, rows in results.items():
        for name, row in rows.items():
            pair, transport = name.split(', ')
            raw, reference = rows[f'raw socket, {transport}'], rows[f'reference, {transport}']
            print(
                f'{payload:8}{transport:10}{pair:20}{row["p50"]:8.3f}{row["p90"]:8.3f}'
                f'{row["p50"] / raw["p50"]:9.2f}{row["p50"] / reference["p50"]:13.3f}',
            )
    full, small = results['full'], results['small']
    for transport in ('unix', 'tcp'):
        raw, reference, ours = (
            full[f'{name}, {transport}']['p50'] for name in ('raw socket', 'reference', 'ours')
        )
        faster = f'{reference / ours:.1f} times as fast as the reference'
        print(f'full, {transport}: {ours / raw:.2f} times the raw socket; {faster}')
    print(f'full, tcp, our client on the reference: p90 {full["ours -> reference, tcp"]["p90"]:.1f} ms')
    if 'openpi-client, tcp' in small:
        ratios = [rows['ours, tcp']['p50'] / rows['openpi-client, tcp']['p50'] for rows in (small, full)]
        print(f'tcp, of openpi-client: {ratios[0]:.2f} small, {ratios[1]:.2f} full', flush=True)
    else:
        print('openpi-client is not installed and was left out; see --help', flush=True)


@contextlib.contextmanager
def worker(pair: str, transport: str, payload: str, setting: str) -> Iterator[Callable[[int], list[float]]]:
    """Start a client and its server; yield a function that makes n calls and returns what each took."""
    command = [sys.executable, __file__, '--worker', pair, transport, payload]
    environment = {**os.environ, **MALLOC[setting]}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None and process.stdout is not None

        def turn(calls: int) -> list[float]:
            print(calls, file=process.stdin, flush=True)
            answer = process.stdout.readline()
            if not answer:
                raise RuntimeError(f'the bench of {pair} over {transport} ended; its words are above')
            return list(json.loads(answer))

        turn(WARM_UP_CALLS)
        yield turn
        process.stdin.close()


def work(pair: str, transport: str, payload: str) -> int:
    """Be one client: read a number of calls a line, answer with their times in seconds."""
    random = np.random.default_rng(0)
    observation: dict[str, Any] = {'qpos': random.standard_normal(14), 'endpose': random.standard_normal(16)}
    if payload == 'full':
        observation |= {
            f'frames_{name}': random.integers(0, 255, (480, 640, 3), np.uint8) for name in CAMERAS
        }
    start = {'raw socket': raw_client, 'openpi-client': openpi_client}.get(pair, protocol_client)
    with (
        tempfile.TemporaryDirectory(prefix='bench-', dir='/tmp') as folder,
        address(transport, folder) as where,
        start(pair, where, Path(folder), observation) as call,
    ):
        for line in sys.stdin:
            times = []
            for _ in range(int(line)):
                began = time.perf_counter()
                call()
                times.append(time.perf_counter() - began)
            print(json.dumps(times), flush=True)
    return 0


@contextlib.contextmanager
def address(transport: str, folder: str) -> Iterator[str]:
    """Yield where a server is to listen.

    A port stays bound here meanwhile, so that nobody else is given it; every server sets SO_REUSEADDR and may
    take it too. The reference does not say which one it got when it may choose.
    """
    if transport == 'unix':
        yield f'{folder}/s'
        return
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind(('127.0.0.1', 0))
        yield f'127.0.0.1:{held.getsockname()[1]}'


@contextlib.contextmanager
def server(command: list[Any], environment: dict[str, str] | None = None) -> Iterator[None]:
    with subprocess.Popen(command, env=environment) as process:
        try:
            yield
        finally:
            process.kill()


@contextlib.contextmanager
def protocol_client(
    pair: str, where: str, folder: Path, observation: dict[str, Any]
) -> Iterator[Callable[[], Any]]:
    client_package, server_package = PAIRS[pair]
    (folder / 'fixed.py').write_text(POLICY)
    (folder / 'policy.yaml').write_text('api: 1\npolicy: fixed:Fixed\n')
    key = secrets.token_bytes(32)
    command = [
        sys.executable,
        '-m',
        f'{server_package}.serve',
        '--manifest',
        folder / 'policy.yaml',
        '--address',
        where,
    ]
    command += ['--authkey-env', 'BENCH_KEY', '--log-file', folder / 'log']
    environment = {**os.environ, 'BENCH_KEY': key.hex(), 'PYTHONPATH': str(ROOT)}
    with server(command, environment):
        RemotePolicy = importlib.import_module(f'{client_package}.client').RemotePolicy
        with RemotePolicy(where, key, timeout_s=START_TIMEOUT_S) as policy:
            policy.hello()
            policy.reset(0)
            yield lambda: policy.act(observation)


@contextlib.contextmanager
def raw_client(
    pair: str, where: str, folder: Path, observation: dict[str, Any]
) -> Iterator[Callable[[], Any]]:
    data = b''.join(array.tobytes() for array in observation.values())
    answer = bytearray(REPLY.nbytes)
    command = [sys.executable, __file__, '--serve', 'raw', f'{where} {len(data)}']
    with server(command), connect(where) as sock:

        def call() -> None:
            sock.sendall(data)
            sock.recv_into(answer, len(answer), socket.MSG_WAITALL)

        yield call


def raw_server(argument: str) -> int:
    where, size = argument.split()
    host, _, port = where.rpartition(':')
    if host:
        listener = socket.create_server((host, int(port)))
    else:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(where)
        listener.listen()
    sock, _ = listener.accept()
    if host:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    buffer, reply = bytearray(int(size)), REPLY.tobytes()
    while sock.recv_into(buffer, len(buffer), socket.MSG_WAITALL) == len(buffer):
        sock.sendall(reply)
    return 0


def connect(where: str) -> socket.socket:
    host, _, port = where.rpartition(':')
    deadline = time.monotonic() + START_TIMEOUT_S
    while True:
        sock = socket.socket(socket.AF_INET if host else socket.AF_UNIX)
        try:
            sock.connect((host, int(port)) if host else where)
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
        else:
            if host:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            return sock


@contextlib.contextmanager
def openpi_client(
    pair: str, where: str, folder: Path, observation: dict[str, Any]
) -> Iterator[Callable[[], Any]]:
    from openpi_client.websocket_client_policy import WebsocketClientPolicy

    host, _, port = where.rpartition(':')
    with server([sys.executable, __file__, '--serve', 'openpi', where]):
        connect(where).close()  # it listens; openpi-client itself would try again only every 5 s
        policy = WebsocketClientPolicy(host, int(port))
        yield lambda: policy.infer(observation)


def openpi_server(where: str) -> int:
    """Serve as openpi's own server does, whose package is not on PyPI: msgpack over an asyncio WebSocket."""
    import asyncio
    import logging

    from openpi_client import msgpack_numpy
    from websockets.asyncio.server import serve

    logging.getLogger('websockets').setLevel(logging.CRITICAL)  # of the connection that only looked

    async def handle(connection: Any) -> None:
        packer = msgpack_numpy.Packer()
        await connection.send(packer.pack({}))
        async for message in connection:
            msgpack_numpy.unpackb(message)
            await connection.send(packer.pack({'actions': REPLY}))

    async def run() -> None:
        host, _, port = where.rpartition(':')
        async with serve(handle, host, int(port), compression=None, max_size=None) as server:
            await server.serve_forever()

    asyncio.run(run())
    return 0


SERVERS = {'raw': raw_server, 'openpi': openpi_server}

if __name__ == '__main__':
    sys.exit(main())
