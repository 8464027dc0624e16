# SPDX-License-Identifier: Apache-2.0
"""report.html: an evaluation for people. One file without scripts or network; it opens as it lies there."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from openeta_ros.embodiment import Embodiment, EmbodimentError
from openeta_ros.episodes import svg
from openeta_ros.episodes.bag import Bag, decoder
from openeta_ros.episodes.bag_metadata import BagError
from openeta_ros.episodes.page_style import STYLE
from openeta_ros.episodes.record import absolute
from openeta_ros.episodes.recording import embodiment_of, facts, sent_chunks
from openeta_ros.episodes.report import summary
from openeta_ros.episodes.results import EpisodeResult, Results
from openeta_ros.observation import NS_PER_S, stamp_ns

FILENAME = 'report.html'
# Videos lie in the page itself up to this much of them all, and beside it where there is more.
EMBEDDED_BYTES = 24_000_000


def write_page(results: Results, folder: Path) -> Path:
    """Write report.html into the folder of results.json, whole or not at all, and return its path.

    An episode whose recording cannot be read is shown without plots, and says why.
    """
    path = folder / FILENAME
    partial = path.with_name(f'{FILENAME}.partial')
    partial.write_text(page(results, folder), encoding='utf-8')
    partial.replace(path)
    return path


def page(results: Results, folder: Path) -> str:
    """Return the text of the page."""
    settings, rate = results.settings, results.success_rate
    title = f'{settings.task} in {settings.env}, {results.embodiment.name}'
    videos = [folder / path for one in results.episodes if one.files for path in one.files.videos.values()]
    embed = sum(video.stat().st_size for video in videos if video.is_file()) <= EMBEDDED_BYTES
    instruction = str(results.env.get('instruction', ''))
    share = '' if rate.rate is None else f'{100 * rate.rate:.1f} %'
    return '\n'.join(
        [
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<title>{escape(title)}</title><style>{STYLE}</style></head><body>',
            f'<h1>{escape(title)}</h1><p class="dim">{escape(instruction)}</p>',
            _problem(results),
            f'<div class="head"><div><div class="rate-text">{share}</div>'
            f'<div class="dim">{rate.successes} of {rate.n} episodes succeeded</div></div>'
            f'<div>{_interval(results)}</div></div>',
            '<div class="tiles">',
            *(_tile(index, one) for index, one in enumerate(results.episodes)),
            '</div>',
            '<h2>The evaluation</h2>',
            _table([*summary(results), *_settings(results)]),
            '<h2>Episodes</h2><p class="dim"><span class="key">measured</span>'
            '<span class="key sent">commanded</span></p>',
            *(_episode(index, one, results, folder, embed) for index, one in enumerate(results.episodes)),
            '<h2>Versions</h2>',
            _table(
                [*results.versions.items(), *((name, str(value)) for name, value in results.host.items())]
            ),
            '</body></html>\n',
        ]
    )


def _problem(results: Results) -> str:
    if results.status == 'complete':
        return ''
    text = f'{results.status}: {results.error.message}' if results.error else results.status
    return f'<p class="word failed">{escape(text)}</p>'


def _interval(results: Results) -> str:
    rate = results.success_rate
    if rate.rate is None:
        return ''
    drawn = svg.interval(rate.low, rate.high, rate.rate)
    return f'{drawn}<div class="dim">95 % interval {100 * rate.low:.1f} to {100 * rate.high:.1f} %</div>'


def _settings(results: Results) -> list[tuple[str, str]]:
    settings = results.settings
    return [
        ('demonstration', settings.demonstration),
        ('scenes', f'seeds {settings.seed} to {settings.seed + settings.episodes - 1}'),
        ('transport', settings.transport),
        ('contract', results.embodiment.path),
        ('started', results.started_at),
    ]


def _table(rows: Sequence[tuple[str, str]]) -> str:
    cells = ''.join(f'<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>' for name, value in rows)
    return f'<table>{cells}</table>'


def _word(episode: EpisodeResult) -> str:
    return ('success' if episode.success else 'failed') if episode.scored else 'unscored'


def _tile(index: int, episode: EpisodeResult) -> str:
    return f'<a class="{_word(episode)}" href="#episode-{index}" title="seed {episode.seed}">{index}</a>'


def _episode(index: int, episode: EpisodeResult, results: Results, folder: Path, embed: bool) -> str:
    word = _word(episode)
    figures = f'seed {episode.seed}, {episode.steps} steps, reward {episode.reward:g}, {episode.wall_s:.1f} s'
    error = (
        '' if episode.error is None else f'<p>{escape(f"{episode.error.kind}: {episode.error.message}")}</p>'
    )
    clamped = ', '.join(f'{name} in {count} rows' for name, count in episode.clamped.items())
    limited = f'<p>clamped: {escape(clamped)}</p>' if clamped else ''
    content = ''
    if episode.files is not None:
        videos = ''.join(_video(name, path, folder, embed) for name, path in episode.files.videos.items())
        content = f'<div class="row videos">{videos}</div>{_plots(folder / episode.files.bag)}'
    opened = ' open' if index == 0 or len(results.episodes) <= 3 else ''
    return (
        f'<details id="episode-{index}"{opened}><summary>episode {index} '
        f'<span class="word {word}">{word}</span> <span class="dim">{figures}</span></summary>'
        f'{error}{limited}{content}</details>'
    )


def _video(name: str, path: str, folder: Path, embed: bool) -> str:
    source = escape(path)
    if embed:
        try:
            data = base64.b64encode((folder / path).read_bytes()).decode('ascii')
        except OSError:
            return f'<figure><figcaption>{escape(name)}: the video is not there</figcaption></figure>'
        source = f'data:video/mp4;base64,{data}'
    return (
        f'<figure><video controls muted loop preload="metadata" src="{source}"></video>'
        f'<figcaption>{escape(name)}</figcaption></figure>'
    )


def _plots(folder: Path) -> str:
    """Return the drawings of an episode: each joint measured and commanded, and the policy's latencies."""
    try:
        with Bag(folder) as bag, TemporaryDirectory() as scratch:
            embodiment = embodiment_of(bag, None, Path(scratch))
            times, measured = _measured(bag, embodiment)
            start = times[0] if len(times) else 0.0
            commanded = _commanded(bag, embodiment)
            latencies = facts(bag).latencies_ms
    except (BagError, EmbodimentError, OSError) as error:
        return f'<p class="dim">no plots: {escape(str(error))}</p>'
    drawings = []
    for column, name in enumerate(embodiment.wire_joints):
        lines = [svg.Line(times - start, measured[:, column], 'seen')]
        if commanded is not None and len(commanded[0]):
            lines.append(svg.Line(commanded[0] - start, commanded[1][:, column], 'sent'))
        drawings.append(svg.drawing(name, lines))
    if latencies:
        line = svg.Line(range(1, len(latencies) + 1), latencies, 'seen', dots=True)
        drawings.append(svg.drawing('latency of each answer, ms', [line], floor=0.0))
    return f'<div class="row">{"".join(drawings)}</div><p class="dim">rad or m, gripper 0 to 1; seconds</p>'


