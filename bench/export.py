# SPDX-License-Identifier: Apache-2.0
"""How much recorded rgb8 `openeta export` makes a data set of in a minute.

Three cameras of 640x480, with noise, at 30 Hz, MCAP. Each run is the command in a process of its own.
"""

from __future__ import annotations

import argparse
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bag import CAMERA_HZ, CAMERAS, HEIGHT, WIDTH, contract, write

# Of pictures, to LeRobot.
LEAST_GB_A_MINUTE = 3.0


def main() -> None:
    """Measure and tell."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument('--seconds', type=float, default=10.0, help='length of the recording')
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write(folder / 'bag', 'rgb8', arguments.seconds)
        robot = contract(folder, 'rgb8')
        # A row for each picture, so that every byte that is read is also written.
        robot.write_text(robot.read_text('utf-8').replace('rate_hz: 20', f'rate_hz: {CAMERA_HZ}'), 'utf-8')
        for form in ('lerobot', 'npz', 'parquet'):
            output = folder / form
            command = [
                sys.executable,
                '-m',
                'openeta_ros.cli',
                'export',
                str(folder / 'bag'),
                '--format',
                form,
            ]
            command += ['--embodiment', str(robot), '--instruction', 'none', '--output', str(output)]
            begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
            subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
            seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
            processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
            read_gb = sum(file.stat().st_size for file in (folder / 'bag').iterdir()) / 1e9
            written_mb = sum(file.stat().st_size for file in output.rglob('*') if file.is_file()) / 1e6
            wanted = f' (at least {LEAST_GB_A_MINUTE:g})' if form == 'lerobot' else ''
            print(
                f'{form}: {read_gb / seconds * 60:.1f} GB a minute{wanted}, {seconds:.1f} s for '
                f'{read_gb:.2f} GB of {len(CAMERAS)} cameras {WIDTH}x{HEIGHT}, {written_mb:.0f} MB written; '
                f'{processor:.1f} s of processor, {2 * read_gb / processor * 60:.1f} GB a minute of two cores'
            )


if __name__ == '__main__':
    main()
