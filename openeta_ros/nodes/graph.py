# SPDX-License-Identifier: Apache-2.0
"""The graph of an evaluation as data, and how it is started without `launch` (which is not on PyPI).

No rclpy in here: the process that starts a graph is no part of it.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, NoReturn

from openeta_ros.embodiment.resources import PACKAGE, share_folders
from openeta_ros.episodes import EvalSettings
from openeta_ros.episodes.settings import ARM
from openeta_ros.nodes.parameters import EVALUATION, NODES, PEER_PIDS, Value
from openeta_ros.nodes.shared_memory import remove_abandoned
from openeta_ros.nodes.start import hold_signals, signals_held

# Under these names Fast DDS looks for its profile, before and after its change of name.
PROFILE_VARIABLES = ('FASTRTPS_DEFAULT_PROFILES_FILE', 'FASTDDS_DEFAULT_PROFILES_FILE')
# Each fresh picture costs its page faults, unless malloc keeps large blocks: a third of the processor time.
# 32 MiB is the largest threshold that every glibc takes.
MMAP_THRESHOLD, TRIM_THRESHOLD = 'MALLOC_MMAP_THRESHOLD_', 'MALLOC_TRIM_THRESHOLD_'
MALLOC = {MMAP_THRESHOLD: str(32 << 20), TRIM_THRESHOLD: str(256 << 20)}
# Domains that are safe on Linux are 0 to 101; taken from above, since people count from below.
DOMAINS = range(101, 0, -1)
# Participants of a domain that are looked for on this machine: as many as look for each other there.
PARTICIPANTS = 32
LOGS = 'logs'

# How long a node may take to end by itself after SIGINT, and then after SIGTERM, before it is killed.
INTERRUPT_S, TERMINATE_S = 6.0, 2.0
POLL_S = 0.02
TAIL_LINES = 15
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class NodeSpec:
    """One node of the graph: its name, the parameters that differ from their defaults, and its namespace."""

    name: str
    parameters: Mapping[str, Value]
    namespace: str = ''

    @property
    def command(self) -> list[str]:
        """The command that runs it."""
        arguments = [sys.executable, '-m', f'openeta_ros.nodes.{self.name}', '--ros-args']
        for name, value in self.parameters.items():
            # As JSON, which is YAML: a text stays a text, whatever it looks like.
            arguments += ['-p', f'{name}:={json.dumps(value, ensure_ascii=False)}']
        if self.namespace:
            arguments += ['-r', f'__ns:=/{self.namespace.strip("/")}']
        return arguments


def eval_graph(settings: EvalSettings, arm: Mapping[str, Value] | None = None) -> tuple[NodeSpec, ...]:
    """Return the nodes of an evaluation; the last one, eval, ends when it is done.

    `arm` holds parameters of the env node that concern an arm alone.
    """
    wanted: dict[str, Any] = {
        **asdict(settings),
        'max_steps': settings.max_steps or 0,
        'execution_horizon': settings.execution_horizon or 0,
        'hardware': settings.hardware or 'real',
        'enabled': settings.hardware == 'mock',  # of a real arm, a person says so
        'policy_log': str(Path(settings.output) / 'policy.log'),
        **(arm or {}),
    }
    nodes = ('mock', *EVALUATION) if settings.hardware == 'mock' else EVALUATION
    return tuple(_spec(node, wanted) for node in nodes)


def _spec(node: str, wanted: Mapping[str, Any]) -> NodeSpec:
    """Return a node with what is wanted of its parameters."""
    return NodeSpec(
        node,
        {
            parameter.name: wanted[parameter.name]
            for parameter in NODES[node]
            if wanted.get(parameter.name, parameter.default) != parameter.default
        },
    )


def process_environment() -> dict[str, str]:
    """Return what every process of a graph should have in its environment, and the user has not decided
    on."""
    ours = {**MALLOC, 'ROS_AUTOMATIC_DISCOVERY_RANGE': 'LOCALHOST'}
    profile = _profile()
    if profile is not None and not any(name in os.environ for name in PROFILE_VARIABLES):
        ours |= dict.fromkeys(PROFILE_VARIABLES, str(profile))
    return ours


@contextlib.contextmanager
def graph_environment() -> Iterator[dict[str, str]]:
    """Yield the environment for every process of a graph; what the user has set already stays.

    A ROS domain of its own is claimed for as long as the block runs, unless ROS_DOMAIN_ID is set. Before and
    after, the shared memory that killed processes left is removed.
    """
    ours = process_environment()
    remove_abandoned()
    with contextlib.ExitStack() as stack:
        stack.callback(remove_abandoned)
        if 'ROS_DOMAIN_ID' not in os.environ:
            ours['ROS_DOMAIN_ID'] = str(stack.enter_context(claimed_domain()))
        yield {**ours, **os.environ, **_prefix(), 'PYTHONUNBUFFERED': '1'}


def shell_environment() -> dict[str, str]:
    """Return the environment of the graph that this shell is on, whoever is there: no domain of its own."""
    os.environ.setdefault('ROS_DOMAIN_ID', '0')
    os.environ.setdefault('ROS_AUTOMATIC_DISCOVERY_RANGE', 'SUBNET')
    with graph_environment() as environment:
        return environment


def become(spec: NodeSpec) -> NoReturn:
    """Go on as a node on the graph that this shell is on."""
    hold_signals()  # until the node can answer them
    os.execve(spec.command[0], spec.command, shell_environment())


@contextlib.contextmanager
def claimed_domain() -> Iterator[int]:
    """Yield a ROS domain that no other user of this function on this machine has meanwhile.

    Nor is anybody else on it: who chose its number himself, or what a killed process left behind.

    Raises:
        OSError: all are taken.
    """
    folder = _domain_folder()
    folder.mkdir(exist_ok=True)
    with contextlib.suppress(PermissionError):  # another user's, who has done it
        folder.chmod(0o1777)
    for domain in DOMAINS:
        try:
            lock = (folder / str(domain)).open('a')
        except PermissionError:
            continue  # another user's: his, even if he does not use it now
        with lock:
            if _lock(lock, fcntl.LOCK_EX) and not _inhabited(domain):
                yield domain
                return
    raise OSError(f'all ROS domains of {folder} are in use; set ROS_DOMAIN_ID')


def claimed_domains() -> list[int]:
    """Return the domains that users of `claimed_domain` on this machine have now."""
    found = []
    for file in _domain_folder().glob('[0-9]*'):
        with contextlib.suppress(PermissionError), file.open('r') as lock:
            if not _lock(lock, fcntl.LOCK_SH):
                found.append(int(file.name))
    return sorted(found)


def _inhabited(domain: int) -> bool:
    """Whether a process on this machine listens where participants of a domain do (RTPS 2.2, 9.6.1.1)."""
    for participant in range(PARTICIPANTS):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            try:
                probe.bind(('', 7400 + 250 * domain + 10 + 2 * participant))
            except OSError:
                return True
    return False


def _domain_folder() -> Path:
    return Path(tempfile.gettempdir()) / 'openeta_ros_domains'


def _lock(file: IO[str], kind: int) -> bool:
    try:
        fcntl.flock(file, kind | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def run_eval_graph(settings: EvalSettings, arm: Mapping[str, Value] | None = None) -> int:
    """Run an evaluation on a graph of its own (an arm's, where its drivers are) and return the exit code of
    its eval node.

    What eval prints goes where this process prints; env and policy write to `logs/` of the output directory,
    and the end of a log is shown when its node failed. When this function is left, by an interrupt too, no
    process is left behind.
    """
    specs = eval_graph(settings, arm)
    with contextlib.ExitStack() as stack:
        # An arm is where its drivers are.
        real = settings.hardware == 'real'
        environment = shell_environment() if real else stack.enter_context(graph_environment())
        logs = Path(settings.output) / LOGS
        logs.mkdir(parents=True, exist_ok=True)
        pids: dict[str, int] = {}
        processes: dict[str, subprocess.Popen[bytes]] = {}
        stack.callback(lambda: _end(list(processes.values())))
        for spec in specs:
            output = None
            if spec is not specs[-1]:
                output = stack.enter_context((logs / f'{spec.name}.log').open('wb'))
            told = {**environment, PEER_PIDS: json.dumps(pids)}
            processes[spec.name] = _start(spec, told, output)
            pids[spec.name] = processes[spec.name].pid
        code = _wait(processes, last=specs[-1].name)
        for name, process in processes.items():
            if process.returncode is not None and (name != specs[-1].name or process.returncode < 0):
                _show(name, process.returncode, logs / f'{name}.log')
        return code


@contextlib.contextmanager
def arm_graph(hardware: str, **wanted: Value) -> Iterator[None]:
    """Put this process on the graph of an arm that may move, for as long as the block runs.

    The env node that drives it is a process of its own: what this one computes must not hold up its guard.
    So is the mock, for which the graph has a domain of its own. Call this before anything of ROS 2 is used.
    When a node ends early, the end of its log is shown.

    Args:
        hardware: 'real' or 'mock'.
        wanted: parameters of the two nodes.
    """
    nodes = ('mock', 'env') if hardware == 'mock' else ('env',)
    told = {**wanted, 'env': ARM, 'hardware': hardware, 'enabled': True}
    with contextlib.ExitStack() as stack:
        real = hardware == 'real'
        os.environ.update(shell_environment() if real else stack.enter_context(graph_environment()))
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        processes: dict[str, subprocess.Popen[bytes]] = {}
        try:
            for node in nodes:
                output = stack.enter_context((folder / f'{node}.log').open('wb'))
                processes[node] = _start(_spec(node, told), os.environ, output)
            os.environ[PEER_PIDS] = json.dumps({name: process.pid for name, process in processes.items()})
            yield
        finally:
            for name, process in processes.items():
                if process.poll() is not None:
                    _show(name, process.returncode, folder / f'{name}.log')
            _end(list(processes.values())[::-1])  # the mock last: the arm comes to rest on it


def _wait(processes: Mapping[str, subprocess.Popen[bytes]], *, last: str) -> int:
    """Wait until the process `last` has ended, reaping the others as they end; return its exit code.

    It is told of their end by their ids, which are gone once they are reaped.
    """
    try:
        while processes[last].poll() is None:
            for process in processes.values():
                process.poll()
            time.sleep(POLL_S)
    except BaseException:
        # Eval first, so that it writes what it has while the others are still there.
        _end([processes[last]])
        raise
    code = processes[last].returncode
    return code if code >= 0 else 128 - code


def _start(
    spec: NodeSpec, environment: Mapping[str, str], output: IO[bytes] | None
) -> subprocess.Popen[bytes]:
    libc = ctypes.CDLL(None)  # loaded before the fork

    # The child inherits that signals are held back, until the node can answer them.
    with signals_held():
        return subprocess.Popen(
            spec.command,
            env=environment,
            # Keys are eval's: an arm's operator answers by them.
            stdin=None if output is None and sys.stdin.isatty() else subprocess.DEVNULL,
            stdout=output,
            stderr=None if output is None else subprocess.STDOUT,
            # Ctrl-C in the terminal reaches this process only, which ends the others in order.
            start_new_session=True,
            # When this process is killed: they end by themselves, an arm's env node at rest.
            preexec_fn=lambda: libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM),
        )


def _end(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """End processes, politely at first, and with those that do not listen all that is in their groups."""
    for number, patience_s in ((signal.SIGINT, INTERRUPT_S), (signal.SIGTERM, TERMINATE_S)):
        running = [process for process in processes if process.poll() is None]
        for process in running:
            process.send_signal(number)
        deadline = time.monotonic() + patience_s
        while any(process.poll() is None for process in running) and time.monotonic() < deadline:
            time.sleep(POLL_S)
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _show(name: str, code: int, log: Path) -> None:
    lines = log.read_text(errors='replace').splitlines()[-TAIL_LINES:] if log.exists() else []
    ending = f'signal {-code}' if code < 0 else f'exit code {code}'
    told = f'; the end of {log}:' if lines else ''
    print(f'the {name} node ended early ({ending}){told}', *lines, sep='\n  ', file=sys.stderr)


def _profile() -> Path | None:
    files = [folder / 'config' / 'fastdds.xml' for folder in share_folders(PACKAGE)]
    return next((file for file in files if file.is_file()), None)


def _prefix() -> dict[str, str]:
    """Return what makes the Python environment a prefix of ROS, when openeta_msgs is built into it."""
    prefix = Path(sys.prefix)
    if not (prefix / 'share' / 'openeta_msgs').is_dir():
        return {}
    added = {'AMENT_PREFIX_PATH': prefix, 'LD_LIBRARY_PATH': prefix / 'lib'}
    return {
        name: f'{path}:{os.environ[name]}' if name in os.environ else str(path)
        for name, path in added.items()
    }
