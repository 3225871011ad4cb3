"""Silences: matchers over the labels of alerts, a time or a recurring window, and the text form of matchers. Pure.

Matchers have the syntax and meaning of Alertmanager: all of a silence must hold, a regular expression covers the whole
value, and a missing label is empty. RE2 matches in linear time, so that no expression stops a cycle.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, time
from enum import StrEnum
from functools import lru_cache
from typing import Any
from zoneinfo import ZoneInfo

import re2

from outrider.errors import UsageError
from outrider.model import EntityRef
from outrider.vocabulary import time_spans
from outrider.vocabulary.time_spans import EVERY_DAY, Instants, WeeklySpan
from outrider.wire.sanitize import clean

MOST_MATCHERS = 32
MOST_PATTERN = 2_000  # characters
_DAY_MINUTES = 24 * 60
_TEXT = re.compile(
    r"""\s*([A-Za-z_][A-Za-z0-9_.]*)\s*(=~|!~|!=|=)\s*(?:"((?:[^"\\]|\\.)*)"|'([^']*)'|(.*?))\s*""", re.DOTALL
)
_ESCAPE = re.compile(r'\\([\\"n])')  # any other backslash belongs to a regular expression, as in Alertmanager
Labels = Mapping[str, tuple[str, ...]]
"""Values by label name. Most labels have one value; an alert may belong to several services."""


class MatchOperator(StrEnum):
    """Comparison of a label with a value."""

    EQUAL = "="
    NOT_EQUAL = "!="
    MATCHES = "=~"
    NOT_MATCHES = "!~"

    @property
    def is_negative(self) -> bool:
        """True for != and !~."""
        return self in (MatchOperator.NOT_EQUAL, MatchOperator.NOT_MATCHES)

    @property
    def is_regex(self) -> bool:
        """True for =~ and !~."""
        return self in (MatchOperator.MATCHES, MatchOperator.NOT_MATCHES)


@dataclass(frozen=True, slots=True)
class LabelMatcher:
    """One condition on a label."""

    name: str
    operator: MatchOperator
    value: str

    def __str__(self) -> str:
        """``name="value"``."""
        quoted = self.value.replace("\\", "\\\\").replace('"', '\\"')
        return f'{self.name}{self.operator.value}"{quoted}"'

    def holds(self, labels: Labels) -> bool:
        """True if the condition holds; of several values one must match, or none for != and !~."""
        values = labels.get(self.name) or ("",)
        return any(self._equals(value) for value in values) is not self.operator.is_negative

    @property
    def matches_empty(self) -> bool:
        """True if an alert without the label meets it: such a matcher alone selects almost everything."""
        return self.holds({})

    def _equals(self, value: str) -> bool:
        if not self.operator.is_regex:
            return value == self.value
        pattern = _compiled(self.value)
        return pattern is not None and pattern.fullmatch(clean(value)) is not None


@dataclass(frozen=True, slots=True)
class SilenceWindow:
    """The part of each week in which a silence is in force. Minutes count from midnight by the wall clock.

    ``days`` are those on which it starts, Monday is 0. An end that is not after the start is on the next day.
    """

    start_minute: int
    end_minute: int
    days: tuple[int, ...] = tuple(sorted(EVERY_DAY))
    timezone: str = "UTC"

    @property
    def span(self) -> WeeklySpan:
        """The span without its zone."""
        return WeeklySpan(_time(self.start_minute), _time(self.end_minute), frozenset(self.days))

    def current(self, now: datetime) -> Instants | None:
        """The occurrence that contains ``now``; None between two."""
        return time_spans.current(self.span, ZoneInfo(self.timezone), now)

    def following(self, now: datetime) -> Instants | None:
        """The next occurrence; None without days."""
        return time_spans.following(self.span, ZoneInfo(self.timezone), now)


@dataclass(frozen=True, slots=True)
class Silence:
    """Mutes alerts that its rule, entity and matchers select, from a time until another.

    With a ``window`` it is in force only in that part of the week. ``dependents``: alerts of what rests on the selected
    entities are muted, too. ``source`` is where it was made: empty for Outrider, ``alertmanager``, ``maintenance``,
    ``calendar``.
    """

    id: str
    rule: str | None
    entity: EntityRef | None
    until: datetime
    by: str
    comment: str = ""
    matchers: tuple[LabelMatcher, ...] = ()
    starts_at: datetime | None = None
    window: SilenceWindow | None = None
    dependents: bool = False
    source: str = ""

    def is_in_force(self, now: datetime) -> bool:
        """True between its start and its end, and inside its window."""
        begun = self.starts_at is None or self.starts_at <= now
        return begun and now < self.until and (self.window is None or self.window.current(now) is not None)

    def selects(self, rule: str, entity: EntityRef, labels: Labels) -> bool:
        """True for an alert that it mutes while it is in force. One without any condition selects nothing."""
        if self.rule is None and self.entity is None and not self.matchers:
            return False
        return (
            self.rule in (None, rule)
            and self.entity in (None, entity)
            and all(matcher.holds(labels) for matcher in self.matchers)
        )


def in_force(silences: Iterable[Silence], now: datetime) -> tuple[Silence, ...]:
    """The silences that mute at a time."""
    return tuple(silence for silence in silences if silence.is_in_force(now))


def parse_matcher(text: str) -> LabelMatcher:
    """Parses ``node=~"gpu-.*"``; quotes are optional. Raises UsageError."""
    match = _TEXT.fullmatch(text) if len(text) <= 2 * MOST_PATTERN else None
    if match is None:
        raise UsageError(f"{text[:200]!r} is not a matcher", hint='write it as node="gpu-1" or rule=~"gpu-.*"')
    name, operator, double, single, bare = match.groups()
    value = _ESCAPE.sub(_unescaped, double) if double is not None else single if single is not None else bare
    matcher = LabelMatcher(name, MatchOperator(operator), value)
    check_matchers([matcher])
    return matcher


def _unescaped(match: re.Match[str]) -> str:
    return "\n" if match[1] == "n" else match[1]


def check_matchers(matchers: Sequence[LabelMatcher]) -> None:
    """Raises UsageError for too many matchers, and for an expression that RE2 rejects."""
    if len(matchers) > MOST_MATCHERS:
        raise UsageError(f"{len(matchers)} matchers are more than {MOST_MATCHERS}")
    for matcher in matchers:
        if not matcher.name:
            raise UsageError("a matcher needs the name of a label", hint='for example rule="gpu-lost"')
        if matcher.operator.is_regex and _compiled(matcher.value) is None:
            raise UsageError(
                f"{matcher.value[:200]!r} is not a regular expression in the syntax of RE2",
                hint="RE2 has no back-references and no look-around; Alertmanager uses the same syntax",
            )


def selects_everything(matchers: Sequence[LabelMatcher]) -> bool:
    """True if an alert without any label meets all matchers."""
    return all(matcher.matches_empty for matcher in matchers)


@lru_cache(maxsize=4096)
def _compiled(pattern: str) -> Any:
    """The compiled expression; None if it is too long or invalid."""
    if len(pattern) > MOST_PATTERN:
        return None
    options = re2.Options()
    options.log_errors = False
    options.dot_nl = True
    try:
        return re2.compile(clean(pattern), options)
    except re2.error:
        return None


def _time(minute: int) -> time:
    return time(minute % _DAY_MINUTES // 60, minute % 60)
