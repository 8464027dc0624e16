# SPDX-License-Identifier: Apache-2.0
"""The time of a recording that is played: at a rate, paused, step by step. No ROS in here.

One thread plays (`wait_until` for each message); others may pause, step and set the rate meanwhile.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from openeta_ros.observation import NS_PER_S


class Playback:
    """Where a playback is, in the time of recording (ns).

    Attributes:
        lag_ns: by how much the last message came later than its time.
        largest_lag_ns: the same, of all messages so far.
    """

    def __init__(
        self, start_ns: int, rate: float, *, paused: bool, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self.lag_ns = self.largest_lag_ns = 0
        self._monotonic = monotonic
        self._changed = threading.Condition()
        self._rate = _checked(rate)
        self._paused = paused
        self._steps = 0
        self._allowed_ns = start_ns - 1  # what is stepped over is let through up to here
        self._anchor_ns, self._anchor_s = start_ns, monotonic()

    @property
    def position_ns(self) -> int:
        """Where it is now."""
        with self._changed:
            return self._position()

    @property
    def paused(self) -> bool:
        """Whether time stands."""
        return self._paused

    def pause(self, paused: bool) -> None:
        """Let time stand, or go on."""
        with self._changed:
            self._anchor_ns, self._anchor_s = self._position(), self._monotonic()
            self._paused, self._steps = paused, 0
            self._changed.notify_all()

    def set_rate(self, rate: float) -> None:
        """Go on at `rate` times the speed of recording.

        Raises:
            ValueError: it is not positive.
        """
        with self._changed:
            self._anchor_ns, self._anchor_s = self._position(), self._monotonic()
            self._rate = _checked(rate)
            self._changed.notify_all()

    def step(self) -> None:
        """While time stands, let through what was recorded at the next time: a message, or all of one row."""
        with self._changed:
            self._steps += 1
            self._changed.notify_all()

    def restart(self, start_ns: int) -> None:
        """Begin anew, as paused as it is."""
        with self._changed:
            self._anchor_ns, self._anchor_s = start_ns, self._monotonic()
            self._allowed_ns = start_ns - 1

    def wait_until(
        self, log_ns: int, stopping: Callable[[], bool], tick: Callable[[int], None], tick_s: float
    ) -> bool:
        """Wait until it is `log_ns`; return False when `stopping` says so.

        `tick` is called about every `tick_s` with the time it is, also while time stands.
        """
        while not stopping():
            with self._changed:
                now_ns = self._position()
                if self._paused:
                    if log_ns <= self._allowed_ns or self._stepped(log_ns):
                        return True
                    wait_s = tick_s
                elif now_ns >= log_ns:
                    self.lag_ns = now_ns - log_ns
                    self.largest_lag_ns = max(self.largest_lag_ns, self.lag_ns)
                    return True
                else:
                    wait_s = min(tick_s, (log_ns - now_ns) / NS_PER_S / self._rate)
                self._changed.wait(wait_s)
            tick(min(self.position_ns, log_ns))
        return False

    def _stepped(self, log_ns: int) -> bool:
        if not self._steps:
            return False
        self._steps -= 1
        self._allowed_ns = self._anchor_ns = log_ns
        return True

    def _position(self) -> int:
        if self._paused:
            return self._anchor_ns
        return self._anchor_ns + round((self._monotonic() - self._anchor_s) * self._rate * NS_PER_S)


def _checked(rate: float) -> float:
    if not 0 < rate < float('inf'):
        raise ValueError(f'the rate must be a positive number, not {rate}')
    return rate
