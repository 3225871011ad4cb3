"""Formats figures in the report's language. An unknown value is a dash, never a zero."""

from __future__ import annotations

from datetime import datetime

from outrider.clock import rfc3339
from outrider.model import EntityRef
from outrider.text.i18n import Language, translate
from outrider.vocabulary.indicators import MEASURES, Attainment, Latency
from outrider.vocabulary.units import format_duration
from reports.document.model import Cell, Headline


def text(key: str, language: Language, **arguments: object) -> str:
    """Returns a text of the area ``reports``."""
    return translate(f"reports.{key}", language, **arguments)


def unknown(language: Language) -> Cell:
    """The cell of an unknown value."""
    return Cell(text("none", language))


def ratio(value: float | None, language: Language, digits: int = 2, kept: bool | None = None) -> Cell:
    """``99.95 %``. A value just below 1 is never displayed as 100 %."""
    if value is None:
        return unknown(language)
    return Cell(percent(value, digits), value, kept)


def percent(value: float, digits: int = 2) -> str:
    """Percent with ``digits`` decimals, never rounded up to 100 %."""
    shown = round(value * 100, digits)
    if value < 1.0 and shown >= 100.0:
        shown = 100.0 - 10.0**-digits
    return f"{shown:.{digits}f} %"


def number(value: float | None, language: Language, digits: int = 0) -> Cell:
    """``1,234``."""
    return unknown(language) if value is None else Cell(f"{value:,.{digits}f}", value)


def seconds(value: float | None, language: Language, kept: bool | None = None) -> Cell:
    """``2m 5s``, for durations of incidents."""
    return unknown(language) if value is None else Cell(format_duration(value), value, kept)


def latency(value: Latency | None, language: Language) -> Cell:
    """``180 ms``, ``1.24 s``; ``< 1 ms`` below the first bucket."""
    if value is None:
        return unknown(language)
    shown = precise_seconds(value.seconds)
    return Cell(text("below", language, value=shown) if value.below else shown, value.seconds)


def precise_seconds(value: float) -> str:
    """Milliseconds below one second, otherwise seconds with two decimals."""
    return f"{value * 1000:.3g} ms" if value < 1 else f"{value:.2f} s"


def attainment(value: Attainment | None, language: Language) -> Cell:
    """Exact, or its lower and upper bound. The target is missed only if the upper bound misses it."""
    if value is None:
        return unknown(language)
    measure = MEASURES["sla_attainment"]
    if value.upper - value.lower < 5e-5:
        return ratio(value.lower, language, kept=measure.kept(value.lower))
    shown = text("between", language, low=percent(value.lower), high=percent(value.upper))
    kept = True if measure.kept(value.lower) else None if measure.kept(value.upper) else False
    return Cell(shown, value.lower, kept)


def instant(at: datetime | None, language: Language) -> Cell:
    """``05-04 13:07``; JSON has the full timestamp."""
    return unknown(language) if at is None else Cell(f"{at:%m-%d %H:%M}", rfc3339(at))


def name(entity: EntityRef) -> str:
    """The entity without its cluster and kind: ``namespace/name``, or its name."""
    return f"{entity.namespace}/{entity.name}" if entity.namespace else entity.name


def goal(measure: str) -> str:
    """``≥ 99.9 %``, empty without a target."""
    row = MEASURES[measure]
    if row.target is None:
        return ""
    sign = "≥" if row.good == "higher" else "≤"
    if row.unit == "ratio":
        return f"{sign} {row.target * 100:g} %"
    return f"{sign} {format_duration(row.target) if row.unit == 'seconds' else f'{row.target:g}'}"


def headline(measure: str, cell: Cell, language: Language) -> Headline:
    """A measure at the top of the report, with its target and formula."""
    row, limit = MEASURES[measure], goal(measure)
    shown = text("target", language, limit=limit) if limit else ""
    return Headline(measure, row.title(language), cell, shown, formula=row.formula(language))
