# SPDX-License-Identifier: Apache-2.0
"""The watch node: what goes on in a graph, drawn in the terminal again and again, or a JSON line each time.

It only listens. What it shows are the newest messages; how old they are is told by the monotonic clock, so
that a graph that stands still, simulated time too, is seen to.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass, field
from typing import Any

from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.node import Node
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.table import Table
from rich.text import Text

from openeta_msgs.msg import ActionChunk, ArmStatus, RecorderStatus, StepResult
from openeta_ros.nodes import runtime

LEVELS = {
    DiagnosticStatus.OK: ('ok', 'green'),
    DiagnosticStatus.WARN: ('warning', 'yellow'),
    DiagnosticStatus.ERROR: ('error', 'red'),
    DiagnosticStatus.STALE: ('stale', 'yellow'),
}
# Diagnostics come once a second; who has not told for so long is gone.
GONE_S = 3.5


@dataclass
class Watched:
    """The newest of everything, each with the monotonic time of its arrival (0: never)."""

    statuses: dict[str, tuple[float, DiagnosticStatus]] = field(default_factory=dict)
    arm: tuple[float, ArmStatus | None] = (0.0, None)
    chunk: tuple[float, ActionChunk | None] = (0.0, None)
    row: tuple[float, StepResult | None] = (0.0, None)
    recorder: tuple[float, RecorderStatus | None] = (0.0, None)
    chunks: int = 0
    reward: float = 0.0

    def diagnosed(self, message: DiagnosticArray) -> None:
        """Take the state of streams and policies."""
        now = time.monotonic()
        self.statuses.update({status.name: (now, status) for status in message.status})

    def executed(self, row: StepResult) -> None:
        """Take a row; the first one begins an episode."""
        self.reward = row.reward + (self.reward if row.step > 1 else 0.0)
        self.row = time.monotonic(), row

    def answered(self, chunk: ActionChunk) -> None:
        """Take a policy's answer."""
        self.chunks += 1
        self.chunk = time.monotonic(), chunk

    def told(self, status: ArmStatus) -> None:
        """Take the state of an arm."""
        self.arm = time.monotonic(), status

    def recorded(self, status: RecorderStatus) -> None:
        """Take the state of a recorder."""
        self.recorder = time.monotonic(), status

    def json(self) -> dict[str, Any]:
        """Return it as JSON-safe data; ages in seconds, null for what never came."""
        now = time.monotonic()
        (arm_at, arm), (chunk_at, chunk), (row_at, row) = self.arm, self.chunk, self.row
        recorder_at, recorder = self.recorder
        return {
            'time': time.time(),
            'statuses': [
                {
                    'name': name,
                    'level': LEVELS[status.level][0] if now - at < GONE_S else 'gone',
                    'message': status.message,
                    'age_s': round(now - at, 3),
                    'values': {pair.key: pair.value for pair in status.values},
                }
                for name, (at, status) in sorted(self.statuses.items())
            ],
            'arm': arm
            and {
                'age_s': round(now - arm_at, 3),
                'state': arm.state,
                'reason': arm.reason,
                'tracking_error': arm.tracking_error,
                'joint': arm.joint,
                'commands': arm.commands,
            },
            'chunk': chunk
            and {
                'age_s': round(now - chunk_at, 3),
                'count': self.chunks,
                'action_type': chunk.action_type,
                'shape': [int(size) for size in chunk.actions.shape],
            },
            'episode': row
            and {
                'age_s': round(now - row_at, 3),
                'step': row.step,
                'reward': self.reward,
                'success': row.success,
                'terminated': row.terminated,
                'truncated': row.truncated,
                'clamped': list(row.clamped),
                'events': list(row.events),
            },
            'recorder': recorder
            and {
                'age_s': round(now - recorder_at, 3),
                'recording': recorder.recording,
                'path': recorder.path,
                'messages': recorder.messages,
                'bytes': recorder.bytes,
                'lost': recorder.lost,
                'troubles': list(recorder.troubles),
            },
        }


