"""Operator feedback on alerts: useful, not useful, or wrong cause."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum
from typing import Protocol

from outrider.clock import rfc3339
from outrider.errors import UsageError
from outrider.model import Alert, EntityRef, Priority, Window
from outrider.text.yaml_file import near
from outrider.vocabulary import indicators
from outrider.vocabulary.faults import faults
from outrider.wire.cursors import Position

MOST_COMMENT = 1000  # characters
INCIDENT_ID = "inc-"  # prefix of incident ids; fingerprints are hexadecimal


class Usefulness(StrEnum):
    """A person's verdict. ``WRONG_CAUSE``: there was a fault, but not the suspected one."""

    USEFUL = "useful"
    NOT_USEFUL = "not_useful"
    WRONG_CAUSE = "wrong_cause"


@dataclass(frozen=True, slots=True)
class Feedback:
    """Verdict of one person on one alert occurrence; a later one of the same person replaces it.

    ``cause`` is the fault id of the true cause, only with ``WRONG_CAUSE``, None if unknown.
    ``priority`` is the highest priority of the alert at the time of the verdict.
    """

    fingerprint: str
    starts_at: datetime
    rule: str
    entity: EntityRef
    priority: Priority
    verdict: Usefulness
    by: str
    at: datetime
    incident: str | None = None
    cause: str | None = None
    comment: str = ""

    @property
    def id(self) -> str:
        """Key of a person's verdict on an occurrence: 16 hex digits."""
        spelt = f"{self.fingerprint}\n{rfc3339(self.starts_at)}\n{self.by}"
        return hashlib.sha256(spelt.encode(errors="surrogatepass")).hexdigest()[:16]

    @property
    def was_justified(self) -> bool:
        """True if there was a fault, whatever the suspected cause."""
        return self.verdict is not Usefulness.NOT_USEFUL

    def same_verdict(self, other: Feedback) -> bool:
        """True if both verdicts are equal, apart from their time."""
        return (self.verdict, self.cause, self.comment) == (other.verdict, other.cause, other.comment)


def judged(
    alert: Alert,
    verdict: Usefulness,
    *,
    by: str,
    at: datetime,
    incident: str | None = None,
    cause: str | None = None,
    comment: str = "",
) -> Feedback:
    """Builds a verdict on this alert occurrence. ``incident`` defaults to that of the alert.

    Raises UsageError for an unknown fault, a true cause with another verdict, or a comment that is too long.
    """
    if cause is not None and verdict is not Usefulness.WRONG_CAUSE:
        raise UsageError("a right cause belongs to the verdict wrong_cause", hint="leave the cause out")
    if cause is not None and cause not in faults():
        raise UsageError(
            f"unknown fault {cause!r}{near(cause, faults())}", hint="docs/reference/drills.md lists the faults"
        )
    if len(comment) > MOST_COMMENT:
        raise UsageError(f"a comment has {MOST_COMMENT} characters at most, this one {len(comment)}")
    return Feedback(
        fingerprint=alert.fingerprint,
        starts_at=alert.starts_at,
        rule=alert.rule,
        entity=alert.entity,
        priority=alert.priority,
        verdict=verdict,
        by=by,
        at=at,
        incident=incident or alert.incident,
        cause=cause,
        comment=comment,
    )


@dataclass(frozen=True, slots=True)
class RulePrecision:
    """Precision of a rule by its verdicts, counted by occasion: all its alerts of one incident are one.

    ``useful`` had a fault and the right cause, ``wrong_cause`` only a fault. If people disagree, the better verdict
    counts. ``low`` and ``high`` are the 95 % interval of ``precision``.
    """

    rule: str
    useful: int
    wrong_cause: int
    not_useful: int

    @property
    def judged(self) -> int:
        """Occasions with a verdict."""
        return self.useful + self.wrong_cause + self.not_useful

    @property
    def precision(self) -> float | None:
        """Share of justified occasions, 0-1."""
        return indicators.ratio(self.useful + self.wrong_cause, self.judged)

    @property
    def interval(self) -> tuple[float, float]:
        """The 95 % interval of the share; (0, 1) without verdicts."""
        return indicators.wilson_interval(self.useful + self.wrong_cause, self.judged)


_BETTER = {Usefulness.NOT_USEFUL: 0, Usefulness.WRONG_CAUSE: 1, Usefulness.USEFUL: 2}


def by_rule(feedbacks: Iterable[Feedback]) -> tuple[RulePrecision, ...]:
    """Precision of every judged rule, the most judged first."""
    best: dict[tuple[str, str], Usefulness] = {}
    for item in feedbacks:
        occasion = (item.rule, item.incident or f"{item.fingerprint} {rfc3339(item.starts_at)}")
        known = best.get(occasion)
        if known is None or _BETTER[item.verdict] > _BETTER[known]:
            best[occasion] = item.verdict
    rules: dict[str, list[Usefulness]] = {}
    for (rule, _), verdict in best.items():
        rules.setdefault(rule, []).append(verdict)
    precisions = [
        RulePrecision(
            rule,
            verdicts.count(Usefulness.USEFUL),
            verdicts.count(Usefulness.WRONG_CAUSE),
            verdicts.count(Usefulness.NOT_USEFUL),
        )
        for rule, verdicts in rules.items()
    ]
    return tuple(sorted(precisions, key=lambda item: (-item.judged, item.rule)))


def page_counts(verdicts: Iterable[Feedback], paged: Iterable[str]) -> tuple[int, int]:
    """(justified pages, judged pages): a page is the first message of an incident in ``paged``."""
    ids = set(paged)
    reasons: dict[str, bool] = {}
    for verdict in verdicts:
        if verdict.incident in ids:
            reasons[verdict.incident] = reasons.get(verdict.incident, False) or verdict.was_justified
    return sum(reasons.values()), len(reasons)


class FeedbackReader(Protocol):
    """Verdicts, read side."""

    def feedback(
        self,
        *,
        rule: str | None = None,
        incident: str | None = None,
        since: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Feedback, ...]:
        """Verdicts, newest first. ``since`` refers to the time of the verdict."""
        ...

    def feedback_values(self, ids: Sequence[str]) -> dict[str, Window]:
        """Values stored with verdicts, by id; verdicts without values are left out."""
        ...


class FeedbackStore(FeedbackReader, Protocol):
    """Verdicts, write side."""

    def save_feedback(self, verdicts: Sequence[Feedback], values: Mapping[str, Window] | None = None) -> int:
        """Writes verdicts in one transaction, with audit; returns the number of new ones. Later verdicts win.

        ``values``: the values that the rule evaluated, by id of the verdict.
        """
        ...
