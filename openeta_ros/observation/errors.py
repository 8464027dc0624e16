# SPDX-License-Identifier: Apache-2.0
"""What can be wrong with streams and observations."""

from __future__ import annotations

from collections.abc import Sequence


class ObservationError(ValueError):
    """An observation cannot be made of what is there; the text is one sentence naming the stream and the
    remedy."""


class ImageError(ObservationError):
    """A picture message cannot become the array that is asked for: unknown or colourless encoding, or fewer
    bytes than it declares.

    Attributes:
        reason: the text without the stamp: the same for every picture that is wrong in the same way, to count
            by.
        stamp_ns: stamp of the message, where there is one.
    """

    def __init__(self, reason: str, stamp_ns: int | None = None) -> None:
        stamp = '' if stamp_ns is None else f' (stamp {stamp_ns // 10**9}.{stamp_ns % 10**9:09d})'
        super().__init__(reason + stamp)
        self.reason = reason
        self.stamp_ns = stamp_ns


class DamagedImage(ImageError):
    """A picture file is not all there, or bytes of it are wrong: the next one may be right."""


class MissingStream(ObservationError):
    """Streams of the contract have nothing for the wanted moment.

    Attributes:
        streams: their human names with topics, such as 'camera front (topic camera/front/image_raw)'.
    """

    def __init__(self, streams: Sequence[str]) -> None:
        super().__init__('nothing for this moment from ' + '; '.join(streams))
        self.streams = tuple(streams)
