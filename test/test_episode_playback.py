# SPDX-License-Identifier: Apache-2.0
"""The time of a playback: rate, pause, step, restart."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from openeta_ros.episodes.playback import Playback

S = 1_000_000_000
# Only a playback that hangs is waited for so long.
HANGS_S = 120.0


class Clock:
    """A monotonic clock that stands until it is put on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


class Player:
    """Plays times in a thread, and notes when each was let through."""

    def __init__(self, playback: Playback, times_ns: list[int]) -> None:
        self.played: list[int] = []
        self.ticks: list[int] = []
        self._changed = threading.Condition()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._play, args=(playback, times_ns))
        self._thread.start()

    def _play(self, playback: Playback, times_ns: list[int]) -> None:
        for log_ns in times_ns:
            if not playback.wait_until(log_ns, self._end.is_set, self._tick, 0.001):
                return
            with self._changed:
                self.played.append(log_ns)
                self._changed.notify_all()

    def _tick(self, now_ns: int) -> None:
        with self._changed:
            self.ticks.append(now_ns)
            self._changed.notify_all()

    def _until(self, condition: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, HANGS_S)

    def wait(self, count: int) -> list[int]:
        """Return what was played when it is so much, and the player has looked again in vain."""
        self._until(lambda: len(self.played) >= count)
        looked = len(self.ticks) + 2
        self._until(lambda: len(self.ticks) >= looked or not self._thread.is_alive())
        return self.played

    def wait_to_the_end(self) -> list[int]:
        """Return what was played when it is all."""
        self._thread.join(HANGS_S)
        assert not self._thread.is_alive()
        return self.played

    def end(self) -> None:
        """Have it stop."""
        self._end.set()
        self.wait_to_the_end()


@pytest.mark.parametrize('rate', [1.0, 4.0])
def test_messages_come_at_their_time_divided_by_the_rate(rate: float) -> None:
    times, clock = [7 * S + k * S // 10 for k in range(4)], Clock()
    playback = Playback(7 * S, rate, paused=False, monotonic=clock)
    player = Player(playback, times)
    for count in range(1, 4):
        assert player.wait(count) == times[:count]
        clock.now_s += 0.07 / rate
        assert player.wait(count) == times[:count]  # not before its time
        clock.now_s += 0.035 / rate
        if count == 3:
            break
        assert player.wait(count + 1) == times[: count + 1]
        assert playback.lag_ns == pytest.approx(S // 200 * count, abs=10)
    assert player.wait_to_the_end() == times
    assert playback.largest_lag_ns == pytest.approx(S // 200 * 3, abs=10)
    assert all(7 * S <= tick <= times[-1] for tick in player.ticks)
    assert player.ticks == sorted(player.ticks)


def test_while_paused_each_step_lets_one_time_through() -> None:
    clock = Clock()
    playback = Playback(0, 1.0, paused=True, monotonic=clock)
    player = Player(playback, [0, 10, 10, 10, 30, 40])
    assert player.wait(0) == []
    playback.step()
    assert player.wait(1) == [0]
    clock.now_s += 5.0
    playback.step()
    assert player.wait(4) == [0, 10, 10, 10]
    assert playback.position_ns == 10 and len(player.ticks) > 1
    playback.step()
    playback.step()
    assert player.wait_to_the_end() == [0, 10, 10, 10, 30, 40]


def test_time_that_was_paused_is_not_made_up_for() -> None:
    clock = Clock()
    playback = Playback(0, 1.0, paused=False, monotonic=clock)
    player = Player(playback, [0, S // 10, S // 5])
    assert player.wait(1) == [0]
    playback.pause(True)
    clock.now_s += 5.0
    assert player.wait(1) == [0]
    playback.pause(False)
    assert player.wait(1) == [0]
    clock.now_s += 0.1001
    assert player.wait(2) == [0, S // 10]
    clock.now_s += 0.1
    assert player.wait_to_the_end() == [0, S // 10, S // 5]
    assert playback.largest_lag_ns < S // 1000


def test_the_rate_changes_while_it_plays() -> None:
    clock = Clock()
    playback = Playback(0, 0.01, paused=False, monotonic=clock)
    player = Player(playback, [0, S // 10])
    clock.now_s += 5.0
    assert player.wait(1) == [0]
    playback.set_rate(100.0)
    assert player.wait(1) == [0]
    clock.now_s += 0.001
    assert player.wait_to_the_end() == [0, S // 10]
    for rate in (0.0, -1.0, float('nan'), float('inf')):
        with pytest.raises(ValueError, match='positive'):
            playback.set_rate(rate)


def test_it_can_be_stopped_while_it_waits() -> None:
    player = Player(Playback(0, 1.0, paused=False, monotonic=Clock()), [100 * S])
    assert player.wait(0) == []
    player.end()
    assert player.played == []
