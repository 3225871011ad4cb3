"""Alerts of other monitors, received by webhook: the record, and the effect of one more delivery. Pure.

Senders deliver at least once and in any order. The fingerprint identifies an alert, not its group or its delivery.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Protocol

from outrider.model import AlertState, Priority
from outrider.wire.cursors import Position

LATE_WITHIN = timedelta(minutes=5)
"""A repeated start within this time after the end was sent before the end and arrived after it."""
_TICK = timedelta(microseconds=1)


class ReceiptOutcome(StrEnum):
    """Effect of a delivered alert."""

    NEW = "new"
    REPEATED = "repeated"
    RESOLVED = "resolved"
    LATE = "late"


@dataclass(frozen=True, slots=True)
class ReceivedAlert:
    """One alert of another monitor, with its newest state.

    ``fingerprint`` is that of its source. ``reported_at`` is the start as reported, its arrival if there is none.
    ``starts_at`` is never later than its arrival. ``expires_at`` ends an alert that its source does not repeat; None:
    only the source ends it. ``resolves_group``: this end applies to every alert of ``group``. ``fault`` is that of the
    configured names.
    """

    source: str
    fingerprint: str
    name: str
    state: AlertState
    priority: Priority
    starts_at: datetime
    reported_at: datetime
    received_at: datetime
    ends_at: datetime | None = None
    expires_at: datetime | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    summary: str = ""
    description: str = ""
    url: str = ""
    runbook: str = ""
    fault: str | None = None
    group: str = ""
    resolves_group: bool = False
    deliveries: int = 1

    @property
    def id(self) -> str:
        """Key of the alert across its occurrences: 16 hex digits."""
        return received_id(self.source, self.fingerprint)

    @property
    def is_firing(self) -> bool:
        """True until its source reports the end, or it expires."""
        return self.state is AlertState.FIRING


@dataclass(frozen=True, slots=True)
class Receipt:
    """Result of a delivery: alerts by outcome. ``full``: nothing was stored, because too many alerts are open."""

    counts: Mapping[ReceiptOutcome, int] = field(default_factory=dict)
    full: bool = False


class ReceivedAlertReader(Protocol):
    """Read side of the received alerts."""

    def received_alerts(
        self,
        *,
        states: Sequence[AlertState] | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[ReceivedAlert, ...]:
        """Received alerts with their newest occurrence, newest start first."""
        ...

    def received_alert(self, received_id: str) -> ReceivedAlert | None:
        """A received alert; None if unknown."""
        ...


class ReceivedAlertStore(ReceivedAlertReader, Protocol):
    """Write side of the received alerts."""

    def receive_alerts(self, alerts: Sequence[ReceivedAlert], most_open: int) -> Receipt:
        """Merges delivered alerts in one transaction. Stores nothing if more than ``most_open`` would be firing."""
        ...

    def expire_received_alerts(self, now: datetime) -> int:
        """Resolves the alerts that their source stopped repeating; returns their number."""
        ...


def received_id(source: str, fingerprint: str) -> str:
    """The key of an alert of a source: 16 hex digits."""
    return hashlib.sha256(f"received\n{source}\n{fingerprint}".encode(errors="surrogatepass")).hexdigest()[:16]


def merged(stored: ReceivedAlert | None, incoming: ReceivedAlert) -> tuple[ReceivedAlert, ReceiptOutcome]:
    """The alert after a delivery, and the effect; an alert that is unchanged is ``stored`` itself."""
    if stored is None:
        return incoming, ReceiptOutcome.NEW if incoming.is_firing else ReceiptOutcome.RESOLVED
    if incoming.is_firing:
        return _repeated(stored, incoming) if stored.is_firing else _again(stored, incoming)
    if not stored.is_firing:
        return stored, ReceiptOutcome.REPEATED
    ends = incoming.ends_at or incoming.received_at
    reports_start = incoming.reported_at != incoming.received_at
    if reports_start and incoming.reported_at < stored.reported_at and ends <= stored.starts_at:
        return stored, ReceiptOutcome.LATE  # the end of an earlier occurrence
    return ended(stored, max(ends, stored.starts_at), incoming.received_at), ReceiptOutcome.RESOLVED


def merge_all(
    stored: Mapping[str, ReceivedAlert], incoming: Iterable[ReceivedAlert]
) -> tuple[dict[str, ReceivedAlert], dict[ReceiptOutcome, int]]:
    """The changed alerts by id, and the number of deliveries by outcome.

    ``stored`` holds at least the alerts with the ids and groups of ``incoming``.
    """
    known, changed = dict(stored), dict[str, ReceivedAlert]()
    counts = dict.fromkeys(ReceiptOutcome, 0)
    for alert in incoming:
        if alert.resolves_group:
            same_group = [item for item in known.values() if item.is_firing and _in_group(item, alert)]
            for item in same_group:
                changed[item.id] = known[item.id] = ended(
                    item, max(alert.ends_at or alert.received_at, item.starts_at), alert.received_at
                )
            counts[ReceiptOutcome.RESOLVED] += len(same_group)
            continue
        before = known.get(alert.id)
        after, outcome = merged(before, alert)
        counts[outcome] += 1
        if after is not before:
            changed[alert.id] = known[alert.id] = after
    return changed, {outcome: count for outcome, count in counts.items() if count}


def ended(alert: ReceivedAlert, ends_at: datetime, received_at: datetime) -> ReceivedAlert:
    """The alert after its end."""
    return replace(alert, state=AlertState.RESOLVED, ends_at=ends_at, expires_at=None, received_at=received_at)


def _in_group(alert: ReceivedAlert, end: ReceivedAlert) -> bool:
    return bool(end.group) and alert.source == end.source and alert.group == end.group


def _repeated(stored: ReceivedAlert, incoming: ReceivedAlert) -> tuple[ReceivedAlert, ReceiptOutcome]:
    repeated = replace(incoming, starts_at=stored.starts_at, deliveries=stored.deliveries + 1)
    return repeated, ReceiptOutcome.REPEATED


def _again(stored: ReceivedAlert, incoming: ReceivedAlert) -> tuple[ReceivedAlert, ReceiptOutcome]:
    """A start after an end: a new occurrence, unless it was sent before the end. Clocks of senders may step back."""
    same = incoming.reported_at <= stored.reported_at
    if same and abs(incoming.received_at - stored.received_at) <= LATE_WITHIN:
        return stored, ReceiptOutcome.LATE
    starts = incoming.received_at if same else min(max(incoming.starts_at, stored.ends_at or incoming.starts_at),
                                                   incoming.received_at)  # fmt: skip
    if starts == stored.starts_at:  # two occurrences need two keys
        starts += _TICK
    return replace(incoming, starts_at=starts), ReceiptOutcome.NEW
