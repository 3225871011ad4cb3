"""Pydantic's errors in plain words, for people who write a configuration. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

_SIZE = re.compile(r"(\d+(?:\.\d+)?)\s*([kKMGT])(i?)[bB]?")
_POWER = {"k": 1, "K": 1, "M": 2, "G": 3, "T": 4}
_PATTERNS = {
    r"^https?://": "expected an address that begins with http:// or https://",
    r"^[^/]+$": "expected a name without a slash",
}
_ENUM_MEMBER = re.compile(r"<\w+\.\w+: ('[^']*')>")
_SHOULD = re.compile(r"^(?:Input|Value|Datetime|Date|Time|Tuple|Set|URL) should (?:be |have )?")
_Words = Callable[[Mapping[str, Any], str], str]


def describe(detail: Mapping[str, Any]) -> str:
    """One entry of ``ValidationError.errors()`` as a sentence without a full stop."""
    words = _WORDS.get(detail["type"])
    if words is None:
        message: str = detail["msg"].removeprefix("Value error, ").removeprefix("Assertion failed, ")
        message = _SHOULD.sub("expected ", message)
        return message[:1].lower() + message[1:]
    return words(detail.get("ctx", {}), shown(detail.get("input")))


def bytes_of(text: str) -> int | None:
    """``10MB``, ``64MiB``, ``1.5 G`` as bytes; None for anything else."""
    result = _SIZE.fullmatch(text.strip())
    return round(float(result[1]) * (1024 if result[3] else 1000) ** _POWER[result[2]]) if result else None


def shown(value: Any) -> str:
    """The given value, shortened for a sentence."""
    if isinstance(value, dict | list):
        return "a mapping" if isinstance(value, dict) else "a list"
    if value is None:
        return "nothing"
    text = str(value).lower() if isinstance(value, bool) else repr(value)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _whole_number(_: Mapping[str, Any], value: str) -> str:
    size = bytes_of(value.strip("'\""))
    more = f"; in bytes it is {size}" if size is not None else ""
    return f"expected a whole number, not {value}{more}"


def _pattern(ctx: Mapping[str, Any], value: str) -> str:
    pattern = str(ctx.get("pattern", ""))
    return f"{_PATTERNS.get(pattern, f'expected text like {pattern}')}, not {value}"


def _expected(description: str) -> _Words:
    return lambda _, value: f"expected {description}, not {value}"


def _bound(words: str, key: str) -> _Words:
    return lambda ctx, value: f"expected {words} {ctx[key]}, not {value}"


def _choice(key: str) -> _Words:
    return lambda ctx, value: f"expected {_plain(str(ctx[key]))}, not {value}"


def _plain(choices: str) -> str:
    """The choices separated by commas; members of an enum as their values."""
    return _ENUM_MEMBER.sub(r"\1", choices).replace(" or ", ", ")


_WORDS: dict[str, _Words] = {
    "missing": lambda _ctx, _given: "is missing",
    "extra_forbidden": lambda _ctx, _given: "is not known here",
    "timezone_aware": _expected("a timestamp with a time zone, such as 2026-11-21T08:00:00Z"),
    "datetime_parsing": _expected("a timestamp, such as 2026-11-21T08:00:00Z"),
    "datetime_from_date_parsing": _expected("a timestamp, such as 2026-11-21T08:00:00Z"),
    "datetime_type": _expected("a timestamp, such as 2026-11-21T08:00:00Z"),
    "json_invalid": lambda ctx, _: f"is not JSON ({ctx.get('error', '')})",
    "string_pattern_mismatch": _pattern,
    "string_type": lambda _, given: f"expected text, not {given}; put it in quotes",
    "string_too_short": lambda _, given: f"expected text, not {given}",
    "too_short": _expected("at least one entry"),
    "bool_parsing": _expected("true or false"),
    "bool_type": _expected("true or false"),
    "int_parsing": _whole_number,
    "int_type": _whole_number,
    "int_from_float": _whole_number,
    "float_parsing": _expected("a number"),
    "float_type": _expected("a number"),
    "finite_number": _expected("a number"),
    "list_type": _expected("a list"),
    "dict_type": _expected("a mapping of keys"),
    "model_type": _expected("a mapping of keys"),
    "model_attributes_type": _expected("a mapping of keys"),
    "path_type": _expected("a path"),
    "literal_error": _choice("expected"),
    "enum": _choice("expected"),
    "union_tag_invalid": lambda ctx, _: f"expected {ctx['expected_tags']}, not {ctx['tag']!r}",
    "union_tag_not_found": lambda ctx, _: f"needs the key {ctx['discriminator']}",
    "greater_than": _bound("more than", "gt"),
    "greater_than_equal": _bound("at least", "ge"),
    "less_than": _bound("less than", "lt"),
    "less_than_equal": _bound("at most", "le"),
}
