# SPDX-License-Identifier: Apache-2.0
"""`openeta doctor`: can this machine run an evaluation, and what would help it."""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from importlib import metadata, util
from pathlib import Path

from openeta_ros.cli import doctor_arm
from openeta_ros.cli.checks import Check, tell

HELP = 'check this machine (Python, ROS 2, simulators, drawing), or a new arm beside its contract'

EPILOG = """\
examples:
  openeta doctor
      each line says ok, warning (slower, or something optional is absent) or missing, and what to do
  openeta doctor --embodiment my_arm.yaml
      the checklist for the first run on a new arm: each line says ok, warning or failed; nothing moves
  openeta doctor --embodiment my_arm.yaml --move
      and then each joint by a hair and back

exit code:
  0 an evaluation can run here (perhaps only with --transport local); of an arm: nothing failed. 1 otherwise.
"""

SUBPROCESS_TIMEOUT_S = 120

# Measured: a Genesis evaluation peaks at 1.9 GB while it compiles, each other process of the graph at 0.3 GB.
MEMORY_WANTED_GIB = 3.0
# An episode of 100 rows with two cameras takes about 5 MB; Genesis' caches take 50 MB.
DISK_WANTED_GIB = 1.0
# Every ROS process has a shared-memory segment of 32 MiB (there are three); a container often has 64.
SHM_WANTED_MIB = 256

# Draws one real picture the way the backends do, and fails unless there is something on it.
DRAW = """
import os
from openeta_ros.envs.mujoco_pictures import drawing_way
os.environ['MUJOCO_GL'] = drawing_way()
import mujoco
model = mujoco.MjModel.from_xml_string('''
    <mujoco><worldbody>
      <light pos="0 0 2"/><geom type="box" size=".3 .3 .3" rgba="1 0 0 1"/>
    </worldbody></mujoco>
''')
data = mujoco.MjData(model)
mujoco.mj_forward(model, data)
renderer = mujoco.Renderer(model, 32, 32)
renderer.update_scene(data)
picture = renderer.render()
renderer.close()
assert picture.std() > 0, 'the picture is blank'
print(os.environ['MUJOCO_GL'])
"""

ROS = """
import os, rclpy
print(os.environ.get('ROS_DISTRO', 'from PyPI wheels'))
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `openeta doctor`."""
    parser.add_argument('--json', action='store_true', help='print JSON instead of lines')
    doctor_arm.add_arguments(parser)


def main(args: argparse.Namespace) -> int:
    """Print the checks; return 0 when none is missing."""
    if args.embodiment is not None:
        return doctor_arm.main(args)
    checks = tell((look() for look in CHECKS), as_json=args.json)
    return 1 if any(check.status == 'missing' for check in checks) else 0


def python() -> Check:
    """Is this a Python that we run on?"""
    version = sys.version.split()[0]
    if (3, 10) <= sys.version_info[:2] <= (3, 13):
        return Check('Python', 'ok', version)
    return Check('Python', 'missing', version, 'Python 3.10 to 3.13 is needed')


def arrays() -> Check:
    """Are NumPy and OpenCV of versions that go together?"""
    found = {name: _version(name) for name in ('numpy', 'opencv-python')}
    if found['opencv-python'] is None:
        found['opencv-python'] = _version('opencv-python-headless')
    text = ', '.join(f'{name} {version or "not installed"}' for name, version in found.items())
    numpy, opencv = found['numpy'], found['opencv-python']
    if numpy is None or opencv is None:
        return Check('arrays', 'missing', text, 'run `make setup`')
    if _numbers(numpy) >= (2, 3) or _numbers(opencv) >= (5,):
        return Check('arrays', 'warning', text, 'cv-bridge needs numpy<2.3 and opencv-python<5')
    return Check('arrays', 'ok', text)


def ros() -> Check:
    """Does rclpy import? In a process of its own: this command runs without ROS."""
    code, output = _python(ROS)
    if code == 0:
        return Check('ROS 2', 'ok', output)
    return Check(
        'ROS 2',
        'warning',
        f'rclpy does not import: {output}',
        'only --transport local works; run `make setup` or source a ROS 2 distribution',
    )


def messages() -> Check:
    """Is openeta_msgs built?"""
    code, output = _python('import openeta_msgs.msg, openeta_msgs.srv; print(openeta_msgs.__path__[0])')
    if code == 0:
        return Check('openeta_msgs', 'ok', output)
    return Check(
        'openeta_msgs',
        'warning',
        f'does not import: {output}',
        'only --transport local works; run `make setup`',
    )


