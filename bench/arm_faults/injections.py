# SPDX-License-Identifier: Apache-2.0
"""The faults: each moves the arm, goes wrong at a random moment, and returns the env's answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from std_msgs.msg import Empty, Float64MultiArray
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory

from arm_faults.graph import COMMANDS, HORIZON, NS_PER_S, PATIENCE_S, Bench


def _chunk(make: Callable[[Bench, np.ndarray], Any]) -> Callable[[Bench], Any]:
    """A fault of a chunk that comes while the one before it moves the arm."""

    def inject(bench: Bench) -> Any:
        first = bench.answer(bench.send(bench.rows(), asynchronous=True))
        wrong = make(bench, bench.rows(HORIZON / bench.embodiment.rate_hz))
        return first if first.failure.kind else bench.answer(bench.send(wrong, asynchronous=True))

    return inject


def _changed(value: float) -> Callable[[Bench, np.ndarray], Any]:
    def change(bench: Bench, rows: np.ndarray) -> Any:
        row, joint = bench.random.integers(len(rows)), bench.random.integers(rows.shape[1] - 1)
        rows[row, joint] = rows[row, joint] + value
        return rows

    return change


def _late(bench: Bench, rows: np.ndarray) -> Any:
    time.sleep(float(bench.random.uniform(0.5, 1.2)))
    return rows


def _live(inject: Callable[[Bench], None]) -> Callable[[Bench], Any]:
    """A fault of streams, processes or people, in the middle of a chunk."""

    def run(bench: Bench) -> Any:
        future = bench.send(bench.rows())
        bench.moment()
        inject(bench)
        return bench.answer(future)

    return run


def _relay(**changes: Any) -> Callable[[Bench], Any]:
    def inject(bench: Bench) -> None:
        for name, value in changes.items():
            setattr(bench.relay, name, value)

    return _live(inject)


def _frozen_mock(bench: Bench) -> Any:
    future = bench.send(bench.rows())
    bench.moment()
    os.kill(bench.mock.pid, signal.SIGSTOP)
    try:
        return bench.answer(future)
    finally:
        os.kill(bench.mock.pid, signal.SIGCONT)
        time.sleep(0.5)


def _busy(bench: Bench) -> Any:
    """All processors taken, by twice as many as there are."""
    future = bench.send(bench.rows())
    bench.moment()
    loop = 'while True: pass'
    busy = [subprocess.Popen([sys.executable, '-c', loop]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        return bench.answer(future)
    finally:
        for process in busy:
            process.kill()
            process.wait()


def _stopped(bench: Bench) -> Any:
    future = bench.send(bench.rows())
    bench.moment()
    bench.stop.publish(Empty())
    answer = bench.answer(future)
    client = bench.node.create_client(Trigger, 'env/reset_stop')
    client.wait_for_service(PATIENCE_S)
    bench.peer.wait(client.call_async(Trigger.Request()), PATIENCE_S, 'reset_stop')
    return answer


def _rival(bench: Bench) -> Any:
    future = bench.send(bench.rows())
    bench.moment()
    kind = JointTrajectory if bench.listener.paths else Float64MultiArray
    rival = bench.node.create_publisher(kind, COMMANDS, 10)
    try:
        return bench.answer(future)
    finally:
        bench.node.destroy_publisher(rival)
        time.sleep(0.3)


FAULTS: dict[str, Callable[[Bench], Any]] = {
    'nan': _chunk(_changed(np.nan)),
    'infinity': _chunk(_changed(np.inf)),
    'huge': _chunk(_changed(1e300)),
    'jump of 180 degrees': _chunk(_changed(np.pi)),
    'wrong width': _chunk(lambda bench, rows: rows[:, : bench.random.integers(1, rows.shape[1])]),
    'no rows': _chunk(lambda bench, rows: rows[:0]),
    'late chunk': _chunk(_late),
    'duplicated chunk': _chunk(lambda bench, rows: bench.rows()),
    'reordered chunk': _chunk(lambda bench, rows: bench.rows(3 * HORIZON / bench.embodiment.rate_hz)),
    'frozen camera': _relay(frozen='camera/front'),
    'silent camera': _relay(silent=('camera/top',)),
    'dropped joint': _relay(dropped='elbow'),
    'silent joints': _relay(silent=('joint_states',)),
    'clock jump ahead': _relay(shift_ns=30 * NS_PER_S),
    'clock jump back': _relay(shift_ns=-30 * NS_PER_S),
    'killed bridge': _relay(silent=('joint_states', 'camera')),
    'frozen mock': _frozen_mock,
    'stop topic': _stopped,
    'second commander': _rival,
    'full processors': _busy,
}
# The arm goes on where nothing is wrong with it: these need not be named.
HARMLESS = {'full processors'}
