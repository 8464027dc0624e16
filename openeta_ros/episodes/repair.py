# SPDX-License-Identifier: Apache-2.0
"""A broken recording to a rosbag2 folder that every player opens.

What is whole is kept, what is lost is told; the broken one is never written to.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import yaml

from openeta_ros.episodes.appearing import appearing
from openeta_ros.episodes.bag import STORAGES, Bag, bag_path
from openeta_ros.episodes.bag_files import SUFFIXES
from openeta_ros.episodes.bag_metadata import METADATA, ROOT, BagError, read_yaml
from openeta_ros.episodes.bag_sqlite import uri
from openeta_ros.episodes.recorded_qos import of_database
from openeta_ros.episodes.recording import custom_in_mcap
from openeta_ros.episodes.repair_mcap import McapAccount, repair_mcap
from openeta_ros.episodes.rosbag2_folder import METADATA_VERSION, information, topic_information


@dataclass
class RepairAccount:
    """What became of a recording: the messages kept by topic, the accounts of its files, and notes."""

    output: str
    messages: dict[str, int] = field(default_factory=dict)
    files: dict[str, McapAccount] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def json(self) -> dict[str, Any]:
        """Return it as JSON-safe data."""
        return asdict(self)

    def lines(self) -> Iterator[str]:
        """Yield it as text."""
        for name, account in self.files.items():
            yield f'{name}: {account.messages} messages in {account.chunks} chunks are whole, and kept'
            if account.lost_chunks:
                lost = f' (at least {account.lost_messages} messages)' if account.lost_messages else ''
                yield f'{name}: {account.lost_chunks} damaged chunks are lost{lost}'
            if account.cut_at is None:
                yield f'{name}: nothing is missing at its end'
            elif not account.cut_bytes:
                yield f'{name}: it was never ended; nothing else is missing'
            else:
                yield f'{name}: {account.cut_bytes} bytes from byte {account.cut_at} on are no whole record'
        for topic, count in self.messages.items():
            yield f'{topic}: {count} messages'
        yield from (f'note: {note}' for note in self.notes)
        yield f'written to {self.output}'


def repair(path: Path, output: Path) -> RepairAccount:
    """Write what is whole of a recording into the folder `output`; return the account.

    `path` is a single .mcap or .db3 file, a rosbag2 folder, or a folder with bag/ in it.

    Raises:
        BagError: it cannot be repaired; one sentence.
    """
    source = bag_path(path)
    account = RepairAccount(str(output))
    files = [source] if source.is_file() else _files(source, account.notes)
    offered: dict[str, str] = {}
    hashes: dict[str, str] = {}
    names: list[str] = []
    with appearing(output) as folder:
        for file in files:
            target = folder / _name(file)
            if _storage(file) == 'mcap':
                try:
                    one = account.files[file.name] = repair_mcap(file, target)
                except BagError as error:
                    if len(files) == 1:
                        raise
                    account.notes.append(f'left out: {error}')
                    continue
                offered |= one.qos
                hashes |= one.hashes
            else:
                _copy_database(file, target)
                offered |= {name: str(text) for name, text in of_database(file).items()}
            names.append(target.name)
        if not names:
            raise BagError(f'{source} cannot be repaired; {"; ".join(account.notes)}')
        custom = _custom(source, folder / names[0])
        with Bag(folder) as bag:
            account.messages = {name: topic.messages or 0 for name, topic in sorted(bag.topics.items())}
            text = _metadata(bag, names, offered, hashes, custom)
        (folder / METADATA).write_text(text, encoding='utf-8')
        with Bag(folder) as bag:
            account.notes += bag.notes
    return account


def _files(folder: Path, notes: list[str]) -> list[Path]:
    """Return the files of a folder; what was only begun is told."""
    files = sorted(file for file in folder.iterdir() if file.is_file() and file.name.endswith(SUFFIXES))
    empty = [file for file in files if not file.stat().st_size]
    if len(empty) == len(files):
        return files
    notes += [f'left out: {file.name} is empty (0 bytes)' for file in empty]
    return [file for file in files if file not in empty]


def _name(file: Path) -> str:
    """Return the name of what is made of a file, which says what it is."""
    if file.name.endswith(SUFFIXES):
        return file.name
    return f'{file.name}.{"mcap" if _storage(file) == "mcap" else "db3"}'


def _storage(file: Path) -> str:
    if not file.stat().st_size:
        raise BagError(f'{file} is empty (0 bytes): there is nothing to repair')
    with file.open('rb') as opened:
        start = opened.read(16)
    for magic, name in STORAGES.items():
        if start.startswith(magic):
            return name
    remedy = '; unpack it with zstd -d first' if file.suffix in ('.zstd', '.zst') else ''
    raise BagError(f'{file} cannot be repaired: it begins neither as an MCAP nor as an SQLite file{remedy}')


def _copy_database(file: Path, copy: Path) -> None:
    """Copy a database that can be read, with what is only in its write-ahead log."""
    with Bag(file):  # refuses what is cut
        pass
    try:
        with (
            sqlite3.connect(uri(file), uri=True) as source,
            sqlite3.connect(copy) as target,
        ):
            source.backup(target)
    except sqlite3.Error as error:
        raise BagError(f'{file} cannot be repaired: {error}') from None


def _custom(source: Path, first: Path) -> Mapping[str, str]:
    """Return the custom data, of metadata.yaml where it can be read, else of the first file."""
    try:
        data = read_yaml((source / METADATA).read_text(encoding='utf-8'))[ROOT]
        return {str(key): str(value) for key, value in dict(data.get('custom_data') or {}).items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return custom_in_mcap(first) if _storage(first) == 'mcap' else {}


def _profiles(text: str) -> list[dict[str, Any]]:
    """Return the qualities of service that a text lists; none when it is no such text."""
    try:
        listed = read_yaml(text)
    except ValueError:
        return []
    return [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []


def _metadata(
    bag: Bag,
    names: list[str],
    offered: Mapping[str, str],
    hashes: Mapping[str, str],
    custom: Mapping[str, str],
) -> str:
    # Since version 9 qualities of service have words for numbers; a text of numbers is kept as it is.
    profiles = {name: _profiles(offered.get(name) or '[]') for name in bag.topics}
    words = all(isinstance(one.get('reliability'), str) for some in profiles.values() for one in some)
    topics = [
        topic_information(
            topic.name,
            topic.message_type,
            profiles[topic.name] if words else offered.get(topic.name, ''),
            hashes.get(topic.name, ''),
            topic.messages or 0,
            topic.serialization or 'cdr',
        )
        for topic in bag.topics.values()
    ]
    storage = 'mcap' if '.mcap' in names[0] else 'sqlite3'
    version = METADATA_VERSION if words else METADATA_VERSION - 1
    data = information(names, storage, topics, bag.span() or (0, 0), custom, version=version)
    return yaml.safe_dump({ROOT: data}, sort_keys=False, allow_unicode=True)
