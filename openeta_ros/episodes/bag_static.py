# SPDX-License-Identifier: Apache-2.0
"""Transforms that hold for all of a recording, whenever they were recorded."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from openeta_ros.episodes.bag import Bag, Recorded, decoder
from openeta_ros.episodes.bag_metadata import BagError


def static_first(
    bag: Bag,
    topics: Iterable[str],
    messages: Iterable[Recorded],
    first_ns: int,
    start_ns: int,
    notes: list[str],
) -> Iterator[Recorded]:
    """Yield `messages`, those of a bag from `start_ns` on, with what is static before all others.

    Static transforms are sent once. A recorder may hear of them late, and a part of a recording begin after
    them; they held before all the same. Of a transform that is sent again only the first is brought forward,
    and `notes` are told when it is another one then.
    """
    topics, decode = list(topics), decoder()
    known: dict[str, tuple[str, Any]] = {}  # parent and transform, by child
    changed: set[str] = set()
    forward: list[Recorded] = []
    places: set[int] = set()  # of those in `messages`, counted among the static ones
    place = 0
    for recorded in bag.messages(topics, first_ns):
        inside = recorded.log_ns >= start_ns
        try:
            transforms = decode(recorded).transforms
        except BagError:
            transforms = []  # it is told where it stands
        held = {one.child_frame_id: (one.header.frame_id, one.transform) for one in transforms}
        if not inside or held.keys() - known.keys():
            forward.append(recorded)
            if inside:
                places.add(place)
        changed |= {child for child, one in held.items() if known.get(child, one) != one}
        known |= held
        place += inside
    if changed:
        names = ', '.join(sorted(changed))
        notes.append(f'static transforms changed ({names}): rows shortly before that may have the new ones')
    yield from forward
    place = 0
    for recorded in messages:
        if recorded.topic in topics:
            place += 1
            if place - 1 in places:
                continue
        yield recorded
