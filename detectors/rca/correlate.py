"""Correlates alerts into incidents: one fault, one suspected cause, all its symptoms below it.

Pure. Alerts become hypotheses. Each one is attached to the hypothesis that explains it best, and a connected group is
one incident. Independent faults on separate paths stay apart even if they overlap in time. A cause that is detected
late takes over its incident. An incident stays open while symptoms of its ended cause decay; a resolved one takes
nothing new. ``service`` calls it once a cycle, after the alert state machine.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import pairwise

from detectors.rca import aftermath, evidence_index, incident_lifecycle, symptoms
from detectors.rca.evidence_index import EvidenceIndex
from detectors.rca.fault_catalogue import Knowledge
from detectors.rca.hypotheses import (
    EXACT_LATENESS,
    USER_FACING,
    WINDOW,
    FaultHypothesis,
    Pair,
    TopologyRelation,
    began_inside,
    begins_later,
    comes_first,
    ended_before,
    gathered,
    has_exact_start,
    over,
    pairs,
)
from detectors.rca.incident_lifecycle import IncidentDraft
from outrider.model import Alert, EntityRef, Event, Finding, Incident, Layer
from outrider.topology import Topology
from outrider.vocabulary.faults import layer_of

ROUNDS = 4
BLIND_GRACE = timedelta(minutes=3)  # grace time after monitoring returns: its symptoms end within a few scrapes


def correlate(
    open_incidents: Sequence[Incident],
    alerts: Sequence[Alert],
    findings: Sequence[Finding],
    events: Sequence[Event],
    topology: Topology,
    knowledge: Knowledge,
    now: datetime,
    interval: timedelta = timedelta(0),
    *,
    unfinished: frozenset[str] = frozenset(),
) -> tuple[Incident, ...]:
    """Changed and new incidents, in order of opening.

    ``alerts`` are all pending and firing ones and those resolved since the last call; a missing firing alert counts as
    resolved. ``events`` should cover half an hour, so that changes count as possible causes. ``interval`` is the time
    between cycles. Incidents in ``unfinished`` stay open without an alert, and take the symptoms of their cause.
    Idempotent: a second call with its own result changes nothing.
    """
    index = evidence_index.build_index(alerts, findings, events, topology, knowledge, now, interval)
    firing = {alert.fingerprint: alert for alert in alerts if evidence_index.opens_incident(alert)}
    known = {incident.id for incident in open_incidents}
    standing = {incident.id: incident for incident in open_incidents if incident.resolved_at is None}
    answer: dict[str, Incident] = {}
    for _ in range(ROUNDS):  # a reassigned cause may explain another incident, so repeat
        changed = _once(tuple(standing.values()), alerts, firing, index, known, now, unfinished)
        if not changed:
            break
        for incident in changed:
            answer[incident.id] = standing[incident.id] = incident
            if incident.resolved_at is not None:
                del standing[incident.id]
    for incident in symptoms.attach_symptoms(tuple(standing.values()), alerts, index, now):
        answer[incident.id] = incident
    return _drop_absorbed(answer, {incident.id for incident in open_incidents})


def _drop_absorbed(answer: Mapping[str, Incident], known: set[str]) -> tuple[Incident, ...]:
    """Drops incidents opened and absorbed within one call, which were never reported."""
    unreported = {name for name, incident in answer.items() if name not in known and incident.resolved_at is not None}
    reported = []
    for name, incident in answer.items():
        if name in unreported:
            continue
        lines = tuple(entry for entry in incident.timeline if entry.arguments.get("incident") not in unreported)
        reported.append(incident if lines == incident.timeline else replace(incident, timeline=lines))
    return tuple(sorted(reported, key=lambda incident: (incident.opened_at, incident.id)))


def _once(
    standing: Sequence[Incident],
    alerts: Sequence[Alert],
    firing: Mapping[str, Alert],
    index: EvidenceIndex,
    known: set[str],
    now: datetime,
    unfinished: frozenset[str],
) -> tuple[Incident, ...]:
    held = sorted(standing, key=lambda incident: (incident.opened_at, incident.id))
    drafts = [incident_lifecycle.reopen(incident, firing, unfinished=incident.id in unfinished) for incident in held]
    for draft in drafts:
        _release_when_sighted(draft, now)
    aftermath.keep_open(drafts, alerts, index)
    taken = {fingerprint for draft in drafts if not draft.closed for fingerprint in draft.alive}
    fresh = [alert for fingerprint, alert in firing.items() if fingerprint not in taken]
    drafts += _assign(drafts, fresh, index, now)
    for draft in drafts:
        incident_lifecycle.settle(draft, index, now)
    _name_new(drafts, known)
    return tuple(draft.incident for draft in drafts if draft.incident is not draft.before)


def _release_when_sighted(draft: IncidentDraft, now: datetime) -> None:
    """Ends a monitoring outage as a cause once monitoring is back; remaining faults stand alone."""
    cause = draft.incident.suspected_cause
    if cause is None or layer_of(cause.fault) is not Layer.MONITORING or not draft.alive:
        return
    lasts = any(alert.entity == cause.entity and alert.fault == cause.fault for alert in draft.alive.values())
    marks = [
        entry
        for entry in draft.incident.timeline
        if entry.what in (incident_lifecycle.CAUSE_GONE, incident_lifecycle.CAUSE_BACK)
    ]
    gone = marks[-1] if marks and marks[-1].what == incident_lifecycle.CAUSE_GONE else None
    if lasts and gone is not None:
        draft.note(now, incident_lifecycle.CAUSE_BACK)
    elif not lasts and gone is None:
        draft.note(now, incident_lifecycle.CAUSE_GONE)
    elif not lasts and gone is not None and now - gone.at >= BLIND_GRACE:
        draft.close(now, incident_lifecycle.RELEASED, count=str(len(draft.alive)))
    draft.settled = not lasts


@dataclass(slots=True)
class _Forest:
    """Connected hypotheses, as union-find over their numbers."""

    parent: list[int]

    def root(self, number: int) -> int:
        while self.parent[number] != number:
            self.parent[number] = self.parent[self.parent[number]]
            number = self.parent[number]
        return number

    def join(self, one: int, other: int) -> None:
        first, second = sorted((self.root(one), self.root(other)))
        self.parent[second] = first


@dataclass(slots=True)
class _HypothesisBoard:
    """All hypotheses of one call.

    ``pinned`` are causes of open incidents with alerts. ``fixed`` are hypotheses already explained by such causes,
    which stay with them.
    """

    late: timedelta
    hypotheses: list[FaultHypothesis] = field(default_factory=list)
    pinned: set[int] = field(default_factory=set)
    fixed: set[int] = field(default_factory=set)

    def add(self, hypothesis: FaultHypothesis, *, marks: set[int] | None = None) -> None:
        if marks is not None:
            marks.add(len(self.hypotheses))
        self.hypotheses.append(hypothesis)

    def silent(self, number: int) -> bool:
        """True for a hypothesis from a detector or a change record without an alert."""
        return self.hypotheses[number].home is None and not self.hypotheses[number].alerts


def _assign(
    drafts: Sequence[IncidentDraft], fresh: Sequence[Alert], index: EvidenceIndex, now: datetime
) -> list[IncidentDraft]:
    """Attaches every new alert to an open incident or a new one; merges incidents that turn out to be one."""
    board = _board(drafts, fresh, index)
    result = list(pairs(board.hypotheses, index.reach, index.knowledge))
    by_symptom, by_cause = gathered(result, len(board.hypotheses))
    forest = _Forest(list(range(len(board.hypotheses))))
    first_of_home: dict[str, int] = {}
    for number, hypothesis in enumerate(board.hypotheses):
        if hypothesis.home is not None:
            forest.join(first_of_home.setdefault(hypothesis.home, number), number)
    orphans = []
    for number in range(len(board.hypotheses)):
        if board.silent(number):
            best = _oldest_home(by_cause[number], board)
        else:
            best = _best_parent(number, board, by_symptom[number], by_cause[number])
        if best is None:
            orphans.append(number)
        else:
            forest.join(best, number)
    for alternative, other in (*_alternatives(board, index.knowledge), *_same_service(orphans, board, index)):
        forest.join(alternative, other)
    groups: dict[int, list[int]] = {}
    for number in range(len(board.hypotheses)):
        groups.setdefault(forest.root(number), []).append(number)
    by_id = {draft.incident.id: draft for draft in drafts}
    by_fingerprint = {alert.fingerprint: alert for alert in fresh}
    opened = [_gather(board, group, by_id, by_fingerprint, now) for group in groups.values()]
    _note_candidates(drafts, opened, board, by_symptom)
    return [draft for draft in opened if draft is not None and draft.before is None]


def _board(drafts: Sequence[IncidentDraft], fresh: Sequence[Alert], index: EvidenceIndex) -> _HypothesisBoard:
    board = _HypothesisBoard(late=index.late)
    for draft in drafts:
        if draft.closed or not (draft.alive or draft.unfinished):
            continue
        cause = incident_lifecycle.cause_hypothesis(draft, index)
        backed = incident_lifecycle.is_backed(draft)
        if cause is not None:
            board.add(cause, marks=board.pinned if backed else board.fixed)
        elif not draft.alive:
            for symptom in aftermath.unexplained(draft, index):
                board.add(symptom)
        for alert in draft.alive.values():
            if cause is None or (alert.entity, alert.fault) != (cause.entity, cause.fault):
                board.add(_hypothesis(alert, draft.incident.id, index), marks=board.fixed if backed else None)
    spoken: dict[tuple[EntityRef, str | None], list[Alert]] = {}
    for alert in fresh:
        spoken.setdefault((alert.entity, alert.fault), []).append(alert)
    for same in spoken.values():
        first = min(same, key=lambda alert: (alert.starts_at, alert.fingerprint))
        prints = tuple(sorted(alert.fingerprint for alert in same))
        board.add(replace(_hypothesis(first, None, index), alerts=prints, over=over(same)))
    named = {(hypothesis.entity, hypothesis.fault) for hypothesis in board.hypotheses}
    for standing in index.standing.values():
        for hypothesis in standing:
            if not hypothesis.firing and (hypothesis.entity, hypothesis.fault) not in named:
                named.add((hypothesis.entity, hypothesis.fault))
                board.add(replace(hypothesis, alerts=()))
    return board


def _hypothesis(alert: Alert, home: str | None, index: EvidenceIndex) -> FaultHypothesis:
    since, prints = index.since(alert), (alert.fingerprint,)
    return FaultHypothesis(
        alert.entity, alert.fault, since, evidence_index.ALERT_STRENGTH, True, prints, home, over((alert,))
    )


def _best_parent(
    number: int, board: _HypothesisBoard, explained_by: Sequence[Pair], explains: Sequence[Pair]
) -> int | None:
    """The hypothesis that explains this one best; None if none does or may take it over."""
    if number in board.fixed:
        return None
    hypothesis = board.hypotheses[number]
    returned = {pair.symptom for pair in explains}
    choices = []
    for pair in explained_by:
        cause = board.hypotheses[pair.cause]
        if pair.cause in returned and not comes_first(cause, hypothesis):
            continue
        if hypothesis.home is not None and not _may_move(cause, pair, board):
            continue
        apart = abs(hypothesis.since - cause.since)
        later = begins_later(cause, hypothesis, board.late)
        lasted = began_inside(cause, hypothesis)
        choices.append((not lasted, apart > WINDOW, pair.tie, later, cause.depth, apart, cause.order, pair.cause))
    return min(choices)[-1] if choices else None


def _oldest_home(explains: Sequence[Pair], board: _HypothesisBoard) -> int | None:
    """The home of a suggestion: the oldest open incident that it could explain."""
    homes = [pair.symptom for pair in explains if board.hypotheses[pair.symptom].home is not None]
    return min(homes, default=None)


def _may_move(cause: FaultHypothesis, pair: Pair, board: _HypothesisBoard) -> bool:
    """True if a cause may take over an open incident: only if it fires, and from another incident only on the path."""
    if not cause.firing:
        return False
    if cause.home is None:
        return True
    return pair.cause in board.pinned and pair.tie in (TopologyRelation.CLUSTER, TopologyRelation.PATH)


def _alternatives(board: _HypothesisBoard, knowledge: Knowledge) -> Iterable[tuple[int, int]]:
    """Pairs of similar faults of one entity, which are alternatives of one question."""
    at: dict[EntityRef, list[int]] = {}
    for number, hypothesis in enumerate(board.hypotheses):
        if hypothesis.fault in knowledge and (hypothesis.alerts or hypothesis.home):
            at.setdefault(hypothesis.entity, []).append(number)
    for numbers in at.values():
        for place, item in enumerate(numbers):
            for other in numbers[place + 1 :]:
                first, second = board.hypotheses[item], board.hypotheses[other]
                if first.home is not None and second.home is not None:
                    continue
                window = EXACT_LATENESS if has_exact_start(first) and has_exact_start(second) else WINDOW
                near = abs(first.since - second.since) <= window
                near = near and not (ended_before(first, second) or ended_before(second, first))
                if first.fault == second.fault or (near and _alike(first, second, knowledge)):
                    yield item, other


def _alike(first: FaultHypothesis, second: FaultHypothesis, knowledge: Knowledge) -> bool:
    return knowledge[first.fault or ""].resembles(second.fault or "") or knowledge[second.fault or ""].resembles(
        first.fault or ""
    )


def _same_service(orphans: Sequence[int], board: _HypothesisBoard, index: EvidenceIndex) -> Iterable[tuple[int, int]]:
    """Pairs of symptoms without a known fault that affect users of one service within the time window."""
    by_place: dict[EntityRef, list[int]] = {}
    for number in orphans:
        hypothesis = board.hypotheses[number]
        if hypothesis.fault is not None or number in board.fixed:
            continue
        by_place.setdefault(hypothesis.entity, []).append(number)
        if hypothesis.entity.kind in USER_FACING:
            for service in index.reach.services(hypothesis.entity):
                if service != hypothesis.entity:
                    by_place.setdefault(service, []).append(number)
    for numbers in by_place.values():
        numbers.sort(key=lambda number: board.hypotheses[number].order[1:])
        for item, other in pairwise(numbers):
            first, second = board.hypotheses[item], board.hypotheses[other]
            if second.since - first.since <= WINDOW and not (first.home and second.home):
                yield item, other


def _gather(
    board: _HypothesisBoard,
    group: Sequence[int],
    by_id: Mapping[str, IncidentDraft],
    fresh: Mapping[str, Alert],
    now: datetime,
) -> IncidentDraft | None:
    """The incident of one group: its oldest open one, else a new one; None if nothing in it fires."""
    homes = sorted(
        {home for number in group if (home := board.hypotheses[number].home) is not None},
        key=lambda home: (by_id[home].incident.opened_at, home),
    )
    joining = {
        fingerprint: fresh[fingerprint]
        for number in group
        for fingerprint in board.hypotheses[number].alerts
        if fingerprint in fresh
    }
    if not homes and not joining:
        return None
    draft = by_id[homes[0]] if homes else incident_lifecycle.new_draft(now)
    draft.numbers.update(group)
    draft.take(joining, now)
    for home in homes[1:]:
        draft.absorb(by_id[home], now)
    return draft


def _note_candidates(
    drafts: Sequence[IncidentDraft],
    opened: Sequence[IncidentDraft | None],
    board: _HypothesisBoard,
    by_symptom: Sequence[Sequence[Pair]],
) -> None:
    """Adds hypotheses without alerts to each incident in which they explain something.

    A monitoring outage is excluded: its end is read from its alert, so it needs one.
    """
    touched = {id(draft): draft for draft in (*drafts, *opened) if draft is not None}
    for draft in touched.values():
        for number in sorted(draft.numbers):
            for candidate in (number, *(pair.cause for pair in by_symptom[number])):
                hypothesis = board.hypotheses[candidate]
                if board.silent(candidate) and layer_of(hypothesis.fault) is not Layer.MONITORING:
                    draft.candidates.setdefault((hypothesis.entity, hypothesis.fault), hypothesis)


def _name_new(drafts: Sequence[IncidentDraft], known: set[str]) -> None:
    """Assigns ids last, since they derive from the suspected cause."""
    for draft in drafts:
        if draft.before is None:
            incident = draft.incident
            draft.incident = replace(incident, id=incident_lifecycle.identify(incident, known))
            known.add(draft.incident.id)
