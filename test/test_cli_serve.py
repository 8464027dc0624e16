# SPDX-License-Identifier: Apache-2.0
"""`openeta serve`: a policy at an address, with a key; nothing is left of it when it ends."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from test_cli_check import GOOD, written

from openeta_ros.cli.main import main
from openeta_ros.vector_policy.client import RemotePolicy

KEY = 'ab' * 32
ROOT = Path(__file__).parents[1]
# For what is sure to happen, however busy the machine is.
SURE_S = 120.0

Serve = Callable[..., 'subprocess.Popen[str]']


@pytest.fixture
def serve() -> Iterator[Serve]:
    """serve(*arguments, key=...): an `openeta serve` in a process of its own, for the length of the test."""
    processes = []

    def start(*arguments: str, key: str | None = KEY) -> subprocess.Popen[str]:
        environment = {name: value for name, value in os.environ.items() if name != 'VECTOR_POLICY_AUTHKEY'}
        if key is not None:
            environment['VECTOR_POLICY_AUTHKEY'] = key
        processes.append(
            subprocess.Popen(
                [sys.executable, '-m', 'openeta_ros.cli', 'serve', *arguments],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
        )
        return processes[-1]

    yield start
    for process in processes:
        process.terminate()
        process.communicate(timeout=SURE_S)


def client(address: str, key: str = KEY) -> RemotePolicy:
    return RemotePolicy(address, bytes.fromhex(key), timeout_s=SURE_S)


def running_in(folder: Path) -> list[str]:
    """Return the ids of processes that have this working directory."""
    found = []
    for process in Path('/proc').glob('[0-9]*'):
        with contextlib.suppress(OSError):
            if os.readlink(process / 'cwd') == str(folder):
                found.append(process.name)
    return found


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return the exit code and all output."""
    out, err = process.communicate(timeout=SURE_S)
    assert 'Traceback' not in out + err or 'no weights' in err, err
    return process.returncode, out + err


def test_clients_are_served_one_after_the_other_and_then_it_ends(tmp_path: Path, serve: Serve) -> None:
    address = str(tmp_path / 'here.sock')
    process = serve('examples/zero_policy', '--address', address, '--max-sessions', '2')
    for _ in range(2):
        with client(address) as policy:
            assert policy.hello()['policy'] == 'policy:ZeroPolicy'
    code, output = ended(process)
    assert code == 0 and 'to 2 clients in turn' in output and KEY not in output
    assert not os.path.exists(address)


def test_where_there_is_no_key_one_is_made_and_printed(tmp_path: Path, serve: Serve) -> None:
    address = str(tmp_path / 'here.sock')
    process = serve(str(written(tmp_path)), '--address', address, key=None)
    assert process.stdout is not None
    process.stdout.readline()
    key = re.fullmatch(r' *export VECTOR_POLICY_AUTHKEY=([0-9a-f]{64})\n', process.stdout.readline())
    assert key is not None
    with client(address, key[1]) as policy:
        policy.hello()
    assert ended(process)[0] == 0


@pytest.mark.parametrize(('number', 'code'), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_quietly_with_all_that_the_policy_started(
    tmp_path: Path, serve: Serve, number: int, code: int
) -> None:
    started = GOOD.replace('pass', '__import__("subprocess").Popen(["sleep", "600.25"])', 1)
    address = str(tmp_path / 'here.sock')
    process = serve(str(written(tmp_path, started)), '--address', address)
    policy = client(address)
    policy.hello()
    assert len(running_in(tmp_path)) == 2  # the policy, and what it started
    process.send_signal(number)
    assert ended(process)[0] == code
    assert not os.path.exists(address)
    deadline = time.monotonic() + SURE_S
    while running_in(tmp_path):
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_a_policy_that_cannot_be_built_is_exit_code_1(tmp_path: Path, serve: Serve) -> None:
    address = str(tmp_path / 'here.sock')
    process = serve(str(written(tmp_path, 'raise ValueError("no weights")')), '--address', address)
    policy = client(address)
    with pytest.raises(Exception, match='no weights'):
        policy.hello()
    assert ended(process)[0] == 1


def test_an_address_in_use_is_exit_code_2_and_its_socket_stays(tmp_path: Path, serve: Serve) -> None:
    address = str(tmp_path / 'here.sock')
    with socket.socket(socket.AF_UNIX) as first:
        first.bind(address)
        first.listen()
        code, output = ended(serve('examples/zero_policy', '--address', address))
    assert code == 2 and 'Address already in use' in output
    assert os.path.exists(address)


@pytest.mark.parametrize(
    ('arguments', 'key', 'word'),
    [
        (('nowhere/', '--address', '127.0.0.1:5555'), KEY, 'does not exist; name a directory'),
        (('examples/zero_policy', '--address', '127.0.0.1:99999'), KEY, 'port out of range'),
        (('examples/zero_policy', '--address', '127.0.0.1:5555'), 'abc', 'VECTOR_POLICY_AUTHKEY'),
    ],
)
def test_what_cannot_be_served_is_told_in_one_sentence(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    key: str,
    word: str,
) -> None:
    monkeypatch.setenv('VECTOR_POLICY_AUTHKEY', key)
    assert main(['serve', *arguments]) == 2
    text = capsys.readouterr().err
    assert text.startswith('openeta serve: ') and word in text
