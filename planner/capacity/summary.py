"""The state of a service's capacity, and the one sentence that every page and command shows for it. Pure.

The sentence follows from the state alone, so that headline and details cannot disagree. While an incident of load is
open, a plan without a scale-out does not report that the replicas suffice.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from enum import StrEnum
from typing import Any

from outrider.documents.summaries import fault_name, moment, word
from outrider.model import Incident, NoRecommendation, Recommendation
from outrider.text.i18n import Language, translate


class CapacityState(StrEnum):
    """State of a service: what serves, what is ordered and what the plan requires. The first that applies."""

    NO_PLAN = "no_plan"
    SHORT = "short"  # more are needed than serve, and more are ordered now
    LIMITED = "limited"  # more are needed than are ordered, and a limit allows no more
    STARTING = "starting"  # more are needed than serve, and enough are ordered
    GROW = "grow"  # the start of more replicas is due
    GROW_LATER = "grow_later"
    SHRINK = "shrink"
    INCOMPLETE = "incomplete"  # not all ordered replicas serve, and those that do suffice
    ENOUGH = "enough"


_CALM = frozenset({CapacityState.GROW_LATER, CapacityState.SHRINK, CapacityState.INCOMPLETE, CapacityState.ENOUGH})


def state_of(item: Recommendation | NoRecommendation) -> CapacityState:
    """The state of a service when its plan was made."""
    if isinstance(item, NoRecommendation):
        return CapacityState.NO_PLAN
    current, target, need = item.current_replicas, item.target_replicas, item.derivation.get("need_now")
    if need is not None and need > _serving(item):
        if target > current:
            return CapacityState.SHORT
        return CapacityState.LIMITED if need > current else CapacityState.STARTING
    if target > current:
        due = item.needed_by is None or item.needed_by <= item.made_at
        return CapacityState.GROW if due else CapacityState.GROW_LATER
    if target < current:
        return CapacityState.SHRINK
    return CapacityState.INCOMPLETE if _serving(item) < current else CapacityState.ENOUGH


def sentence(
    item: Recommendation | NoRecommendation, load_incidents: Sequence[Incident] = (), language: Language = "en"
) -> str:
    """The state of a service in one sentence without a full stop. ``load_incidents`` are its open ones."""
    state = state_of(item)
    values = _arguments(item, state, language)
    if not load_incidents:
        return translate(f"plan.summary.{state}", language, **values)
    faults = [cause.fault for incident in load_incidents if (cause := incident.suspected_cause) is not None]
    named = translate("knowledge.between", language).join(
        fault_name(fault, language) for fault in dict.fromkeys(faults)
    )
    if state in _CALM:
        return translate("plan.summary.calm_in_incident", language, faults=named, **values)
    text = translate(f"plan.summary.{state}", language, **values)
    return translate("plan.summary.in_incident", language, sentence=text, faults=named)


def is_explained(item: Recommendation | NoRecommendation, load_incidents: Sequence[Incident]) -> bool:
    """True if the reason of the plan agrees with the sentence: a calm plan does not while load has an incident."""
    return not load_incidents or state_of(item) not in _CALM


def _serving(item: Recommendation) -> int:
    ready = item.derivation.get("ready_replicas")
    return item.current_replicas if ready is None else min(int(ready), item.current_replicas)


def _arguments(item: Recommendation | NoRecommendation, state: CapacityState, language: Language) -> dict[str, Any]:
    why = {"service": item.service.name, "why": word("plan_reason", item.reason, language)}
    if isinstance(item, NoRecommendation):
        return why
    by: datetime | None = item.needed_by if state is CapacityState.GROW_LATER else None
    return {
        **why,
        "ready": _serving(item),
        "need": item.derivation.get("need_now"),
        "now": item.current_replicas,
        "target": item.target_replicas,
        "gpus": item.gpus,
        "by": moment(by) if by is not None else "",
    }
