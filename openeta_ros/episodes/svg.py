# SPDX-License-Identifier: Apache-2.0
"""Line drawings for pages: small, without scripts, coloured by the page's own style."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np

WIDTH, HEIGHT = 260, 110
LEFT, RIGHT, TOP, BOTTOM = 40, 6, 16, 16
# An axis is at least so long (rad, m, s): what is less is noise, and is to look like it.
SHORTEST = 0.01


@dataclass(frozen=True)
class Line:
    """Points joined to a line, or (`dots`) not; `style` is a class of the page's style sheet."""

    x: Sequence[float]
    y: Sequence[float]
    style: str
    dots: bool = False


def drawing(title: str, lines: Sequence[Line], *, floor: float | None = None) -> str:
    """Return an SVG of lines over a common x axis. `floor` is a value that the y axis must reach down to."""
    points = [line for line in lines if len(line.x)]
    xs = np.concatenate([np.asarray(line.x, dtype=np.float64) for line in points]) if points else np.zeros(1)
    ys = np.concatenate([np.asarray(line.y, dtype=np.float64) for line in points]) if points else np.zeros(1)
    x_low, x_high = _span(float(xs.min()), float(xs.max()))
    y_low, y_high = _span(float(ys.min()) if floor is None else min(floor, float(ys.min())), float(ys.max()))
    parts = [
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}">',
        f'<text class="name" x="{LEFT}" y="11">{escape(title)}</text>',
        f'<rect class="frame" x="{LEFT}" y="{TOP}" width="{WIDTH - LEFT - RIGHT}" '
        f'height="{HEIGHT - TOP - BOTTOM}"/>',
        f'<text class="tick" x="{LEFT - 3}" y="{TOP + 8}" text-anchor="end">{y_high:.3g}</text>',
        f'<text class="tick" x="{LEFT - 3}" y="{HEIGHT - BOTTOM}" text-anchor="end">{y_low:.3g}</text>',
        f'<text class="tick" x="{LEFT}" y="{HEIGHT - 4}">{x_low:.3g}</text>',
        f'<text class="tick" x="{WIDTH - RIGHT}" y="{HEIGHT - 4}" text-anchor="end">{x_high:.3g}</text>',
    ]
    for line in points:
        x = LEFT + (np.asarray(line.x) - x_low) / (x_high - x_low) * (WIDTH - LEFT - RIGHT)
        y = HEIGHT - BOTTOM - (np.asarray(line.y) - y_low) / (y_high - y_low) * (HEIGHT - TOP - BOTTOM)
        places = [f'{one_x:.1f},{one_y:.1f}' for one_x, one_y in zip(x, y, strict=True)]
        if line.dots:
            circles = (place.split(',') for place in places)
            parts += [f'<circle class="{line.style}" cx="{cx}" cy="{cy}" r="2"/>' for cx, cy in circles]
        else:
            parts.append(f'<polyline class="{line.style}" points="{" ".join(places)}"/>')
    return ''.join([*parts, '</svg>'])


def interval(low: float, high: float, rate: float) -> str:
    """Return an SVG of a share (0 to 1) and its interval on a scale from 0 to 100 %."""
    width, height, margin = 420, 46, 14
    scale = width - 2 * margin

    def at(share: float) -> float:
        return round(margin + share * scale, 1)

    ticks = ''.join(
        f'<line class="frame" x1="{at(tick)}" x2="{at(tick)}" y1="24" y2="29"/>'
        f'<text class="tick" x="{at(tick)}" y="42" text-anchor="middle">{100 * tick:.0f} %</text>'
        for tick in (0.0, 0.25, 0.5, 0.75, 1.0)
    )
    return (
        f'<svg class="interval" viewBox="0 0 {width} {height}" role="img" '
        f'aria-label="{100 * rate:.1f} %, interval {100 * low:.1f} to {100 * high:.1f} %">'
        f'<line class="frame" x1="{margin}" x2="{width - margin}" y1="24" y2="24"/>{ticks}'
        f'<rect class="span" x="{at(low)}" y="9" width="{at(high) - at(low):.1f}" height="12" rx="2"/>'
        f'<circle class="rate" cx="{at(rate)}" cy="15" r="7"/></svg>'
    )


def _span(low: float, high: float) -> tuple[float, float]:
    """Return an axis that has a length, also where all values are one, or noise."""
    if not (np.isfinite(low) and np.isfinite(high)):
        return 0.0, 1.0
    short = max(0.0, SHORTEST - (high - low)) / 2
    return low - short, high + short
