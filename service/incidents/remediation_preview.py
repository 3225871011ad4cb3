"""The steps of a playbook with the answer of every guard and the exact requests. Decides and records nothing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any

from outrider.documents import serialization
from outrider.errors import ActuationError, UsageError
from outrider.model import (
    Action,
    ActionRequest,
    ActionStatus,
    EntityKind,
    EntityRef,
    HoldReason,
    Hypothesis,
    Incident,
    Priority,
    SignalKey,
    Verdict,
    Window,
)
from outrider.ports import Actuator, MetricStore, StateReader
from outrider.text import yaml_file
from outrider.text.i18n import translate
from outrider.topology import Topology
from outrider.vocabulary.faults import faults
from remediation.decide.degrade_preview import PreviewedLevel
from remediation.decide.guards import GuardAnswer
from remediation.decide.history import WAITING, History
from remediation.decide.policy import Policy, preview, preview_levels
from remediation.playbooks.model import Playbook, Step
from remediation.procedures.bundle import NONE, Procedures
from service.engine import fleet_state
from service.engine.inputs import EVENTS_WINDOW
from service.incidents import entity_lookup

_SPAN = timedelta(hours=24)
_PENDING = (ActionStatus.PROPOSED, ActionStatus.WAITING_APPROVAL, ActionStatus.INTENDED, ActionStatus.CLAIMED)


@dataclass(frozen=True, slots=True)
class PlannedAction:
    """One step. ``error`` explains why its requests are unknown; empty if they are known.

    ``step`` is that of the playbook, None for another pending action; ``missing`` its unmet precondition. ``ladder`` is
    the degrade ladder of a change of level. ``held`` is the reason for which it would not be decided now, although the
    guards do not refuse it; None if it would be, or is already.
    """

    action: Action
    guards: tuple[GuardAnswer, ...]
    requests: tuple[ActionRequest, ...]
    error: str = ""
    step: Step | None = None
    missing: str = ""
    ladder: PreviewedLevel | None = None

    @property
    def held(self) -> HoldReason | None:
        """A precondition or a threshold that is not met."""
        if self.action.status is not ActionStatus.PROPOSED or self.action.decision is Verdict.REFUSED:
            return None
        if self.missing:
            return HoldReason.PRECONDITION_NOT_MET
        return HoldReason.NOT_DUE_YET if self.ladder is not None and self.ladder.obstacles else None


@dataclass(frozen=True, slots=True)
class _StoredValues:
    """Values before the newest stored cycle."""

    metrics: MetricStore
    interval: timedelta
    now: datetime

    def window(self, kind: EntityKind, keys: Sequence[SignalKey], span: timedelta) -> Window:
        """Returns the values of ``span`` before the newest cycle, oldest first."""
        return self.metrics.read_windows(kind, keys, self.now - span, self.now, self.interval)


class RemediationPreview:
    """Previews on one stored state."""

    def __init__(
        self,
        state: StateReader,
        metrics: MetricStore,
        actuator: Actuator,
        policy: Policy,
        playbooks: Mapping[str, Playbook],
        interval: timedelta,
        *,
        procedures: Procedures = NONE,
        killed: bool = False,
    ) -> None:
        """``interval`` is that of the cycle; the newest cycle is the time of the preview. ``killed``: kill switch."""
        self._playbooks, self._procedures = playbooks, procedures
        cycles = state.cycles(limit=1)
        if not cycles:
            raise UsageError("the store has no cycle yet", hint="start outrider serve, then try again")
        self._actuator, self._policy, self._now = actuator, policy, cycles[0].at + interval
        sessions = state.sessions()
        self._alerts, self._incidents = fleet_state.active_alerts(state), fleet_state.open_incidents(state)
        self._topology, self._plan = state.topology(), state.plan()
        self._pending = state.actions(statuses=_PENDING, limit=fleet_state.UNLIMITED)
        self._recent = fleet_state.weighed_actions(state, sessions, self._now - _SPAN)
        self._facts = fleet_state.fleet_facts(
            self._incidents,
            self._alerts,
            self._plan,
            self._topology,
            _StoredValues(metrics, interval, self._now),
            sessions=sessions,
            paused=state.paused(),
            events=tuple(metrics.events(self._now - EVENTS_WINDOW, self._now)),
            killed=killed,
            breaker=state.breaker(),
        )

    def of_fault(self, fault: str, entity: str) -> list[PlannedAction]:
        """Returns the steps for a fault of an entity. Raises UsageError if one is unknown, or without playbook."""
        known = faults().get(fault)
        if known is None:
            raise UsageError(f"unknown fault {fault!r}{yaml_file.near(fault, faults())}", hint="outrider drill list")
        playbook = self._playbooks.get(fault)
        if playbook is None:
            raise UsageError(f"{fault} has no playbook", hint=f"its remedy is manual: see docs/runbooks/{fault}.md")
        if not playbook.steps:
            raise UsageError(f"{fault} has no automatic remedy", hint=translate(playbook.none))
        target = entity_named(self._topology, entity, known.entity)
        cause = Hypothesis(target, fault, 1.0)
        return self._of(Incident("preview", known.layer, Priority.P1, self._now, (cause,), (), (), (), self._now))

    def of_open_incidents(self) -> list[PlannedAction]:
        """Returns the steps for every open incident with a playbook, and the other pending actions."""
        planned: list[PlannedAction] = []
        for incident in self._incidents:
            cause = incident.suspected_cause
            if cause is not None and cause.fault in self._playbooks:
                planned += self._of(incident)
        shown = {row.action.id for row in planned}
        return planned + [self._row(action, ()) for action in self._pending if action.id not in shown]

    def _of(self, incident: Incident) -> list[PlannedAction]:
        """The steps of one incident; the newest recorded action takes the place of its step."""
        own = sorted((*self._recent, *self._pending), key=lambda action: action.decided_at)
        known = {(action.kind, action.target): action for action in own if action.because == incident.id}
        steps = preview(
            self._policy,
            incident,
            self._alerts,
            self._plan,
            self._recent,
            self._topology,
            self._facts,
            self._now,
            self._playbooks,
            self._procedures,
        )
        return [
            *(
                replace(
                    self._row(known.get((action.kind, action.target), action), row.answers),
                    step=row.step,
                    missing="" if row.missing is None else str(row.missing),
                )
                for action, row in steps
            ),
            *self._levels(incident),
        ]

    def _levels(self, incident: Incident) -> list[PlannedAction]:
        """The next change of each degrade ladder; a request for it takes its place. At the deepest level the last."""
        history = History({action.id: action for action in (*self._recent, *self._pending)}.values())
        ladders = preview_levels(
            self._policy,
            incident,
            self._alerts,
            self._plan,
            history.actions,
            self._topology,
            self._facts,
            self._now,
            self._procedures,
        )
        rows = []
        for action, ladder in ladders:
            if action is None:
                performed = history.ladder(ladder.service)
                rows += [PlannedAction(performed[-1], (), (), ladder=ladder)] if performed else []
                continue
            newest = history.newest(action.session, action.kind, action.target)
            stands = newest is not None and newest.status in (*WAITING, ActionStatus.INTENDED, ActionStatus.CLAIMED)
            shown = newest if newest is not None and stands else action
            rows.append(replace(self._row(shown, ladder.answers), ladder=ladder))
        return rows

    def _row(self, action: Action, guards: tuple[GuardAnswer, ...]) -> PlannedAction:
        try:
            return PlannedAction(action, guards, self._actuator.requests(action))
        except ActuationError as error:
            return PlannedAction(action, guards, (), f"{error.message}; {error.hint}" if error.hint else error.message)


def held_document(row: PlannedAction) -> dict[str, Any]:
    """Returns the key ``held`` in the JSON of ``remediate plan``: why it would not be decided now, or null."""
    return {"held": None if row.held is None else row.held.value}


def step_document(step: Step | None, missing: str) -> dict[str, Any]:
    """Returns the keys of a step in the JSON of ``remediate plan``: conditions, time, consequence of a failure."""
    if step is None:
        return {"require": [], "missing": None, "verify": None, "timeout_seconds": None, "escalate": None, "undo": None}
    return {
        "require": [str(check) for check in step.require],
        "missing": missing or None,
        "verify": None if step.verify is None else str(step.verify),
        "timeout_seconds": step.timeout.total_seconds() if step.verify else None,
        "escalate": step.escalate.kind,
        "undo": step.undo,
    }


def ladder_document(ladder: PreviewedLevel | None) -> dict[str, Any]:
    """Returns the key ``ladder`` in the JSON of ``remediate plan``: the present level, and what the next one needs."""
    if ladder is None:
        return {"ladder": None}
    present = ladder.ladder.level(ladder.current.level)
    shown: dict[str, Any] = {
        "level": ladder.current.level,
        "name": present.name if present else "normal",
        "ttft_objective_seconds": ladder.ladder.wait_objective.total_seconds(),
        "next": None,
    }
    if ladder.level is not None:
        shown["next"] = {
            "level": ladder.level.number,
            "name": ladder.level.name,
            "enter_for_seconds": ladder.level.enter_for.total_seconds(),
            "thresholds": [
                {
                    "indicator": threshold.indicator,
                    "limit": threshold.limit,
                    "value": serialization.finite(threshold.value),
                    "reached": threshold.reached,
                }
                for threshold in ladder.thresholds
            ],
            "obstacles": [str(obstacle) for obstacle in ladder.obstacles],
        }
    return {"ladder": shown}


def entity_named(topology: Topology, text: str, kind: EntityKind) -> EntityRef:
    """Returns the entity of a key, ``kind/name``, ``namespace/name`` or name. Raises UsageError unless one matches.

    Among several of one name, that of ``kind`` is preferred, and a scrape target counts last.
    """
    matching = entity_lookup.named(topology.entities, text)
    if not matching:
        names = [entity.name for entity in topology.entities]
        hint = "give its name, kind/name or cluster/kind/namespace/name"
        raise UsageError(f"no entity is named {text!r}{yaml_file.near(text, names)}", hint=hint)
    preferred = [entity for entity in matching if entity.kind is kind]
    others = [entity for entity in matching if entity.kind is not EntityKind.WORKLOAD]
    return entity_lookup.only(preferred or others or matching, text, "entities")
