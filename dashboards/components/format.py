"""Formats numbers, timestamps and entities. A missing value is a dash."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import floor
from typing import Any
from zoneinfo import ZoneInfo

from outrider.clock import parse_rfc3339
from outrider.documents.summaries import entity_name, fault_name, signal_name
from outrider.model import EntityKind, EntityRef
from outrider.text.i18n import Language, translate
from outrider.vocabulary.units import format_value

DASH = "–"
_AGO = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))


def localize(key: str, language: Language, **arguments: object) -> str:
    """Returns a text of the area ``dashboard``."""
    return translate(f"dashboard.{key}", language, **arguments)


def percent(value: float | None, digits: int = 2) -> str:
    """Formats a ratio as percent, truncated, so that 99.996 % is never displayed as 100 %."""
    if value is None:
        return DASH
    scale = 10**digits
    # The small addend compensates for binary rounding: 0.9999 * 1e4 is 9998.999...
    return f"{floor(value * 100 * scale + 1e-6) / scale:.{digits}f} %"


def number(value: float | None, digits: int = 1) -> str:
    """Formats a plain number with a thousands separator; whole numbers without decimals."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:,.{digits}f}"


def seconds(value: float | None, *, below: bool = False) -> str:
    """A short duration: ``420 ms``, ``1.4 s``; ``< 1 ms`` if only an upper bound is known."""
    if value is None:
        return DASH
    return ("< " if below else "") + format_value(value, "seconds")


def money(value: float | None, currency: str | None) -> str:
    """An amount with its currency."""
    return DASH if value is None else f"{value:,.2f} {currency or ''}".rstrip()


def instant(text: str | None) -> datetime | None:
    """Parses a timestamp of the API."""
    return parse_rfc3339(text) if text else None


def span(duration: timedelta, language: Language) -> str:
    """A duration in its largest unit: ``12 min``, ``3 h``, ``2 d``; below ten hours with minutes."""
    total = abs(duration.total_seconds())
    if 3600 <= total < 36000 and int(total) % 3600 >= 60:
        return localize("time.hours_minutes", language, hours=int(total // 3600), minutes=int(total % 3600 // 60))
    size, unit = next((entry for entry in _AGO if total >= entry[0]), _AGO[-1])
    return localize(f"time.{unit}", language, n=int(total // size))


def seconds_span(total_seconds: float, language: Language) -> str:
    """A duration given in seconds."""
    return span(timedelta(seconds=total_seconds), language)


def relative(text: str | None, as_of: str | None, language: Language) -> str:
    """``12 min ago`` or ``in 25 min``, relative to ``as_of``."""
    when, now = instant(text), instant(as_of)
    if when is None or now is None:
        return DASH
    difference = now - when
    if abs(difference) < timedelta(seconds=1):
        return localize("time.now", language)
    return localize(
        "time.ago" if difference > timedelta(0) else "time.ahead", language, span=span(difference, language)
    )


def clock(text: str | None, as_of: str | None = None, zone: str = "UTC", *, seconds: bool = False) -> str:
    """``13:07 UTC``, in a zone ``21:07 UTC+08:00``; with the date if it is not the day of ``as_of``."""
    when, now = instant(text), instant(as_of)
    if when is None:
        return DASH
    local = when.astimezone(ZoneInfo(zone))
    same_day = now is not None and local.date() == now.astimezone(local.tzinfo).date()
    offset = local.isoformat()[-6:] if local.utcoffset() else ""
    day, time = "" if same_day else f"{local:%Y-%m-%d} ", f"{local:%H:%M:%S}" if seconds else f"{local:%H:%M}"
    return f"{day}{time} UTC{offset}"


def when(text: str | None, as_of: str | None, language: Language, zone: str = "UTC") -> str:
    """Time and age: ``13:07 UTC, 12 min ago``."""
    if text is None:
        return DASH
    return localize("time.when", language, clock=clock(text, as_of, zone), relative=relative(text, as_of, language))


def need_time(recommendation: dict[str, Any], name: str, as_of: str | None, language: Language) -> str:
    """``needed_by`` or ``need_at`` of a recommendation, marked as that of the next need while none is to be started."""
    text = when(recommendation[name], as_of, language)
    is_next = recommendation["state"] in ("shrink", "incomplete", "enough") and recommendation[name] is not None
    return localize("plan.next_need", language, when=text) if is_next else text


def entity(fields: dict[str, Any], language: Language) -> str:
    """Name of an entity in the API's JSON."""
    ref = EntityRef(fields["cluster"], EntityKind(fields["kind"]), fields["namespace"], fields["name"])
    return entity_name(ref, language)


def cause(fields: dict[str, Any], language: Language) -> str:
    """A hypothesis as text: fault, entity and, if known, location."""
    text = f"{fault_name(fields['fault'], language)} · {entity(fields['entity'], language)}"
    return f"{text} ({fields['place']})" if fields.get("place") else text


def observation(evidence: dict[str, Any], language: Language) -> str:
    """One piece of evidence as a sentence: its own text, otherwise observed and expected value."""
    if evidence["text"]:
        return str(evidence["text"])
    name, expected = signal_name(evidence["signal"], language), evidence["expected"]
    observed = number(evidence["observed"], 3)
    if expected is None:
        return localize("incident.observed", language, signal=name, value=observed)
    low, high = number(expected["low"], 3), number(expected["high"], 3)
    expected_text = low if low == high else localize("incident.between", language, low=low, high=high)
    return localize("incident.observed_expected", language, signal=name, value=observed, expected=expected_text)
