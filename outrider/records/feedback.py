"""What people say of alerts once they know better: useful, not useful, or the wrong cause."""

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
INCIDENT_ID = "inc-"  # what ids of incidents begin with; fingerprints are hexadecimal


class Usefulness(StrEnum):
    """A person's verdict. ``WRONG_CAUSE``: something was broken, but not what the incident named."""

    USEFUL = "useful"
    NOT_USEFUL = "not_useful"
    WRONG_CAUSE = "wrong_cause"


@dataclass(frozen=True, slots=True)
class Feedback:
    """The verdict of one person on one spell of an alert; a later one of the same person takes its place.

    ``cause`` is the fault id of the right cause, with ``WRONG_CAUSE`` alone, None when it is not known.
    ``priority`` is the highest that the alert had when it was judged.
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
        """The same for every verdict of this person on this spell: 16 hex digits."""
        spelt = f"{self.fingerprint}\n{rfc3339(self.starts_at)}\n{self.by}"
        return hashlib.sha256(spelt.encode(errors="surrogatepass")).hexdigest()[:16]

    @property
    def was_justified(self) -> bool:
        """True when something was broken, whatever was named."""
        return self.verdict is not Usefulness.NOT_USEFUL

    def says_as(self, other: Feedback) -> bool:
        """True when both say the same, whenever it was said."""
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
    """A verdict on this spell of an alert. ``incident`` is that of the alert when it is not given.

    Raises UsageError for a fault that is none, a right cause beside another verdict, or a comment too long.
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
    """What verdicts say of a rule. Counted are occasions: all its alerts of one incident are one.

    ``useful`` had a reason and the right cause, ``wrong_cause`` a reason only. Where people disagree, the
    better verdict counts: somebody needed it. ``low`` and ``high`` are the 95 % interval of ``precision``.
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
        """The share that had a reason, 0-1."""
        return indicators.ratio(self.useful + self.wrong_cause, self.judged)

    @property
    def interval(self) -> tuple[float, float]:
        """Where the share lies with 95 %: (0, 1) without a verdict."""
        return indicators.wilson_interval(self.useful + self.wrong_cause, self.judged)


_BETTER = {Usefulness.NOT_USEFUL: 0, Usefulness.WRONG_CAUSE: 1, Usefulness.USEFUL: 2}


def by_rule(said: Iterable[Feedback]) -> tuple[RulePrecision, ...]:
    """The precision of every rule that was judged, the most judged first."""
    best: dict[tuple[str, str], Usefulness] = {}
    for one in said:
        occasion = (one.rule, one.incident or f"{one.fingerprint} {rfc3339(one.starts_at)}")
        known = best.get(occasion)
        if known is None or _BETTER[one.verdict] > _BETTER[known]:
            best[occasion] = one.verdict
    rules: dict[str, list[Usefulness]] = {}
    for (rule, _), verdict in best.items():
        rules.setdefault(rule, []).append(verdict)
    found = [
        RulePrecision(
            rule,
            verdicts.count(Usefulness.USEFUL),
            verdicts.count(Usefulness.WRONG_CAUSE),
            verdicts.count(Usefulness.NOT_USEFUL),
        )
        for rule, verdicts in rules.items()
    ]
    return tuple(sorted(found, key=lambda one: (-one.judged, one.rule)))


def page_counts(said: Iterable[Feedback], paged: Iterable[str]) -> tuple[int, int]:
    """(pages that had a reason, pages judged): a page is the first message of an incident of ``paged``."""
    ids = set(paged)
    reasons: dict[str, bool] = {}
    for one in said:
        if one.incident in ids:
            reasons[one.incident] = reasons.get(one.incident, False) or one.was_justified
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
        """Verdicts, newest first. ``since`` is about the instant they were given."""
        ...

    def feedback_values(self, ids: Sequence[str]) -> dict[str, Window]:
        """The values kept with verdicts, by id; without those that have none."""
        ...


class FeedbackStore(FeedbackReader, Protocol):
    """Verdicts, write side."""

    def save_feedback(self, said: Sequence[Feedback], values: Mapping[str, Window] | None = None) -> int:
        """Write verdicts in one transaction, audited; how many say something new. A later one replaces an earlier.

        ``values``: what the rule looked at, by id of the verdict.
        """
        ...
