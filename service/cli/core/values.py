"""Signal values as text: with unit, or in words for codes."""

from __future__ import annotations

import re
from functools import cache
from typing import Any

from collectors.mapping import registry
from outrider.clock import from_unix, rfc3339
from outrider.text.i18n import Language, translate
from outrider.vocabulary import catalog
from outrider.vocabulary.units import format_duration, format_value

_INSTANTS = re.compile(r".*_(start|boot)_time_seconds")
_LISTED = re.compile(r": (0 [a-z_]+(?:, \d+ [a-z_]+)+)$")  # ": 0 none, 1 refused" at the end of a code's description
_CODE = re.compile(r"(\d+) ([a-z_]+)")
_AWAKE = {0.0: "asleep", 1.0: "awake"}
_PLAIN = {"count", "code", "state", "bool", "value", ""}
_LONG = 600  # seconds from which days, hours and minutes are shown
_BOUND = {"below_first_bucket": "< ", "above_last_bucket": "> "}


def text_of(row: dict[str, Any], language: Language = "en") -> str:
    """Value of one signal. Below the first or above the last bucket only the bound is known."""
    value, name, unit = row["value"], row["signal"], row.get("unit", "")
    if value is None:
        return "-"
    bound = next((mark for key, mark in _BOUND.items() if row.get(key)), "")
    if name == "engine_sleep_state" and value in _AWAKE:
        return translate(f"cli.{_AWAKE[value]}", language)
    if unit == "bool" and value in (0, 1):
        return translate("cli.is_so" if value else "cli.is_not_so", language)
    word = words_of(name).get(value)
    if word is not None:
        return f"{word} ({value:g})"
    if _INSTANTS.fullmatch(name):
        return rfc3339(from_unix(value)) if 0 < value < 1e11 else f"{value:g}"
    return bound + (f"{value:g}" if unit in _PLAIN else _with_unit(value, unit))


def _with_unit(value: float, unit: str) -> str:
    if unit == "hertz":
        size, name = next(((s, n) for s, n in ((1e9, "GHz"), (1e6, "MHz"), (1e3, "kHz")) if abs(value) >= s), (1, "Hz"))
        return f"{value / size:.4g} {name}"
    shown = format_duration(value) if unit == "seconds" and abs(value) >= _LONG else format_value(value, unit)
    return shown if unit == "seconds" or not shown[-1].isdigit() else f"{shown} {unit.replace('_', ' ')}"


@cache
def words_of(signal: str) -> dict[float, str]:
    """Meaning of the numbers of a code, from the catalog or from an adapter's labels."""
    known = catalog.signals().get(signal)
    if known is None or known.unit not in ("code", "state"):
        return {}
    listed = _LISTED.search(known.means)
    pairs = _CODE.findall(listed[1]) if listed else ()
    by_code: dict[float, list[str]] = {float(code): [word] for code, word in pairs}
    for name in registry.ADAPTERS:
        for rule in registry.adapter(name).rules.get(signal, ()):
            for term in rule.terms:
                for word, code in term.codes.values.items() if term.codes else ():
                    words = by_code.setdefault(code, [])
                    words.extend([] if word in words else [word])
    return {code: "/".join(words) for code, words in by_code.items()}
