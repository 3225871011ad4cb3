"""An alert resolves within two minutes of its values being good, and sparse traffic keeps no percentile firing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from alerts.rules.files import load_entries
from alerts.state import machine
from detectors.rules.threshold import compile_rules
from outrider.model import Alert, AlertState, CellStatus, EntityRef, SignalKey, Window
from outrider.topology import Topology
from outrider.vocabulary.catalog import signal
from outrider.vocabulary.rules import Rule

CYCLE = timedelta(seconds=15)
LIMIT = timedelta(minutes=2)
T0 = datetime(2026, 11, 26, 9, tzinfo=UTC)
RULES = {entry.rule.name: replace(entry.rule, where={}) for entry in load_entries()}  # also those off by default
CALM = machine.ServiceContext(frozenset(), frozenset(), lambda _entity: ())
Values = dict[SignalKey, float]


def first_tokens(name: str, *, fast: float = 0.0, slow: float = 0.0) -> Values:
    """Requests of one cycle with a TTFT of 0.1 s and of 10 s."""
    bounds = signal(name).bounds
    counts = dict.fromkeys(range(len(bounds) + 1), 0.0) | {bounds.index(0.1): fast, bounds.index(10.0): slow}
    return {SignalKey(name, bucket=number): count for number, count in counts.items()}


def latencies(name: str, *, fast: float = 0.0, slow: float = 0.0) -> Values:
    """Requests of one cycle of 0.5 s and of 60 s."""
    bounds = signal(name).bounds
    counts = dict.fromkeys(range(len(bounds) + 1), 0.0) | {bounds.index(0.5): fast, bounds.index(60.0): slow}
    return {SignalKey(name, bucket=number): count for number, count in counts.items()}


def very_slow(name: str, count: float) -> Values:
    """Requests of one cycle with a TTFT of 40 s."""
    return first_tokens(name) | {SignalKey(name, bucket=signal(name).bounds.index(40.0)): count}


def outcomes(total: float, failed: float) -> Values:
    return {SignalKey("svc_requests_total"): total, SignalKey("svc_failed_total"): failed}


def history(rule: Rule, story: Sequence[Values]) -> list[tuple[datetime, AlertState | None]]:
    """The state of the rule's alert after each cycle; None without an alert."""
    (detector,) = compile_rules([rule])
    entity = EntityRef("c", rule.kind, "llm", "chat")
    active: tuple[Alert, ...] = ()
    states = []
    columns = round(detector.window / CYCLE)
    matrix = np.array([[cycle.get(key, np.nan) for key in detector.keys] for cycle in story])
    for number in range(1, len(story) + 1):
        now = T0 + number * CYCLE
        values = matrix[None, max(0, number - columns) : number]
        times = np.array(
            [(T0 + place * CYCLE).timestamp() for place in range(number + 1 - values.shape[1], number + 1)]
        )
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        window = Window(rule.kind, (entity,), times, detector.keys, values, status, CYCLE)
        _, verdicts = detector.detect(detector.initial(), window, Topology.build(()), now)
        active = machine.advance(active, verdicts, None, [rule], CALM, now)
        states.append((now, active[0].state if active else None))
    return states


def resolved_after(rule: Rule, bad: Values, good: Values, minutes: float = 12.0) -> timedelta | None:
    """Time from the first good cycle to the end of the alert that fired before; None if it never ended."""
    count = round(timedelta(minutes=minutes) / CYCLE)
    states = history(rule, [good, *[bad] * count, *[good] * 40])
    assert states[count][1] is AlertState.FIRING
    ends = [at for at, state in states[count + 1 :] if state is AlertState.RESOLVED]
    return ends[0] - states[count + 1][0] if ends else None


def values(**numbers: float) -> Values:
    return {SignalKey(name): number for name, number in numbers.items()}


