"""Shifts of an on-call schedule as a bar over days, and times in the zone of the schedule."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from html import escape
from typing import Any
from zoneinfo import ZoneInfo

from dashboards.components import format as fmt
from dashboards.components.palette import Palette
from outrider.text.i18n import Language

_TICKS = 7  # days with a date below the bar
_NAMED_RATIO = 0.05  # a narrower segment has no room for a name: a legend has it
_COLORS = (0, 1, 2, 3, 5)  # lines of the palette; the red one would read as an alarm


def local(at: str | None, timezone: str) -> str:
    """A time as people of the schedule read it: ``2026-05-11 09:00``."""
    when = fmt.instant(at)
    return fmt.DASH if when is None else f"{when.astimezone(ZoneInfo(timezone)):%Y-%m-%d %H:%M}"


def bar(
    shifts: Sequence[dict[str, Any]], timezone: str, people: Sequence[str], palette: Palette, language: Language
) -> str:
    """One segment for each shift, as long as it lasts. A gap has a word and a border of its own."""
    times = [(fmt.instant(shift["from"]), fmt.instant(shift["to"])) for shift in shifts]
    spans = [(start, end) for start, end in times if start is not None and end is not None]
    if not spans:
        return ""
    first, last = spans[0][0], spans[-1][1]
    segments = [
        _segment(shift, (end - start) / (last - first), timezone, people, palette, language)
        for shift, (start, end) in zip(shifts, spans, strict=True)
    ]
    ticks = "".join(_ticks(first, last, timezone))
    name = escape(fmt.localize("oncall.bar", language), quote=True)
    drawn = f'<div class="o-shifts" role="img" aria-label="{name}">{"".join(segments)}</div>'
    legend = _legend(shifts, people, palette) if len(segments) * _NAMED_RATIO > 1 else ""
    return f'{drawn}<div class="o-ticks">{ticks}</div>{legend}'


def _color(person: str, people: Sequence[str], palette: Palette) -> str:
    index = people.index(person) if person in people else len(people)
    return palette.lines[_COLORS[index % len(_COLORS)]]


def _legend(shifts: Sequence[dict[str, Any]], people: Sequence[str], palette: Palette) -> str:
    names = dict.fromkeys(shift["person"] for shift in shifts if shift["person"] is not None)
    entries = "".join(
        f'<span><i style="background:{_color(name, people, palette)}"></i>{escape(name)}</span>' for name in names
    )
    return f'<div class="o-legend o-label">{entries}</div>'


def _segment(
    shift: dict[str, Any], ratio: float, timezone: str, people: Sequence[str], palette: Palette, language: Language
) -> str:
    person = shift["person"]
    shown = person or fmt.localize("oncall.nobody", language)
    title = f"{shown}: {local(shift['from'], timezone)} – {local(shift['to'], timezone)}"
    text = escape(shown) if ratio >= _NAMED_RATIO else ""
    if person is None:
        kind, color = "o-gap", palette.broken
    else:
        kind, color = "", _color(person, people, palette)
    fill = palette.faint(color, 0.0 if person is None else 0.22)
    style = f"flex-grow:{ratio:.5f};background:{fill};border-color:{color}"
    return f'<i class="{kind}" style="{style}" title="{escape(title, quote=True)}">{text}</i>'


def _ticks(first: datetime, last: datetime, timezone: str) -> Iterator[str]:
    """The dates below the bar, at local midnight."""
    zone, days = ZoneInfo(timezone), max(1, round((last - first) / timedelta(days=1)))
    day = first.astimezone(zone).date() + timedelta(days=1)
    while (at := datetime.combine(day, datetime.min.time(), tzinfo=zone)) < last:
        left = (at - first) / (last - first) * 100
        yield f'<span style="left:{left:.2f}%">{day:%m-%d}</span>'
        day += timedelta(days=max(1, days // _TICKS))
