# SPDX-License-Identifier: Apache-2.0
"""The time of a playback: rate, pause, step, restart."""

from __future__ import annotations

import threading
import time

import pytest

from openeta_ros.episodes.playback import Playback

S = 1_000_000_000


class Player:
    """Plays times in a thread, and notes when each was let through."""

    def __init__(self, playback: Playback, times_ns: list[int]) -> None:
        self.played: list[int] = []
        self.at_s: list[float] = []
        self.ticks: list[int] = []
        self._end = threading.Event()
        self._begin = time.monotonic()
        self._thread = threading.Thread(target=self._play, args=(playback, times_ns))
        self._thread.start()

    def _play(self, playback: Playback, times_ns: list[int]) -> None:
        for log_ns in times_ns:
            if not playback.wait_until(log_ns, self._end.is_set, self.ticks.append, 0.01):
                return
            self.played.append(log_ns)
            self.at_s.append(time.monotonic() - self._begin)

    def wait(self, count: int) -> list[int]:
        deadline = time.monotonic() + 2
        while len(self.played) < count and time.monotonic() < deadline:
            time.sleep(0.002)
        time.sleep(0.03)  # more would come now, if anything more came
        return self.played

    def end(self) -> None:
        self._end.set()
        self._thread.join(2)
        assert not self._thread.is_alive()


@pytest.mark.parametrize('rate', [1.0, 4.0])
def test_messages_come_at_their_time_divided_by_the_rate(rate: float) -> None:
    times = [7 * S + k * S // 10 for k in range(4)]
    player = Player(Playback(7 * S, rate, paused=False), times)
    assert player.wait(4) == times
    player.end()
    assert player.at_s[-1] == pytest.approx(0.3 / rate, abs=0.05)
    assert all(7 * S <= tick <= times[-1] for tick in player.ticks)
    assert player.ticks == sorted(player.ticks)


def test_while_paused_each_step_lets_one_time_through() -> None:
    playback = Playback(0, 1.0, paused=True)
    player = Player(playback, [0, 10, 10, 10, 30, 40])
    assert player.wait(0) == []
    playback.step()
    assert player.wait(1) == [0]
    playback.step()
    assert player.wait(4) == [0, 10, 10, 10]
    assert playback.position_ns == 10 and len(player.ticks) > 1
    playback.step()
    playback.step()
    assert player.wait(6) == [0, 10, 10, 10, 30, 40]
    player.end()


def test_time_that_was_paused_is_not_made_up_for() -> None:
    playback = Playback(0, 1.0, paused=False)
    player = Player(playback, [0, S // 10, S // 5])
    player.wait(1)
    playback.pause(True)
    time.sleep(0.3)
    assert len(player.played) < 3
    playback.pause(False)
    player.wait(3)
    player.end()
    assert player.at_s[-1] > 0.45
    assert playback.largest_lag_ns < S // 10


def test_the_rate_changes_while_it_plays() -> None:
    playback = Playback(0, 0.01, paused=False)
    player = Player(playback, [0, S // 10])
    assert player.wait(1) == [0]
    playback.set_rate(100.0)
    assert player.wait(2) == [0, S // 10]
    player.end()
    for rate in (0.0, -1.0, float('nan'), float('inf')):
        with pytest.raises(ValueError, match='positive'):
            playback.set_rate(rate)


def test_it_can_be_stopped_while_it_waits() -> None:
    player = Player(Playback(0, 1.0, paused=False), [100 * S])
    player.end()
    assert player.played == []
