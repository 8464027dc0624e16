# SPDX-License-Identifier: Apache-2.0
"""What message types are made of: those of ROS 2 Jazzy, of openeta_msgs, and of what else is installed."""

from __future__ import annotations

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from openeta_ros.embodiment.resources import CHECKOUT, share_folders

if TYPE_CHECKING:
    from rosbags.typesys.store import Typestore


@cache
def typestore() -> Typestore:
    """Return rosbags' types of ROS 2 Jazzy and those of openeta_msgs.

    Raises:
        FileNotFoundError: the definitions of openeta_msgs are nowhere.
    """
    from rosbags.typesys import Stores, get_typestore

    store = get_typestore(Stores.ROS2_JAZZY)
    _register(store, 'openeta_msgs', _message_folder().glob('*.msg'))
    return store


@cache
def definition(message_type: str) -> tuple[str, str]:
    """Return the text of a type, with all that it is made of, and its hash; both '' when it is not installed.

    Types that ROS 2 Jazzy does not come with are looked for in the packages that are installed.
    """
    from rosbags.typesys import TypesysError

    store = typestore()
    looked_in: set[str] = set()
    while True:
        try:
            return store.generate_msgdef(message_type, ros_version=2)[0], store.hash_rihs01(message_type)
        except (TypesysError, KeyError) as error:
            unknown = re.search(r"'([^'/]+)/msg/", str(error))
        package = unknown[1] if unknown else message_type.partition('/')[0]
        files = _installed(package)
        if package in looked_in or not files:
            return '', ''
        looked_in.add(package)
        _register(store, package, files)


def _installed(package: str) -> list[Path]:
    return [file for share in share_folders(package) for file in sorted((share / 'msg').glob('*.msg'))]


def _register(store: Typestore, package: str, files: Iterable[Path]) -> None:
    from rosbags.typesys import get_types_from_msg

    types: dict[str, Any] = {}
    for file in sorted(files):
        types.update(get_types_from_msg(file.read_text(), f'{package}/msg/{file.stem}'))
    store.register(types)


def _message_folder() -> Path:
    folders = [CHECKOUT / 'openeta_msgs' / 'msg', *(share / 'msg' for share in share_folders('openeta_msgs'))]
    for folder in folders:
        if (folder / 'ActionChunk.msg').is_file():
            return folder
    looked = ', '.join(map(str, folders))
    raise FileNotFoundError(
        f'the definitions of openeta_msgs are not found (looked in {looked}); build openeta_msgs, '
        'or source the workspace that holds it'
    )