def profile() -> Check:
    """Is there the Fast DDS profile, without which half of the pictures between processes are lost?"""
    from openeta_ros.embodiment import EmbodimentError, resolve_uri

    try:
        return Check('Fast DDS profile', 'ok', str(resolve_uri('package://openeta_ros/config/fastdds.xml')))
    except EmbodimentError as error:
        return Check('Fast DDS profile', 'warning', str(error), 'pictures between ROS processes get lost')


def simulators() -> Check:
    """Which envs can run?"""
    from openeta_ros.envs import registry
    from openeta_ros.episodes.settings import ARM

    lacking = {name: registry.missing(name) for name in registry.names() if name != ARM}
    ready = [name for name, sentence in lacking.items() if sentence is None]
    packages = {name: _version(name) for name in ('genesis-world', 'mujoco', 'torch')}
    versions = ', '.join(f'{name} {version}' for name, version in packages.items() if version)
    remedy = '; '.join(sentence for sentence in lacking.values() if sentence)
    if not ready:
        return Check('simulators', 'missing', 'none can run', remedy)
    found = f'{", ".join(ready)} can run ({versions})'
    return Check('simulators', 'warning' if remedy else 'ok', found, remedy)


def drawing() -> Check:
    """Can a picture be drawn without a screen?"""
    if util.find_spec('mujoco') is None:
        return Check('drawing', 'warning', 'not tried: the trial needs mujoco', 'pip install mujoco')
    code, output = _python(DRAW)
    if code == 0:
        return Check('drawing', 'ok', f'a picture was drawn with {output}')
    remedy = 'install libegl1, libgl1-mesa-dri and libgles2, or libosmesa6 and set MUJOCO_GL=osmesa'
    return Check('drawing', 'missing', output, remedy)


def kernels() -> Check:
    """Has Genesis compiled its kernels here before? The backend leaves a mark among them when it has."""
    cache = Path(os.environ.get('XDG_CACHE_HOME') or Path.home() / '.cache') / 'quadrants'
    if any(cache.glob('*/openeta_ros-*')):
        return Check('Genesis kernels', 'ok', f'compiled, in {cache}')
    remedy = 'the first evaluation in Genesis compiles them, once on this machine: two to four minutes'
    return Check('Genesis kernels', 'warning', f'none of ours in {cache}', remedy)


def memory() -> Check:
    """Is there enough memory?"""
    fields = dict(line.split(':', 1) for line in Path('/proc/meminfo').read_text().splitlines())
    free = int(fields['MemAvailable'].split()[0]) / 2**20
    if free >= MEMORY_WANTED_GIB:
        return Check('memory', 'ok', f'{free:.1f} GiB available')
    return Check('memory', 'warning', f'{free:.1f} GiB available', f'Genesis wants {MEMORY_WANTED_GIB:g} GiB')


def disk() -> Check:
    """Is there room for results?"""
    free = shutil.disk_usage(Path.cwd()).free / 2**30
    if free >= DISK_WANTED_GIB:
        return Check('disk', 'ok', f'{free:.1f} GiB free in {Path.cwd()}')
    return Check(
        'disk', 'warning', f'{free:.1f} GiB free in {Path.cwd()}', 'make room, or use --output elsewhere'
    )


def shared_memory() -> Check:
    """Is /dev/shm large enough for pictures between processes?"""
    size = shutil.disk_usage('/dev/shm').total / 2**20 if Path('/dev/shm').is_dir() else 0.0
    if size >= SHM_WANTED_MIB:
        return Check('shared memory', 'ok', f'{size:.0f} MiB')
    remedy = 'pictures between ROS processes get lost; in a container: --shm-size=512m'
    return Check('shared memory', 'warning', f'{size:.0f} MiB in /dev/shm', remedy)


CHECKS: tuple[Callable[[], Check], ...] = (
    python,
    arrays,
    ros,
    messages,
    profile,
    simulators,
    drawing,
    kernels,
    memory,
    disk,
    shared_memory,
)


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split('.')[:2] if part.isdigit())


def _python(code: str) -> tuple[int, str]:
    """Run code in another interpreter; return its exit code and the last line that it printed."""
    try:
        done = subprocess.run(
            [sys.executable, '-c', code],
            capture_output=True,
            text=True,
            timeout=SUBPROCESS_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return 1, f'no answer within {SUBPROCESS_TIMEOUT_S} s'
    lines = ((done.stdout if done.returncode == 0 else done.stderr) or '').strip().splitlines()
    return done.returncode, lines[-1] if lines else f'exit code {done.returncode}'
