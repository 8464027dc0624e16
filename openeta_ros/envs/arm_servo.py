# SPDX-License-Identifier: Apache-2.0
"""The control thread: ticks at a fixed rate of the monotonic clock, and owes nobody else anything."""

from __future__ import annotations

import gc
import os
import sys
import threading
import time
from collections.abc import Callable

# Priority among real-time threads; drivers and controllers (50 by habit) stay above.
PRIORITY = 20
# Python lets another thread go on for so long before a waiting one may: less than half of a period of 100 Hz.
SWITCH_S = 0.0005
JOIN_S = 2.0


class Servo:
    """Calls `tick` every `period_s`, on a thread of its own until `close`.

    Ticks that could not be made in time are left out. What `tick` raises goes to `failed`, and ends it.

    `priority` says whether the thread runs before all ordinary ones (SCHED_FIFO), and if not, why.
    """

    def __init__(
        self, tick: Callable[[], None], failed: Callable[[BaseException], None], period_s: float
    ) -> None:
        self._tick, self._failed, self._period_s = tick, failed, period_s
        self._end = False
        self._started = threading.Event()
        self.priority = ''
        # A search for garbage among all that is here would hold this thread, too, for long: once more, now.
        gc.unfreeze()
        gc.collect()
        gc.freeze()
        sys.setswitchinterval(min(SWITCH_S, sys.getswitchinterval()))
        self._thread = threading.Thread(target=self._run, name='servo', daemon=True)
        self._thread.start()
        self._started.wait(JOIN_S)

    def close(self) -> None:
        """Tick no more."""
        self._end = True
        self._thread.join(JOIN_S)

    def _run(self) -> None:
        self.priority = raise_priority()
        self._started.set()
        due_s = time.monotonic()
        try:
            while not self._end:
                self._tick()
                due_s += self._period_s
                left_s = due_s - time.monotonic()
                if left_s > 0:
                    time.sleep(left_s)
                else:
                    due_s -= left_s
        except BaseException as error:
            self._failed(error)


def raise_priority() -> str:
    """Have the calling thread run before ordinary ones, where that is allowed; say how it went."""
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(PRIORITY))
    except (AttributeError, OSError) as error:
        return (
            f'the control thread has no priority over others ({error}): allow it by an rtprio of at least '
            f'{PRIORITY} in /etc/security/limits.conf'
        )
    return f'the control thread has real-time priority {PRIORITY}'
