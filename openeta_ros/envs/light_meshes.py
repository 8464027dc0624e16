# SPDX-License-Identifier: Apache-2.0
"""Robot models with visual meshes of fewer faces, for drawing without a graphics card.

The Franka Panda of Genesis has 135,000 visual faces; two 240x320 pictures of it take 100 to 150 ms in
software, and 40 ms with 15 % of them. Shading stays that of the original: every corner of a simplified face
takes the normal of the nearest original corner. Collision meshes are left as they are.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

import numpy as np

if TYPE_CHECKING:
    import mujoco

LOGGER = logging.getLogger(__name__)

KEEP_SHARE = 0.15
KEEP_FACES = 200
# A radian of difference in normal counts as much as this distance when the nearest corner is looked for.
NORMAL_WEIGHT_M = 0.002


def cache_folder() -> Path:
    """Return where this package keeps what it can make again."""
    return Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'openeta_ros'


def with_light_meshes(file: Path, cache: Path) -> str:
    """Return the MJCF of `file` as text, its large visual meshes replaced by simplified ones in `cache`.

    A mesh is visual when no geom that uses it collides. Meshes of included files stay as they are.

    Raises:
        ValueError: MuJoCo does not read the file.
    """
    import mujoco

    colliding = {
        geom.meshname for geom in mujoco.MjSpec.from_file(str(file)).geoms if geom.contype or geom.conaffinity
    }
    root = ElementTree.parse(file).getroot()
    compiler = root.find('compiler')
    if compiler is None:
        compiler = ElementTree.SubElement(root, 'compiler')
    for name in ('meshdir', 'texturedir'):
        compiler.set(name, str(file.parent / compiler.get(name, compiler.get('assetdir', ''))))
    for element in root.iterfind('asset/mesh[@file]'):
        source = Path(compiler.get('meshdir', ''), element.get('file', ''))
        name = element.get('name', source.stem)
        if source.suffix == '.obj' and name not in colliding:
            element.set('name', name)
            element.set('file', str(_light(source, cache)))
    return ElementTree.tostring(root, encoding='unicode')


def lighten(spec: mujoco.MjSpec, cache: Path) -> None:
    """Replace the large visual meshes of a model that is not compiled yet, those of included files too.

    Raises:
        OSError: a mesh file cannot be read.
    """
    colliding = {geom.meshname for geom in spec.geoms if geom.contype or geom.conaffinity}
    for mesh in spec.meshes:
        source = Path(spec.modelfiledir, spec.meshdir, mesh.file)
        name = mesh.name or source.stem
        if source.suffix == '.obj' and name not in colliding:
            mesh.name, mesh.file = name, str(_light(source, cache))


def _light(source: Path, cache: Path) -> Path:
    key = hashlib.sha256(source.read_bytes() + f'{KEEP_SHARE} {KEEP_FACES} {NORMAL_WEIGHT_M}'.encode())
    light = cache / f'{source.stem}-{key.hexdigest()[:16]}.obj'
    if not light.exists():
        try:
            cache.mkdir(parents=True, exist_ok=True)
            part = light.with_suffix(f'.{os.getpid()}.part')
            part.write_text(_simplified(source))
            part.replace(light)
        except OSError as error:  # a home that is read-only, say
            _tell_once(f'full meshes are drawn, which takes longer: {error}')
            return source
    return light


@functools.cache
def _tell_once(text: str) -> None:
    LOGGER.warning('%s', text)


def _simplified(source: Path) -> str:
    import fast_simplification
    import trimesh
    from scipy.spatial import cKDTree

    mesh: Any = trimesh.load(source, force='mesh', process=False)
    if len(mesh.faces) <= KEEP_FACES:
        return source.read_text()
    corners, normals = np.array(mesh.vertices), np.array(mesh.vertex_normals)
    mesh.merge_vertices(merge_tex=True, merge_norm=True)
    vertices, faces = fast_simplification.simplify(
        np.array(mesh.vertices, np.float32),
        np.array(mesh.faces, np.int32),
        target_count=max(KEEP_FACES, round(KEEP_SHARE * len(mesh.faces))),
    )
    first, second, third = (vertices[faces[:, corner]] for corner in range(3))
    flat = np.cross(second - first, third - first)
    flat /= np.linalg.norm(flat, axis=1, keepdims=True) + 1e-12
    tree = cKDTree(np.hstack([corners, NORMAL_WEIGHT_M * normals]))
    _, nearest = tree.query(
        np.hstack([vertices[faces.ravel()], NORMAL_WEIGHT_M * np.repeat(flat, 3, axis=0)])
    )
    used, index = np.unique(nearest, return_inverse=True)
    lines = [f'v {x:.6f} {y:.6f} {z:.6f}' for x, y, z in vertices]
    lines += [f'vn {x:.4f} {y:.4f} {z:.4f}' for x, y, z in normals[used]]
    lines += [
        'f ' + ' '.join(f'{v + 1}//{n + 1}' for v, n in zip(face, corner, strict=True))
        for face, corner in zip(faces, index.reshape(-1, 3), strict=True)
    ]
    return '\n'.join(lines) + '\n'
