# SPDX-License-Identifier: Apache-2.0
"""What `openeta doctor --embodiment` runs: a node that looks at an arm, moves it when it is asked to, and
tells on stdout what it finds, a line of JSON each."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator

from openeta_ros.embodiment import Kinematics
from openeta_ros.nodes.arm_checks import ArmChecks, Finding
from openeta_ros.nodes.arm_nudges import Nudger
from openeta_ros.nodes.guest import guest
from openeta_ros.nodes.runtime import Process


def looked_at(contract: str, *, namespace: str, seconds: float, hair: float | None) -> Iterator[Finding]:
    """Yield what is found at the arm of a contract, as it is found.

    Args:
        seconds: how long the streams are listened to.
        hair: by how much each joint is moved, in rad or m; None moves nothing.
    """
    with guest('doctor', namespace) as node:
        checks = ArmChecks(node, Process(), contract, seconds=seconds)
        yield from checks.run()
        if hair is None or checks.embodiment is None:
            return
        if not checks.ready or checks.bridge is None:
            remedy = 'mend what failed above first'
            yield Finding('move', 'failed', 'nothing was moved: the arm is not ready', remedy)
            return
        yield from Nudger(node, checks.embodiment, checks.bridge, Kinematics(checks.embodiment)).run(hair)


def main() -> None:
    """Tell what `looked_at` finds for the arguments in a JSON object."""
    for finding in looked_at(**json.loads(sys.argv[1])):
        print(json.dumps(finding._asdict()), flush=True)


if __name__ == '__main__':
    main()
