"""The shape of a report: headlines, then sections of tables and charts. Frozen; already in one language."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from outrider.text.i18n import Language


@dataclass(frozen=True, slots=True)
class Cell:
    """One figure or word. ``text`` is what people read, ``value`` what JSON carries.

    ``kept`` is whether a target is kept, None where there is none or no value.
    """

    text: str
    value: float | str | None = None
    kept: bool | None = None
    note: str = ""


@dataclass(frozen=True, slots=True)
class Column:
    """``key`` names the column in JSON; numbers are aligned right."""

    key: str
    title: str
    number: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """Rows have one cell a column. ``empty`` is said when there is no row, ``more`` when rows were cut."""

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
    """One bar a label; None is no value. Heights are ratios 0-1."""

    id: str
    title: str
    text: str
    labels: tuple[str, ...]
    values: tuple[float | None, ...]
    target: float
    target_name: str


@dataclass(frozen=True, slots=True)
class LineChart:
    """Lines over time; ``x`` are unix seconds, ``ticks`` label instants of it."""

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
    """A question and its answer."""

    id: str
    title: str
    lead: str
    tables: tuple[Table, ...] = ()
    charts: tuple[BarChart | LineChart, ...] = ()


@dataclass(frozen=True, slots=True)
class ReportModel:
    """A whole report. ``empty`` True means that nothing was collected in the period."""

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
