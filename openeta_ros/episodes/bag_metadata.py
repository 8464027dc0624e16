# SPDX-License-Identifier: Apache-2.0
"""metadata.yaml of a rosbag2 folder, versions 1 to 9: what is needed to read it, and none of it blindly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import yaml

METADATA = 'metadata.yaml'
ROOT = 'rosbag2_bagfile_information'
# Until then paths began with the folder's own name.
PATHS_IN_FOLDER_SINCE = 4


class BagError(ValueError):
    """A bag cannot be read, or not rightly; the text is one sentence naming file and reason."""


def read_yaml(text: str) -> Any:
    """Return what a YAML text says.

    Raises:
        ValueError: whatever is wrong with it.
    """
    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, ValueError, RecursionError) as error:  # dates that are none; brackets without end
        raise ValueError(' '.join(str(error).split())[:200]) from None


@dataclass(frozen=True)
class BagMetadata:
    """What metadata.yaml says: storage ('' when it does not say), files that are there, counts by topic."""

    storage: str
    files: tuple[Path, ...]
    counts: Mapping[str, int]
    custom_data: Mapping[str, str]


def read_metadata(folder: Path, notes: list[str]) -> BagMetadata | None:
    """Return what metadata.yaml says; None, and a note, when it cannot be read.

    Raises:
        BagError: it names files that are missing or outside of the folder, or a compression that is unknown.
    """
    try:
        data = read_yaml((folder / METADATA).read_text(encoding='utf-8'))[ROOT]
        entries = [str(entry) for entry in data['relative_file_paths']]
    except (OSError, ValueError, KeyError, TypeError) as error:
        text = ' '.join(str(error).split())[:200]
        notes.append(
            f'{folder / METADATA} cannot be read ({text}); files are taken in the order of their names'
        )
        return None
    if not entries:
        notes.append(f'{folder / METADATA} lists no files; they are taken in the order of their names')
        return None
    form = str(data.get('compression_format') or '')
    if str(data.get('compression_mode') or 'none').lower() != 'none' and form != 'zstd':
        raise BagError(f'{folder / METADATA}: compression {form!r} is unknown; only zstd can be read')
    version = data.get('version')
    old = isinstance(version, int) and version < PATHS_IN_FOLDER_SINCE
    files = tuple(_inside(folder, entry, old) for entry in entries)
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise BagError(f'{folder / METADATA} lists {", ".join(missing)}, which is not there')
    return BagMetadata(
        str(data.get('storage_identifier') or ''), files, _counts(data), _custom(data.get('custom_data'))
    )


def _inside(folder: Path, entry: str, old: bool) -> Path:
    path = PurePosixPath(entry)
    inner = PurePosixPath(path.name) if old and '..' not in path.parts and not path.is_absolute() else path
    file = folder / inner
    if path.is_absolute() or '..' in path.parts or not file.resolve().is_relative_to(folder.resolve()):
        raise BagError(f'{folder / METADATA} lists {entry!r}, which is outside of its folder')
    return file


def _counts(data: Mapping[str, Any]) -> dict[str, int]:
    """Return the messages by topic, of what there is of it: it is only compared."""
    counts: dict[str, int] = {}
    topics = data.get('topics_with_message_count')
    for topic in topics if isinstance(topics, list) else []:
        try:
            name = str(topic['topic_metadata']['name'])
            counts[name] = counts.get(name, 0) + int(topic['message_count'])
        except (KeyError, TypeError, ValueError):
            continue
    return counts


def _custom(data: Any) -> dict[str, str]:
    return {str(key): str(value) for key, value in data.items()} if isinstance(data, dict) else {}
