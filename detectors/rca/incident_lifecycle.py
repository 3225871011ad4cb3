"""Lifecycle of one incident within one call of ``correlate``: join, absorb, rank, resolve."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta

from detectors.base.changes import CHANGE_TEXT
from detectors.rca import change_evidence, evidence_index, ranking
from detectors.rca.evidence_index import EvidenceIndex
from detectors.rca.hypotheses import WINDOW, FaultHypothesis, has_exact_start, over
from outrider.clock import rfc3339
from outrider.model import (
    CAUSE_OVER,
    CAUSE_RETURNED,
    Alert,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    Layer,
    Priority,
    RejectedHypothesis,
    TimelineEntry,
)
from outrider.vocabulary.faults import layer_of

OPENED = "incidents.timeline.opened"
JOINED = "incidents.timeline.joined"
CAUSE_NAMED = "incidents.timeline.cause_named"
CAUSE_CHANGED = "incidents.timeline.cause_changed"
CAUSE_GONE = "incidents.timeline.cause_gone"
CAUSE_BACK = "incidents.timeline.cause_back"
PRIORITY_RAISED = "incidents.timeline.priority_raised"
ABSORBED = "incidents.timeline.absorbed"
ABSORBED_INTO = "incidents.timeline.absorbed_into"
RELEASED = "incidents.timeline.released"
RESOLVED = "incidents.timeline.resolved"

REMEMBERED_STRENGTH = 0.75  # strength of a cause whose own alert ended while its symptoms last
REPORTED_CHANGE = 0.1  # smaller changes of a confidence do not update the incident

_LAYER_OF_KIND = {
    EntityKind.GPU: Layer.HARDWARE,
    EntityKind.PORT: Layer.HARDWARE,
    EntityKind.SWITCH: Layer.HARDWARE,
    EntityKind.REPLICA: Layer.ENGINE,
    EntityKind.SERVICE: Layer.BUSINESS,
    EntityKind.TENANT: Layer.BUSINESS,
}
_MONITORS = ("targets", "watchdogs")  # namespaces of scrape targets and of other monitors


@dataclass(slots=True)
class IncidentDraft:
    """An incident being processed. ``before`` is None for a new one; ``alive`` are its firing alerts.

    ``unfinished``: it stays open without an alert.
    """

    incident: Incident
    before: Incident | None
    alive: dict[str, Alert]
    candidates: dict[tuple[EntityRef, str | None], FaultHypothesis] = field(default_factory=dict)
    numbers: set[int] = field(default_factory=set)
    closed: bool = False
    settled: bool = False  # its cause is not ranked again in this call
    unfinished: bool = False

    def note(self, at: datetime, text: str, **arguments: str) -> None:
        """Adds a timeline entry; ``text`` is its key."""
        entry = TimelineEntry(at, text, arguments)
        self.incident = replace(self.incident, timeline=(*self.incident.timeline, entry))

    def take(self, joining: Mapping[str, Alert], now: datetime) -> None:
        """Adds alerts; one timeline entry covers all that join an open incident at the same time."""
        if not joining:
            return
        self.alive.update(joining)
        missing = [fingerprint for fingerprint in sorted(joining) if fingerprint not in self.incident.alerts]
        if self.incident.alerts:
            first = joining[min(joining, key=lambda key: (joining[key].priority.rank, joining[key].starts_at, key))]
            what = first.fault or first.rule
            self.note(now, JOINED, count=str(len(joining)), what=what, entity=str(first.entity))
        self.incident = replace(self.incident, alerts=(*self.incident.alerts, *missing))

    def absorb(self, other: IncidentDraft, now: datetime) -> None:
        """Merges another open incident that turned out to be the same one."""
        moved = {key: alert for key, alert in other.alive.items() if key not in self.alive}
        self.alive.update(moved)
        merged = dict.fromkeys((*self.incident.alerts, *moved))
        services = sorted({*self.incident.services, *other.incident.services})
        self.incident = replace(self.incident, alerts=tuple(merged), services=tuple(services))
        self.candidates.update(
            {key: candidate for key, candidate in other.candidates.items() if key not in self.candidates}
        )
        self.note(now, ABSORBED, incident=other.incident.id)
        other.close(now, ABSORBED_INTO, incident=self.incident.id)

    def close(self, now: datetime, text: str, **arguments: str) -> None:
        """Resolves at once; alerts that still fire leave the incident."""
        self.note(now, text, **arguments)
        left = tuple(key for key in self.incident.alerts if key not in self.alive)
        self.incident = replace(self.incident, alerts=left, resolved_at=now, updated_at=now)
        self.alive = {}
        self.closed = True


def reopen(incident: Incident, firing: Mapping[str, Alert], *, unfinished: bool = False) -> IncidentDraft:
    """Loads an open incident with its alerts that still fire."""
    alive = {fingerprint: firing[fingerprint] for fingerprint in incident.alerts if fingerprint in firing}
    return IncidentDraft(incident, incident, alive, unfinished=unfinished)


def new_draft(now: datetime) -> IncidentDraft:
    """A new incident without id, cause and alerts."""
    empty = Incident(
        id="",
        layer=Layer.PLATFORM,
        priority=Priority.P3,
        opened_at=now,
        hypotheses=(),
        rejected=(),
        alerts=(),
        timeline=(),
        updated_at=now,
    )
    return IncidentDraft(empty, None, {})


def identify(incident: Incident, known: set[str]) -> str:
    """``inc-20261121T0805-3f2a9c`` from opening, suspected entity and fault; longer if that id is taken."""
    cause = incident.suspected_cause
    what = f"{cause.entity.key}|{cause.fault}" if cause else "|".join(sorted(incident.alerts))
    digest = hashlib.sha256(f"{incident.opened_at.isoformat()}|{what}".encode()).hexdigest()
    for length in range(6, len(digest)):
        name = f"inc-{incident.opened_at:%Y%m%dT%H%M}-{digest[:length]}"
        if name not in known:
            return name
    return f"inc-{incident.opened_at:%Y%m%dT%H%M}-{digest}"


def cause_hypothesis(draft: IncidentDraft, index: EvidenceIndex) -> FaultHypothesis | None:
    """The suspected cause as a hypothesis; not firing without a firing alert of its own."""
    cause = draft.incident.suspected_cause
    if cause is None:
        return None
    own = [alert for alert in draft.alive.values() if alert.entity == cause.entity and alert.fault == cause.fault]
    standing = index.hypothesis(cause.entity, cause.fault)
    since = min((index.since(alert) for alert in own), default=standing.since if standing else draft.incident.opened_at)
    ended = over(own) if own else _end(draft, cause, index)
    candidate = FaultHypothesis(
        cause.entity, cause.fault, since, REMEMBERED_STRENGTH, bool(own), home=draft.incident.id, over=ended
    )
    opened = draft.incident.opened_at
    if timedelta(0) < since - opened <= WINDOW and not has_exact_start(candidate):
        return replace(candidate, since=opened)  # its alert returned or came late: earlier symptoms have the same cause
    return candidate


def _end(draft: IncidentDraft, cause: Hypothesis, index: EvidenceIndex) -> datetime | None:
    """When a suspected cause without a firing alert ended, also in this very cycle."""
    ends = [draft.incident.cause_ended_at, index.ended.get((cause.entity, cause.fault))]
    return max((end for end in ends if end is not None), default=None)


def is_backed(draft: IncidentDraft) -> bool:
    """False if the suspected cause is a guess from a change record; any hypothesis with an alert may replace it.

    Also False for a fault that the vocabulary no longer contains: its effects are unknown.
    """
    cause = draft.incident.suspected_cause
    if cause is None or layer_of(cause.fault) is None:
        return False
    has_alert = any(alert.entity == cause.entity and alert.fault == cause.fault for alert in draft.alive.values())
    return has_alert or not _is_guess(cause)


def _is_guess(cause: Hypothesis) -> bool:
    """True if only a change, a log line or a look-alike suggests it."""
    texts = [item.text for item in cause.evidence]
    if "incidents.evidence.not_told_apart" in texts:
        return True
    hinted = any(text.startswith((CHANGE_TEXT, change_evidence.LOG_TEXT)) for text in texts)
    return hinted and (
        cause.fault in evidence_index.CHANGE_FAULTS or not any(text.startswith("findings.") for text in texts)
    )


def settle(draft: IncidentDraft, index: EvidenceIndex, now: datetime) -> None:
    """Ranks the causes, raises the priority, or resolves. Leaves an unchanged incident as it is."""
    if draft.closed:
        return
    if not draft.alive:
        if draft.before is not None and not draft.unfinished:
            draft.close(now, RESOLVED)
        elif draft.before is not None:
            _note_end(draft, index, now)
        return
    start = draft.incident
    _note_end(draft, index, now)
    if draft.before is None:
        _open(draft, now)
    if not draft.settled:
        _judge(draft, index, now)
    _raise_priority(draft, now)
    services = {service.name for alert in draft.alive.values() for service in index.reach.services(alert.entity)}
    cause = draft.incident.suspected_cause
    if cause is not None:
        services |= {service.name for service in index.reach.services(cause.entity)}
    merged = tuple(sorted(services.union(draft.incident.services)))
    if merged != draft.incident.services:
        draft.incident = replace(draft.incident, services=merged)
    if draft.incident is not start or draft.incident is not draft.before:
        draft.incident = replace(draft.incident, updated_at=now)


def _note_end(draft: IncidentDraft, index: EvidenceIndex, now: datetime) -> None:
    """Records that the last alert of the suspected cause resolved while the incident stays open, and its return.

    A monitoring outage has entries of its own.
    """
    cause = draft.incident.suspected_cause
    if cause is None or layer_of(cause.fault) is Layer.MONITORING:
        return
    named = {"fault": cause.fault, "entity": str(cause.entity)}
    own = any((alert.entity, alert.fault) == (cause.entity, cause.fault) for alert in draft.alive.values())
    recorded, last = draft.incident.cause_ended_at, index.ended.get((cause.entity, cause.fault))
    if own and recorded is not None:
        draft.note(now, CAUSE_RETURNED, **named)
    elif not own and last is not None and (recorded is None or recorded < last):
        draft.note(now, CAUSE_OVER, **named, last=rfc3339(last))


def _open(draft: IncidentDraft, now: datetime) -> None:
    first = min(draft.alive.values(), key=lambda alert: (alert.starts_at, alert.fingerprint))
    entry = TimelineEntry(
        now,
        OPENED,
        {
            "what": first.fault or first.rule,
            "entity": str(first.entity),
            "since": f"{first.starts_at:%H:%M:%S}",
            "count": str(len(draft.alive)),
        },
    )
    best = min((alert.priority for alert in draft.alive.values()), key=lambda priority: priority.rank)
    layer = _layer_of(first.entity)
    draft.incident = replace(draft.incident, timeline=(entry, *draft.incident.timeline), priority=best, layer=layer)


def _layer_of(entity: EntityRef) -> Layer:
    """The layer of an incident without a cause, by the entity of its first alert."""
    if entity.kind is EntityKind.WORKLOAD and entity.namespace in _MONITORS:
        return Layer.MONITORING
    return _LAYER_OF_KIND.get(entity.kind, Layer.PLATFORM)


def _judge(draft: IncidentDraft, index: EvidenceIndex, now: datetime) -> None:
    candidates = _candidates(draft, index)
    old = draft.incident.suspected_cause
    remembered = _remembered(draft, index)
    hypotheses, rejected = ranking.ranked((*candidates, *remembered), index)
    if remembered and hypotheses and old is not None and not _same(old, hypotheses[0]):
        # an overtaken cause no longer counts against current ones
        hypotheses, rejected = ranking.ranked(candidates, index)
    if not hypotheses or not _differs(draft.incident.hypotheses, hypotheses):
        return
    new = hypotheses[0]
    if old is not None and not _same(old, new) and _is_over(new, candidates):
        return  # an ended cause takes nothing over: the end of its finding is not evidence
    layer = layer_of(new.fault) or draft.incident.layer
    draft.incident = replace(draft.incident, hypotheses=hypotheses, rejected=_sorted(rejected), layer=layer)
    arguments = {"fault": new.fault, "entity": str(new.entity)}
    if old is None:
        if draft.before is not None:
            draft.note(now, CAUSE_NAMED, **arguments)
    elif not _same(old, new):
        draft.note(now, CAUSE_CHANGED, **arguments, old_fault=old.fault, old_entity=str(old.entity))


def _same(first: Hypothesis, second: Hypothesis) -> bool:
    return (first.entity, first.fault) == (second.entity, second.fault)


def _is_over(cause: Hypothesis, candidates: Sequence[FaultHypothesis]) -> bool:
    """True if every alert of a cause waits for its clear time."""
    same = [candidate for candidate in candidates if (candidate.entity, candidate.fault) == (cause.entity, cause.fault)]
    return bool(same) and all(item.over is not None for item in same)


def _candidates(draft: IncidentDraft, index: EvidenceIndex) -> list[FaultHypothesis]:
    """Current hypotheses: firing alerts, and suggestions of detectors or change records."""
    alerted = [
        FaultHypothesis(
            alert.entity,
            alert.fault,
            index.since(alert),
            evidence_index.ALERT_STRENGTH,
            True,
            (alert.fingerprint,),
            over=over((alert,)),
        )
        for alert in draft.alive.values()
    ]
    named = {(candidate.entity, candidate.fault) for candidate in alerted}
    candidates = [candidate for key, candidate in sorted(draft.candidates.items(), key=_by_key) if key not in named]
    named |= {(candidate.entity, candidate.fault) for candidate in candidates}
    hinted = index.suggestions({alert.entity for alert in draft.alive.values()})
    return (
        alerted + candidates + [candidate for candidate in hinted if (candidate.entity, candidate.fault) not in named]
    )


def _remembered(draft: IncidentDraft, index: EvidenceIndex) -> tuple[FaultHypothesis, ...]:
    """The suspected cause, if its own alert ended while others of the incident continue."""
    cause = draft.incident.suspected_cause
    if cause is None or (cause.entity, cause.fault) in draft.candidates:
        return ()
    if any((alert.entity, alert.fault) == (cause.entity, cause.fault) for alert in draft.alive.values()):
        return ()
    standing = index.hypothesis(cause.entity, cause.fault)
    if standing is not None:
        return (replace(standing, alerts=()),)
    strength = change_evidence.CHANGE_STRENGTH if _is_guess(cause) else REMEMBERED_STRENGTH
    ended = _end(draft, cause, index)
    return (FaultHypothesis(cause.entity, cause.fault, draft.incident.opened_at, strength, firing=False, over=ended),)


def _by_key(item: tuple[tuple[EntityRef, str | None], FaultHypothesis]) -> tuple[str, str]:
    return (item[0][0].key, item[0][1] or "")


def _differs(old: tuple[Hypothesis, ...], new: tuple[Hypothesis, ...]) -> bool:
    if [(item.entity, item.fault) for item in old] != [(item.entity, item.fault) for item in new]:
        return True
    return any(abs(item.confidence - other.confidence) > REPORTED_CHANGE for item, other in zip(old, new, strict=True))


def _sorted(rejected: tuple[RejectedHypothesis, ...]) -> tuple[RejectedHypothesis, ...]:
    return tuple(sorted(rejected, key=lambda item: (item.fault, item.entity.key)))


def _raise_priority(draft: IncidentDraft, now: datetime) -> None:
    best = min((alert.priority for alert in draft.alive.values()), key=lambda priority: priority.rank)
    held = draft.incident.priority
    if best.rank < held.rank:
        draft.note(now, PRIORITY_RAISED, old=held.value, new=best.value)
        draft.incident = replace(draft.incident, priority=best)
