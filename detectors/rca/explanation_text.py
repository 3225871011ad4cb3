"""Renders an explanation: text sections for operators, JSON for the API. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import isfinite
from typing import Any

from detectors.rca.explanation import Alternative, Explanation
from detectors.rca.fault_catalogue import Sign
from outrider.documents import serialization
from outrider.documents.summaries import entity_name, fault_name, signal_name, word, worded
from outrider.model import Action, Evidence
from outrider.text.i18n import Language, texts, translate
from outrider.vocabulary.catalog import signals
from outrider.vocabulary.units import format_value

Json = dict[str, Any]
_MOST_PAGED = 2  # lines of one kind per page


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and its lines. ``name`` is the same in every language."""

    name: str
    heading: str
    lines: tuple[str, ...]


def sections(explanation: Explanation, language: Language) -> tuple[Section, ...]:
    """Summary, evidence for and against, alternatives, checks, remedy, runbook, owner; in this order."""
    contents = {
        "what": _what(explanation, language),
        "for": [evidence_line(item, language) for item in explanation.supporting],
        "against": [evidence_line(item, language) for item in explanation.contradicting],
        "others": _others(explanation, language),
        "check": _checks(explanation, language),
        "remedy": _remedy(explanation, language),
        "runbook": [explanation.runbook] if explanation.runbook else [],
        "owner": [_owner(explanation, language)],
    }
    if not contents["for"]:
        contents["for"] = [_say("only_an_alert" if explanation.cause is not None else "nothing_named", language)]
    return tuple(
        Section(name, _say(f"heading.{name}", language), tuple(dict.fromkeys(lines)))
        for name, lines in contents.items()
        if lines
    )


def text(explanation: Explanation, language: Language) -> str:
    """The sections as plain text."""
    parts = []
    for section in sections(explanation, language):
        parts += [section.heading, *(f"  {line}" for line in section.lines), ""]
    return "\n".join(parts).rstrip()


def as_json(explanation: Explanation, language: Language) -> Json:
    """The explanation as values and texts."""
    return {
        "incident": explanation.incident.id,
        "known": explanation.known,
        "unknown_confidence": round(explanation.unknown, 3),
        "team": explanation.team.value,
        "team_name": _say(f"team.{explanation.team}", language),
        "checks": list(explanation.checks),
        "remedy": [kind.value for kind in explanation.remedy],
        "decided": [{"kind": action.kind.value, "status": action.status.value} for action in explanation.decided],
        "runbook": explanation.runbook or None,
        "alternatives": [_alternative_json(alternative) for alternative in explanation.alternatives],
        "sections": [
            {"name": section.name, "heading": section.heading, "lines": list(section.lines)}
            for section in sections(explanation, language)
        ],
    }


def page_lines(explanation: Explanation, language: Language) -> list[str]:
    """Further lines of a page: owner, doubts, alternatives, first checks."""
    lines = [_owner(explanation, language)]
    if not explanation.known:
        lines.append(_say("do_not_know", language, share=format_value(explanation.unknown, "ratio")))
    against = [evidence_line(item, language) for item in explanation.contradicting[:_MOST_PAGED]]
    lines += [_say("page.against", language, line=line) for line in against]
    possible = [alternative for alternative in explanation.alternatives if alternative.confidence is not None]
    lines += [_say("page.other", language, line=_other(entry, language)) for entry in possible[:_MOST_PAGED]]
    return lines + _first_checks(explanation, language)


def evidence_line(item: Evidence, language: Language) -> str:
    """One piece of evidence as text; signal and value if it has no text."""
    text_of_item: str = serialization.evidence(item, language)["text"]
    if text_of_item and text_of_item != item.text:
        return text_of_item
    known = signals().get(item.signal)
    observed = item.observed if item.observed is not None and isfinite(item.observed) else None
    value = format_value(observed, known.unit if known else "")
    return _say("observed", language, signal=signal_name(item.signal, language), value=value)


def _say(key: str, language: Language, **arguments: object) -> str:
    return translate(f"knowledge.{key}", language, **arguments)


