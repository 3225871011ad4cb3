"""One-sentence summaries of incidents, alerts and entities, for the API, the command line and messages.

Texts come from ``i18n`` (areas ``words`` and ``faults``); a name without a text is used as is.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime, tzinfo
from enum import Enum

from outrider.model import Alert, EntityKind, EntityRef, Incident, ReasonText
from outrider.text.i18n import Language, texts, translate
from outrider.vocabulary.catalog import signals
from outrider.vocabulary.faults import faults
from outrider.vocabulary.slo import RULE_PREFIX

_MOMENT = len("2026-05-04 13:07 UTC") + 1
LONG_NAME = 24  # characters; a longer name is shortened
_KINDS = frozenset(kind.value for kind in EntityKind)


def word(group: str, value: str | Enum, language: Language = "en") -> str:
    """Display name of an enum member: ``word("action_kind", ActionKind.CORDON)``."""
    plain = str(value.value) if isinstance(value, Enum) else value
    return texts(language).get(f"words.{group}.{plain}", plain.replace("_", " "))


def fault_name(fault: str, language: Language = "en") -> str:
    """Display name of a fault; its id if it has no text."""
    return texts(language).get(f"faults.{fault}.name", fault)


def entity_name(entity: EntityRef, language: Language = "en") -> str:
    """Kind and name, such as ``replica chat-3``. Long opaque names such as UUIDs are shortened in the middle."""
    name = entity.name if len(entity.name) <= LONG_NAME else f"{entity.name[:12]}…{entity.name[-6:]}"
    if name.lower().startswith(f"{entity.kind.value}-"):
        return name  # node-3, GPU-8f2b...: the kind is part of the name
    return f"{word('entity_kind', entity.kind, language)} {name}"


def signal_name(name: str, language: Language = "en") -> str:
    """Display name of a signal; its own name with spaces if it has no text."""
    return word("signal", name, language)


def because(reasons: Iterable[ReasonText], language: Language = "en") -> str:
    """Reasons as one sentence without a full stop; empty if there are none."""
    between = translate("plan.why_between", language)
    return between.join(translate(reason.text, language, **reason.arguments) for reason in reasons)


def compared(reasons: Iterable[ReasonText], language: Language = "en") -> str:
    """What a guard compared, as text without a full stop; empty if there is nothing.

    ``action`` is a kind of action, ``entity`` one of components, and ``kinds`` several of these.
    """
    return translate("plan.why_between", language).join(
        translate(reason.text, language, **_with_kinds(reason.arguments, language)) for reason in reasons
    )


def _with_kinds(arguments: Mapping[str, str], language: Language) -> dict[str, str]:
    sets = {"action": "action_kind", "entity": "entity_kind", "kinds": "entity_kind"}
    return {
        name: ", ".join(word(sets[name], kind, language) for kind in value.split(", ")) if name in sets else value
        for name, value in arguments.items()
    }


def worded(arguments: Mapping[str, str], language: Language = "en") -> dict[str, str]:
    """Arguments of a text, with fault ids, signals and entities replaced by display names.

    ``state`` is the progress of an incident: one state, or those of its services joined by a plus sign.
    """
    named = {name: _worded(value, language) for name, value in arguments.items()}
    if "state" in arguments:
        named["state"] = ", ".join(word("progress_state", state, language) for state in arguments["state"].split("+"))
    return named


def _worded(value: str, language: Language) -> str:
    if value in faults():
        return fault_name(value, language)
    if value in signals():
        return signal_name(value, language)
    kind, _, rest = value.partition("/")
    if kind in _KINDS and rest:
        *namespace, name = rest.split("/")
        return entity_name(EntityRef("", EntityKind(kind), "/".join(namespace) or None, name), language)
    return value


def moment(instant: datetime, zone: tzinfo = UTC) -> str:
    """A timestamp inside a sentence: ``2026-05-04 13:07 UTC``, in a zone ``2026-05-04 21:07 UTC+08:00``."""
    local = instant.astimezone(zone)
    offset = local.isoformat()[-6:] if local.utcoffset() else ""
    return f"{local:%Y-%m-%d %H:%M} UTC{offset}"


def earliest(moments: Iterable[str]) -> str:
    """The earliest of texts that ``moment`` made, which may be in several zones."""
    return min(moments, key=lambda text: datetime.strptime(text.ljust(_MOMENT, "Z"), "%Y-%m-%d %H:%M UTC%z"))


def incident_summary(
    incident: Incident, language: Language = "en", lead: Alert | None = None, zone: tzinfo = UTC
) -> str:
    """Fault, entity and start of an incident; without a known cause its ``lead`` alert, or its layer."""
    since = moment(incident.opened_at, zone)
    cause = incident.suspected_cause
    if cause is None and lead is not None:
        alert = alert_summary(lead, language)
        count = len(incident.alerts)
        return translate("words.incident.unknown_with_alert", language, alert=alert, alerts=count, since=since)
    if cause is None:
        layer = word("layer", incident.layer, language)
        return translate("words.incident.unknown", language, layer=layer, alerts=len(incident.alerts), since=since)
    fault, entity = fault_name(cause.fault, language), entity_name(cause.entity, language)
    return translate("words.incident.known", language, fault=fault, entity=entity, since=since)


def alert_summary(alert: Alert, language: Language = "en") -> str:
    """Fault or rule of the alert, and its entity."""
    entity = entity_name(alert.entity, language)
    subject = fault_name(alert.fault, language) if alert.fault else rule_name(alert.rule, language)
    return translate("words.alert.summary", language, what=subject, entity=entity)


def rule_name(rule: str, language: Language = "en") -> str:
    """Display name of a rule (area ``alerts``); its own name if it has no text."""
    known = texts(language)
    if rule.startswith(RULE_PREFIX):
        return translate("alerts.slo-burn.name", language, slo=rule.removeprefix(RULE_PREFIX))
    return known.get(f"alerts.{rule}.name", known.get(f"alerts.{rule}.title", rule))
