# SPDX-License-Identifier: Apache-2.0
"""What must hold between several values of a contract.

These checks read the raw file and pass over what has the wrong shape, which the schema reports: so a mistake
in one place never hides another one from the same report.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

Location = tuple[str | int, ...]
Finding = tuple[Location, str]


def findings(contract: dict[Any, Any]) -> Iterator[Finding]:
    """Yield (location, sentence) for everything in the raw contract that does not fit together."""
    yield from _description(contract)
    for name, arm in _mapping(contract, 'arms').items():
        if isinstance(arm, dict):
            yield from ((('arms', name, *location), text) for location, text in _arm(arm))
    yield from _joint_names(contract)
    yield from _cameras(contract)
    yield from _align(contract)
    yield from _poses(contract)
    yield from _workspace(contract)
    yield from _gains(contract)


def _description(contract: dict[Any, Any]) -> Iterator[Finding]:
    location: Location = ('description',)
    description = contract.get('description')
    while isinstance(description, dict):
        sources = sum(key in description for key in ('file', 'topic', 'parameter'))
        if sources != 1:
            yield location, f'give exactly one of file, topic, parameter; found {sources} of them'
        description, location = description.get('otherwise'), (*location, 'otherwise')


def _arm(arm: dict[Any, Any]) -> Iterator[Finding]:
    joints, gripper = arm.get('joints'), arm.get('gripper')
    if isinstance(joints, list):
        count = len(joints)
        expected = count + (gripper is not None)
        home, limits = arm.get('home'), _mapping(arm, 'limits')
        if isinstance(home, list) and len(home) != expected:
            yield ('home',), _length(len(home), expected, 'the joints and the gripper')
        for key in ('position', 'velocity', 'acceleration', 'jerk'):
            if isinstance(limits.get(key), list) and len(limits[key]) != count:
                yield ('limits', key), _length(len(limits[key]), count, 'the joints')
        yield from _home_and_position(home, limits.get('position'), count, gripper is not None)
        yield from _command(arm, joints)
    limits, needing = _mapping(arm, 'limits'), 'an arm that is commanded' if arm.get('command') else ''
    needing = needing or ('a limit of jerk' if limits.get('jerk') else '')
    if needing and limits.get('acceleration') is None:
        yield ('limits',), f'acceleration is missing, and {needing} needs it'
    opened, closed = (_mapping(arm, 'gripper').get(key) for key in ('open', 'closed'))
    if _number(opened) and opened == closed:
        yield ('gripper', 'open'), f'open and closed are both {opened}; they must differ'
    wxyz = _mapping(arm, 'tool_offset').get('wxyz')
    if isinstance(wxyz, list) and all(map(_number, wxyz)) and not 0.99 < sum(v * v for v in wxyz) < 1.01:
        yield ('tool_offset', 'wxyz'), f'{wxyz} is not a rotation; its length must be 1'


def _command(arm: dict[Any, Any], joints: list[Any]) -> Iterator[Finding]:
    """The controller's own order names the joints that the arm's command carries, each once."""
    order, gripper = _mapping(arm, 'command').get('joints'), _mapping(arm, 'gripper')
    carried = [*joints, *([gripper.get('joint')] if gripper and gripper.get('command') is None else [])]
    if isinstance(order, list) and sorted(map(str, order)) != sorted(map(str, carried)):
        names = ', '.join(map(str, carried))
        yield ('command', 'joints'), f'must be these, in the order of the controller: {names}'


def _home_and_position(home: Any, position: Any, count: int, has_gripper: bool) -> Iterator[Finding]:
    home = home if isinstance(home, list) else []
    pairs = position if isinstance(position, list) else []
    for index, pair in enumerate(pairs):
        if not (isinstance(pair, list) and len(pair) == 2 and all(map(_number, pair))):
            continue
        if pair[0] >= pair[1]:
            yield ('limits', 'position', index), f'the low limit {pair[0]} is not below the high {pair[1]}'
        elif index < min(count, len(home)) and _number(home[index]) and not pair[0] <= home[index] <= pair[1]:
            yield ('home', index), f'{home[index]} is outside the position limits {pair[0]} to {pair[1]}'
    if has_gripper and len(home) == count + 1 and _number(home[-1]) and not 0 <= home[-1] <= 1:
        yield ('home', count), f'the gripper is {home[-1]}; it must be from 0 (closed) to 1 (open)'


def _joint_names(contract: dict[Any, Any]) -> Iterator[Finding]:
    seen: dict[str, str] = {}
    for location, joint in _joints(contract):
        where = '.'.join(map(str, location))
        if joint in seen:
            yield location, f'joint {joint!r} is already named in {seen[joint]}'
        seen.setdefault(joint, where)


def _joints(contract: dict[Any, Any]) -> Iterator[tuple[Location, str]]:
    """Yield where every commanded joint is named: arm joints, gripper joints and their mimics."""
    for name, arm in _mapping(contract, 'arms').items():
        if not isinstance(arm, dict):
            continue
        joints = arm.get('joints')
        for index, joint in enumerate(joints if isinstance(joints, list) else []):
            if isinstance(joint, str):
                yield ('arms', name, 'joints', index), joint
        gripper = _mapping(arm, 'gripper')
        if isinstance(gripper.get('joint'), str):
            yield ('arms', name, 'gripper', 'joint'), gripper['joint']
        for mimic in _mapping(gripper, 'mimics'):
            if isinstance(mimic, str):
                yield ('arms', name, 'gripper', 'mimics', mimic), mimic


def _cameras(contract: dict[Any, Any]) -> Iterator[Finding]:
    for name, camera in _mapping(contract, 'cameras').items():
        if isinstance(camera, dict) and camera.get('resize') == 'pad' and camera.get('size') is None:
            yield ('cameras', name, 'resize'), 'pad needs size, the height and width to pad to'


def _align(contract: dict[Any, Any]) -> Iterator[Finding]:
    align, cameras = _mapping(contract, 'align'), _mapping(contract, 'cameras')
    clock = align.get('clock')
    if isinstance(clock, str) and cameras and clock not in cameras:
        yield ('align', 'clock'), f'there is no camera {clock!r}, only {", ".join(map(str, cameras))}'
    if align.get('rule') == 'nearest' and align.get('tolerance_s') is None:
        yield ('align', 'rule'), 'nearest needs tolerance_s, the largest distance in time'


def _poses(contract: dict[Any, Any]) -> Iterator[Finding]:
    """Every arm has one topic of poses, where they come from topics."""
    arms, location = _mapping(contract, 'arms'), ('endpose', 'source', 'topic')
    topic = _mapping(_mapping(contract, 'endpose'), 'source').get('topic')
    if isinstance(topic, str) and len(arms) > 1:
        yield (
            location,
            f'one topic for {len(arms)} arms; give one for each, as {{{next(iter(arms))}: ..., ...}}',
        )
    if isinstance(topic, dict) and set(topic) != set(arms):
        yield location, f'names {", ".join(map(str, topic))}; needed is each arm: {", ".join(map(str, arms))}'


def _workspace(contract: dict[Any, Any]) -> Iterator[Finding]:
    workspace = _mapping(_mapping(contract, 'safety'), 'workspace')
    low, high = workspace.get('min'), workspace.get('max')
    if isinstance(low, list) and isinstance(high, list):
        for index, pair in enumerate(zip(low, high, strict=False)):
            if all(map(_number, pair)) and pair[0] >= pair[1]:
                yield ('safety', 'workspace', 'min', index), f'{pair[0]} is not below the maximum {pair[1]}'


def _gains(contract: dict[Any, Any]) -> Iterator[Finding]:
    """Gains, when there are any, are for the commanded joints, all of them."""
    gains = _mapping(_mapping(contract, 'simulation'), 'gains')
    joints = [joint for _, joint in _joints(contract)]
    for joint in gains:
        if joint not in joints:
            yield ('simulation', 'gains', joint), f'no arm commands a joint {joint!r}'
    missing = [joint for joint in dict.fromkeys(joints) if joint not in gains]
    if gains and missing:
        yield ('simulation', 'gains'), f'gains are missing for {", ".join(missing)}'


def _mapping(parent: dict[Any, Any], key: str) -> dict[Any, Any]:
    value = parent.get(key)
    return value if isinstance(value, dict) else {}


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _length(found: int, expected: int, what: str) -> str:
    return f'has {found} values; {expected} are expected, one for each of {what}'