def _what(explanation: Explanation, language: Language) -> list[str]:
    incident, cause = explanation.incident, explanation.cause
    services = ", ".join(incident.services) or translate("incidents.no_service", language)
    share = format_value(explanation.unknown, "ratio")
    if cause is None:
        first = incident.timeline[0].arguments if incident.timeline else {}
        entity = worded(first, language).get("entity", services)
        arguments = {"entity": entity, "services": services, "alerts": len(incident.alerts)}
        return [
            translate("incidents.summary.unknown", language, **arguments),
            _say("do_not_know", language, share=share),
        ]
    lines = [
        translate(
            "incidents.summary.known",
            language,
            fault=fault_name(cause.fault, language),
            entity=entity_name(cause.entity, language),
            services=services,
            alerts=len(incident.alerts),
            confidence=format_value(cause.confidence, "ratio"),
        )
    ]
    what = f"faults.{cause.fault}.what"
    if what in texts(language):
        lines.append(translate(what, language))
    if not explanation.known:
        lines.append(_say("do_not_know", language, share=share))
    return lines


def _others(explanation: Explanation, language: Language) -> list[str]:
    lines = [_other(alternative, language) for alternative in explanation.alternatives]
    return [*lines, _say("unknown_share", language, share=format_value(explanation.unknown, "ratio"))]


def _other(alternative: Alternative, language: Language) -> str:
    arguments = {"fault": fault_name(alternative.fault, language), "entity": entity_name(alternative.entity, language)}
    if alternative.confidence is None:
        sentence = _say("ruled_out", language, why=translate(alternative.why, language), **arguments)
    else:
        sentence = _say("possible", language, confidence=format_value(alternative.confidence, "ratio"), **arguments)
    between = "" if language == "zh" else " "
    return (
        between.join((sentence, _say("telling", language, signs=_signs(alternative.telling, language))))
        if alternative.telling
        else sentence
    )


def _checks(explanation: Explanation, language: Language) -> list[str]:
    lines = _first_checks(explanation, language)
    if explanation.unseen:
        lines.append(_say("unseen", language, signs=_signs(explanation.unseen, language)))
    return lines


def _first_checks(explanation: Explanation, language: Language) -> list[str]:
    names = _list(dict.fromkeys(signal_name(name, language) for name in explanation.checks), language)
    return [_say("look_first", language, signals=names)] if names else []


def _remedy(explanation: Explanation, language: Language) -> list[str]:
    lines = []
    key = f"faults.{explanation.cause.fault}.remedy" if explanation.cause is not None else ""
    if key in texts(language):
        lines.append(translate(key, language))
    if explanation.decided:
        decided = (_decided(action, language) for action in explanation.decided)
        lines.append(_say("decided", language, actions=_list(decided, language)))
    possible = _list((word("action_kind", kind, language) for kind in explanation.possible), language)
    if possible:
        lines.append(_say("may_do", language, actions=possible))
    elif explanation.cause is not None and not explanation.decided:
        lines.append(_say("by_hand", language))
    return lines


def _decided(action: Action, language: Language) -> str:
    kind, status = word("action_kind", action.kind, language), word("action_status", action.status, language)
    return _say("decided_action", language, action=kind, status=status)


def _owner(explanation: Explanation, language: Language) -> str:
    layer = word("layer", explanation.incident.layer, language)
    return _say("owner", language, team=_say(f"team.{explanation.team}", language), layer=layer)


def _signs(signs: Iterable[Sign], language: Language) -> str:
    labels = (
        _say("sign", language, signal=signal_name(sign.signal, language), moves=_say(f"note.{sign.moves}", language))
        for sign in signs
    )
    return _list(dict.fromkeys(labels), language)


def _list(names: Iterable[str], language: Language) -> str:
    return ("、" if language == "zh" else ", ").join(names)


def _alternative_json(alternative: Alternative) -> Json:
    return {
        "entity": serialization.entity(alternative.entity),
        "fault": alternative.fault,
        "confidence": alternative.confidence,
        "ruled_out": alternative.confidence is None,
        "telling": [{"signal": sign.signal, "moves": sign.moves} for sign in alternative.telling],
        "checks": list(alternative.checks),
    }
