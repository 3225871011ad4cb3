"""Lines of logs that mean something, from a small table: ``engine_log.yaml`` and ``kernel_log.yaml``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from typing import Any

import yaml

from outrider.errors import ConfigError

MOST_CHARACTERS = 4_000  # of one line; a longer one is looked at up to here


@dataclass(frozen=True, slots=True)
class Pattern:
    """A code and what its lines look like. Named groups of the expression become attributes.

    With ``larger`` the first of two named groups must be a larger amount of memory than the second.
    """

    code: str
    match: re.Pattern[str]
    larger: tuple[str, str] | None = None

    def find(self, line: str) -> dict[str, str] | None:
        """The attributes of a line, None for one of another sort."""
        match = self.match.search(line)
        if match is None:
            return None
        found = {name: value for name, value in match.groupdict().items() if value}
        if self.larger is not None and _bytes(found.get(self.larger[0])) <= _bytes(found.get(self.larger[1])):
            return None
        return found


@dataclass(frozen=True, slots=True)
class Patterns:
    """A table, in its order: the first pattern that is found in a line tells its code."""

    table: tuple[Pattern, ...]
    any_of: re.Pattern[str]

    def find(self, line: str) -> tuple[str, dict[str, str]] | None:
        """The code and the attributes of a line; None for one that means nothing, which nearly all do."""
        line = line[:MOST_CHARACTERS]
        if self.any_of.search(line) is None:
            return None
        for pattern in self.table:
            found = pattern.find(line)
            if found is not None:
                return pattern.code, found
        return None


@cache
def packaged(name: str) -> Patterns:
    """The table ``collectors/NAME.yaml``."""
    text = resources.files("collectors.logs").joinpath(f"{name}.yaml").read_text(encoding="utf-8")
    return read(yaml.safe_load(text)["patterns"], f"{name}.yaml")


def read(entries: Iterable[Mapping[str, Any]], file: str) -> Patterns:
    """A table from its entries. Raises ConfigError for an expression that is none."""
    table = []
    for entry in entries:
        try:
            larger = entry.get("larger")
            table.append(Pattern(entry["code"], re.compile(entry["match"]), tuple(larger) if larger else None))
        except (KeyError, re.error) as error:
            raise ConfigError(f"{file}: the pattern {dict(entry)} cannot be used: {error}") from error
    plain = (re.sub(r"\(\?P<\w+>", "(?:", pattern.match.pattern) for pattern in table)
    return Patterns(tuple(table), re.compile("|".join(f"(?:{one})" for one in plain) or r"(?!)"))


def _bytes(amount: str | None) -> float:
    """``1.25 GiB`` in bytes; 0 when nothing is said."""
    if not amount:
        return 0.0
    number, unit = amount.split()
    return float(number) * 1024.0 ** ("BKMGT".index(unit[0]))
