# SPDX-License-Identifier: Apache-2.0
"""A policy started from its directory works or says why not, and never outlives whoever started it."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from openeta_ros.vector_policy import ManifestError, PolicyUnavailable
from openeta_ros.vector_policy.process import PolicyProcess, open_policy

ROOT = Path(__file__).parents[1]
# For what is sure to happen, however busy the machine is.
SURE_S = 120.0

POLICY = """
import itertools, os, signal, subprocess, time
from pathlib import Path

child = subprocess.Popen(['sleep', '300'])
detached = subprocess.Popen(['sh', '-c', 'sleep 300 & wait'], start_new_session=True)
Path('new').write_text(f'{os.getpid()} {os.getppid()} {child.pid} {detached.pid}')
Path('new').rename('pids')

class Odd:
    action_type = 'qpos'

    def __init__(self, hang_in_init=False):
        if hang_in_init:
            time.sleep(300)

    def reset(self, seed):
        pass

    def set_demonstration(self, arrays, info):
        pass

    def act(self, observation):
        if 'kill' in observation:
            print('about to be killed', flush=True)
            os.kill(os.getpid(), signal.SIGKILL)
        if 'hang' in observation:
            Path('hanging').touch()
            sum(itertools.repeat(1))  # never lets go of the interpreter, so no thread of the server runs
        return {'action': [1.0]}

    def close(self):
        print('closed by the protocol', flush=True)
"""


@pytest.fixture
def directory(tmp_path):
    """The Odd policy, which has children, one in a session of its own, and writes all pids to `pids`."""
    (tmp_path / 'odd.py').write_text(POLICY)
    (tmp_path / 'policy.yaml').write_text('api: 1\npolicy: odd:Odd\n')
    return tmp_path


def alive(pid: int) -> bool:
    try:
        return Path(f'/proc/{pid}/stat').read_text().rsplit(')', 1)[1].split()[0] not in 'ZX'
    except OSError:
        return False


def pids(directory: Path) -> list[int]:
    """Server, guard, the policy's child and its detached child, once the policy was imported."""
    wait_for(directory / 'pids')
    return [int(pid) for pid in (directory / 'pids').read_text().split()]


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + SURE_S
    while not path.exists():
        assert time.monotonic() < deadline, path
        time.sleep(0.02)


def assert_gone(processes: list[int]) -> None:
    deadline = time.monotonic() + SURE_S
    while any(alive(pid) for pid in processes):
        assert time.monotonic() < deadline, [pid for pid in processes if alive(pid)]
        time.sleep(0.02)


def test_a_policy_directory_is_served_for_the_length_of_the_block_and_closed_by_the_protocol(directory):
    log = directory / 'run' / 'policy.log'
    with open_policy(directory / 'policy.yaml', log_file=log) as policy:
        policy.reset(1)
        assert policy.act({})['action'] == [1.0]
        running = pids(directory)
        assert all(alive(pid) for pid in running)
    assert not any(alive(pid) for pid in running)
    assert 'closed by the protocol' in log.read_text()
    assert log.read_text().rstrip().endswith('INFO closed')


def test_a_block_that_raises_leaves_nothing_running_and_no_folder(directory):
    with pytest.raises(KeyError), open_policy(directory) as policy:
        folder = Path(policy.address).parent
        running = pids(directory)
        raise KeyError
    assert not any(alive(pid) for pid in running)
    assert not folder.exists()


