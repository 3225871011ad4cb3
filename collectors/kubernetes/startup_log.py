"""Start-up phases from the log lines of a starting model server, by the table ``startup_log.yaml``."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from importlib import resources

import yaml

_LONGEST_SECONDS = 24 * 3600.0
INIT_ENGINE = "init_engine"


@dataclass(frozen=True, slots=True)
class Mark:
    """One phase line: the phase and its duration; ``seconds`` None if the line marks only its begin or end."""

    phase: str
    at: datetime
    seconds: float | None = None
    edge: str = ""


@dataclass(frozen=True, slots=True)
class _Pattern:
    phase: str
    match: re.Pattern[str]
    edge: str


def mark_of(line: str, at: datetime) -> Mark | None:
    """The mark of a line; None for any other line."""
    any_of, table = _table()
    if any_of.search(line) is None:
        return None
    for pattern in table:
        match = pattern.match.search(line)
        if match is None:
            continue
        duration = match.groupdict().get("seconds")
        try:
            seconds = None if duration is None else float(duration)
        except ValueError:
            continue
        if seconds is not None and not 0 <= seconds <= _LONGEST_SECONDS:
            continue
        return Mark(pattern.phase, at, seconds, pattern.edge)
    return None


@cache
def _table() -> tuple[re.Pattern[str], tuple[_Pattern, ...]]:
    table = yaml.safe_load(
        resources.files("collectors.kubernetes").joinpath("startup_log.yaml").read_text(encoding="utf-8")
    )
    table = tuple(
        _Pattern(entry["phase"], re.compile(entry["match"]), entry.get("edge", "")) for entry in table["patterns"]
    )
    return re.compile("|".join(expressions())), table


def expressions() -> list[str]:
    """All expressions without group names, for use as a server-side filter."""
    table = yaml.safe_load(
        resources.files("collectors.kubernetes").joinpath("startup_log.yaml").read_text(encoding="utf-8")
    )
    return [re.sub(r"\(\?P<\w+>", "(?:", entry["match"]) for entry in table["patterns"]]
