# SPDX-License-Identifier: Apache-2.0
"""With which quality of service the topics of a recording were offered."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from mcap.exceptions import McapError
from mcap.reader import make_reader

from openeta_ros.episodes.bag import Bag
from openeta_ros.episodes.bag_metadata import METADATA, ROOT, read_yaml
from openeta_ros.episodes.bag_sqlite import uri

# rmw's numbers, which recordings had before they had words.
KEEP_ALL, BEST_EFFORT, TRANSIENT_LOCAL = (2, 'keep_all'), (2, 'best_effort'), (1, 'transient_local')
DEFAULT_DEPTH = 10


@dataclass(frozen=True)
class Quality:
    """What a publisher offers."""

    reliable: bool = True
    transient_local: bool = False
    keep_all: bool = False
    depth: int = DEFAULT_DEPTH


def offered(bag: Bag) -> dict[str, Quality]:
    """Return what was offered on each topic; of several publishers what satisfies all who listened.

    A topic of which nothing is recorded is offered reliably, ten deep.
    """
    texts = _of_metadata(bag.path) or _of_files(bag.path)
    return {name: _together(texts.get(name)) for name in bag.topics}


def _together(recorded: Any) -> Quality:
    """Return one quality for the profiles of a topic: YAML text, or a list."""
    try:
        profiles = read_yaml(recorded) if isinstance(recorded, str) else recorded
    except ValueError:
        profiles = None
    profiles = [one for one in profiles or [] if isinstance(one, dict)] if isinstance(profiles, list) else []
    if not profiles:
        return Quality()
    depths = [one['depth'] for one in profiles if isinstance(one.get('depth'), int) and one['depth'] > 0]
    return Quality(
        reliable=any(one.get('reliability') not in BEST_EFFORT for one in profiles),
        transient_local=any(one.get('durability') in TRANSIENT_LOCAL for one in profiles),
        keep_all=any(one.get('history') in KEEP_ALL for one in profiles),
        depth=max(depths, default=DEFAULT_DEPTH),
    )


def _of_metadata(path: Path) -> Mapping[str, Any]:
    try:
        data = read_yaml((path / METADATA).read_text(encoding='utf-8'))[ROOT]
        topics = [topic['topic_metadata'] for topic in data['topics_with_message_count']]
        return {str(topic['name']): topic.get('offered_qos_profiles') for topic in topics}
    except (OSError, ValueError, KeyError, TypeError):
        return {}


def _of_files(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = {}
    files: Iterable[Path] = [path] if path.is_file() else sorted(path.iterdir())
    for file in files:
        if file.suffix == '.mcap':
            found |= _of_mcap(file)
        elif file.suffix == '.db3':
            found |= of_database(file)
    return found


def _of_mcap(file: Path) -> dict[str, Any]:
    try:
        with file.open('rb') as opened:
            summary = make_reader(opened).get_summary()
    except (OSError, McapError, ValueError):
        return {}
    channels = summary.channels.values() if summary is not None else ()
    return {channel.topic: channel.metadata.get('offered_qos_profiles') for channel in channels}


def of_database(file: Path) -> dict[str, Any]:
    """Return the text of what was offered, by topic, as an SQLite file has it."""
    try:
        with closing(sqlite3.connect(uri(file), uri=True)) as database:
            return dict(database.execute('SELECT name, offered_qos_profiles FROM topics').fetchall())
    except sqlite3.Error:  # the first versions had no such column
        return {}
