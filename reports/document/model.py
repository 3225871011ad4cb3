"""Structure of a report: headlines, then sections of tables and charts. Frozen, already in one language."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from outrider.text.i18n import Language


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure or word. ``text`` is displayed, ``value`` is for JSON.

    ``kept`` is True if a target is met, None without a target or a value.
    """

    text: str
    value: float | str | None = None
    kept: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """``key`` names the column in JSON; numbers are right-aligned."""

    key: str
    title: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows have one cell per column. ``empty`` is displayed without rows, ``more`` if rows were cut."""

    id: str
    title: str
    columns: tuple[Column, ...]
    rows: tuple[tuple[Cell, ...], ...]
    empty: str = ""
    more: str = ""


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a chart; None is a gap. ``style`` is a class of the style sheet."""

    name: str
    style: Literal["measured", "forecast", "p95"]
    x: tuple[float, ...]
    y: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class BarChart:
    """One bar per label; None means no value. Heights are ratios from 0 to 1."""

    id: str
    title: str
    text: str
    labels: tuple[str, ...]
    values: tuple[float | None, ...]
    target: float
    target_name: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over time; ``x`` are unix seconds, ``ticks`` label timestamps of it."""

    id: str
    title: str
    text: str
    unit: str
    lines: tuple[Line, ...]
    ticks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True)
class Headline:
    """One figure at the top. ``measure`` is its name in ``MEASURES``, empty for a plain count."""

    measure: str
    title: str
    cell: Cell
    goal: str = ""
    formula: str = ""


@dataclass(frozen=True, slots=True)
class Section:
    """One question with its tables and charts."""

    id: str
    title: str
    lead: str
    tables: tuple[Table, ...] = ()
    charts: tuple[BarChart | LineChart, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportModel:
    """A complete report. ``empty`` is True if nothing was collected in the period."""

    report: str
    week: str
    title: str
    description: str
    period: str
    start: datetime
    end: datetime
    made_at: datetime
    made: str
    language: Language
    empty: bool
    notice: str
    headlines: tuple[Headline, ...]
    sections: tuple[Section, ...]
    footer: str
