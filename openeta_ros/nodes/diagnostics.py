# SPDX-License-Identifier: Apache-2.0
"""How streams and policy are doing: `/diagnostics` once a second, and a log line when that changes."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping

import numpy as np
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus, KeyValue
from rclpy.clock import Clock, ClockType
from rclpy.node import Node

from openeta_ros.nodes.streams import Bridge
from openeta_ros.nodes.subscription import on_executor
from openeta_ros.observation import Condition, StreamHealth
from openeta_ros.vector_policy.client import CallTiming

PERIOD_S = 1.0
# A stream of which nothing came for so long is silent.
SILENT_S = 2.0
# Conditions that end at once (a message that came late) are logged again after so long only.
AGAIN_S = 10.0
# Newest calls of the policy that figures are made of.
RECENT_CALLS = 200


class Diagnostics:
    """Publishes and logs how a bridge is doing.

    A stream's condition is logged once when it begins and once when it ends. Silence is measured with the
    monotonic clock, so that it is noticed too when simulated time stands still.

    Args:
        hardware_id: the robot's name.
        more: called on the executor's thread for what else to publish.
    """

    def __init__(
        self,
        node: Node,
        bridge: Bridge,
        hardware_id: str,
        more: Callable[[], Iterable[DiagnosticStatus]] = lambda: (),
    ) -> None:
        self._node = node
        self._bridge = bridge
        self._hardware_id = hardware_id
        self._more = more
        self._silences: dict[str, _Silence] = {}
        self._logged_at: dict[tuple[str, str], float] = {}
        self._publisher = node.create_publisher(DiagnosticArray, '/diagnostics', 10)
        self._timer = node.create_timer(PERIOD_S, self._tell, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def close(self) -> None:
        """Publish nothing any more. For any thread."""
        on_executor(self._node, self._close)

    def _close(self) -> None:
        self._node.destroy_timer(self._timer)
        self._node.destroy_publisher(self._publisher)

    def _tell(self) -> None:
        health, lasting, changes = self._bridge.health()
        for change in changes:
            self._log(change)
        statuses = [self._status(one, lasting) for one in health]
        statuses += self._more()
        for status in statuses:
            status.name = f'{self._node.get_fully_qualified_name().lstrip("/")}: {status.name}'
            status.hardware_id = self._hardware_id
        message = DiagnosticArray(status=statuses)
        message.header.stamp = self._node.get_clock().now().to_msg()
        self._publisher.publish(message)

    def _status(self, health: StreamHealth, lasting: list[Condition]) -> DiagnosticStatus:
        wrong = [condition.text for condition in lasting if condition.stream == health.stream]
        level, text = (DiagnosticStatus.WARN, '; '.join(wrong)) if wrong else (DiagnosticStatus.OK, 'ok')
        silence = self._silences.setdefault(health.stream, _Silence())
        began, ended = silence.look(health.messages)
        if silence.lasts:
            trouble = self._bridge.trouble(health.stream)
            level = DiagnosticStatus.ERROR if trouble else DiagnosticStatus.STALE
            text = trouble or ('nothing any more' if health.messages else 'nothing so far')
        if began:
            self._node.get_logger().warning(f'{health.stream}: {text}')
        if ended:
            self._node.get_logger().info(f'{health.stream}: comes again after {ended:.1f} s')
        values: dict[str, object] = {
            'messages': health.messages,
            'rate_hz': health.rate_hz,
            'jitter_ms_p95': health.jitter_ms,
            'age_ms_p50': health.age_ms and health.age_ms[0],
            'age_ms_max': health.age_ms and health.age_ms[1],
            'offset_s': health.offset_s,
            **{f'rejected: {reason}': count for reason, count in health.rejected.items()},
            **{f'condition: {kind}': count for kind, count in health.conditions.items()},
        }
        return status(health.stream, level, text, values)

    def _log(self, change: Condition) -> None:
        at_once = change.until_ns == change.since_ns
        now, key = time.monotonic(), (change.stream, change.kind)
        if change.until_ns is None:
            if now - self._logged_at.get(key, -AGAIN_S) >= AGAIN_S:
                self._logged_at[key] = now
                self._node.get_logger().warning(f'{change.stream}: {change.text}')
        elif not at_once:
            self._logged_at.pop(key, None)
            lasted_s = (change.until_ns - change.since_ns) / 1e9
            self._node.get_logger().info(
                f'{change.stream}: {change.kind} ended after {lasted_s:.3f} s ({change.count} times)'
            )


class PolicyHealth:
    """Where the time of the policy's newest calls went, and how many failed."""

    def __init__(self) -> None:
        self.calls = 0
        self.failures = 0
        self._failure = ''
        self._newest: deque[CallTiming] = deque(maxlen=RECENT_CALLS)

    def answered(self, timing: CallTiming) -> None:
        """Note a call of act."""
        self.calls += 1
        self._failure = ''
        self._newest.append(timing)

    def failed(self, error: Exception) -> None:
        """Note a call of act that was not answered with actions."""
        self.calls += 1
        self.failures += 1
        self._failure = str(error)

    def status(self) -> DiagnosticStatus:
        """Return the figures; milliseconds."""
        values: dict[str, object] = {'calls': self.calls, 'failures': self.failures}
        newest = list(self._newest)
        for part in ('encode', 'wait', 'decode'):
            times_ms = [1e3 * getattr(timing, f'{part}_s') for timing in newest]
            if times_ms:
                values |= {
                    f'{part}_ms_{name}': float(np.percentile(times_ms, share))
                    for name, share in (('p50', 50), ('p99', 99), ('max', 100))
                }
        level = DiagnosticStatus.ERROR if self._failure else DiagnosticStatus.OK
        return status('policy', level, self._failure or 'ok', values)


class _Silence:
    """Notices that no message of a stream came for a while."""

    def __init__(self) -> None:
        self.lasts = False
        self._messages = 0
        self._since = time.monotonic()

    def look(self, messages: int) -> tuple[bool, float]:
        """Return whether silence began just now, and how long it was when it just ended, else 0."""
        now = time.monotonic()
        began, ended = False, 0.0
        if messages != self._messages:
            ended = now - self._since if self.lasts else 0.0
            self.lasts, self._messages, self._since = False, messages, now
        elif not self.lasts and now - self._since > SILENT_S:
            began = self.lasts = True
        return began, ended


def status(name: str, level: bytes, text: str, values: Mapping[str, object]) -> DiagnosticStatus:
    """Return a status; values that are not known are left out."""
    told = {
        key: f'{value:.3f}' if isinstance(value, float) else str(value)
        for key, value in values.items()
        if value is not None
    }
    return DiagnosticStatus(
        name=name,
        level=level,
        message=text,
        values=[KeyValue(key=key, value=value) for key, value in told.items()],
    )
