# SPDX-License-Identifier: Apache-2.0
"""The bridge node: a contract's topics as observations, for whoever wants arrays and no policy.

It is the policy node's bridge on its own.
"""

from __future__ import annotations

from rclpy.node import Node

from openeta_ros.embodiment import EmbodimentError, Kinematics, KinematicsError
from openeta_ros.nodes import runtime
from openeta_ros.nodes.description import load_contract
from openeta_ros.nodes.diagnostics import Diagnostics
from openeta_ros.nodes.observations import ObservationPublisher
from openeta_ros.nodes.streams import Bridge
from openeta_ros.observation import ObservationError

# Pictures of each camera that are kept: those that wait for other streams to come as far. No more, so that
# their memory is used again while it still is in the processor's cache.
HISTORY = 6


class BridgeNode(Node):
    """See `parameters` for the parameters."""

    def __init__(self, process: runtime.Process) -> None:
        super().__init__('bridge')
        self._process = process
        self._values = runtime.declare(self, 'bridge')
        process.submit(self._open)

    def _open(self) -> None:
        """Begin, when the robot description is there. On the worker."""
        try:
            embodiment = load_contract(self, self._process, self._values)
            publisher = ObservationPublisher(self, embodiment)
            bridge = Bridge(
                self,
                embodiment,
                Kinematics(embodiment),
                history=HISTORY,
                reliability=self._values['reliability'],
                on_observation=publisher.publish,
                wanted=publisher.wanted,
            )
            self._diagnostics = Diagnostics(self, bridge, embodiment.name)
        except (EmbodimentError, KinematicsError, ObservationError) as error:
            runtime.log_failure(self, 'the bridge cannot begin', error)
            self._process.end(2)


def main() -> None:
    """Run the node."""
    runtime.main(BridgeNode)


if __name__ == '__main__':
    main()
