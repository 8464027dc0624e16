# SPDX-License-Identifier: Apache-2.0
"""`python -m openeta_ros.cli` is `openeta`."""

import sys

from openeta_ros.cli import run

sys.exit(run())
