# SPDX-License-Identifier: Apache-2.0
"""A rosbag2 folder while it is written: one MCAP file, and metadata.yaml when it ends.

The folder has its name only when all in it is complete; until then, and after a kill, it is called
`<name>.partial`, and its MCAP file holds what was handed over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from openeta_ros.episodes.bag_metadata import METADATA, ROOT
from openeta_ros.episodes.definitions import definition
from openeta_ros.episodes.mcap_file import McapFile

# rosbag2's metadata version of Jazzy, in which qualities of service have words.
METADATA_VERSION = 9
# What a folder is called besides while it is not complete.
PARTIAL = '.partial'
# What rosbag2 calls the record of an MCAP file that holds metadata.yaml.
RECORD = 'rosbag2'
RECORD_KEY = 'serialized_metadata'

# A publisher's quality of service, as metadata.yaml has it.
Profile = Mapping[str, Any]
FOREVER = {'sec': 9223372036, 'nsec': 854775807}


def profile(
    *,
    reliability: str,
    durability: str = 'volatile',
    history: str = 'keep_last',
    depth: int = 10,
    **others: Any,
) -> Profile:
    """Return a quality of service; `others` are what is not as it is by default."""
    return {
        'history': history,
        'depth': depth,
        'reliability': reliability,
        'durability': durability,
        'deadline': FOREVER,
        'lifespan': FOREVER,
        'liveliness': 'automatic',
        'liveliness_lease_duration': FOREVER,
        'avoid_ros_namespace_conventions': False,
        **others,
    }


class Rosbag2Folder:
    """Writes one; not for several threads at once. Errors are those of the file system (OSError).

    Attributes:
        custom_data: what metadata.yaml will say beside; a copy of it is the first record of the MCAP file.
        profiles: the qualities of service with which each topic was offered.
    """

    def __init__(self, folder: Path, custom_data: Mapping[str, str], *, compression: str) -> None:
        """Make the folder, which must not exist."""
        folder.mkdir(parents=True)
        self.custom_data = dict(custom_data)
        self.profiles: dict[str, list[Profile]] = {}
        self._folder = folder
        self._name = f'{folder.name.removesuffix(PARTIAL)}.mcap'
        self._mcap = McapFile(folder / self._name, custom_data, compression=compression)
        self._types: dict[str, tuple[str, str]] = {}  # type and hash, by topic
        self._numbers: dict[str, int] = {}

    @property
    def size(self) -> int:
        """Bytes written."""
        return self._mcap.size

    def messages(self) -> dict[str, int]:
        """Return how many messages were handed to the operating system, by topic."""
        return {topic: self._mcap.index.counts[number] for topic, number in self._numbers.items()}

    def add_topic(self, topic: str, message_type: str, profiles: Sequence[Profile]) -> None:
        """Begin a topic."""
        text, digest = definition(message_type)
        metadata = {'offered_qos_profiles': _yaml(list(profiles)).strip(), 'topic_type_hash': digest}
        self._numbers[topic] = self._mcap.add_channel(topic, message_type, text, metadata)
        self._types[topic] = message_type, digest
        self.profiles[topic] = list(profiles)

    def write(
        self,
        topic: str,
        log_ns: int,
        data: bytes | memoryview,
        *,
        publish_ns: int | None = None,
        sequence: int = 0,
    ) -> None:
        """Add a message: its CDR encoding, the time of its reception and of its publication."""
        self._mcap.add_message(
            self._numbers[topic], sequence, log_ns, log_ns if publish_ns is None else publish_ns, data
        )

    def flush(self, *, due: bool = False) -> None:
        """Hand what there is to the operating system; with `due` only what is old enough."""
        if due:
            self._mcap.flush_if_due()
        else:
            self._mcap.flush()

    def close(self) -> None:
        """Write the index and metadata.yaml."""
        try:
            self._mcap.flush()
            text = _yaml(self._information())
            self._mcap.add_metadata(RECORD, {RECORD_KEY: text.strip()})
        finally:
            self._mcap.close()
        (self._folder / METADATA).write_text(_yaml({ROOT: self._information()}), encoding='utf-8')

    def _information(self) -> dict[str, Any]:
        counts = self.messages()
        topics = [
            topic_information(topic, message_type, self.profiles[topic], digest, counts[topic])
            for topic, (message_type, digest) in self._types.items()
        ]
        index = self._mcap.index
        return information(
            [self._name], 'mcap', topics, (index.first_ns or 0, index.last_ns or 0), self.custom_data
        )


def or_partial(path: Path) -> Path:
    """Return a path, or where what was to be there lies when it is not complete."""
    partial = path.with_name(f'{path.name}{PARTIAL}')
    return partial if partial.exists() and not path.exists() else path


def topic_information(
    topic: str, message_type: str, profiles: Any, digest: str, messages: int, serialization: str = 'cdr'
) -> dict[str, Any]:
    """Return what metadata.yaml says of a topic."""
    return {
        'topic_metadata': {
            'name': topic,
            'type': message_type,
            'serialization_format': serialization,
            'offered_qos_profiles': profiles,
            'type_description_hash': digest,
        },
        'message_count': messages,
    }


def information(
    files: Sequence[str],
    storage: str,
    topics: Sequence[Mapping[str, Any]],
    span: tuple[int, int],
    custom_data: Mapping[str, str],
    *,
    version: int = METADATA_VERSION,
) -> dict[str, Any]:
    """Return what metadata.yaml says of a bag, whose messages are from span[0] to span[1] (ns)."""
    times = {
        'starting_time': {'nanoseconds_since_epoch': span[0]},
        'duration': {'nanoseconds': span[1] - span[0]},
        'message_count': sum(topic['message_count'] for topic in topics),
    }
    return {
        'version': version,
        'storage_identifier': storage,
        'relative_file_paths': list(files),
        **times,
        'topics_with_message_count': list(topics),
        'compression_format': '',
        'compression_mode': '',
        'files': [{'path': files[0], **times}] if len(files) == 1 else [],
        'custom_data': dict(custom_data) or None,
        'ros_distro': 'unknown',
    }


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True  # equal qualities of service are not written as references: not every reader knows them


def _yaml(data: Any) -> str:
    return str(yaml.dump(data, Dumper=_Dumper, sort_keys=False, allow_unicode=True))
