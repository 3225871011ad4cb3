"""One state and one sentence for the capacity of a service."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.model import (
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    Layer,
    NoPlanReason,
    NoRecommendation,
    PlanReason,
    Priority,
    Recommendation,
)
from outrider.text.i18n import LANGUAGES
from planner.capacity.summary import CapacityState, is_explained, sentence, state_of

NOW = datetime(2026, 5, 4, 13, tzinfo=UTC)
CHAT = EntityRef("c", EntityKind.SERVICE, "llm", "chat")
SURGE = Incident(
    "inc-1", Layer.TRAFFIC, Priority.P1, NOW, (Hypothesis(CHAT, "traffic-surge", 0.9),), (), (), (), NOW,
    services=("chat",),
)  # fmt: skip
SOON = NOW + timedelta(minutes=20)


def planned(
    current: int, target: int, *, need: int | None = None, ready: int | None = None, by: datetime | None = None,
    reason: PlanReason = PlanReason.ENOUGH,
) -> Recommendation:  # fmt: skip
    return Recommendation(
        CHAT, "H100", current, target, 4 * target, 1, 40, "load", by, by, timedelta(minutes=5), None, "USD",
        {"need_now": need, "ready_replicas": ready}, reason, NOW,
    )  # fmt: skip


STATES = {
    CapacityState.SHORT: planned(8, 12, need=11, ready=8, reason=PlanReason.LOAD_NOW),
    CapacityState.LIMITED: planned(12, 12, need=22, ready=12, reason=PlanReason.NO_GPU_FREE),
    CapacityState.STARTING: planned(12, 12, need=11, ready=8, reason=PlanReason.NOT_READY_YET),
    CapacityState.GROW: planned(8, 12, need=8, ready=8, by=NOW, reason=PlanReason.FORECAST_PEAK),
    CapacityState.GROW_LATER: planned(8, 12, need=8, ready=8, by=SOON, reason=PlanReason.FORECAST_PEAK),
    CapacityState.SHRINK: planned(8, 6, need=6, ready=8),
    CapacityState.INCOMPLETE: planned(8, 8, need=6, ready=7),
    CapacityState.ENOUGH: planned(7, 7, need=7, ready=7),
    CapacityState.NO_PLAN: NoRecommendation(CHAT, NoPlanReason.NO_HISTORY, NOW),
}
CALM = {CapacityState.GROW_LATER, CapacityState.SHRINK, CapacityState.INCOMPLETE, CapacityState.ENOUGH}


@pytest.mark.parametrize("state", list(CapacityState))
@pytest.mark.parametrize("language", LANGUAGES)
def test_every_state_has_a_sentence_of_its_own(state: CapacityState, language: str) -> None:
    assert state_of(STATES[state]) is state
    texts = {sentence(item, (), language) for item in STATES.values()}
    assert len(texts) == len(CapacityState)
    assert not any("{" in text or "plan." in text or "[" in text for text in texts)


def test_the_sentences_of_the_states() -> None:
    shown = {state: sentence(item) for state, item in STATES.items()}
    assert shown[CapacityState.SHORT] == "chat: 8 replicas serving, 11 needed, 12 planned (48 GPUs)"
    assert shown[CapacityState.LIMITED].endswith("22 needed, 12 possible (48 GPUs): limited by the free GPUs")
    assert "start by 2026-05-04 13:20 UTC" in shown[CapacityState.GROW_LATER]
    assert shown[CapacityState.ENOUGH] == "chat: 7 replicas running, as needed (28 GPUs)"
    assert shown[CapacityState.NO_PLAN] == "chat: no plan yet: not enough history"


@pytest.mark.parametrize("state", sorted(CALM))
def test_while_load_has_an_incident_no_replicas_are_reported_to_suffice(state: CapacityState) -> None:
    text = sentence(STATES[state], [SURGE])
    assert "incident of load open (Traffic surge)" in text
    assert "as needed" not in text
    assert "enough" not in text
    assert not is_explained(STATES[state], [SURGE])


def test_a_plan_that_acts_on_the_load_names_the_incident_too() -> None:
    text = sentence(STATES[CapacityState.SHORT], [SURGE, replace(SURGE, id="inc-2")])
    assert text.endswith("12 planned (48 GPUs); incident of load open (Traffic surge)")
    assert is_explained(STATES[CapacityState.SHORT], [SURGE])


def test_a_plan_of_an_earlier_version_without_these_figures_has_a_state() -> None:
    assert state_of(replace(planned(7, 7), derivation={})) is CapacityState.ENOUGH
