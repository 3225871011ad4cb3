"""Message texts: the fault, its start, the impact, the evidence, and the actions taken."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, timedelta, tzinfo
from math import isfinite
from urllib.parse import quote

from alerts.rules.context import SERVICE_LEVEL
from alerts.state.machine import evidence_of
from outrider.documents.summaries import alert_summary, entity_name, fault_name, incident_summary, moment, word
from outrider.model import (
    Action,
    ActionKind,
    Alert,
    AlertState,
    DecisionReason,
    EntityRef,
    Evidence,
    Fact,
    Incident,
    IncidentProgress,
    NotifyReason,
    Priority,
)
from outrider.records.response import FollowUp
from outrider.text.i18n import Language, translate
from outrider.vocabulary import catalog
from outrider.vocabulary.units import format_duration, format_value

_MOST_LINES = 5
_LINE_LIMIT = 500  # characters: names come from labels, which may have a megabyte
_MERGED = ".absorbed_into"  # timeline entry of an incident that was merged into another one


def localize(key: str, language: Language, **arguments: object) -> str:
    """A text of the area ``notify``."""
    return translate(f"notify.{key}", language, **arguments)


def bounded(text: str) -> str:
    """The text as one line of a message: without line breaks, which a label may contain, and of limited length."""
    line = " ".join(text[: 4 * _LINE_LIMIT].split())
    return line if len(line) <= _LINE_LIMIT else line[: _LINE_LIMIT - 1] + "…"


def action_name(kind: ActionKind, target: EntityRef, language: Language) -> str:
    """Action and target, such as ``restart pod chat-0``. A kind that both name is written once."""
    verb, name = word("action_kind", kind, language), entity_name(target, language)
    last = verb.split()[-1]
    if name.lower().startswith(f"{last.lower()} "):
        name = name[len(last) + 1 :]
    return f"{verb} {name}"


def action_line(action: Action, language: Language) -> str:
    """One action with its status and the reason of the guard rails."""
    return localize(
        "action_dry_run" if action.dry_run else "action",
        language,
        name=action_name(action.kind, action.target, language),
        status=word("action_status", action.status, language),
        reason=word("decision_reason", action.reason, language),
    )


def approval_title(action: Action, priority: Priority, language: Language) -> str:
    """The title of an approval request, or of its expiry."""
    name = action_name(action.kind, action.target, language)
    key = "title.approval_expired" if action.reason is DecisionReason.EXPIRED else "title.approval_wanted"
    return localize(key, language, priority=priority, action=name)


def approve_line(action: Action, language: Language) -> str:
    """Instructions to approve."""
    if action.reason is DecisionReason.EXPIRED:
        return localize("line.request_again", language, action=action.id)
    key = "line.approve" if action.approvals_needed == 1 else "line.approve_by_two"
    return localize(key, language, action=action.id)


def follow_up_line(follow_up: FollowUp, language: Language) -> str:
    """A follow-up of an earlier incident with the same fault."""
    state = "open" if follow_up.closed_at is None else "closed"
    closed = "" if follow_up.closed_at is None else f"{follow_up.closed_at:%Y-%m-%d}"
    arguments = {"text": follow_up.text, "owner": follow_up.owner, "due": follow_up.due.isoformat(), "closed": closed}
    return localize(f"line.recurs_{state}", language, incident=follow_up.incident, **arguments)


def link_to(base_url: str, incident: str) -> str:
    """The dashboard page of an incident."""
    return f"{base_url.rstrip('/')}/incident?incident={quote(incident, safe='')}"


def evidence_line(evidence: Evidence, language: Language) -> str:
    """One piece of evidence as text; signal and value if it has no text."""
    if evidence.text:
        text = translate(evidence.text, language, **evidence.arguments)
        if text != evidence.text:
            return text
    known = catalog.signals().get(evidence.signal)
    observed = evidence.observed if evidence.observed is not None and isfinite(evidence.observed) else None
    return localize(
        "evidence_plain",
        language,
        signal=evidence.signal,
        value=format_value(observed, known.unit if known else ""),
    )


@dataclass(frozen=True, slots=True)
class Wording:
    """Texts of one incident in one language. ``lead`` is the alert that represents it.

    ``explained`` are further lines about the cause, ``progress`` is that of the repair. ``alerts`` are those of the
    incident. ``answer_within`` is the time to acknowledge, ``responding`` are lines about the people who respond.
    Times are in ``zone``.
    """

    incident: Incident
    lead: Alert | None
    actions: tuple[Action, ...]
    language: Language
    base_url: str
    explained: tuple[str, ...] = ()
    progress: IncidentProgress | None = None
    alerts: tuple[Alert, ...] = ()
    answer_within: timedelta | None = None
    responding: tuple[str, ...] = ()
    zone: tzinfo = UTC

    @property
    def link(self) -> str:
        """The incident's dashboard page."""
        return link_to(self.base_url, self.incident.id)

    @property
    def labels(self) -> Mapping[str, str]:
        """Labels by which receivers sort messages."""
        cause = self.incident.suspected_cause
        result = {"layer": self.incident.layer.value, "services": ", ".join(self.incident.services)}
        if cause is not None:
            result |= {"fault": cause.fault, "entity": cause.entity.key}
        return {key: bounded(text) for key, text in result.items() if text}

    @property
    def facts(self) -> Mapping[Fact, str]:
        """Fault, place, start, services, confidence and alerts, each as a few words."""
        cause = self.incident.suspected_cause
        result = {
            Fact.SINCE: moment(self.incident.opened_at, self.zone),
            Fact.IMPACT: self._impact(),
            Fact.ALERTS: str(len(self.incident.alerts)),
        }
        if cause is not None:
            result[Fact.WHAT] = fault_name(cause.fault, self.language)
            result[Fact.WHERE] = entity_name(cause.entity, self.language)
            result[Fact.CONFIDENCE] = format_value(cause.confidence, "ratio")
        elif self.lead is not None:
            result[Fact.WHAT] = alert_summary(self.lead, self.language)
            result[Fact.WHERE] = entity_name(self.lead.entity, self.language)
        return {fact: bounded(text) for fact, text in result.items()}

    def title(self, reason: NotifyReason, before: Priority | None, action: Action | None) -> str:
        """The title, one line."""
        return bounded(self._title(reason, before, action))

    def _title(self, reason: NotifyReason, before: Priority | None, action: Action | None) -> str:
        if action is not None:
            return approval_title(action, self.incident.priority, self.language)
        summary = incident_summary(self.incident, self.language, self.lead, self.zone)
        if reason is NotifyReason.RESOLVED and self._merged_into:
            return self._localize("title.merged", into=self._merged_into, summary=summary)
        return self._localize(f"title.{reason}", priority=self.incident.priority, before=before or "", summary=summary)

    def body(self, reason: NotifyReason, action: Action | None) -> str:
        """Plain text, one fact per line."""
        lines = [self._cause(), self._when(), self._affected(), *self._slo_impact(reason), *self._status()]
        if self._merged_into:
            lines.append(self._localize("line.merged", into=self._merged_into))
        if reason is not NotifyReason.RESOLVED:
            lines += self._urgency() + list(self.responding) + self._evidence() + list(self.explained)
        lines += self._actions()
        if reason is not NotifyReason.RESOLVED:
            lines += self._next()
        if action is not None:
            lines.append(approve_line(action, self.language))
        lines.append(self._localize("line.link", link=self.link))
        return "\n".join(bounded(line) for line in lines)

    @property
    def _merged_into(self) -> str:
        """The incident that absorbed this one; empty if none did. Nothing has recovered in that case."""
        merges = (entry for entry in reversed(self.incident.timeline) if entry.what.endswith(_MERGED))
        entry = next(merges, None) if self.incident.resolved_at is not None else None
        return entry.arguments.get("incident", "") if entry else ""

    def _localize(self, key: str, **arguments: object) -> str:
        return localize(key, self.language, **arguments)

    def _cause(self) -> str:
        cause = self.incident.suspected_cause
        if cause is None:
            return self._localize("line.cause_unknown")
        return self._localize(
            "line.cause",
            fault=fault_name(cause.fault, self.language),
            entity=entity_name(cause.entity, self.language),
            confidence=format_value(cause.confidence, "ratio"),
        )

    def _when(self) -> str:
        since, until = self.incident.opened_at, self.incident.resolved_at
        start = moment(since, self.zone)
        if until is None:
            return self._localize("line.since", since=start)
        return self._localize(
            "line.lasted", since=start, until=moment(until, self.zone), duration=format_duration(until - since)
        )

    def _affected(self) -> str:
        if not self.incident.services:
            return self._localize("line.no_services")
        return self._localize("line.services", services=", ".join(self.incident.services))

    def _burning(self) -> list[Alert]:
        """The firing alerts of the incident whose rule is about an SLO."""
        return [
            alert
            for alert in self.alerts
            if alert.state is AlertState.FIRING and alert.labels.get(SERVICE_LEVEL) == "true"
        ]

    def _impact(self) -> str:
        services = ", ".join(self.incident.services)
        if not services:
            return self._localize("fact.no_services")
        return self._localize("fact.at_risk" if self._burning() else "fact.not_at_risk", services=services)

    def _slo_impact(self, reason: NotifyReason) -> list[str]:
        if reason is NotifyReason.RESOLVED:
            return []
        texts = [alert_summary(alert, self.language) for alert in self._burning()[:_MOST_LINES]]
        if not texts:
            return [self._localize("line.no_slo")]
        return [self._localize("line.slo", alerts="; ".join(dict.fromkeys(texts)))]

    def _status(self) -> list[str]:
        """The progress of the repair, one line per service."""
        if self.progress is None:
            return []
        lines = [translate(f"notify.{line.what}", self.language, **line.arguments) for line in self.progress.lines]
        return self._list("line.progress", lines)

    def _urgency(self) -> list[str]:
        lines = []
        limit = self.answer_within
        if limit is not None and self.incident.acknowledged_at is None:
            lines.append(self._localize("line.answer", duration=format_duration(limit)))
        if self.incident.acknowledged_by:
            lines.append(self._localize("line.acknowledged", by=self.incident.acknowledged_by))
        if len(self.incident.alerts) > 1:
            lines.append(self._localize("line.alerts", count=len(self.incident.alerts)))
        return lines

    def _evidence(self) -> list[str]:
        cause = self.incident.suspected_cause
        result = [*(cause.evidence if cause else ()), *(evidence_of(self.lead) if self.lead else ())]
        texts = list(dict.fromkeys(evidence_line(evidence, self.language) for evidence in result))[:_MOST_LINES]
        return self._list("line.evidence", texts)

    def _actions(self) -> list[str]:
        if not self.actions:
            return [self._localize("line.no_actions")]
        return self._list("line.actions", [action_line(action, self.language) for action in self.actions])

    def _next(self) -> list[str]:
        annotations = self.lead.annotations if self.lead else {}
        lines = []
        if annotations.get("default_action_text"):
            text = translate(annotations["default_action_text"], self.language)
            lines.append(self._localize("line.default_action", text=text))
        if annotations.get("runbook"):
            lines.append(self._localize("line.runbook", runbook=annotations["runbook"]))
        return lines

    def _list(self, heading: str, texts: list[str]) -> list[str]:
        return [self._localize(heading), *(self._localize("item", text=text) for text in texts)] if texts else []