BAD_THEN_GOOD: tuple[tuple[str, Values, Values], ...] = (
    ("ttft-p99-high", first_tokens("svc_ttft_seconds", slow=40.0), first_tokens("svc_ttft_seconds", fast=40.0)),
    ("ttft-p99-high", first_tokens("svc_ttft_seconds", slow=4.0), first_tokens("svc_ttft_seconds", fast=4.0)),
    ("replica-slow", first_tokens("engine_ttft_seconds", slow=10.0), first_tokens("engine_ttft_seconds", fast=10.0)),
    ("availability-low", outcomes(200.0, 50.0), outcomes(200.0, 0.0)),
    ("sli-without-values", {}, outcomes(200.0, 0.0)),
    (
        "kv-cache-full",
        values(engine_kv_cache_usage_ratio=0.99, engine_requests_waiting=9.0),
        values(engine_kv_cache_usage_ratio=0.99, engine_requests_waiting=0.0),
    ),
    (
        "gpu-memory-high",
        values(hw_accel_memory_used_ratio=0.97, engine_memory_reserved_ratio=0.9),
        values(hw_accel_memory_used_ratio=0.92, engine_memory_reserved_ratio=0.9),
    ),
    ("latency-p99-high", latencies("svc_latency_seconds", slow=40.0), latencies("svc_latency_seconds", fast=40.0)),
    ("latency-p99-high", latencies("svc_latency_seconds", slow=4.0), latencies("svc_latency_seconds", fast=4.0)),
    ("availability-below-99", outcomes(200.0, 50.0), outcomes(200.0, 0.0)),
    ("availability-below-99", outcomes(1.0, 1.0), outcomes(1.0, 0.0)),
    ("gpu-memory-over-90", values(hw_accel_memory_used_ratio=0.97), values(hw_accel_memory_used_ratio=0.5)),
    ("node-memory-over-90", values(node_memory_available_ratio=0.05), values(node_memory_available_ratio=0.5)),
    ("vip-ttft-high", first_tokens("engine_ttft_seconds", slow=10.0), first_tokens("engine_ttft_seconds", fast=10.0)),
    ("long-prompt-ttft-high", very_slow("engine_ttft_seconds", 2.0), first_tokens("engine_ttft_seconds", slow=2.0)),
    (
        "offline-stalled",
        values(engine_generation_tokens_total=0.0, engine_requests_waiting=5.0),
        values(engine_generation_tokens_total=100.0, engine_requests_waiting=5.0),
    ),
    (
        "aborts-high",
        values(svc_requests_total=100.0, svc_abandoned_total=50.0),
        values(svc_requests_total=100.0, svc_abandoned_total=0.0),
    ),
    (
        "invalid-answers-high",
        values(svc_answers_total=100.0, svc_invalid_answers_total=50.0),
        values(svc_answers_total=100.0, svc_invalid_answers_total=0.0),
    ),
    (
        "thumbs-down-high",
        values(svc_feedback_down_total=3.0, svc_feedback_up_total=0.0),
        values(svc_feedback_down_total=0.0, svc_feedback_up_total=3.0),
    ),
    (
        "tenant-tokens-high",
        values(tenant_prompt_tokens_total=900_000.0),
        values(tenant_prompt_tokens_total=9_000.0),
    ),
    (
        "tenant-failures-high",
        values(tenant_requests_total=100.0, tenant_failed_total=50.0),
        values(tenant_requests_total=100.0, tenant_failed_total=0.0),
    ),
    (
        "tenant-ttft-high",
        first_tokens("tenant_ttft_seconds", slow=10.0),
        first_tokens("tenant_ttft_seconds", fast=10.0),
    ),
    ("target-down", values(target_up=0.0), values(target_up=1.0)),
    ("node-not-ready", values(node_ready=0.0), values(node_ready=1.0)),
    ("pod-not-ready", values(pod_ready=0.0), values(pod_ready=1.0)),
    ("link-down", values(hw_link_up=0.0), values(hw_link_up=1.0)),
    ("probe-failing", values(probe_success=0.0), values(probe_success=1.0)),
)


MINUTES = {"pod-not-ready": 9.0, "link-down": 9.0, "offline-stalled": 18.0, "thumbs-down-high": 16.0}
"""How long the values are bad; the first two rules look back 10 min for a ready state."""


@pytest.mark.parametrize("name", sorted(RULES))
def test_no_alert_waits_longer_than_two_minutes_to_clear(name: str) -> None:
    assert RULES[name].clear <= LIMIT


def test_every_packaged_rule_with_an_expression_is_checked_for_its_end() -> None:
    assert {name for name, _, _ in BAD_THEN_GOOD} == {rule.name for rule in RULES.values() if rule.expr}


@pytest.mark.parametrize(("name", "bad", "good"), BAD_THEN_GOOD)
def test_an_alert_resolves_within_two_minutes_of_good_values(name: str, bad: Values, good: Values) -> None:
    minutes = MINUTES.get(name, 12.0)
    after = resolved_after(RULES[name], bad, good, minutes)
    assert after is not None
    assert after <= LIMIT


@pytest.mark.parametrize("fast", [0.0, 0.5])
def test_sparse_traffic_does_not_keep_a_percentile_alert_firing(fast: float) -> None:
    bad = first_tokens("svc_ttft_seconds", slow=10.0)
    after = resolved_after(RULES["ttft-p99-high"], bad, first_tokens("svc_ttft_seconds", fast=fast))
    assert after is not None
    assert after <= LIMIT


def test_a_single_slow_request_in_sparse_traffic_fires_no_percentile_alert() -> None:
    rare = [first_tokens("svc_ttft_seconds", fast=1.0, slow=1.0 if number % 4 == 0 else 0.0) for number in range(80)]
    rare = [cycle if number % 4 == 0 else first_tokens("svc_ttft_seconds") for number, cycle in enumerate(rare)]
    assert {state for _, state in history(RULES["ttft-p99-high"], rare)} == {None}


def test_few_failures_among_few_requests_do_not_flap() -> None:
    """One request in eight cycles fails: 90 s without a failure prove nothing at this rate."""
    story = [outcomes(3.0, 3.0 if number % 8 == 0 else 0.0) for number in range(80)]
    states = [state for _, state in history(RULES["availability-low"], story)]
    assert AlertState.RESOLVED not in states
    assert states[-1] is AlertState.FIRING
