"""Patterns of relevant log lines, from the tables ``engine_log.yaml`` and ``kernel_log.yaml``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from outrider.errors import ConfigError

MOST_CHARACTERS = 4_000  # per line; the rest of a longer one is ignored


@dataclass(frozen=True, slots=True)
class Pattern:
    """A code and its expression. Named groups of the expression become attributes.

    With ``larger``, the first of two named groups must be a larger amount of memory than the second.
    """

    code: str
    match: re.Pattern[str]
    larger: tuple[str, str] | None = None

    def find(self, line: str) -> dict[str, str] | None:
        """The attributes of a line, None if it does not match."""
        match = self.match.search(line)
        if match is None:
            return None
        attributes = {name: value for name, value in match.groupdict().items() if value}
        if self.larger is not None and _bytes(attributes.get(self.larger[0])) <= _bytes(attributes.get(self.larger[1])):
            return None
        return attributes


@dataclass(frozen=True, slots=True)
class Patterns:
    """A table in order: the first matching pattern determines the code."""

    table: tuple[Pattern, ...]
    any_of: re.Pattern[str]

    def find(self, line: str) -> tuple[str, dict[str, str]] | None:
        """The code and the attributes of a line; None if none matches, as for nearly all lines."""
        line = line[:MOST_CHARACTERS]
        if self.any_of.search(line) is None:
            return None
        for pattern in self.table:
            attributes = pattern.find(line)
            if attributes is not None:
                return pattern.code, attributes
        return None


@cache
def packaged(name: str) -> Patterns:
    """The table ``collectors/logs/NAME.yaml``."""
    text = resources.files("collectors.logs").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return read(yaml.safe_load(text)["patterns"], f"{name}.yaml")


def read(entries: Iterable[Mapping[str, Any]], file: str) -> Patterns:
    """A table from its entries. Raises ConfigError for an invalid expression."""
    table = []
    for entry in entries:
        try:
            larger = entry.get("larger")
            table.append(Pattern(entry["code"], re.compile(entry["match"]), tuple(larger) if larger else None))
        except (KeyError, re.error) as error:
            raise ConfigError(f"{file}: invalid pattern {dict(entry)}: {error}") from error
    plain = (re.sub(r"\(\?P<\w+>", "(?:", pattern.match.pattern) for pattern in table)
    return Patterns(tuple(table), re.compile("|".join(f"(?:{expression})" for expression in plain) or r"(?!)"))


def _bytes(amount: str | None) -> float:
    """``1.25 GiB`` in bytes; 0 without a value."""
    if not amount:
        return 0.0
    number, unit = amount.split()
    return float(number) * 1024.0 ** ("BKMGT".index(unit[0]))
