# SPDX-License-Identifier: Apache-2.0
"""The one error of the command line."""

from __future__ import annotations


class UsageError(Exception):
    """What was asked for cannot be done as asked; one sentence says why (a list of problems may follow)."""
