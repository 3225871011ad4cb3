"""Checks of rules: one line in the timeline of the incident, written once, and only with a result."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import (
    Alert,
    AlertReason,
    AlertState,
    EntityKind,
    EntityRef,
    Floats,
    Incident,
    Layer,
    Plan,
    PlanReason,
    Priority,
    Recommendation,
    SignalKey,
    Window,
)
from outrider.text.i18n import LANGUAGES, translate
from outrider.topology import Topology
from outrider.vocabulary.rules import RuleCheck
from outrider.vocabulary.tenants import tenant_of
from service.engine.rule_checks import CheckFacts, with_checks

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
POINTS = 40
GPU = EntityRef("c", EntityKind.GPU, None, "GPU-0")
CHAT = EntityRef("c", EntityKind.SERVICE, "llm", "chat")
NODE = EntityRef("c", EntityKind.NODE, None, "node-1")
RATIO, AVAILABLE = "hw_accel_memory_used_ratio", "node_memory_available_ratio"


class Values:
    """Recent values of one entity, by signal, and the prompt tokens of its tenants."""

    def __init__(
        self, entity: EntityRef, signals: Mapping[str, Floats], tenants: Mapping[EntityRef, Floats] | None = None
    ) -> None:
        self._entity, self._signals, self._tenants = entity, signals, tenants or {}

    def window(self, kind: EntityKind, keys: Sequence[SignalKey], span: timedelta) -> Window:
        del span
        rows: dict[EntityRef, tuple[Floats, ...]] = {}
        if kind is EntityKind.TENANT:
            rows = {tenant: (tokens,) for tenant, tokens in self._tenants.items()}
        elif all(key.name in self._signals for key in keys):
            rows = {self._entity: tuple(self._signals[key.name] for key in keys)}
        if not rows:
            empty = np.zeros((0, 0, len(keys)))
            return Window(kind, (), np.zeros(0), tuple(keys), empty, empty.astype(np.uint8), STEP)
        values = np.stack([np.stack(columns, axis=1) for columns in rows.values()])
        times = NOW.timestamp() - STEP.total_seconds() * np.arange(values.shape[1] - 1, -1, -1)
        return Window(kind, tuple(rows), times, tuple(keys), values, np.zeros(values.shape, np.uint8), STEP)


def alert(entity: EntityRef, check: str, signal: str) -> Alert:
    evidence = json.dumps([{"signal": signal, "observed": 0.9, "text": "findings.rule_holds", "arguments": {}}])
    annotations = {"then": f"scale,{check}", "evidence": evidence}
    return Alert(
        "a", "mine", Priority.P2, entity, AlertState.FIRING, AlertReason.STILL_TRUE, NOW, NOW, annotations=annotations
    )


INCIDENT = Incident("inc-0", Layer.HARDWARE, Priority.P2, NOW, (), (), ("a",), (), NOW)


def recommendation(service: EntityRef) -> Recommendation:
    return Recommendation(
        service, "H100", 8, 10, 40, 2, 20, "forecast", None, None, timedelta(minutes=5), None, "USD", {},
        PlanReason.FORECAST_PEAK, NOW,
    )  # fmt: skip


TOPOLOGY = Topology.build([(GPU, CHAT)])


def lines(fired: Alert, values: Values, plan: Plan = Plan()) -> tuple[tuple[str, Mapping[str, str]], ...]:  # noqa: B008
    facts = CheckFacts(values, plan, TOPOLOGY)
    (checked,) = with_checks([INCIDENT], [fired], facts, NOW)
    (again,) = with_checks([checked], [fired], facts, NOW + STEP)
    assert again == checked, "a result is written once"
    return tuple((entry.what, entry.arguments) for entry in checked.timeline)


def test_the_time_to_exhaustion_follows_from_the_trend() -> None:
    climbing = 0.90 + 0.05 * np.arange(POINTS) / POINTS  # 0.05 in 10 min, 0.0513 left at the end
    ((what, arguments),) = lines(alert(GPU, "time_to_exhaustion", RATIO), Values(GPU, {RATIO: climbing}))
    assert what == "incidents.timeline.check_time_to_exhaustion"
    assert (arguments["percent"], arguments["end"], arguments["hours"]) == ("95", "100", "0.17")


def test_available_memory_is_exhausted_at_zero() -> None:
    falling = 0.10 - 0.05 * np.arange(POINTS) / POINTS  # 0.05 in 10 min, 0.0513 left at the end
    values = Values(NODE, {AVAILABLE: falling})
    ((what, arguments),) = lines(alert(NODE, "time_to_exhaustion", AVAILABLE), values)
    assert what == "incidents.timeline.check_time_to_exhaustion"
    assert (arguments["percent"], arguments["end"], arguments["hours"]) == ("5", "0", "0.17")
    rising = Values(NODE, {AVAILABLE: falling[::-1]})
    assert lines(alert(NODE, "time_to_exhaustion", AVAILABLE), rising) == ()


@pytest.mark.parametrize(
    "level", [np.full(POINTS, 0.93), np.linspace(0.95, 0.9, POINTS), np.full(POINTS, np.nan)], ids=str
)
def test_without_a_rising_trend_nothing_is_written(level: Floats) -> None:
    assert lines(alert(GPU, "time_to_exhaustion", RATIO), Values(GPU, {RATIO: level})) == ()


def test_longer_prompts_are_named_with_their_length_before() -> None:
    requests = np.full(POINTS, 10.0)
    tokens = sent(5_000.0, 20_000.0)
    values = Values(CHAT, {"svc_requests_total": requests, "svc_prompt_tokens_total": tokens})
    ((what, arguments),) = lines(alert(CHAT, "long_prompts", "svc_ttft_seconds"), values)
    assert what == "incidents.timeline.check_long_prompts"
    assert (arguments["tokens"], arguments["before"]) == ("2000", "500")


def sent(before: float, after: float) -> Floats:
    return np.where(np.arange(POINTS) < POINTS - 6, before, after)


def long_prompts(**tenants: Floats) -> tuple[str, Mapping[str, str]]:
    """The line about long prompts, with these tenants of the service and one of another."""
    signals = {"svc_requests_total": sent(10.0, 10.0), "svc_prompt_tokens_total": sent(5_000.0, 20_000.0)}
    rows = {tenant_of(CHAT, name): tokens for name, tokens in tenants.items()}
    rows[tenant_of(replace(CHAT, name="other-service"), "loud")] = sent(0.0, 1e9)
    (line,) = lines(alert(CHAT, "long_prompts", "svc_ttft_seconds"), Values(CHAT, signals, rows))
    return line


def test_the_tenant_that_sends_the_long_prompts_is_named_with_its_share() -> None:
    what, arguments = long_prompts(web=sent(3_000.0, 3_000.0), documents=sent(1_000.0, 16_000.0), none=sent(1e3, 1e3))
    assert what == "incidents.timeline.check_long_prompts_tenant"
    assert (arguments["tenant"], arguments["percent"], arguments["earlier"]) == ("documents", "80", "20")


def test_fewer_requests_do_not_hide_the_tenant_with_longer_prompts() -> None:
    signals = {"svc_requests_total": sent(40.0, 10.0), "svc_prompt_tokens_total": sent(20_000.0, 20_000.0)}
    rows = {tenant_of(CHAT, "web"): sent(12_000.0, 3_000.0), tenant_of(CHAT, "documents"): sent(8_000.0, 17_000.0)}
    ((what, arguments),) = lines(alert(CHAT, "long_prompts", "svc_ttft_seconds"), Values(CHAT, signals, rows))
    assert (what, arguments["tenant"]) == ("incidents.timeline.check_long_prompts_tenant", "documents")


def test_a_large_tenant_is_not_blamed_for_the_growth_of_all() -> None:
    what, arguments = long_prompts(web=sent(3_000.0, 12_000.0), a=sent(1e3, 6e3), b=sent(1e3, 6e3), c=sent(1e3, 6e3))
    assert what == "incidents.timeline.check_long_prompts_spread"
    assert (arguments["tenant"], arguments["percent"]) == ("web", "40")


@pytest.mark.parametrize("name", ["other", "none"])
def test_growth_of_unnamed_tenants_blames_nobody(name: str) -> None:
    what, arguments = long_prompts(web=sent(3_000.0, 3_000.0), **{name: sent(1_000.0, 16_000.0)})
    assert (what, arguments["tenant"]) == ("incidents.timeline.check_long_prompts_spread", "web")


def test_without_tenants_the_line_names_what_is_missing() -> None:
    for tenants in ({}, {"none": sent(5_000.0, 20_000.0)}):
        what, arguments = long_prompts(**tenants)
        assert what == "incidents.timeline.check_long_prompts"
        assert "LiteLLM" in translate(what, "en", **arguments)


@pytest.mark.parametrize("outcome", ["tenant", "spread"])
def test_every_outcome_has_a_text_in_every_language(outcome: str) -> None:
    words = {"entity": "e", "tokens": "1", "before": "2", "tenant": "t", "percent": "3", "earlier": "4"}
    for language in LANGUAGES:
        assert "t" in translate(f"incidents.timeline.check_long_prompts_{outcome}", language, **words)


def test_prompts_of_the_usual_length_are_not_mentioned() -> None:
    values = Values(
        CHAT, {"svc_requests_total": np.full(POINTS, 10.0), "svc_prompt_tokens_total": np.full(POINTS, 5_000.0)}
    )
    assert lines(alert(CHAT, "long_prompts", "svc_ttft_seconds"), values) == ()


def test_the_plan_of_the_affected_services_is_written() -> None:
    plan = Plan(recommendations=(recommendation(CHAT), recommendation(replace(CHAT, name="other"))))
    ((what, arguments),) = lines(alert(GPU, "capacity_plan", RATIO), Values(GPU, {}), plan)
    assert what == "incidents.timeline.check_capacity_plan"
    assert arguments == {"entity": str(CHAT), "running": "8", "needed": "10", "gpus": "40"}


def test_two_alerts_write_the_plan_of_one_service_once() -> None:
    second = EntityRef("c", EntityKind.GPU, None, "GPU-1")
    fired = [replace(alert(gpu, "capacity_plan", RATIO), fingerprint=name) for gpu, name in ((GPU, "a"), (second, "b"))]
    plan = Plan(recommendations=(recommendation(CHAT),))
    facts = CheckFacts(Values(GPU, {}), plan, Topology.build([(GPU, CHAT), (second, CHAT)]))
    (checked,) = with_checks([replace(INCIDENT, alerts=("a", "b"))], fired, facts, NOW)
    assert [entry.arguments["entity"] for entry in checked.timeline] == [str(CHAT)]


@pytest.mark.parametrize("check", list(RuleCheck))
def test_every_check_has_a_text_in_every_language(check: RuleCheck) -> None:
    for language in LANGUAGES:
        key = f"incidents.timeline.check_{check.value}"
        assert translate(key, language) != key
