from datetime import UTC, datetime

from prometheus_client import CollectorRegistry, generate_latest

from outrider.testing.story import Story
from service.api.own_metrics import StateCollector
from store.memory import MemoryMetricStore, MemoryStateStore


def page(state):
    registry = CollectorRegistry()
    registry.register(StateCollector(state))
    return generate_latest(registry).decode()


def test_an_empty_store_has_nothing_of_a_cycle():
    text = page(MemoryStateStore())
    assert "outrider_cycle_duration_seconds" not in text
    assert "outrider_remediation_paused 0.0" in text


def test_what_is_open_and_what_was_decided_is_told_by_reason():
    state = MemoryStateStore()
    Story().fill(state, MemoryMetricStore())
    text = page(state)
    assert 'outrider_incidents_open{fault="gpu-lost"' in text
    assert 'state="firing"' in text
    assert 'reason="within_limits"' in text
    state.set_paused(paused=True, by="ann", now=datetime(2026, 5, 4, tzinfo=UTC))
    assert "outrider_remediation_paused 1.0" in page(state)
