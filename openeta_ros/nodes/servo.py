# SPDX-License-Identifier: Apache-2.0
"""The process that commands forward controllers: it does nothing else, so that nothing delays it.

The env node starts it (`RemoteFollower`) and gives it paths over a socket. When the env node falls silent, is
killed or ends, it brakes within the limits, and holds; with the socket's end it ends too.
"""

from __future__ import annotations

import copy
import gc
import os
import pickle
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, Pipe
from typing import Any

from openeta_ros.control.commands import SERVOS, Command, Commands
from openeta_ros.control.path import Path
from openeta_ros.embodiment import Embodiment
from openeta_ros.envs import EnvError
from openeta_ros.envs.arm_follow import PathFollower
from openeta_ros.envs.arm_servo import raise_priority

# How often it tells how it is, and the seconds that its start and end may take.
REPORT_S = 0.1
START_S, END_S = 60.0, 2.0
# So long it may be silent before it is given up, or for the watchdog's time where that is more.
GONE_S = 2.0
# What would leave so much too late is made anew, so often: the arm has stood still meanwhile.
PROMPT_S, ATTEMPTS = 2e-3, 3


class RemoteFollower:
    """A `Follower` that is a process of its own. All of it, but for `close`, on the control thread.

    Args:
        namespace, name, arguments: of its node.
    """

    COMMAND: Sequence[str] = (sys.executable, '-m', 'openeta_ros.nodes.servo')

    def __init__(
        self,
        embodiment: Embodiment,
        joints: Sequence[str],
        *,
        period_s: float,
        namespace: str,
        name: str,
        arguments: Sequence[str],
    ) -> None:
        self._connection, theirs = Pipe()
        self.lag_s, self.lost, self.closed, self.sent = 0.0, False, True, 0
        self.gone, self._heard_s, self._patience_s = False, 0.0, embodiment.safety.watchdog_s
        self.unheard: tuple[str, ...] = ('the process that sends commands has not started yet',)
        self.priority, self._paths = '', 0
        self._process = subprocess.Popen(
            [*self.COMMAND, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            start_new_session=True,  # Ctrl-C is the env node's to answer: this one outlives it
        )
        theirs.close()
        self._send('start', (embodiment, tuple(joints), period_s, namespace, name, tuple(arguments)))
        if not self._connection.poll(START_S):
            self.close()
            raise EnvError('absent', f'the process that sends commands did not start in {START_S:g} s')
        self._hear()
        self._heard_s = time.monotonic()

    def take(self, path: Path) -> None:
        """See `Follower`."""
        self.lost = self.closed = False
        self._paths += 1
        self._send('take', path)

    def brake(self, time_s: float) -> None:
        """See `Follower`."""
        self._send('brake', None)

    def beat(self, time_s: float, measured: Mapping[str, float]) -> None:
        """See `Follower`. A process that says nothing itself is not told more than it may ever read."""
        if self._hear():
            self._heard_s = time_s
        silent_s = time_s - self._heard_s
        if silent_s > max(GONE_S, self._patience_s):
            self._process.kill()
            self._end()
        if silent_s > self._patience_s:
            self.lost = self.lost or not self.closed
        else:
            self._send('beat', dict(measured))

    def step(self, time_s: float) -> list[Command]:
        """Return nothing: what is to be sent now the process sends."""
        return []

    def close(self) -> None:
        """End the process: it brakes, where anything moves, and goes."""
        self._connection.close()
        try:
            self._process.wait(END_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _send(self, kind: str, value: Any) -> None:
        if self.gone:
            return
        try:
            self._connection.send_bytes(pickle.dumps((kind, value), pickle.HIGHEST_PROTOCOL))
        except OSError:
            self._end()

    def _hear(self) -> bool:
        """Take what the process says; return whether it says anything."""
        heard = False
        try:
            while not self.gone and self._connection.poll():
                report = pickle.loads(self._connection.recv_bytes())
                heard, self.lag_s, self.sent = True, report['lag_s'], report['sent']
                self.unheard, self.priority = report['unheard'], report['priority']
                # What it said before it took the newest path says nothing of that one.
                if report['paths'] == self._paths:
                    self.closed, self.lost = report['closed'], report['lost']
        except (EOFError, OSError):
            self._end()
        return heard

    def _end(self) -> None:
        """Tell once that the process is gone: what still works brakes then."""
        if not self.gone:
            self.gone = self.closed = True
            raise EnvError('fault', 'the process that sends commands has ended, or answers no more')


def main() -> None:
    """Run the process: `servo FD`, the descriptor of a socket to the env node."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # it ends with the env node, after the arm has come to rest
    connection = Connection(int(sys.argv[1]))
    _Servo(connection).run()
    os._exit(0)


class _Servo:
    def __init__(self, connection: Connection) -> None:
        import rclpy
        from rclpy.node import Node
        from rclpy.signals import SignalHandlerOptions

        from openeta_ros.embodiment import Kinematics
        from openeta_ros.nodes.robot_commands import CommandSender

        self._connection = connection
        _, (embodiment, joints, self._period_s, namespace, name, arguments) = pickle.loads(
            connection.recv_bytes()
        )
        commands = Commands(embodiment, Kinematics(embodiment), joints)
        self._follower = PathFollower(commands, self._period_s, embodiment.safety.watchdog_s)
        rclpy.init(args=[], signal_handler_options=SignalHandlerOptions.NO)
        node = Node(
            name,
            namespace=namespace,
            cli_args=list(arguments),
            use_global_arguments=False,
            start_parameter_services=False,
        )
        channels = [channel for channel in commands.channels if channel.interface in SERVOS]
        self._sender = CommandSender(node, channels)
        self._alive, self._paths, self._reported_s = True, 0, 0.0
        self._priority = raise_priority()

    def run(self) -> None:
        """Follow paths until the other side is gone and the arm rests.

        What is sent at the end of a period is made at its beginning, for the time at which it will be sent.
        """
        gc.collect()
        gc.freeze()
        gc.disable()  # nothing in here makes circles
        due_s = time.monotonic()
        while self._alive or not self._follower.closed:
            due_s = max(due_s + self._period_s, time.monotonic())
            self._take()
            before = self._follower.closed, self._follower.lost, self._follower.lag_s
            due_s = self._send(due_s)
            after = self._follower.closed, self._follower.lost, self._follower.lag_s
            if self._alive and (due_s - self._reported_s > REPORT_S or after != before):
                self._reported_s = due_s
                self._report()

    def _send(self, due_s: float) -> float:
        """Send what is due at a time then; return when it was.

        Where that time has passed before it could be, what was made for it is not sent: who follows has not
        gone on meanwhile, and would be told to leap.
        """
        for attempt in range(ATTEMPTS):
            follower = copy.copy(self._follower)
            messages = [self._sender.prepared(command) for command in follower.step(due_s)]
            time.sleep(max(due_s - time.monotonic(), 0.0))
            late_s = time.monotonic() - due_s
            if late_s < PROMPT_S or attempt == ATTEMPTS - 1:
                break
            due_s += late_s
        for send in messages:
            send()
        self._follower = follower
        return due_s

    def _take(self) -> None:
        """Take what the other side says; its end is a brake."""
        try:
            while self._alive and self._connection.poll():
                kind, value = pickle.loads(self._connection.recv_bytes())
                now_s = time.monotonic()
                if kind == 'take':
                    self._paths += 1
                    self._follower.beat(now_s, {})
                    self._follower.take(value)
                elif kind == 'beat':
                    self._follower.beat(now_s, value)
                else:
                    self._follower.brake(now_s)
        except (EOFError, OSError):
            self._alive = False
            self._follower.brake(time.monotonic())

    def _report(self) -> None:
        report = {
            'sent': self._follower.sent,
            'unheard': tuple(self._sender.unheard()),
            'closed': self._follower.closed,
            'lost': self._follower.lost,
            'lag_s': self._follower.lag_s,
            'paths': self._paths,
            'priority': self._priority,
        }
        try:
            self._connection.send_bytes(pickle.dumps(report))
        except OSError:
            self._alive = False
            self._follower.brake(time.monotonic())


if __name__ == '__main__':
    main()