@pytest.mark.parametrize('end', [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_program_that_is_killed(directory, end):
    program = (
        'import sys, time; from openeta_ros.vector_policy.process import open_policy\n'
        'with open_policy(sys.argv[1]) as policy: policy.act({"hang": 1})'
    )
    with subprocess.Popen([sys.executable, '-c', program, str(directory)], cwd=ROOT) as process:
        running = pids(directory)
        folder = Path(f'/proc/{running[1]}/cwd').readlink()
        process.send_signal(end)
    assert_gone(running)
    assert not folder.exists()


def test_nothing_outlives_a_guard_that_is_killed(directory):
    with open_policy(directory) as policy:
        server, guard, *children = pids(directory)
        os.kill(guard, signal.SIGKILL)
        assert_gone([server, guard])
        with pytest.raises(PolicyUnavailable, match='went away'):
            policy.act({})
    for child in children:  # only the guard could have ended these
        os.killpg(os.getpgid(child), signal.SIGKILL)


def test_a_guard_that_was_stopped_for_a_while_keeps_its_policy(directory):
    with open_policy(directory) as policy:
        _, guard, *_ = pids(directory)
        os.kill(guard, signal.SIGSTOP)  # as Ctrl-Z does
        time.sleep(0.3)
        os.kill(guard, signal.SIGCONT)
        time.sleep(0.3)
        assert alive(guard)
        assert policy.act({})['action'] == [1.0]


def test_a_policy_started_in_a_thread_outlives_that_thread(directory):
    opened = []

    def start():
        opened.append(PolicyProcess(directory))
        opened.append(opened[0].connect())

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    with opened[0], opened[1] as policy:
        policy.hello()
        assert policy.act({})['action'] == [1.0]


def test_a_server_that_is_killed_in_the_middle_is_named_with_the_end_of_its_log(directory):
    with open_policy(directory) as policy:
        running = pids(directory)
        with pytest.raises(PolicyUnavailable, match=r'(?s)^act: the policy went away: .*about to be killed$'):
            policy.act({'kill': True})
        assert_gone(running)  # its children, too, before the block ends


def test_a_policy_that_never_answers_is_given_up_in_time_and_killed(directory):
    with open_policy(directory, timeout_s=0.5) as policy:
        running = pids(directory)
        with pytest.raises(PolicyUnavailable, match=r'^act: no answer within 0\.5s'):
            policy.act({'hang': True})
    assert not any(alive(pid) for pid in running)


def test_closing_kills_a_policy_at_once_though_another_thread_waits_for_its_answer(directory):
    failed = []

    def ask(policy):
        with pytest.raises(PolicyUnavailable, match=r'^act: the policy went away') as caught:
            policy.act({'hang': True})
        failed.append(caught.value)

    with open_policy(directory, timeout_s=1e9) as policy:
        running = pids(directory)
        thread = threading.Thread(target=ask, args=(policy,))
        thread.start()
        wait_for(directory / 'hanging')
    assert not any(alive(pid) for pid in running)
    thread.join(SURE_S)
    assert failed


def test_a_policy_that_is_never_built_is_given_up_in_time_and_killed(directory, monkeypatch):
    (directory / 'policy.yaml').write_text('api: 1\npolicy: odd:Odd\nkwargs: {hang_in_init: true}\n')
    connect = PolicyProcess.connect
    monkeypatch.setattr(PolicyProcess, 'connect', lambda process, timeout_s: connect(process))
    refusal = pytest.raises(PolicyUnavailable, match=r'^hello: no answer within 2s')
    with refusal, open_policy(directory, start_timeout_s=2):
        pass
    if (directory / 'pids').exists():  # a busy machine may not have come to it
        assert not any(alive(pid) for pid in pids(directory))


def test_a_policy_whose_import_raises_is_named_with_its_error_and_traceback(directory):
    (directory / 'odd.py').write_text('import torch_of_another_world\n')
    with (
        pytest.raises(
            PolicyUnavailable, match=r'^hello: ModuleNotFoundError: .*torch_of_another_world'
        ) as caught,
        open_policy(directory),
    ):
        pass
    assert caught.value.remote_type == 'ModuleNotFoundError'
    assert 'Traceback' in caught.value.log_tail


@pytest.mark.parametrize(
    ('text', 'problem'),
    [
        ('api: 2\npolicy: x\n', 'api: must be 1, not 2\n  - policy: must be module:Class'),
        (None, 'cannot be read'),
    ],
)
def test_a_wrong_manifest_is_refused_before_anything_is_started(directory, text, problem):
    (directory / 'policy.yaml').unlink()
    if text:
        (directory / 'policy.yaml').write_text(text)
    with pytest.raises(ManifestError, match=problem):
        PolicyProcess(directory)


@pytest.mark.parametrize('source', ['examples/no_such_policy', 'no_such_socket', 'n' * 300])
def test_a_source_that_does_not_exist_is_refused_at_once(source):
    with pytest.raises(ManifestError, match=f'(?s)^{source}: .*does not exist'), open_policy(source):
        pass


def test_a_server_that_ends_before_it_listens_is_noticed_at_once(directory, monkeypatch):
    monkeypatch.setattr('openeta_ros.vector_policy.process.secrets.token_bytes', lambda size: b'too short')
    refusal = pytest.raises(PolicyUnavailable, match='ended with status 2 before it listened')
    with PolicyProcess(directory) as process, refusal as caught:
        process.connect(1e9)
    assert 'the authkey must be at least 16 bytes, not 9' in caught.value.log_tail


def test_a_log_file_that_cannot_be_written_is_refused(directory):
    with pytest.raises(PolicyUnavailable, match=r'cannot start the policy .*Is a directory'):
        PolicyProcess(directory, log_file=directory)


def test_modules_in_the_policy_directory_do_not_stand_before_the_servers_own(directory):
    (directory / 'socket.py').write_text('raise RuntimeError\n')
    (directory / 'yaml.py').write_text('raise RuntimeError\n')
    with open_policy(directory) as policy:
        assert policy.act({})['action'] == [1.0]


def test_a_policy_that_is_served_already_is_driven_by_its_address(directory, monkeypatch):
    with PolicyProcess(directory) as process:
        monkeypatch.setenv('SOME_KEY', process.authkey.hex())
        wait_for(Path(process.address))
        with open_policy(process.address, authkey_env='SOME_KEY') as policy:
            assert policy.act({})['action'] == [1.0]


def test_an_address_without_its_key_says_which_variable_to_set(monkeypatch):
    monkeypatch.delenv('VECTOR_POLICY_AUTHKEY', raising=False)
    with pytest.raises(PolicyUnavailable, match='set VECTOR_POLICY_AUTHKEY'), open_policy('127.0.0.1:9'):
        pass


@pytest.mark.parametrize('address', ['127.0.0.1:1', '/tmp/nobody-is-here.sock'])
def test_an_address_where_nothing_listens_is_waited_for_and_then_named(address, monkeypatch):
    monkeypatch.setenv('VECTOR_POLICY_AUTHKEY', secrets.token_hex(16))
    refusal = pytest.raises(PolicyUnavailable, match=f'nothing listened at {address} within 0.3s')
    with refusal, open_policy(address, start_timeout_s=0.3):
        pass


def test_an_address_is_not_waited_for_as_long_as_building_a_policy_may_take(monkeypatch):
    monkeypatch.setenv('VECTOR_POLICY_AUTHKEY', secrets.token_hex(16))
    monkeypatch.setattr('openeta_ros.vector_policy.process.CONNECT_TIMEOUT_S', 0.2)
    refusal = pytest.raises(PolicyUnavailable, match=r'nothing listened at .* within 0\.2s')
    with refusal, open_policy('127.0.0.1:1', start_timeout_s=300):
        pass


@pytest.mark.parametrize('endless', [1e300, float('inf')])
def test_a_limit_longer_than_any_clock_counts_is_none(directory, endless):
    with open_policy(directory, timeout_s=endless, start_timeout_s=endless) as policy:
        assert policy.act({})['action'] == [1.0]


def test_a_policy_without_a_place_for_its_socket_is_named(directory, monkeypatch):
    monkeypatch.setattr('openeta_ros.vector_policy.process._SOCKET_PARENT', str(directory / 'nowhere'))
    with pytest.raises(PolicyUnavailable, match=r'cannot start the policy .*nowhere'):
        PolicyProcess(directory)
