# SPDX-License-Identifier: Apache-2.0
"""Where the files of ROS packages, of this package and of installed Python packages lie.

ament_index_python is not needed for this, so that contracts load on a machine without ROS.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import stat
import sys
import sysconfig
from pathlib import Path
from urllib.parse import unquote

from openeta_ros.embodiment.errors import EmbodimentError, Problem

PACKAGE = 'openeta_ros'
CHECKOUT = Path(__file__).resolve().parents[2]
PACKAGE_SCHEME, FILE_SCHEME = 'package://', 'file://'
# What a policy may be on disk: a directory, its policy.yaml, the socket of its server.
POLICY_KINDS = (stat.S_IFDIR, stat.S_IFREG, stat.S_IFSOCK)


def share_folders(package: str) -> list[Path]:
    """Return the folders that may hold a ROS package's files: checkout, sourced prefixes, environment.

    cmeel.prefix is where the wheels of Pinocchio's makers (example-robot-data) have their share folder.
    """
    folders = []
    if package == PACKAGE and (CHECKOUT / 'config' / 'embodiments').is_dir():
        folders.append(CHECKOUT)
    prefixes = [entry for entry in os.environ.get('AMENT_PREFIX_PATH', '').split(os.pathsep) if entry]
    prefixes += [sys.prefix, os.path.join(sysconfig.get_path('purelib'), 'cmeel.prefix')]
    folders += [Path(prefix) / 'share' / package for prefix in prefixes]
    return folders


def local_policy(source: str) -> Path | None:
    """Return the absolute path of a policy that is here, or else shipped with this package.

    None where there is none: what is named is an address, or nothing.
    """
    for path in (Path(source), *(folder / source for folder in share_folders(PACKAGE))):
        with contextlib.suppress(OSError, ValueError):
            if source and stat.S_IFMT(os.stat(path).st_mode) in POLICY_KINDS:
                return path.absolute()
    return None


def resolve_uri(uri: str, relative_to: Path | None = None) -> Path:
    """Return the file that a URI of a contract names.

    Args:
        uri: `package://NAME/path` (a ROS package, or else an installed Python package, not imported),
            `file:///path`, or a plain path.
        relative_to: the folder that a plain relative path starts from; the working directory when None.

    Raises:
        EmbodimentError: there is no such file; the message lists where it was looked for.
    """
    if uri.startswith(PACKAGE_SCHEME):
        package, _, inside = unquote(uri[len(PACKAGE_SCHEME) :]).partition('/')
        candidates = [folder / inside for folder in share_folders(package) + _python_folders(package)]
        remedy = f'install the package {package!r}, or source the workspace that holds it'
    else:
        path = Path(unquote(uri[len(FILE_SCHEME) :]) if uri.startswith(FILE_SCHEME) else uri)
        candidates = [(relative_to or Path.cwd()) / path]
        remedy = 'correct the path'
    for candidate in candidates:
        if candidate.is_file():
            return candidate.resolve()
    looked = ', '.join(map(str, candidates))
    raise EmbodimentError(uri, [Problem(None, f'no such file (looked for {looked}); {remedy}')])


def _python_folders(package: str) -> list[Path]:
    """Return the folders of an installed Python package. A top-level find_spec does not import it."""
    spec = importlib.util.find_spec(package) if package.isidentifier() else None
    return [Path(folder) for folder in (spec.submodule_search_locations or [])] if spec else []
