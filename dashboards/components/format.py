"""Numbers, instants and entities as people read them. A value that is not there is a dash."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import floor
from typing import Any

from outrider.clock import parse_rfc3339
from outrider.documents.summaries import entity_name, fault_name, signal_name
from outrider.model import EntityKind, EntityRef
from outrider.text.i18n import Language, translate
from outrider.vocabulary.units import format_value

DASH = "–"
_AGO = ((86400, "days"), (3600, "hours"), (60, "minutes"), (1, "seconds"))


def say(key: str, language: Language, **arguments: object) -> str:
    """A text of the area ``dashboard``."""
    return translate(f"dashboard.{key}", language, **arguments)


def percent(value: float | None, digits: int = 2) -> str:
    """A ratio as percent, cut instead of rounded, so that 99.996 % never reads as 100 %."""
    if value is None:
        return DASH
    scale = 10**digits
    # The small addend undoes binary noise: 0.9999 * 1e4 is 9998.999...
    return f"{floor(value * 100 * scale + 1e-6) / scale:.{digits}f} %"


def number(value: float | None, digits: int = 1) -> str:
    """A plain number with a thousands separator; whole numbers without a point."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if abs(value) >= 1000 or float(value).is_integer() else f"{value:,.{digits}f}"


def seconds(value: float | None, *, below: bool = False) -> str:
    """A short duration: ``420 ms``, ``1.4 s``; ``< 1 ms`` when only an upper bound is known."""
    if value is None:
        return DASH
    return ("< " if below else "") + format_value(value, "seconds")


def money(value: float | None, currency: str | None) -> str:
    """An amount with its currency."""
    return DASH if value is None else f"{value:,.2f} {currency or ''}".rstrip()


def instant(text: str | None) -> datetime | None:
    """What the API wrote as an instant."""
    return parse_rfc3339(text) if text else None


def span(duration: timedelta, language: Language) -> str:
    """A duration in its largest unit: ``12 min``, ``3 h``, ``2 d``; hours keep their minutes."""
    total = abs(duration.total_seconds())
    if 3600 <= total < 36000 and int(total) % 3600 >= 60:
        return say("time.hours_minutes", language, hours=int(total // 3600), minutes=int(total % 3600 // 60))
    size, unit = next((entry for entry in _AGO if total >= entry[0]), _AGO[-1])
    return say(f"time.{unit}", language, n=int(total // size))


def say_span(total_seconds: float, language: Language) -> str:
    """A duration given in seconds."""
    return span(timedelta(seconds=total_seconds), language)


def relative(text: str | None, as_of: str | None, language: Language) -> str:
    """``12 min ago`` or ``in 25 min``, seen from ``as_of``."""
    when, now = instant(text), instant(as_of)
    if when is None or now is None:
        return DASH
    difference = now - when
    if abs(difference) < timedelta(seconds=1):
        return say("time.now", language)
    return say("time.ago" if difference > timedelta(0) else "time.ahead", language, span=span(difference, language))


def clock(text: str | None, as_of: str | None = None) -> str:
    """``13:07 UTC``; with the date when it is another day than ``as_of``."""
    when, now = instant(text), instant(as_of)
    if when is None:
        return DASH
    same_day = now is not None and when.date() == now.date()
    return when.strftime("%H:%M UTC" if same_day else "%Y-%m-%d %H:%M UTC")


def when(text: str | None, as_of: str | None, language: Language) -> str:
    """Both: ``13:07 UTC, 12 min ago``."""
    if text is None:
        return DASH
    return say("time.when", language, clock=clock(text, as_of), relative=relative(text, as_of, language))


def entity(found: dict[str, Any], language: Language) -> str:
    """An entity of the API's JSON."""
    ref = EntityRef(found["cluster"], EntityKind(found["kind"]), found["namespace"], found["name"])
    return entity_name(ref, language)


def cause(found: dict[str, Any], language: Language) -> str:
    """A hypothesis in words: what, where, and the place where it is known."""
    text = f"{fault_name(found['fault'], language)} · {entity(found['entity'], language)}"
    return f"{text} ({found['place']})" if found.get("place") else text


def observation(evidence: dict[str, Any], language: Language) -> str:
    """One piece of evidence as a sentence: its own text, else what was seen against what was expected."""
    if evidence["text"]:
        return str(evidence["text"])
    name, expected = signal_name(evidence["signal"], language), evidence["expected"]
    seen = number(evidence["observed"], 3)
    if expected is None:
        return say("incident.observed", language, signal=name, value=seen)
    low, high = number(expected["low"], 3), number(expected["high"], 3)
    wanted = low if low == high else say("incident.between", language, low=low, high=high)
    return say("incident.observed_expected", language, signal=name, value=seen, expected=wanted)
