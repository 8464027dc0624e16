# SPDX-License-Identifier: Apache-2.0
"""A recording as a file for the Rerun viewer: pictures, joints, chunks, rewards."""

from __future__ import annotations

import importlib.util
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from openeta_ros.episodes.bag import Bag, decoder
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.record import CHUNK_TYPE, IMAGE_TYPE, JOINT_STATE_TYPE, RESULT_TYPE
from openeta_ros.observation import NS_PER_S, ImageError, chunk_rows, decode_image, stamp_ns

COMPRESSED_TYPE = 'sensor_msgs/msg/CompressedImage'
SHOWN = (IMAGE_TYPE, COMPRESSED_TYPE, JOINT_STATE_TYPE, CHUNK_TYPE, RESULT_TYPE)
TIMELINE = 'ros_time'


def missing() -> str | None:
    """Return what is not installed, and how to get it; None when it is there."""
    if importlib.util.find_spec('rerun') is not None:
        return None
    return 'the Rerun viewer is not installed: pip install rerun-sdk'


def write_rerun(
    bag: Bag, target: Path, progress: Callable[[float], None] = lambda share: None
) -> Counter[str]:
    """Write the messages of `SHOWN` types of a recording; return how many could not be shown, by reason.

    Raises:
        BagError: there is nothing to show, or the bag is damaged.
    """
    import rerun

    names = [name for name, topic in bag.topics.items() if topic.message_type in SHOWN]
    if not names:
        raise BagError(f'{bag.path} holds no pictures, joints, chunks or results')
    stream = rerun.RecordingStream('openeta_ros', recording_id=bag.path.name)
    stream.save(str(target))
    decoded, rejected = decoder(), Counter[str]()
    first, last = bag.span() or (0, 0)
    for count, recorded in enumerate(bag.messages(names)):
        if count % 256 == 0:
            progress((recorded.log_ns - first) / max(1, last - first))
        try:
            message = decoded(recorded)
            stream.set_time(TIMELINE, timestamp=np.datetime64(_stamp(message) or recorded.log_ns, 'ns'))
            _log(stream, recorded.topic.lstrip('/'), message)
        except ImageError as error:
            rejected[f'{recorded.topic}: {error.reason}'] += 1
        except ValueError as error:  # not of its type, or a chunk without rows
            rejected[f'{recorded.topic}: {error}'] += 1
    stream.flush()
    return rejected


def _log(stream: Any, place: str, message: Any) -> None:
    import rerun

    if hasattr(message, 'position'):
        for name, position in zip(message.name, message.position, strict=False):
            stream.log(f'{place}/{name}', rerun.Scalars(float(position)))
    elif hasattr(message, 'actions'):
        rows = chunk_rows(message)
        stream.log(f'{place}/rows', rerun.Tensor(rows, dim_names=('row', 'column')))
        for column, value in enumerate(rows[0]):
            stream.log(f'{place}/first_row/{column}', rerun.Scalars(float(value)))
    elif hasattr(message, 'reward'):
        stream.log(f'{place}/reward', rerun.Scalars(float(message.reward)))
        stream.log(f'{place}/success', rerun.Scalars(float(message.success)))
        if message.clamped:
            stream.log(f'{place}/clamped', rerun.TextLog(', '.join(message.clamped)))
    elif hasattr(message, 'format') and message.format.split(';')[-1].strip().startswith(('jpeg', 'png')):
        stream.log(place, rerun.EncodedImage(contents=message.data.tobytes()))
    else:
        stream.log(place, rerun.Image(decode_image(message)))


def _stamp(message: Any) -> int:
    if hasattr(message, 'header'):
        return stamp_ns(message)
    return int(message.stamp.sec) * NS_PER_S + int(message.stamp.nanosec)
