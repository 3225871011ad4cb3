"""Figure of a replayed trace: load, running replicas, and minutes with waiting requests."""

from __future__ import annotations

from datetime import timedelta
from html import escape

import numpy as np

from outrider.model import Floats
from outrider.text.i18n import Language, translate
from planner.replay.score import TraceReplay

WIDE, HIGH, LEFT, TOP, BOTTOM = 1000, 260, 50, 34, 40
_POINTS = 1000
_STYLE = 'font-family="Helvetica, Arial, sans-serif" fill="#30343a"'


def svg(trace: TraceReplay, startup: timedelta, language: Language = "en") -> str:
    """One SVG of the counted days: replicas needed, replicas running, and minutes with waiting in red."""
    need, replicas, waiting = (_downsample(trace.minutes[name]) for name in ("need", "replicas", "waiting"))
    top = max(float(replicas.max()), float(need.max()), 1.0)
    ours = trace.ours
    title = translate(
        "cli.figure_title",
        language,
        name=trace.name,
        minutes=f"{startup.total_seconds() / 60:g}",
        ours=f"{ours.gpu_hours_ratio:.3f}",
        oracle=f"{trace.oracle_ratio:.3f}",
        waiting=f"{ours.requests_waiting_over_2s_ratio:.2%}",
    )
    red = "".join(
        f'<rect x="{_x(float(position), need.size):.1f}" y="{TOP}" '
        f'width="2" height="{HIGH}" fill="#dc2626" opacity=".5"/>'
        for position in np.flatnonzero(waiting > 0)
    )
    days = trace.minutes["need"].size / 1440.0
    marks = "".join(
        f'<text {_STYLE} font-size="11" text-anchor="middle" x="{LEFT + WIDE * day / days:.1f}" '
        f'y="{TOP + HIGH + 18}">{day:g}</text>'
        for day in np.arange(0.0, days + 0.01)
    )
    marks += "".join(
        f'<text {_STYLE} font-size="11" text-anchor="end" x="{LEFT - 6}" y="{_y(value, top) + 4:.1f}">'
        f"{value:.0f}</text>"
        for value in np.linspace(0.0, top, 5)
    )
    parts = [
        f'<text {_STYLE} font-size="13" x="{LEFT}" y="20">{escape(title)}</text>',
        f'<rect x="{LEFT}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#c9ccd1"/>',
        red,
        _line(replicas, top, "#c2410c"),
        _line(need, top, "#30506e"),
        marks,
    ]
    size = f'width="{LEFT + WIDE + 20}" height="{TOP + HIGH + BOTTOM}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n' + "\n".join(parts) + "\n</svg>\n"


def _downsample(values: Floats) -> Floats:
    """The highest value of each stretch, so that no short event is lost."""
    width = -(-values.size // _POINTS)
    padded = np.concatenate([values, np.repeat(values[-1:], -values.size % width)])
    result: Floats = padded.reshape(-1, width).max(axis=1)
    return result


def _line(values: Floats, top: float, color: str) -> str:
    points = " ".join(f"{_x(position, values.size):.1f},{_y(value, top):.1f}" for position, value in enumerate(values))
    return f'<polyline points="{points}" fill="none" stroke="{color}" stroke-width="1.4"/>'


def _x(position: float, count: int) -> float:
    return LEFT + WIDE * position / max(1, count - 1)


def _y(value: float, top: float) -> float:
    return TOP + HIGH * (1.0 - value / top)
