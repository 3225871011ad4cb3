"""The audit of one incident as a story: what was decided, why, by whom, and what came of it, oldest first."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from outrider.audit import AuditEvent, AuditRecord
from outrider.documents.summaries import compared, fault_name, word, worded
from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, HoldReason, Verdict
from outrider.text.i18n import Language, texts, translate
from remediation.decide.autonomy import PLAN

_OF_INCIDENT = {
    AuditEvent.INCIDENT_OPENED: "story.opened",
    AuditEvent.CAUSE_CHANGED: "story.cause_changed",
    AuditEvent.INCIDENT_RESOLVED: "story.resolved",
    AuditEvent.ACKNOWLEDGED: "story.acknowledged",
}
_OF_ACTION = {
    AuditEvent.ACTION_APPROVED: "story.approved",
    AuditEvent.ACTION_REJECTED: "story.rejected",
    AuditEvent.ACTION_REQUESTED: "story.requested",
}
# Objections whose reason needs no numbers.
_EVIDENT = frozenset(
    {DecisionReason.NEEDS_APPROVAL, DecisionReason.AUTONOMY_APPROVE, DecisionReason.AUTONOMY_RECOMMEND}
)


def of_incident(records: Iterable[AuditRecord], actions: Sequence[Action], incident_id: str) -> list[AuditRecord]:
    """Selects the records of an incident and of its actions, oldest first.

    A hold only because no step is due carries no information, and is left out.
    """
    ids = {action.id for action in actions}
    own = (
        record
        for record in records
        if incident_id in (record.subject, record.detail.get("because"))
        or record.detail.get("action", record.subject) in ids
    )
    selected = [record for record in own if record.reason != HoldReason.NO_STEP_DUE]
    return sorted(selected, key=lambda record: (record.at, record.id))


def sentence(record: AuditRecord, actions: Mapping[str, Action], language: Language, incident_id: str) -> str:
    """Returns a record of an incident as one sentence. ``actions`` are those of the incident by id."""
    if record.event in _OF_INCIDENT:
        return translate(_OF_INCIDENT[record.event], language, by=record.by, **_cause(record, language))
    if record.event is AuditEvent.MESSAGE_DECIDED:
        return translate("story.message", language, reason=word("notify_reason", record.reason, language))
    if record.event is AuditEvent.HELD:
        return translate("story.held", language, reason=_with_check(record, "hold_reason", language))
    if record.event is AuditEvent.STEP_CHECKED:
        state = _with_check(record, "step_state", language)
        return translate("story.checked", language, action=_action(record.subject, language), state=state)
    known = actions.get(record.detail.get("action", record.subject))
    action = _action(f"{known.kind.value} {known.target}" if known else record.subject, language, known)
    if record.event in _OF_ACTION:
        return translate(_OF_ACTION[record.event], language, by=record.by, action=action)
    if record.event is AuditEvent.ACTION_DECIDED:
        if record.detail.get("status") == ActionStatus.CANCELLED:
            return translate("story.withdrawn", language, action=action, reason=_why_withdrawn(record, known, language))
        decided = f"story.decided_{record.detail.get('decision', Verdict.REFUSED)}"
        key = "story.recommended" if record.detail.get("status") == ActionStatus.PROPOSED else decided
        ordered = _ordered(action, record.detail.get("because", incident_id), incident_id, language)
        return translate(key, language, action=ordered, reason=_reasons(record, known, language))
    if record.event is AuditEvent.ACTION_PERFORMED:
        status = word("action_status", record.reason, language)
        return translate(
            "story.performed", language, action=action, status=status, detail=record.detail.get("said", "")
        )
    event = record.event.value.replace("_", " ")
    return translate("story.other", language, by=record.by, event=event, subject=record.subject)


def _cause(record: AuditRecord, language: Language) -> dict[str, str]:
    """The cause and the priority of an incident; the cause is a fault id and an entity, or empty."""
    fault, _, entity = record.detail.get("cause", "").partition(" ")
    cause = f"{fault_name(fault, language)}, {_entity(entity, language)}" if entity else ""
    return {"cause": cause or translate("story.no_cause", language), "priority": record.detail.get("priority", "")}


def _action(subject: str, language: Language, known: Action | None = None) -> str:
    """An action with its target, and the numbers of replicas of a scaling."""
    kind, _, target = subject.partition(" ")
    if not target:
        return subject
    about = _entity(target, language)
    if known is not None and known.kind is ActionKind.SCALE and {"current", "replicas"} <= known.params.keys():
        before, after = known.params["current"], known.params["replicas"]
        about = translate("story.scaling", language, service=about, before=before, after=after)
    return f"{word('action_kind', kind, language)} ({about})"


def _ordered(action: str, because: str, incident_id: str, language: Language) -> str:
    """An action, with the plan or the other incident that ordered it."""
    if because == incident_id:
        return action
    if because == PLAN:
        return translate("story.by_plan", language, action=action)
    return translate("story.for_incident", language, action=action, incident=because)


def _entity(text: str, language: Language) -> str:
    return worded({"entity": text}, language)["entity"]


def _with_check(record: AuditRecord, group: str, language: Language) -> str:
    about = [_check(record.detail.get("check", ""), language), _objection(record.detail.get("guard", ""), language)]
    return word(group, record.reason, language) + _in_parentheses(", ".join(filter(None, about)), language)


def _objection(text: str, language: Language) -> str:
    """The reason of a guard, and what it names."""
    reason, _, detail = text.partition(" ")
    named = translate("story.named", language, name=detail) if detail else ""
    return word("decision_reason", reason, language) + named if reason else ""


def _reasons(record: AuditRecord, known: Action | None, language: Language) -> str:
    """The objections of all guards with what they compared, or the reason of the decision.

    A withdrawn request has the objections that withdrew it, not those of its own decision.
    """
    known = known if known is not None and known.status is not ActionStatus.CANCELLED else None
    objections = [part.partition(": ")[2] for part in record.detail.get("objections", "").split("; ") if part]
    given = [objection.partition(" ") for objection in objections or [record.reason]]
    return ", ".join(
        word("decision_reason", reason, language) + (_compared(known, reason, language) or space + detail)
        for reason, space, detail in given
    )


def _why_withdrawn(record: AuditRecord, known: Action | None, language: Language) -> str:
    """The reason of a withdrawal, with what it is about: numbers, an owner, a precondition or a person."""
    about = _compared(known, record.reason, language)
    about = about or _in_parentheses(_check(record.detail.get("about", ""), language), language)
    return word("decision_reason", record.reason, language) + about


def _compared(known: Action | None, reason: str, language: Language) -> str:
    """What the guard with this objection compared, in parentheses; empty if nothing, or if the reason is all of it."""
    given = known.objections if known is not None and reason not in _EVIDENT else ()
    text = next((compared(answer.compared, language) for answer in given if answer.reason == reason), "")
    return _in_parentheses(text, language)


def _in_parentheses(text: str, language: Language) -> str:
    return translate("cli.guard_compared", language, compared=text) if text else ""


def _check(text: str, language: Language) -> str:
    """The condition of a step such as ``drained`` or ``replicas_at_least 2``; any other text as it is."""
    name, space, value = text.partition(" ")
    return word("condition", name, language) + space + value if f"words.condition.{name}" in texts(language) else text
