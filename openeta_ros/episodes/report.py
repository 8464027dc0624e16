# SPDX-License-Identifier: Apache-2.0
"""What a person sees of an evaluation: a line per episode, live on a terminal, and a closing table."""

from __future__ import annotations

import time
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from openeta_ros.embodiment.schema import ActionType
from openeta_ros.envs import Sensors, StepResult
from openeta_ros.episodes.results import FILENAME, EpisodeResult, Latency, Results

if TYPE_CHECKING:
    from rich.console import Console

# The live line is drawn at most this often; drawing it at every row would cost more than the row's record.
REFRESH_S = 0.2

# A first call this much slower than the median is told apart: the policy was still warming up.
WARM_UP_FACTOR = 5


class Report:
    """Prints to `console`; a `Progress` of `evaluate`, and a context manager (it gives the terminal back).

    Where the console is no terminal only whole lines are printed, without colour or boxes.
    """

    def __init__(self, console: Console, episodes: int) -> None:
        from rich.live import Live

        self._console = console
        self._episodes = episodes
        self._live = (
            Live(console=console, transient=True, auto_refresh=False) if console.is_terminal else None
        )
        self._drawn_at = 0.0
        self._begin('')

    def __enter__(self) -> Report:
        if self._live is not None:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._live is not None:
            self._live.update('', refresh=True)
            self._live.stop()

    def note(self, text: str) -> None:
        """Say what is being done while nothing else is to be seen."""
        self._print(text, style='dim')

    def episode_started(self, index: int, seed: int, note: str) -> None:
        """Begin the line of an episode."""
        self._begin(f'episode {index + 1}/{self._episodes}  seed {seed}  {note}')
        self._draw(force=True)

    def started(self, sensors: Sensors) -> None:
        """The scene is set: nothing to tell."""

    def chunk(self, actions: NDArray[Any], action_type: ActionType, stamp_ns: int, latency_ms: float) -> None:
        """Count one answer of the policy."""
        self._latencies_ms.append(latency_ms)

    def row(self, result: StepResult, sensors: Sensors) -> None:
        """Count one executed row."""
        self._steps = int(result.info['step'])
        self._reward += float(result.reward)
        self._draw(force=False)

    def episode_ended(self, index: int, result: EpisodeResult) -> None:
        """Print the episode's line."""
        outcome, style = _outcome(result)
        line = f'episode {index + 1}/{self._episodes}  seed {result.seed}  {outcome}'
        if result.scored:
            line += f'  {_figures(result.steps, result.reward, result.latency_ms)}'
        line += f'  {result.wall_s:.1f} s'
        if result.error is not None:
            line += f'  ({result.error.kind}: {result.error.message})'
        self._begin('')
        self._print(line, style=style)

    def finished(self, results: Results) -> None:
        """Print the closing table."""
        rows = summary(results)
        if not self._console.is_terminal:
            width = max(len(name) for name, _ in rows)
            for name, value in rows:
                self._print(f'{name:<{width}}  {value}')
            return
        from rich.table import Table
        from rich.text import Text

        settings = results.settings
        table = Table(
            title=f'{settings.task} in {settings.env}, {results.embodiment.name}', show_header=False
        )
        for name, value in rows:
            table.add_row(name, Text(value))
        self._console.print(table)

    def _begin(self, head: str) -> None:
        self._head, self._steps, self._reward = head, 0, 0.0
        self._latencies_ms: list[float] = []

    def _draw(self, *, force: bool) -> None:
        now = time.monotonic()
        if self._live is None or not (force or now - self._drawn_at >= REFRESH_S):
            return
        from rich.text import Text

        self._drawn_at = now
        line = self._head
        if self._steps:
            line += f'  {_figures(self._steps, self._reward, Latency.of(self._latencies_ms))}'
        self._live.update(Text(line, no_wrap=True, overflow='ellipsis'), refresh=True)

    def _print(self, text: str, style: str | None = None) -> None:
        if self._live is not None:
            self._live.update('', refresh=True)  # it is drawn again below what is printed
        self._console.print(text, style=style, markup=False, highlight=False, soft_wrap=True)


def summary(results: Results) -> list[tuple[str, str]]:
    """Return the closing table: names and values."""
    rate, latency = results.success_rate, results.latency_ms
    scored = [episode for episode in results.episodes if episode.scored]
    steps = [episode.steps for episode in scored]
    rows = [('policy', f'{results.policy["policy"]} ({results.policy["action_type"]})')]
    if rate.rate is not None:
        share = f'{100 * rate.rate:.1f} % ({rate.successes} of {rate.n})'
        rows.append(
            ('success rate', f'{share}, 95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %')
        )
        rows.append(('steps', f'{np.mean(steps):.1f} on average, {min(steps)} to {max(steps)}'))
    if latency is not None:
        rows.append(
            ('policy latency', f'p50 {latency.p50:.1f} ms, p99 {latency.p99:.1f} ms, {latency.count} calls')
        )
        if latency.first > WARM_UP_FACTOR * latency.p50:
            rows.append(('first call', f'{latency.first:.1f} ms (warm-up; counted above)'))
    unscored = len(results.episodes) - len(scored)
    if unscored:
        rows.append(
            ('not scored', f"{unscored} of {len(results.episodes)}: the expert's demonstration failed")
        )
    rows.append(('time', f'{results.wall_s:.1f} s'))
    rows.append(('results', str(Path(results.settings.output) / FILENAME)))
    return rows


def _outcome(result: EpisodeResult) -> tuple[str, str]:
    if not result.scored:
        return 'not scored', 'yellow'
    return ('success', 'green') if result.success else ('failed', 'red')


def _figures(steps: int, reward: float, latency: Latency | None) -> str:
    text = f'step {steps}  reward {reward:g}'
    return text if latency is None else f'{text}  policy p50 {latency.p50:.1f} ms'
