"""Draw docs/images/detection.svg: the score of one recorded server over its test part, with limit and labels.

Usage: python scripts/detection_servers.py SERVERS_FOLDER [NAME] [OUT.svg]
"""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from outrider.model import Floats
from service.evaluation import detection, events, recordings
from service.evaluation.detection import Judged

WIDE, HIGH, LEFT, TOP, BOTTOM = 900, 220, 50, 30, 40
STYLE = 'font-family="Helvetica, Arial, sans-serif" fill="#30343a"'
STEP_SECONDS, POINTS = 300.0, 1500
HIGHEST = 6.0


def main(arguments: list[str]) -> int:
    """Judge all servers of the folder and draw one."""
    if not arguments:
        print(__doc__, file=sys.stderr)
        return 2
    name = arguments[1] if len(arguments) > 1 else "server-3"
    out = (
        Path(arguments[2]) if len(arguments) > 2 else Path(__file__).parent.parent / "docs" / "images" / "detection.svg"
    )
    read = recordings.servers(Path(arguments[0]), STEP_SECONDS)
    judged = detection.judge_servers(read, STEP_SECONDS, detection.BUDGET, lambda _stage, _share: None)
    if name not in judged:
        print(f"There is no {name}; there are: {', '.join(judged)}.", file=sys.stderr)
        return 2
    out.write_text(figure(name, judged[name]), encoding="utf-8")
    return 0


def figure(name: str, one: Judged) -> str:
    """The picture as SVG."""
    days = (one.times - one.times[0]) / 86400.0
    span = float(days[-1])
    parts = [_band(days[first], days[last], span) for first, last in events.spans(one.labels)]
    parts += [_line(days, one.limits, span, "#c2410c", "6 4"), _line(days, one.scores, span, "#30506e", "")]
    parts += [_dot(float(days[place]), float(one.scores[place]), span) for place in np.flatnonzero(one.points)]
    marks = "".join(
        _text(_across(day, span), TOP + HIGH + 18, f"{day:.0f}", 11, "middle") for day in np.arange(0.0, span + 0.5)
    )
    marks += "".join(
        _text(LEFT - 8, _up(value) + 4, f"{value:.0f}", 11, "end") for value in np.arange(0.0, HIGHEST + 0.5, 2.0)
    )
    frame = f'<rect x="{LEFT}" y="{TOP}" width="{WIDE}" height="{HIGH}" fill="none" stroke="#c9ccd1"/>'
    title = _text(LEFT, 20, f"{name}: score, limit, alarm points and labelled incidents, by day", 13, "start")
    size = f'width="{LEFT + WIDE + 20}" height="{TOP + HIGH + BOTTOM}"'
    body = "\n".join([title, *parts, frame, marks])
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}>\n<rect {size} fill="#ffffff"/>\n{body}\n</svg>\n'


def _text(x: float, y: float, text: str, size: int, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" font-size="{size}" text-anchor="{anchor}" {STYLE}>{text}</text>'


def _dot(day: float, score: float, span: float) -> str:
    return f'<circle cx="{_across(day, span):.1f}" cy="{_up(score):.1f}" r="2.2" fill="#c2410c"/>'


def _across(day: float, span: float) -> float:
    return LEFT + WIDE * day / span


def _up(value: float) -> float:
    return TOP + HIGH * (1.0 - min(value, HIGHEST) / HIGHEST)


def _band(begin: float, end: float, span: float) -> str:
    wide = max(2.0, _across(end, span) - _across(begin, span))
    return f'<rect x="{_across(begin, span):.1f}" y="{TOP}" width="{wide:.1f}" height="{HIGH}" fill="#e3e5e8"/>'


def _line(days: Floats, values: Floats, span: float, colour: str, dashes: str) -> str:
    """The highest value of each of many short spans, so that no peak is lost."""
    edges = np.linspace(0, days.size, min(POINTS, days.size) + 1).astype(int)
    tops = [(days[low], np.nanmax(values[low:high])) for low, high in pairwise(edges) if high > low]
    points = " ".join(f"{_across(float(day), span):.1f},{_up(float(top)):.1f}" for day, top in tops if np.isfinite(top))
    return f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="1" stroke-dasharray="{dashes}"/>'


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
