# SPDX-License-Identifier: Apache-2.0
"""How many rows a recording will give, before it is read."""

from __future__ import annotations

import math
from typing import Literal

from openeta_ros.embodiment import Embodiment
from openeta_ros.episodes.bag import Bag
from openeta_ros.observation import NS_PER_S

Rate = Literal['contract', 'clock']


def expected_rows(bag: Bag, embodiment: Embodiment, rate: Rate, from_s: float, to_s: float | None) -> int:
    """Return how many rows there will be, or a few more, if the times of recording are right: for one too
    many all that is written would be written again."""
    first, last = bag.span() or (0, 0)
    whole_s = (last - first) / NS_PER_S
    part_s = max(0.0, min(whole_s, whole_s if to_s is None else to_s) - from_s)
    clock = bag.find(embodiment.cameras[embodiment.align.clock].topic)
    pictures = (clock.messages or 0) if clock is not None else 0
    if rate == 'clock':
        return pictures if part_s >= whole_s else math.ceil(pictures * part_s / whole_s) + 1
    # Each picture is held for its largest age: a time of recording that is wrong by years changes nothing.
    held = 1 + math.ceil(embodiment.align.max_age_s * embodiment.rate_hz)
    return min(math.ceil(part_s * embodiment.rate_hz), pictures * held) + 1
