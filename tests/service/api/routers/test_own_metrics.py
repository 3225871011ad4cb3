from datetime import UTC, datetime, timedelta

import numpy as np
from prometheus_client import CollectorRegistry, generate_latest

from outrider.model import (
    AlarmRate,
    CycleRecord,
    DetectorStatus,
    EntityKind,
    EntityRef,
    Message,
    NotifyReason,
    SampleBatch,
    SignalKey,
    Stage,
    StageReason,
)
from outrider.ports import CycleCommit
from outrider.testing.story import Story
from service.api.routers.own_metrics import StateCollector, StoreCollector
from store.factory import open_metrics
from store.memory import MemoryMetricStore, MemoryStateStore
from store.tsdb.retention import Retention


def page(state):
    registry = CollectorRegistry()
    registry.register(StateCollector(state))
    return generate_latest(registry).decode()


def test_an_empty_store_has_no_cycle_metrics():
    text = page(MemoryStateStore())
    assert "outrider_cycle_duration_seconds" not in text
    assert "outrider_remediation_paused 0.0" in text


def test_open_incidents_and_decisions_are_counted_by_reason():
    state = MemoryStateStore()
    Story().fill(state, MemoryMetricStore())
    text = page(state)
    assert 'outrider_incidents_open{fault="gpu-lost"' in text
    assert 'state="firing"' in text
    assert 'reason="within_limits"' in text
    state.set_paused(paused=True, by="ann", now=datetime(2026, 5, 4, tzinfo=UTC))
    assert "outrider_remediation_paused 1.0" in page(state)


def test_undelivered_messages_are_counted():
    state, at = MemoryStateStore(), datetime(2026, 5, 4, tzinfo=UTC)
    assert "outrider_dead_letters 0.0" in page(state)
    message = Message("m", "im", NotifyReason.OPENED, None, None, "t", "b", at)
    state.commit(CycleCommit(CycleRecord("c", at, 0.1, 1, 1, 1, 0, 0, 0), messages=(message,)))
    state.finish_message("m", delivered=False, now=at, error="http_410")
    assert "outrider_dead_letters 1.0" in page(state)


def test_detectors_report_stage_and_alarm_rates():
    state, at = MemoryStateStore(), datetime(2026, 5, 4, tzinfo=UTC)
    held = [
        DetectorStatus(
            name, EntityKind.GPU, Stage.SHADOW, StageReason.ON_TRIAL, at, rate=AlarmRate(0.25, realised, 1.0, 4.0)
        )
        for name, realised in (("seasonal-gpu", 0.5), ("isolation-gpu", None))
    ]
    state.commit(CycleCommit(CycleRecord("c", at, 0.1, 1, 1, 1, 0, 0, 0), detector_statuses=tuple(held)))
    text = page(state)
    stage = 'outrider_detector_stage{detector="seasonal-gpu",kind="gpu",reason="on_trial",stage="shadow"} 1.0'
    assert stage in text
    rate = 'outrider_detector_{}_alarms_per_entity_day{{detector="seasonal-gpu",kind="gpu"}} {}'
    assert rate.format("budgeted", 0.25) in text
    assert rate.format("realised", 0.5) in text
    assert 'realised_alarms_per_entity_day{detector="isolation-gpu"' not in text, "no rate is not a rate of zero"


def test_the_metrics_database_reports_its_status(tmp_path):
    at = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
    gpu, key = EntityRef("c", EntityKind.GPU, None, "g"), SignalKey("hw_accel_power_watts")
    batch = SampleBatch("x", at, EntityKind.GPU, (key,), (gpu,), np.array([[3.0]]), np.zeros((1, 1), np.uint8))
    store = open_metrics(f"sqlite:///{tmp_path}/m.db")
    registry = CollectorRegistry()
    registry.register(StoreCollector(store))
    store.write(at, [batch])
    text = generate_latest(registry).decode()
    assert 'outrider_store_upkeep_waiting{work="10m"} 1.0' in text
    assert "outrider_store_used_bytes" in text
    assert "outrider_store_longest_maintenance_seconds 0.0" in text
    nothing = Retention(timedelta(hours=1), timedelta(hours=1), timedelta(hours=1), timedelta(hours=1))
    store.maintain(at + timedelta(days=3), nothing)
    store.maintain(at + timedelta(days=3), nothing)
    assert store.write(at, [batch]) == 0
    text = generate_latest(registry).decode()
    (held,) = [line for line in text.splitlines() if line.startswith("outrider_store_longest_maintenance_seconds")]
    assert float(held.split()[1]) > 0
    assert 'outrider_store_refused_values_total{reason="older_than_kept"} 1.0' in text
    assert 'outrider_store_kept_from_timestamp_seconds{tier="1h"}' in text
    assert 'work="10m"' not in text
    store.close()
