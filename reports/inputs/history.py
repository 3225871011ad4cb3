"""Decisions of a week: incidents with their delays, alerts, pages, changes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import datetime

import numpy as np

from outrider.model import Action, ActionStatus, Alert, AlertReason, AlertState, EventKind, Incident
from outrider.ports import MetricStore, StateReader
from outrider.records.change_log import NOT_IN_SERVICE, ActorKind, change_of
from outrider.records.feedback import RulePrecision, by_rule, page_counts
from outrider.vocabulary import indicators

_EVERY = 1_000_000


@dataclass(frozen=True, slots=True)
class IncidentFigures:
    """One incident. Unix seconds, NaN for what did not happen (yet)."""

    incident: Incident
    start: float
    detected: float
    paged: float
    acknowledged: float
    recovered: float

    @property
    def detect_seconds(self) -> float | None:
        """From the first abnormal sample to the incident."""
        return indicators.mttd(np.array([self.start]), np.array([self.detected]))

    @property
    def acknowledge_seconds(self) -> float | None:
        """From the first page to the acknowledgement."""
        return indicators.mtta(np.array([self.paged]), np.array([self.acknowledged]))

    @property
    def recover_seconds(self) -> float | None:
        """From the first abnormal sample to the end."""
        return indicators.mttr(np.array([self.start]), np.array([self.recovered]))


@dataclass(frozen=True, slots=True)
class HistoryFigures:
    """All decisions of the week. Incidents and actions are newest first."""

    incidents: tuple[IncidentFigures, ...]
    actions: tuple[Action, ...]
    alerts_fired: int
    rules: tuple[tuple[str, int], ...]
    pages: int
    changes: int
    changes_automatic: int
    precisions: tuple[RulePrecision, ...] = ()
    pages_useful: int = 0
    pages_judged: int = 0

    def mean(self, name: str) -> float | None:
        """``mttd``, ``mtta`` or ``mttr`` over the incidents."""
        ends = {"mttd": ("start", "detected"), "mtta": ("paged", "acknowledged"), "mttr": ("start", "recovered")}
        first, last = (np.array([getattr(incident, field) for incident in self.incidents]) for field in ends[name])
        return indicators.mean_duration(first, last)


def read_history(state: StateReader, metrics: MetricStore, start: datetime, end: datetime) -> HistoryFigures:
    """Reads incidents opened, actions decided and alerts fired in [start, end)."""
    incidents = [
        incident for incident in state.incidents(since=start, limit=_EVERY) if start <= incident.opened_at < end
    ]
    alerts = {alert.fingerprint: alert for alert in state.alerts(since=start, limit=_EVERY)}
    fired = [alert for alert in alerts.values() if _fired(alert) and start <= alert.starts_at < end]
    actions = tuple(action for action in state.actions(since=start, limit=_EVERY) if start <= action.decided_at < end)
    done = [action for action in actions if action.status is ActionStatus.DONE]
    events = [change_of(event) for event in metrics.events(start, end) if event.kind is EventKind.CHANGE]
    changes = [change for change in events if change is not None and change.code not in NOT_IN_SERVICE]
    by_systems = sum(change.actor_kind is ActorKind.SYSTEM for change in changes)
    verdicts = [change for change in state.feedback(since=start, limit=_EVERY) if start <= change.starts_at < end]
    useful, judged = page_counts(verdicts, (incident.id for incident in incidents if incident.pages))
    return HistoryFigures(
        incidents=tuple(_incident(incident, alerts, state) for incident in incidents),
        actions=actions,
        alerts_fired=len(fired),
        rules=tuple(Counter(alert.rule for alert in fired).most_common()),
        pages=sum(incident.pages for incident in incidents),
        changes=len(done) + len(changes),
        changes_automatic=sum(action.approved_by is None for action in done) + by_systems,
        precisions=by_rule(verdicts),
        pages_useful=useful,
        pages_judged=judged,
    )


def _incident(incident: Incident, alerts: dict[str, Alert], state: StateReader) -> IncidentFigures:
    """Delays of an incident; it starts at its first abnormal sample: the earliest of its alerts and its timeline."""
    opened = incident.opened_at
    samples = [alerts[print_].starts_at for print_ in incident.alerts if print_ in alerts]
    samples += [entry.at for entry in incident.timeline]
    start = min([opened, *(at for at in samples if at <= opened)])
    return IncidentFigures(
        incident=incident,
        start=start.timestamp(),
        detected=opened.timestamp(),
        paged=_seconds(_paged_at(incident, state)),
        acknowledged=_seconds(incident.acknowledged_at),
        recovered=_seconds(incident.resolved_at),
    )


def _paged_at(incident: Incident, state: StateReader) -> datetime | None:
    if not incident.pages:
        return None
    sent = [message.created_at for message in state.messages(incident=incident.id) if message.is_page]
    return min(sent, default=incident.opened_at)


def _fired(alert: Alert) -> bool:
    if alert.state is AlertState.FIRING:
        return True
    return alert.state is AlertState.RESOLVED and alert.reason is not AlertReason.NEVER_FIRED


def _seconds(at: datetime | None) -> float:
    return float("nan") if at is None else at.timestamp()