class WatchNode(Node):
    """See `parameters` for the parameters."""

    def __init__(self, process: runtime.Process) -> None:
        super().__init__('watch')
        values = runtime.declare(self, 'watch')
        self._watched = Watched()
        env, policy = values['env_node'], values['policy_node']
        self.create_subscription(DiagnosticArray, '/diagnostics', self._watched.diagnosed, 10)
        self.create_subscription(ActionChunk, f'{policy}/action_chunk', self._watched.answered, 10)
        self.create_subscription(StepResult, f'{env}/step_result', self._watched.executed, 100)
        self.create_subscription(ArmStatus, f'{env}/status', self._watched.told, 10)
        self.create_subscription(RecorderStatus, 'recorder/status', self._watched.recorded, 10)
        self._live = None if values['json'] else Live(console=Console(), auto_refresh=False)
        if self._live is not None:
            self._live.start()
        clock = Clock(clock_type=ClockType.STEADY_TIME)
        self.create_timer(values['period_s'], self._tell, clock=clock)
        self._process = process

    def on_end(self) -> None:
        """Give the terminal back."""
        if self._live is not None:
            self._live.stop()

    def _tell(self) -> None:
        found = self._watched.json()
        if self._live is not None:
            self._live.update(drawn(found), refresh=True)
            return
        try:
            print(json.dumps(found), flush=True)
        except BrokenPipeError:  # who read it left
            self._process.end()


def drawn(found: dict[str, Any]) -> RenderableType:
    """Return what a person sees of `Watched.json`."""
    colours = {**dict(LEVELS.values()), 'gone': 'red'}
    table = Table('of', 'Hz', 'age ms', 'messages', 'state', expand=True)
    for status in found['statuses']:
        values = status['values']
        ages = [values[name] for name in ('age_ms_p50', 'age_ms_max') if name in values]
        count = values.get('messages', f'{values["calls"]} calls' if 'calls' in values else '')
        waits = f'; answers in {values["wait_ms_p50"]} ms (p50)' if 'wait_ms_p50' in values else ''
        level = status['level']
        text = 'gone' if level == 'gone' else f'{status["message"]}{waits}'
        table.add_row(
            status['name'],
            values.get('rate_hz', ''),
            ' to '.join(ages),
            count,
            Text(text, style=colours[level]),
        )
    arm, chunk, episode = found['arm'], found['chunk'], found['episode']
    lines = []
    if arm:
        behind = f'{arm["joint"]} is {arm["tracking_error"]:.4f} from its command' if arm['joint'] else ''
        parts = [arm['state'], arm['reason'], behind, f'{arm["commands"]} commands', _ago(arm)]
        lines.append('arm      ' + ', '.join(filter(None, parts)))
    if chunk:
        rows = ' x '.join(map(str, chunk['shape']))
        lines.append(f'chunk    {chunk["count"]}: {rows} {chunk["action_type"]}, {_ago(chunk)}')
    if episode:
        outcome = ', success' * episode['success'] + ', the end' * (
            episode['terminated'] or episode['truncated']
        )
        clamped = f', clamped {", ".join(episode["clamped"])}' if episode['clamped'] else ''
        figures = f'step {episode["step"]}, reward {episode["reward"]:g}'
        lines.append(f'episode  {figures}{outcome}{clamped}, {_ago(episode)}')
        lines += [f'         {event}' for event in episode['events']]
    if found['recorder']:
        lines += _recorder_lines(found['recorder'])
    nothing = [] if found['statuses'] or lines else ['nothing so far; is it the graph of this ROS_DOMAIN_ID?']
    return Group(*([table] if found['statuses'] else []), *map(Text, lines or nothing))


def _recorder_lines(recorder: dict[str, Any]) -> list[str]:
    if not recorder['recording']:
        return [f'record   nothing is recorded, {_ago(recorder)}']
    size = f'{recorder["messages"]} messages, {recorder["bytes"] / 1e6:.1f} MB, {recorder["lost"]} lost'
    troubles = [f'         {trouble}' for trouble in recorder['troubles']]
    return [f'record   {recorder["path"]}: {size}, {_ago(recorder)}', *troubles]


def _ago(what: dict[str, Any]) -> str:
    return f'{what["age_s"]:.1f} s ago'


def main() -> None:
    """Run the node."""
    runtime.main(WatchNode)


if __name__ == '__main__':
    main()
