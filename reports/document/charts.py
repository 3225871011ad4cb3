"""Charts as inline SVG without scripts: colors from the style sheet, with a title and a description."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from itertools import pairwise
from math import floor, log10

from reports.document.model import BarChart, Line, LineChart

_WIDTH, _HEIGHT = 480.0, 190.0
_LEFT, _RIGHT, _TOP, _BOTTOM = 56.0, 10.0, 12.0, 26.0


def svg(chart: BarChart | LineChart) -> str:
    """Renders one chart, 480 x 190 units, scaling to its box."""
    body = _bars(chart) if isinstance(chart, BarChart) else _lines(chart)
    return (
        f'<svg viewBox="0 0 {_WIDTH:g} {_HEIGHT:g}" role="img" aria-labelledby="{chart.id}-t {chart.id}-d">'
        f'<title id="{chart.id}-t">{escape(chart.title)}</title>'
        f'<desc id="{chart.id}-d">{escape(chart.text)}</desc>{body}</svg>'
    )


def _bars(chart: BarChart) -> str:
    known = [value for value in chart.values if value is not None]
    low = _bar_floor(min([*known, chart.target]))
    inner, slot = _HEIGHT - _TOP - _BOTTOM, (_WIDTH - _LEFT - _RIGHT) / len(chart.labels)

    def height(value: float) -> float:
        return _TOP + inner * (1.0 - (value - low) / (1.0 - low))

    parts = [_grid(height(tick), f"{tick * 100:g} %") for tick in (low, (1.0 + low) / 2.0, 1.0)]
    for index, (label, value) in enumerate(zip(chart.labels, chart.values, strict=True)):
        x = _LEFT + slot * (index + 0.5)
        if value is not None:
            top = min(height(value), _TOP + inner - 1.0)
            style = "bar" if value >= chart.target else "bar missed"
            parts.append(
                f'<rect class="{style}" x="{x - slot * 0.3:.1f}" y="{top:.1f}" width="{slot * 0.6:.1f}" '
                f'height="{_TOP + inner - top:.1f}"><title>{escape(label)} {value * 100:.3f} %</title></rect>'
            )
        parts.append(_text(x, _HEIGHT - 8, label, "middle"))
    parts.append(
        f'<line class="goal" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{height(chart.target):.1f}" '
        f'y2="{height(chart.target):.1f}"/>'
    )
    return "".join(parts)


def _bar_floor(lowest: float) -> float:
    """Lower end of the axis: 99.5 %, or as low as the lowest bar needs."""
    return next((floor_ for floor_ in (0.995, 0.99, 0.95, 0.9, 0.75, 0.5) if lowest > floor_), 0.0)


def _lines(chart: LineChart) -> str:
    xs = [x for line in chart.lines for x in line.x] + [tick for tick, _ in chart.ticks]
    highest = max([y for line in chart.lines for y in line.y if y is not None] or [0.0])
    first, last, top = min(xs), max(xs), _nice(highest)
    inner, wide = _HEIGHT - _TOP - _BOTTOM, _WIDTH - _LEFT - _RIGHT

    def point_at(x: float, y: float) -> tuple[float, float]:
        return _LEFT + wide * (x - first) / max(last - first, 1.0), _TOP + inner * (1.0 - y / top)

    parts = [_grid(point_at(first, tick)[1], f"{tick:g}") for tick in (0.0, top / 2.0, top)]
    for begin, label in chart.ticks:
        x = point_at(begin, 0.0)[0]
        parts.append(f'<line class="tick" x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP + inner:g}" y2="{_TOP + inner + 4:g}"/>')
        parts.append(_text(x + 3, _HEIGHT - 8, label, "start"))
    for line in chart.lines:
        for piece in _pieces(line):
            points = " ".join(f"{x:.1f},{y:.1f}" for x, y in (point_at(*point) for point in piece))
            parts.append(f'<polyline class="line {line.style}" points="{points}"/>')
    return "".join(parts)


def _pieces(line: Line) -> list[list[tuple[float, float]]]:
    """Splits the line at gaps; a single point becomes a short stroke."""
    pieces: list[list[tuple[float, float]]] = [[]]
    for x, y in zip(line.x, line.y, strict=True):
        if y is None:
            pieces.append([])
        else:
            pieces[-1].append((x, y))
    width = min((after - before for before, after in pairwise(line.x)), default=60.0)
    return [
        piece if len(piece) > 1 else [piece[0], (piece[0][0] + width / 2, piece[0][1])] for piece in pieces if piece
    ]


def _nice(highest: float) -> float:
    """Rounds up to a round axis maximum: 1, 1.5, 2, 2.5, 3, 4, 5, 6, 8 or 10 times a power of ten."""
    if highest <= 0:
        return 1.0
    scale = 10.0 ** floor(log10(highest))
    steps: Sequence[float] = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)
    return next(step * scale for step in steps if step * scale >= highest * 0.999)


def _grid(y: float, label: str) -> str:
    line = f'<line class="grid" x1="{_LEFT:g}" x2="{_WIDTH - _RIGHT:g}" y1="{y:.1f}" y2="{y:.1f}"/>'
    return line + _text(_LEFT - 6, y + 4, label, "end")


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}">{escape(text)}</text>'
