# SPDX-License-Identifier: Apache-2.0
"""The policy protocol: a policy served in a process of its own, named arrays over an authenticated socket.

Importing this package, `client` or `process` loads NumPy and the standard library only. `manifest` and
`serve` also need PyYAML and are imported by whoever starts a policy.
"""

from __future__ import annotations

from openeta_ros import __version__
from openeta_ros.vector_policy.errors import ManifestError, PolicyUnavailable, WireError
from openeta_ros.vector_policy.policy import ACTION_TYPES, Policy

__all__ = ['ACTION_TYPES', 'ManifestError', 'Policy', 'PolicyUnavailable', 'WireError', '__version__']