def _measured(bag: Bag, embodiment: Embodiment) -> tuple[Any, Any]:
    """Return the times (T,) s and the wire rows (T, D) of the joint states that have all joints."""
    topic, decoded = absolute(embodiment.state[0].topic), decoder()
    times, rows = [], []
    for recorded in bag.messages([topic] if topic in bag.topics else []):
        message = decoded(recorded)
        row = _wire_row(embodiment, dict(zip(message.name, message.position, strict=False)))
        if row is not None:
            times.append(stamp_ns(message) / NS_PER_S)
            rows.append(row)
    return np.array(times), np.array(rows).reshape(len(times), embodiment.qpos_size)


def _wire_row(embodiment: Embodiment, positions: Mapping[str, float]) -> list[float] | None:
    if not all(joint in positions for joint in embodiment.wire_joints):
        return None
    row: list[float] = []
    for arm in embodiment.arms.values():
        row += [float(positions[joint]) for joint in arm.joints]
        if arm.gripper is not None:
            row.append(arm.gripper.to_openness(float(positions[arm.gripper.joint])))
    return row


def _commanded(bag: Bag, embodiment: Embodiment) -> tuple[Any, Any] | None:
    """Return the times (N,) s at which rows (N, D) ended, of the rows that were executed; None of ee rows."""
    chunks = list(sent_chunks(bag))
    if any(one.action_type != 'qpos' or one.rows.shape[1] != embodiment.qpos_size for one in chunks):
        return None
    span = bag.span()
    period_ns = NS_PER_S / embodiment.rate_hz
    times: list[Any] = [np.empty(0)]
    rows: list[Any] = [np.empty((0, embodiment.qpos_size))]
    for index, chunk in enumerate(chunks):
        end = chunks[index + 1].stamp_ns if index + 1 < len(chunks) else (span[1] if span else 0)
        count = min(len(chunk.rows), max(0, round((end - chunk.stamp_ns) / period_ns)))
        times.append((chunk.stamp_ns + (1 + np.arange(count)) * period_ns) / NS_PER_S)
        rows.append(chunk.rows[:count])
    return np.concatenate(times), np.concatenate(rows)
