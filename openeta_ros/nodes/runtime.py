# SPDX-License-Identifier: Apache-2.0
"""A process that is one node: start, spin, end.

Three threads, because none of them may wait for another: the main thread does nothing but wait for a signal,
so that Ctrl-C is heard at any moment; one spins the executor; one, the worker, does what takes long and must
stay on one thread (simulators draw in contexts that belong to a thread). Nothing a signal interrupts prints a
traceback.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import gc
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from queue import SimpleQueue
from types import FrameType
from typing import Any, TypeVar

import rclpy
from rcl_interfaces.msg import FloatingPointRange, IntegerRange, ParameterDescriptor
from rclpy.exceptions import InvalidParameterValueException, ParameterException
from rclpy.executors import Executor, SingleThreadedExecutor
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from openeta_ros.embodiment import EmbodimentError, KinematicsError
from openeta_ros.envs import EnvError
from openeta_ros.nodes.graph import MALLOC, MMAP_THRESHOLD, TRIM_THRESHOLD
from openeta_ros.nodes.parameters import NODES, Parameter
from openeta_ros.nodes.start import HELD_SIGNALS
from openeta_ros.observation import ObservationError

# What is under way gets this long to end by itself once the process is told to.
END_S = 3.0
# And the goodbye of DDS and what libraries do at exit, this long.
EXIT_S = 8.0
# How often a wait looks whether the process is told to end.
POLL_S = 0.1
# mallopt's names for what MALLOC sets through the environment.
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3

T = TypeVar('T')


class Stopping(BaseException):
    """Raised out of waits when the process is told to end. A BaseException, so that nothing takes it for a
    failure."""


class Process:
    """What a node has of its process: the worker, and the end."""

    def __init__(self) -> None:
        self._stop = threading.Event()
        self._code = 0
        self._jobs: SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = SimpleQueue()
        self._worker = threading.Thread(target=self._work, name='worker', daemon=True)

    def start(self) -> None:
        """Start the worker. It inherits the signal mask of who calls this, and so does what it starts."""
        self._worker.start()

    @property
    def stopping(self) -> bool:
        """Whether the process is told to end."""
        return self._stop.is_set()

    def end(self, code: int = 0) -> None:
        """Tell the process to end with an exit code; the first call counts."""
        if not self._stop.is_set():
            self._code = code
            self._stop.set()

    def submit(self, job: Callable[[], T]) -> Future[T]:
        """Have the worker do a job after those it was given before."""
        future: Future[T] = Future()
        self._jobs.put((future, job))
        return future

    def call(self, job: Callable[[], T]) -> T:
        """Have the worker do a job and wait for what it returns or raises.

        Raises:
            Stopping: the process is told to end; the job may still be running.
        """
        future = self.submit(job)
        while not self._stop.is_set():
            if wait([future], POLL_S).done:
                return future.result()
        raise Stopping

    def wait(self) -> int:
        """Wait until the process is told to end and return its exit code. For the main thread."""
        # In slices: a signal that the kernel delivers to another thread does not end a wait of this one.
        while not self._stop.wait(0.2):
            pass
        return self._code

    def finish(self, last: Callable[[], object], patience_s: float = END_S) -> bool:
        """Let the worker do a last job and end; return whether it did so in time."""
        future = self.submit(last)
        self._jobs.put(None)
        deadline = time.monotonic() + patience_s
        self._worker.join(max(0.0, deadline - time.monotonic()))
        return future.done()

    def _work(self) -> None:
        while (entry := self._jobs.get()) is not None:
            future, job = entry
            try:
                future.set_result(job())
            except BaseException as error:  # the thread that asked is told
                future.set_exception(error)


def main(make: Callable[[Process], Node], *, signal_code: Callable[[int], int] = lambda number: 0) -> None:
    """Run one node until a signal or the node itself ends the process. Does not return.

    Args:
        make: makes the node. It may have a method `on_end`, which the worker calls last, to free what it
        made, and which gets `END_S` of the node; a method `on_stop`, called before that as soon as the
        process is told to end, whatever the worker does; and an `exit_code`, which counts when it is not 0.
        signal_code: the exit code for a signal; 0 where being told to end is the normal end.
    """
    keep_large_blocks()
    process = Process()
    _end_on_signals(process, signal_code)
    process.start()
    rclpy.init(signal_handler_options=SignalHandlerOptions.NO)
    try:
        node = make(process)
    except (ParameterException, EmbodimentError, EnvError, KinematicsError, ObservationError) as error:
        print(f'the node cannot start: {error}', file=sys.stderr, flush=True)
        os._exit(2)
    gc.freeze()  # what was imported stays: to look through it would hold all threads for 70 ms now and then
    executor = make_executor()
    executor.add_node(node)
    spinner = threading.Thread(target=_spin, args=(executor, process), name='executor', daemon=True)
    spinner.start()
    code = process.wait()
    getattr(node, 'on_stop', lambda: None)()
    freed = process.finish(getattr(node, 'on_end', lambda: None), getattr(node, 'END_S', END_S))
    code = code or getattr(node, 'exit_code', 0)
    executor.wake()
    spinner.join(END_S)
    threading.Timer(EXIT_S, os._exit, [code]).start()  # whatever hangs in what follows
    if freed and not spinner.is_alive():
        # The goodbye of DDS, so that the others need not wait until our lease has run out. Its shared memory,
        # 32 MiB a process, goes with the context, which goes when nothing refers to it any more.
        with contextlib.suppress(Exception):
            executor.shutdown()
            node.destroy_node()
            rclpy.try_shutdown()
            del node, executor, spinner
            gc.unfreeze()
            gc.collect()
            rclpy.get_default_context().destroy()
    with contextlib.suppress(OSError):  # nobody reads any more
        sys.stdout.flush()
        sys.stderr.flush()
    if freed:
        atexit._run_exitfuncs()  # what libraries do at exit: Genesis writes the kernels that it compiled
    # Not sys.exit: a simulator stuck in C code, or threads of its own, would hold the process.
    os._exit(code)


def keep_large_blocks() -> None:
    """Tell malloc to keep large blocks, as MALLOC of `graph` does for the processes that we start.

    A fresh picture else costs its page faults each time it comes. Only the C library of GNU knows how; what
    the environment says stays.
    """
    set_option = getattr(ctypes.CDLL(None), 'mallopt', None)
    if set_option is None:
        return
    for name, option in ((MMAP_THRESHOLD, M_MMAP_THRESHOLD), (TRIM_THRESHOLD, M_TRIM_THRESHOLD)):
        if name not in os.environ:
            set_option(option, int(MALLOC[name]))


def make_executor() -> Executor:
    """Return the executor that nodes run in: the one that does not ask every entity each time, where rclpy
    has it."""
    try:
        from rclpy.experimental import EventsExecutor
    except ImportError:
        return SingleThreadedExecutor()
    return EventsExecutor()


def declare(node: Node, table: str) -> dict[str, Any]:
    """Declare the parameters of a table of `NODES` and return their values."""
    values: dict[str, Any] = {}
    for parameter in NODES[table]:
        descriptor = _descriptor(parameter)
        value = node.declare_parameter(parameter.name, parameter.default, descriptor).value
        if parameter.choices and value not in parameter.choices:
            reason = descriptor.additional_constraints
            raise InvalidParameterValueException(parameter.name, value, reason)
        values[parameter.name] = value
    return values


def log_failure(node: Node, what: str, error: BaseException) -> None:
    """Log in one line that something failed, and why."""
    node.get_logger().error(f'{what}: {error}' if str(error) else f'{what}: {type(error).__name__}')


def _descriptor(parameter: Parameter) -> ParameterDescriptor:
    descriptor = ParameterDescriptor(description=parameter.description)
    if parameter.choices:
        descriptor.additional_constraints = f'one of {", ".join(parameter.choices)}'
    if parameter.minimum is not None and parameter.maximum is not None:
        if isinstance(parameter.default, int):
            bounds = IntegerRange(from_value=int(parameter.minimum), to_value=int(parameter.maximum))
            descriptor.integer_range = [bounds]
        else:
            limits = FloatingPointRange(from_value=parameter.minimum, to_value=parameter.maximum)
            descriptor.floating_point_range = [limits]
    return descriptor


def _end_on_signals(process: Process, signal_code: Callable[[int], int]) -> None:
    def end(number: int, frame: FrameType | None) -> None:
        if process.stopping:
            os._exit(128 + number)  # asked twice: at once
        process.end(signal_code(number))

    for number in HELD_SIGNALS:
        signal.signal(number, end)
    # Who started this process may have held them back until there is somebody to answer.
    signal.pthread_sigmask(signal.SIG_UNBLOCK, HELD_SIGNALS)


def _spin(executor: SingleThreadedExecutor, process: Process) -> None:
    try:
        while not process.stopping:
            executor.spin_once(timeout_sec=POLL_S)
    except Stopping:
        pass
    except Exception as error:
        if not process.stopping:
            print(f'the executor ended: {type(error).__name__}: {error}', file=sys.stderr)
            process.end(1)
