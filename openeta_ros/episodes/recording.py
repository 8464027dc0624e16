# SPDX-License-Identifier: Apache-2.0
"""What a recording says of itself: the contract, settings and outcome that our recordings carry, and what the
policy sent. Other recordings carry none of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from numpy.typing import NDArray

from openeta_ros.embodiment import Embodiment, EmbodimentError, load
from openeta_ros.episodes.bag import Bag, Topic, decoder
from openeta_ros.episodes.bag_mcap import DAMAGED
from openeta_ros.episodes.bag_metadata import ROOT, BagError
from openeta_ros.episodes.mcap_file import McapFile
from openeta_ros.episodes.record import CHUNK_TOPIC, CHUNK_TYPE, RESULT_TOPIC, RESULT_TYPE
from openeta_ros.episodes.rosbag2_folder import RECORD_KEY
from openeta_ros.observation import NS_PER_S, chunk_rows, stamp_ns

Array = NDArray[Any]


@dataclass(frozen=True)
class Facts:
    """What one of our recordings carries beside its messages; all of it empty for any other.

    Attributes:
        contract: the embodiment's YAML text.
        settings, env, policy, versions: of the evaluation, as in results.json.
        episode: its entry in results.json, or the outcome that the recorder was told; empty when the episode
            did not come to its end.
        latencies_ms: how long each answer of the policy took.
        recorder, info, account: of a recording of the recorder node: what it was asked to record, what it was
            told about that, and what was written and lost; no account when it was killed.
    """

    contract: str = ''
    settings: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, Any] = field(default_factory=dict)
    policy: Mapping[str, Any] = field(default_factory=dict)
    versions: Mapping[str, Any] = field(default_factory=dict)
    episode: Mapping[str, Any] = field(default_factory=dict)
    latencies_ms: tuple[float, ...] = ()
    recorder: Mapping[str, Any] = field(default_factory=dict)
    info: Mapping[str, Any] = field(default_factory=dict)
    account: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class SentChunk:
    """What the policy answered to the observation of a stamp: (H, A) rows of 'qpos' or 'ee'. Of them the
    first `horizon` were to be executed (0: all) before the policy was asked again."""

    stamp_ns: int
    action_type: str
    rows: Array
    horizon: int = 0


def facts(bag: Bag) -> Facts:
    """Return what a recording carries; what of it cannot be read is left out."""
    custom = dict(bag.custom_data) or custom_in_mcap(bag.path)

    def mapping(name: str) -> Mapping[str, Any]:
        value = _parsed(custom.get(name))
        return value if isinstance(value, dict) else {}

    latencies = _parsed(custom.get('latencies_ms'))
    return Facts(
        contract=custom.get('contract', ''),
        settings=mapping('settings'),
        env=mapping('env'),
        policy=mapping('policy'),
        versions=mapping('versions'),
        episode=mapping('episode'),
        latencies_ms=tuple(map(float, latencies)) if isinstance(latencies, list) else (),
        recorder=mapping('recorder'),
        info=mapping('info'),
        account=mapping('account'),
    )


def embodiment_of(bag: Bag, named: str | None, folder: Path) -> Embodiment:
    """Return the contract of what was recorded: the one `named`, or else the one that the recording carries.

    Where the file that the recording was made with is still the same it is used, so that paths relative to it
    hold; otherwise the recorded text is written into `folder`.

    Raises:
        BagError: none is named, and the recording carries none.
        EmbodimentError: it cannot be used.
    """
    if named is not None:
        return load(named)
    carried = facts(bag)
    if not carried.contract:
        raise BagError(f'{bag.path} carries no contract: name one with --embodiment')
    try:
        embodiment = load(str({**carried.recorder, **carried.settings}.get('embodiment', '')))
        if embodiment.path.read_text(encoding='utf-8') == carried.contract:
            return embodiment
    except (EmbodimentError, OSError):
        pass
    path = folder / 'contract.yaml'
    path.write_text(carried.contract, encoding='utf-8')
    return load(path)


def sent_chunks(bag: Bag) -> Iterator[SentChunk]:
    """Yield what the policy sent, in order; nothing when it was not recorded.

    Raises:
        BagError: a chunk cannot be read.
    """
    topic = _topic(bag, CHUNK_TOPIC, CHUNK_TYPE)
    if topic is None:
        return
    decoded = decoder()
    for recorded in bag.messages([topic.name]):
        message = decoded(recorded)
        try:
            rows = chunk_rows(message)
        except ValueError as error:
            raise BagError(f'{bag.path}: {topic.name} has {error}') from None
        stamp = int(message.observation_stamp.sec) * NS_PER_S + int(message.observation_stamp.nanosec)
        # Asynchronous, the horizon is when the next chunk is due: until it takes over, rows go on.
        horizon = 0 if message.asynchronous else int(message.horizon)
        kind = str(message.action_type)
        yield SentChunk(stamp or stamp_ns(message), kind, rows, horizon)


def executed_rows(bag: Bag) -> int:
    """Return how many rows were executed in the recorded episode; 0 when that was not recorded."""
    topic = _topic(bag, RESULT_TOPIC, RESULT_TYPE)
    return 0 if topic is None else topic.messages or 0


def _parsed(text: str | None) -> Any:
    try:
        return json.loads(text or 'null')
    except ValueError:
        return None


def _topic(bag: Bag, name: str, message_type: str) -> Topic | None:
    """Return one of our topics, in the bag's namespace, where it was recorded."""
    found = bag.find(name.lstrip('/'))
    return found if found is not None and found.message_type == message_type else None


def custom_in_mcap(path: Path) -> dict[str, str]:
    """Return the custom data that MCAP files have without metadata.yaml: of a file, or of those in a folder.

    Of one that was never ended it is what was known when it began.
    """
    found: dict[str, str] = {}
    for file in [path] if path.is_file() else sorted(path.glob('*.mcap')):
        found |= {**_first_record(file), **_at_end(file)}
    return found


def _first_record(file: Path) -> dict[str, str]:
    from mcap.records import Header, Metadata
    from mcap.stream_reader import StreamReader

    try:
        with file.open('rb') as opened:
            for record in StreamReader(opened).records:
                if isinstance(record, Metadata) and record.name == McapFile.ABOUT:
                    return record.metadata
                if not isinstance(record, Header):
                    break
    except (*DAMAGED, OSError):
        pass  # what is wrong with the file itself is told by who reads its messages
    return {}


def _at_end(file: Path) -> dict[str, str]:
    from mcap.reader import SeekingReader

    try:
        with file.open('rb') as opened:
            reader = SeekingReader(opened)
            if reader.get_summary() is None:  # without an index all of it would be read
                return {}
            for record in reader.iter_metadata():
                data = yaml.safe_load(record.metadata.get(RECORD_KEY, '')) or {}
                custom = (data.get(ROOT) or data).get('custom_data') or {}
                if custom:
                    return {str(key): str(value) for key, value in custom.items()}
    except (*DAMAGED, OSError, yaml.YAMLError, AttributeError):
        pass
    return {}
