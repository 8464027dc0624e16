# SPDX-License-Identifier: Apache-2.0
"""A process that records made-up messages until it is killed: `recorder_child.py FOLDER [--stop-after N]`.

Prints, after each time something was handed to the operating system, how many messages were.
"""

from __future__ import annotations

import argparse
import itertools
import os
import resource
import struct
import time
from pathlib import Path

from openeta_ros.episodes.recorder import Recording
from openeta_ros.episodes.rosbag2_folder import profile

RELIABLE = profile(reliability='reliable')
# Topic, bytes of a message, one in so many.
TOPICS = (('/small', 40, 1), ('/large', 60_000, 7))
TYPE = 'std_msgs/msg/ByteMultiArray'


def main() -> None:
    """Record."""
    parser = argparse.ArgumentParser()
    parser.add_argument('folder', type=Path)
    parser.add_argument('--messages', type=int, default=0, help='end in order after so many')
    parser.add_argument('--file-limit', type=int, default=0, help='bytes that a file may have')
    arguments = parser.parse_args()
    if arguments.file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (arguments.file_limit, arguments.file_limit))
    recording = Recording(
        arguments.folder, {'contract': 'a contract'}, {'wall_ns': time.time_ns()}, compression='none'
    )
    for topic, _, _ in TOPICS:
        recording.add_topic(topic, TYPE, [RELIABLE])
    told = 0
    for number in range(arguments.messages) if arguments.messages else itertools.count():
        for topic, size, every in TOPICS:
            if number % every == 0:
                data = struct.pack('<q', number) + bytes(size)
                recording.take(
                    topic,
                    data,
                    log_ns=time.time_ns(),
                    publish_ns=time.time_ns(),
                    sequence=number // every + 1,
                )
        written = sum(recording._folder.messages().values())
        if written != told:
            told = written
            os.write(1, f'{written}\n'.encode())
        if not arguments.messages:
            time.sleep(0.001)
    ended = recording.end({}, {'wall_ns': time.time_ns()})
    print(*ended.lines(), sep='\n')
    if ended.failure:
        raise SystemExit(1)


if __name__ == '__main__':
    main()
