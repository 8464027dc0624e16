# SPDX-License-Identifier: Apache-2.0
"""Picks up the red cube: looks, goes above it, down, closes, lifts."""
# ruff: noqa: F821 (the sandbox gives a snippet its `api`)

import math

home = api.observe()['qpos']
found = api.call_tool('detect', colour='red')
for _ in range(60):  # it may come into sight yet
    if found:
        break
    api.step(home)
    found = api.call_tool('detect', colour='red')
if not found:
    raise RuntimeError('no red cube is in sight')
(x, y, z), yaw = found[0]['position_m'], found[0]['yaw_rad']
down = [0.0, math.cos(yaw / 2), math.sin(yaw / 2), 0.0]

api.open_gripper()
api.move_arm([x, y, z + 0.12, *down])
api.move_arm([x, y, z, *down], speed=0.5)
api.close_gripper()
api.move_arm([x, y, z + 0.2, *down], speed=0.5)
