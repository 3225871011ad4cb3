"""Contract of every store: memory, SQLite, PostgreSQL, VictoriaMetrics and Prometheus."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import StoreError
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    AlarmRate,
    Alert,
    AlertReason,
    AlertState,
    BacktestScore,
    BreakerState,
    CellStatus,
    CycleRecord,
    DeadLetter,
    DecisionReason,
    DetectorState,
    DetectorStatus,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Evidence,
    Forecast,
    Hypothesis,
    Incident,
    Interval,
    Layer,
    Message,
    NoPlanReason,
    NoRecommendation,
    NotifyReason,
    NoVerdictReason,
    Outcome,
    OutcomeStatus,
    Plan,
    PlanReason,
    Priority,
    Receipt,
    Recommendation,
    RejectedHypothesis,
    RemediationSession,
    SampleBatch,
    ShadowFinding,
    SignalKey,
    Stage,
    StageReason,
    Statistic,
    TimelineEntry,
    Verdict,
    Window,
)
from outrider.ports import CycleCommit, MetricStore, Silence, StateStore
from outrider.records.drill import Drill, DrillWindow
from outrider.records.feedback import Feedback, Usefulness, judged
from outrider.topology import Topology
from outrider.vocabulary import catalog
from outrider.wire.cursors import position_of
from store.factory import SqlMetricStore, open_metrics, open_state, urls_of
from store.memory import MemoryMetricStore, MemoryStateStore
from tests.support.remote_store import Searchable, searchable

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
MINUTE = timedelta(minutes=1)
POWER = SignalKey("hw_accel_power_watts")
ECC = SignalKey("hw_accel_ecc_uncorrectable_total")
TTFT = "engine_ttft_seconds"
PRESENT, UNDEFINED, BELOW, ABSENT, STALE, RESET = (
    CellStatus.PRESENT,
    CellStatus.UNDEFINED,
    CellStatus.BELOW_FIRST_BUCKET,
    CellStatus.ABSENT,
    CellStatus.STALE,
    CellStatus.RESET,
)
NAN = float("nan")


def url_of(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{folder}/x.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=["memory", "sqlite", "postgresql", "victoria", "prometheus"])
def metrics(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[MetricStore]:
    if request.param == "memory":
        yield MemoryMetricStore()
        return
    if request.param in ("victoria", "prometheus"):
        store: SqlMetricStore | Searchable = searchable(request.getfixturevalue(f"{request.param}_server"), tmp_path)
    else:
        store = open_metrics(urls_of(url_of(request, tmp_path))[1])
    yield store
    assert store.connections_in_use == 0
    store.close()


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    if request.param == "memory":
        yield MemoryStateStore()
        return
    store = open_state(urls_of(url_of(request, tmp_path))[0])
    yield store
    assert store.connections_in_use == 0
    store.close()


def gpu(name: str) -> EntityRef:
    return EntityRef("prod", EntityKind.GPU, None, name)


def replica(name: str) -> EntityRef:
    return EntityRef("prod", EntityKind.REPLICA, "llm", name)


def batch(entity: EntityRef, at: datetime, cells: dict[SignalKey, float | tuple[float, CellStatus]]) -> SampleBatch:
    pairs = [cell if isinstance(cell, tuple) else (cell, PRESENT) for cell in cells.values()]
    return SampleBatch(
        source=f"target-{entity.name}",
        scraped_at=at,
        kind=entity.kind,
        keys=tuple(cells),
        entities=(entity,),
        values=np.array([[value for value, _ in pairs]]),
        status=np.array([[status for _, status in pairs]], dtype=np.uint8),
    )


def buckets(**counts: float) -> dict[SignalKey, float | tuple[float, CellStatus]]:
    """All buckets of TTFT, 0 unless given as b<index>."""
    return {key: float(counts.get(f"b{key.bucket}", 0.0)) for key in catalog.signal(TTFT).bucket_keys}


# --- metrics --------------------------------------------------------------------------------------


def test_an_empty_store_gives_empty_windows(metrics: MetricStore) -> None:
    window = metrics.read_windows(EntityKind.GPU, [POWER], T0, T0 + MINUTE, STEP)
    assert window.entities == ()
    assert window.values.shape == (0, 4, 1)
    assert metrics.latest(EntityKind.GPU).values.size == 0
    assert metrics.entities(EntityKind.GPU) == ()
    assert metrics.events(T0, T0 + MINUTE) == ()


def test_an_entity_without_values_is_absent(metrics: MetricStore) -> None:
    window = metrics.read_windows(EntityKind.GPU, [POWER], T0, T0 + MINUTE, STEP, [gpu("a")])
    assert np.isnan(window.values).all()
    assert (window.status == ABSENT).all()
    assert window.times.tolist() == [T0.timestamp() + second for second in (0, 15, 30, 45)]


def test_gauges_take_the_last_value_of_a_step_and_deltas_sum(metrics: MetricStore) -> None:
    for index, (power, ecc) in enumerate([(100.0, 1.0), (110.0, 0.0), (120.0, 2.0), (130.0, 4.0), (90.0, 8.0)]):
        metrics.write(T0 + index * STEP, [batch(gpu("a"), T0 + index * STEP, {POWER: power, ECC: ecc})])
    window = metrics.read_windows(EntityKind.GPU, [ECC, POWER], T0, T0 + 2 * MINUTE, MINUTE)
    assert window.entities == (gpu("a"),)
    assert window.column(POWER).tolist() == [[130.0, 90.0]]
    assert window.column(ECC).tolist() == [[7.0, 8.0]]
    assert (window.status == PRESENT).all()


def test_the_end_of_a_span_is_not_part_of_it(metrics: MetricStore) -> None:
    for index in range(3):
        metrics.write(T0 + index * STEP, [batch(gpu("a"), T0, {POWER: float(index)})])
    window = metrics.read_windows(EntityKind.GPU, [POWER], T0, T0 + 2 * STEP, STEP)
    assert window.column(POWER).tolist() == [[0.0, 1.0]]


def test_a_cell_with_a_value_wins_over_a_later_one_without_inside_a_step(metrics: MetricStore) -> None:
    metrics.write(T0, [batch(gpu("a"), T0, {POWER: 100.0, ECC: 3.0})])
    metrics.write(T0 + STEP, [batch(gpu("a"), T0, {POWER: (NAN, STALE), ECC: (NAN, RESET)})])
    window = metrics.read_windows(EntityKind.GPU, [POWER, ECC], T0, T0 + MINUTE, MINUTE)
    assert window.values[0, 0].tolist() == [100.0, 3.0]
    assert (window.status == PRESENT).all()


def test_a_step_without_a_value_gives_its_last_status(metrics: MetricStore) -> None:
    metrics.write(T0, [batch(gpu("a"), T0, {POWER: (NAN, UNDEFINED), ECC: (NAN, UNDEFINED)})])
    metrics.write(T0 + STEP, [batch(gpu("a"), T0, {POWER: (NAN, STALE), ECC: (NAN, RESET)})])
    window = metrics.read_windows(EntityKind.GPU, [POWER, ECC], T0, T0 + 2 * MINUTE, MINUTE)
    assert np.isnan(window.values).all()
    assert window.status[0].tolist() == [[STALE, RESET], [ABSENT, ABSENT]]


def test_a_present_cell_without_a_number_is_absent(metrics: MetricStore) -> None:
    metrics.write(T0, [batch(gpu("a"), T0, {POWER: NAN})])
    assert metrics.latest(EntityKind.GPU, [POWER]).status.tolist() == [[[ABSENT]]]


def test_quantiles_come_from_the_buckets_of_the_whole_step(metrics: MetricStore) -> None:
    metrics.write(T0, [batch(replica("r"), T0, buckets(b8=9))])
    metrics.write(T0 + STEP, [batch(replica("r"), T0, buckets(b12=1))])
    keys = [SignalKey(TTFT, quantile=0.5), SignalKey(TTFT, quantile=0.99), SignalKey(TTFT, bucket=8)]
    window = metrics.read_windows(EntityKind.REPLICA, keys, T0, T0 + MINUTE, MINUTE)
    bounds = catalog.signal(TTFT).bounds
    counts = np.zeros(len(bounds) + 1)
    counts[8], counts[12] = 9, 1
    median, _ = catalog.bucket_quantile(counts, bounds, 0.5)
    high, _ = catalog.bucket_quantile(counts, bounds, 0.99)
    assert window.values[0, 0].tolist() == [float(median), float(high), 9.0]
    assert (window.status == PRESENT).all()


def test_quantiles_and_means_of_a_source_without_buckets(metrics: MetricStore) -> None:
    """Values computed by the source are read if no bucket has values. They are not summed over a step."""
    name, own, bare = "engine_e2e_seconds", EntityRef("test", EntityKind.REPLICA, "n", "triton"), "engine_e2e_seconds"
    quantile, mean = SignalKey(name, quantile=0.99), SignalKey(bare)
    other = EntityRef("test", EntityKind.REPLICA, "n", "vllm")
    bucket = catalog.signal(name).bucket_keys[3]
    for number in range(4):
        at = T0 + number * STEP
        metrics.write(
            at, [batch(own, at, {quantile: 2.0 + number, mean: 1.0 + number}), batch(other, at, {bucket: 5.0})]
        )
    window = metrics.read_windows(EntityKind.REPLICA, [quantile, mean], T0, T0 + MINUTE, MINUTE, [own, other])
    assert window.values[:, 0, 0].tolist() == pytest.approx([5.0, 0.998], rel=1e-3)
    assert window.values[0, 0, 1] == 4.0
    assert window.status[1, 0, 1] == CellStatus.ABSENT


def test_quantiles_distinguish_below_the_first_bucket_no_requests_and_no_scrape(metrics: MetricStore) -> None:
    key = SignalKey(TTFT, quantile=0.9)
    metrics.write(T0, [batch(replica("r"), T0, buckets(b0=5))])
    metrics.write(T0 + MINUTE, [batch(replica("r"), T0, buckets())])
    metrics.write(T0 + 2 * MINUTE, [batch(replica("r"), T0, dict.fromkeys(buckets(), (NAN, RESET)))])
    window = metrics.read_windows(EntityKind.REPLICA, [key], T0, T0 + 4 * MINUTE, MINUTE)
    assert window.status[0, :, 0].tolist() == [BELOW, UNDEFINED, RESET, ABSENT]
    assert window.values[0, 0, 0] == catalog.signal(TTFT).bounds[0]
    assert np.isnan(window.values[0, 1:, 0]).all()


def test_batches_of_one_cycle_are_merged_and_a_present_cell_wins(metrics: MetricStore) -> None:
    up = SignalKey("target_up")
    written = metrics.write(
        T0,
        [
            batch(gpu("a"), T0, {POWER: 100.0, up: 1.0}),
            batch(gpu("a"), T0, {ECC: 2.0, up: (NAN, ABSENT)}),
            batch(gpu("b"), T0, {POWER: (NAN, STALE)}),
            batch(gpu("b"), T0, {POWER: 55.0}),
            batch(gpu("b"), T0, {POWER: (NAN, UNDEFINED)}),
        ],
    )
    window = metrics.latest(EntityKind.GPU, [POWER, ECC, up])
    assert window.entities == (gpu("a"), gpu("b"))
    assert window.values[0, 0].tolist() == [100.0, 2.0, 1.0]
    assert window.values[1, 0, 0] == 55.0
    assert window.status[1, 0].tolist() == [PRESENT, ABSENT, ABSENT]
    assert written == 4


def test_each_entity_keeps_its_own_scrape_time(metrics: MetricStore) -> None:
    late = T0 + timedelta(seconds=2.5)
    metrics.write(T0, [batch(gpu("a"), T0, {POWER: 1.0}), batch(gpu("b"), late, {POWER: 1.0})])
    window = metrics.latest(EntityKind.GPU, [SignalKey("scrape_offset_seconds")])
    assert window.values[:, 0, 0].tolist() == [0.0, 2.5]


def test_a_second_write_of_a_timestamp_replaces_the_first(metrics: MetricStore) -> None:
    metrics.write(T0, [batch(gpu("a"), T0, {POWER: 1.0, ECC: 1.0}), batch(gpu("b"), T0, {POWER: 9.0})])
    metrics.write(T0, [batch(gpu("a"), T0, {POWER: 2.0, ECC: 1.0})])
    window = metrics.read_windows(EntityKind.GPU, [POWER, ECC], T0, T0 + MINUTE, MINUTE)
    assert window.entities == (gpu("a"),)
    assert window.values[0, 0].tolist() == [2.0, 1.0]
    assert metrics.entities(EntityKind.GPU) == (gpu("a"), gpu("b"))


def test_cycles_may_be_written_out_of_order(metrics: MetricStore) -> None:
    for index in (2, 0, 1):
        metrics.write(T0 + index * STEP, [batch(gpu("a"), T0, {POWER: float(index)})])
    window = metrics.read_windows(EntityKind.GPU, [POWER], T0, T0 + MINUTE, MINUTE)
    assert window.column(POWER).tolist() == [[2.0]]


def test_a_window_of_named_entities_keeps_their_order(metrics: MetricStore) -> None:
    metrics.write(T0, [batch(gpu(name), T0, {POWER: float(ord(name))}) for name in "abc"])
    requested = [gpu("c"), gpu("ghost"), gpu("a")]
    window = metrics.read_windows(EntityKind.GPU, [POWER], T0, T0 + STEP, STEP, requested)
    assert window.entities == tuple(requested)
    assert window.status[:, 0, 0].tolist() == [PRESENT, ABSENT, PRESENT]
    assert window.values[[0, 2], 0, 0].tolist() == [99.0, 97.0]


def test_the_same_key_may_be_requested_twice(metrics: MetricStore) -> None:
    metrics.write(T0, [batch(replica("r"), T0, {**buckets(b3=2), SignalKey("engine_up"): 1.0})])
    keys = [SignalKey(TTFT, bucket=3), SignalKey("engine_up"), SignalKey(TTFT, bucket=2), SignalKey("engine_up")]
    window = metrics.read_windows(EntityKind.REPLICA, keys, T0, T0 + STEP, STEP)
    assert window.values[0, 0].tolist() == [2.0, 1.0, 0.0, 1.0]


def test_latest_without_keys_gives_every_column_of_the_last_five_minutes(metrics: MetricStore) -> None:
    metrics.write(T0, [batch(gpu("old"), T0, {POWER: 1.0})])
    metrics.write(T0 + 6 * MINUTE, [batch(gpu("new"), T0, {POWER: 2.0, ECC: 3.0})])
    window = metrics.latest(EntityKind.GPU)
    assert window.entities == (gpu("new"),)
    assert set(window.keys) == {POWER, ECC}
    assert window.column(ECC).tolist() == [[3.0]]
    assert window.times.tolist() == [(T0 + 6 * MINUTE).timestamp()]


def test_latest_takes_the_last_increase_and_not_a_sum(metrics: MetricStore) -> None:
    for index, increase in enumerate((5.0, 7.0)):
        metrics.write(T0 + index * STEP, [batch(gpu("a"), T0, {ECC: increase})])
    assert metrics.latest(EntityKind.GPU, [ECC]).values.tolist() == [[[7.0]]]


FAULT = SignalKey("hw_accel_fault_code")


def test_each_statistic_of_a_step(metrics: MetricStore) -> None:
    cells = [(100.0, 0.0, 1.0), (60.0, 79.0, 2.0), ((NAN, STALE), (NAN, STALE), 4.0), (110.0, 13.0, (NAN, RESET))]
    for index, (power, fault, ecc) in enumerate(cells):
        metrics.write(T0 + index * STEP, [batch(gpu("a"), T0, {POWER: power, FAULT: fault, ECC: ecc})])
    for statistic, power, fault in (
        (Statistic.LAST, 110.0, 13.0),
        (Statistic.MEAN, 90.0, 92.0 / 3),
        (Statistic.MIN, 60.0, 0.0),
        (Statistic.MAX, 110.0, 79.0),
    ):
        window = metrics.read_windows(
            EntityKind.GPU, [POWER, ECC, FAULT], T0, T0 + 2 * MINUTE, MINUTE, statistic=statistic
        )
        assert window.values[0, 0].tolist() == pytest.approx([power, 7.0, fault])
        assert (window.status[0, 0] == PRESENT).all()
        assert np.isnan(window.values[0, 1]).all()
        assert (window.status[0, 1] == ABSENT).all()


def test_a_statistic_ignores_invalid_cells(metrics: MetricStore) -> None:
    metrics.write(T0, [batch(gpu("a"), T0, {POWER: (5.0, CellStatus.UNTRUSTED)})])
    metrics.write(T0 + MINUTE, [batch(gpu("a"), T0, {POWER: 5.0})])
    metrics.write(T0 + MINUTE + STEP, [batch(gpu("a"), T0, {POWER: (900.0, CellStatus.UNTRUSTED)})])
    for statistic in (Statistic.MEAN, Statistic.MIN, Statistic.MAX):
        window = metrics.read_windows(EntityKind.GPU, [POWER], T0, T0 + 2 * MINUTE, MINUTE, statistic=statistic)
        assert window.status[0, :, 0].tolist() == [CellStatus.UNTRUSTED, PRESENT]
        assert np.isnan(window.values[0, 0, 0])
        assert window.values[0, 1, 0] == 5.0


def test_quantiles_and_sums_are_the_same_whatever_the_statistic(metrics: MetricStore) -> None:
    metrics.write(T0, [batch(replica("r"), T0, buckets(b8=9))])
    metrics.write(T0 + STEP, [batch(replica("r"), T0, buckets(b12=1))])
    keys = [SignalKey(TTFT, quantile=0.5), SignalKey(TTFT, bucket=8)]
    windows = [
        metrics.read_windows(EntityKind.REPLICA, keys, T0, T0 + MINUTE, MINUTE, statistic=statistic)
        for statistic in Statistic
    ]
    assert all((window.values == windows[0].values).all() for window in windows)


def event(identifier: str, at: datetime, name: str = "a", dedup_key: str = "") -> Event:
    return Event(identifier, EventKind.XID, gpu(name), at, "dcgm", "79", {"text": "off the bus 掉卡"}, dedup_key)


def test_events_are_stored_once_per_dedup_key_and_read_by_time_and_entity(metrics: MetricStore) -> None:
    first, again = event("1", T0, dedup_key="boot-7/79/1"), event("2", T0 + STEP, dedup_key="boot-7/79/1")
    other = event("3", T0 + MINUTE, name="b")
    metrics.write(T0, [], [first, again])
    metrics.write(T0 + MINUTE, [], [other, first])
    assert metrics.events(T0, T0 + 2 * MINUTE) == (first, other)
    assert metrics.events(T0, T0 + MINUTE) == (first,)
    assert metrics.events(T0, T0 + 2 * MINUTE, gpu("b")) == (other,)
    assert metrics.read_windows(EntityKind.GPU, [POWER], T0, T0 + MINUTE, MINUTE).events == (first,)
    assert metrics.read_windows(EntityKind.NODE, [POWER], T0, T0 + MINUTE, MINUTE).events == ()


# --- state ----------------------------------------------------------------------------------------


def cycle(name: str = "c1", at: datetime = T0) -> CycleRecord:
    return CycleRecord(name, at, 0.4, 10, 9, 1234, 2, 1, 1, ("collected 9 of 10 targets",))


def alert(fingerprint: str = "f1", starts_at: datetime = T0, status: AlertState = AlertState.FIRING) -> Alert:
    ends = starts_at + MINUTE if status is AlertState.RESOLVED else None
    return Alert(
        fingerprint, "gpu-lost", Priority.P1, gpu("a"), status, AlertReason.CONDITION_SEEN, starts_at, starts_at, ends,
        value=1.5, labels={"team": "推理"}, incident="i1",
    )  # fmt: skip


def incident(identifier: str = "i1", opened_at: datetime = T0, resolved_at: datetime | None = None) -> Incident:
    evidence = Evidence("hw_accel_power_watts", None, Interval(None, 700.0), "evidence.gone", {"gpu": "a"})
    return Incident(
        identifier,
        Layer.HARDWARE,
        Priority.P1,
        opened_at,
        (Hypothesis(gpu("a"), "gpu-lost", 0.93, (evidence,)),),
        (RejectedHypothesis(replica("r"), "engine-hung", "rejected.progress"),),
        ("f1",),
        (TimelineEntry(opened_at, "timeline.opened", {"n": "1"}),),
        opened_at,
        resolved_at,
    )


def action(identifier: str = "a1", status: ActionStatus = ActionStatus.INTENDED, at: datetime = T0) -> Action:
    node = EntityRef("prod", EntityKind.NODE, None, "node-1")
    verdict = Verdict.ASK if status is ActionStatus.WAITING_APPROVAL else Verdict.ALLOWED
    return Action(
        identifier, "s1", ActionKind.CORDON, node, {"replicas": 3}, "i1", False, verdict, DecisionReason.WITHIN_LIMITS,
        status, at,
    )  # fmt: skip


def message(identifier: str = "m1", at: datetime = T0, **fields: object) -> Message:
    page = Message(identifier, "im", NotifyReason.OPENED, Priority.P1, "i1", "GPU lost", "body", at, is_page=True)
    return replace(page, **fields)  # type: ignore[arg-type]


def commit(**parts: object) -> CycleCommit:
    return CycleCommit(cycle=parts.pop("cycle", cycle()), **parts)  # type: ignore[arg-type]


def plan() -> Plan:
    service = EntityRef("prod", EntityKind.SERVICE, "llm", "chat")
    forecast = Forecast(
        "svc_requests_per_second", service, T0, timedelta(minutes=10), np.array([1.0, 2.0]),
        {0.5: np.array([3.0, np.nan]), 0.95: np.array([4.0, 5.0])}, "prophet", BacktestScore(0.1, 0.2, None, 3),
    )  # fmt: skip
    recommendation = Recommendation(
        service, "H100", 4, 6, 24, 2, 10, "demand", T0 + MINUTE, None, timedelta(seconds=190.5), 12.5, "USD",
        {"qps": 40.0, "steps": ["a", "b"]}, next(iter(PlanReason)), T0,
    )  # fmt: skip
    return Plan((forecast,), (recommendation, NoRecommendation(service, NoPlanReason.NO_HISTORY, T0)))


def test_an_empty_state_is_empty(state: StateStore) -> None:
    assert state.alerts() == state.incidents() == state.actions() == state.messages() == state.cycles() == ()
    assert state.sessions() == state.audit() == state.silences(T0) == ()
    assert state.plan() == Plan()
    assert state.topology() == Topology()
    assert state.alert("x") is None
    assert state.incident("x") is None
    assert not state.paused()
    assert state.load_detector_states() == {}


def test_a_committed_cycle_is_read_back_unchanged(state: StateStore) -> None:
    session = RemediationSession("s1", "i1", T0, cordoned=(EntityRef("prod", EntityKind.NODE, None, "node-1"),))
    record = AuditRecord(T0, AuditEvent.ACTION_DECIDED, "a1", "within_limits", "c1", detail={"node": "node-1"})
    topology = Topology.build([(gpu("a"), replica("r"))], [gpu("lone")], {gpu("a"): {"gpu_type": "H100"}}, T0)
    state.commit(
        commit(
            alerts=(alert(),), incidents=(incident(),), actions=(action(),), sessions=(session,), messages=(message(),),
            audit=(record,), topology=topology,
        )
    )  # fmt: skip
    assert state.alerts() == (alert(),)
    assert state.alert("f1") == alert()
    assert state.incidents() == (incident(),)
    assert state.incident("i1") == incident()
    assert state.actions() == (action(),)
    assert state.sessions() == (session,)
    assert state.messages() == (message(),)
    assert state.cycles() == (cycle(),)
    assert state.audit() == (record,)
    assert state.topology() == topology


def test_the_newest_plan_is_read_back(state: StateStore) -> None:
    state.commit(commit(plan=Plan()))
    state.commit(commit(cycle=cycle("c2", T0 + STEP), plan=plan()))
    state.commit(commit(cycle=cycle("c3", T0 + 2 * STEP)))
    found = state.plan()
    assert found.recommendations == plan().recommendations
    forecast, expected = found.forecasts[0], plan().forecasts[0]
    assert replace(forecast, times=None, quantiles={}) == replace(expected, times=None, quantiles={})  # type: ignore[arg-type]
    np.testing.assert_array_equal(forecast.times, expected.times)
    assert list(forecast.quantiles) == [0.5, 0.95]
    np.testing.assert_array_equal(forecast.quantiles[0.5], expected.quantiles[0.5])


def test_alerts_by_state_and_time_newest_occurrence_first(state: StateStore) -> None:
    old = alert(status=AlertState.RESOLVED)
    new = alert(starts_at=T0 + 5 * MINUTE)
    pending = alert("f2", T0 + MINUTE, AlertState.PENDING)
    state.commit(commit(alerts=(old, new, pending)))
    assert state.alerts() == (new, pending, old)
    assert state.alerts(states=[AlertState.PENDING, AlertState.FIRING]) == (new, pending)
    assert state.alerts(states=[]) == ()
    assert state.alerts(since=T0 + 2 * MINUTE) == (new, pending)
    assert state.alerts(limit=1) == (new,)
    assert state.alert("f1") == new


def test_alerts_by_priority(state: StateStore) -> None:
    paging = alert("f1", T0)
    weekly = replace(alert("f2", T0 + MINUTE), priority=Priority.P3)
    done = replace(alert("f3", T0 + 2 * MINUTE, AlertState.RESOLVED), priority=Priority.P3)
    state.commit(commit(alerts=(paging, weekly, done)))
    assert state.alerts(priorities=[Priority.P3]) == (done, weekly)
    assert state.alerts(priorities=[Priority.P3], limit=1) == (done,)
    assert state.alerts(priorities=[Priority.P3], states=[AlertState.FIRING]) == (weekly,)
    assert state.alerts(priorities=[paging.priority, Priority.P3]) == (done, weekly, paging)
    assert state.alerts(priorities=[]) == ()


def test_incidents_open_since_and_newest_first(state: StateStore) -> None:
    done = incident("i1", T0, T0 + MINUTE)
    going = incident("i2", T0 + STEP)
    state.commit(commit(incidents=(done, going)))
    assert state.incidents() == (going, done)
    assert state.incidents(open_only=True) == (going,)
    assert state.incidents(since=T0 + MINUTE) == (going, done)
    assert state.incidents(since=T0 + 2 * MINUTE) == (going,)
    assert state.incidents(limit=1) == (going,)


def test_known_actions_and_messages_are_unchanged(state: StateStore) -> None:
    state.commit(commit(actions=(action(),), messages=(message(),)))
    assert state.claim_actions("one", T0, MINUTE)
    state.claim_messages("one", T0, MINUTE)
    state.finish_message("m1", delivered=True, now=T0)
    state.commit(commit(actions=(action(),), messages=(message(),)))
    assert state.actions()[0].status is ActionStatus.CLAIMED
    assert state.claim_messages("two", T0 + timedelta(hours=1), MINUTE) == ()


def test_a_cancelled_action_cancels_an_unclaimed_one(state: StateStore) -> None:
    state.commit(commit(actions=(action("a1"), action("a2"))))
    (taken,) = state.claim_actions("one", T0, MINUTE, limit=1)
    both = tuple(replace(action(name), status=ActionStatus.CANCELLED) for name in ("a1", "a2"))
    state.commit(commit(actions=both))
    statuses = {found.id: found.status for found in state.actions()}
    assert statuses == {"a1": ActionStatus.CLAIMED, "a2": ActionStatus.CANCELLED}
    assert taken.id == "a1"


def test_an_action_is_claimed_once_until_its_lease_expires(state: StateStore) -> None:
    state.commit(commit(actions=(action(), action("waits", ActionStatus.WAITING_APPROVAL))))
    (claimed,) = state.claim_actions("one", T0, MINUTE)
    assert claimed.status is ActionStatus.CLAIMED
    assert claimed.started_at == T0
    assert state.claim_actions("two", T0 + 0.9 * MINUTE, MINUTE) == ()
    assert [found.id for found in state.claim_actions("two", T0 + MINUTE, MINUTE)] == ["a1"]


@pytest.mark.parametrize(
    ("outcome", "status"),
    [
        (OutcomeStatus.DONE, ActionStatus.DONE),
        (OutcomeStatus.ALREADY, ActionStatus.DONE),
        (OutcomeStatus.DRY_RUN, ActionStatus.DRY_RUN),
        (OutcomeStatus.FAILED, ActionStatus.FAILED),
    ],
)
def test_a_claimed_action_ends_once(state: StateStore, outcome: OutcomeStatus, status: ActionStatus) -> None:
    state.commit(commit(actions=(action(),)))
    state.claim_actions("one", T0, MINUTE)
    state.finish_action(Outcome("a1", outcome, "cordoned", T0, T0 + STEP))
    state.finish_action(Outcome("a1", OutcomeStatus.FAILED, "too late", T0, T0 + MINUTE))
    (found,) = state.actions()
    assert (found.status, found.detail, found.ended_at) == (status, "cordoned", T0 + STEP)
    assert state.claim_actions("two", T0 + timedelta(hours=1), MINUTE) == ()


def test_a_deferred_action_waits_keeps_its_start_and_may_be_cancelled(state: StateStore) -> None:
    state.commit(commit(actions=(action(),)))
    state.claim_actions("one", T0, MINUTE)
    state.defer_action("a1", "3 pods are evicted", T0 + STEP)
    (waiting,) = state.actions()
    assert (waiting.status, waiting.detail) == (ActionStatus.INTENDED, "3 pods are evicted")
    assert state.claim_actions("two", T0 + 0.9 * STEP, MINUTE) == ()
    (again,) = state.claim_actions("two", T0 + STEP, MINUTE)
    assert again.started_at == T0
    state.defer_action("a1", "2 pods are left", T0 + 2 * STEP)
    state.commit(commit(actions=(replace(again, status=ActionStatus.CANCELLED),)))
    assert state.claim_actions("two", T0 + MINUTE, MINUTE) == ()
    state.defer_action("a1", "too late", T0 + MINUTE)
    assert state.actions()[0].status is ActionStatus.CANCELLED


def test_finishing_an_unknown_action_or_message_is_an_error(state: StateStore) -> None:
    with pytest.raises(StoreError, match="No action 'ghost'"):
        state.finish_action(Outcome("ghost", OutcomeStatus.DONE, "", T0, T0))
    with pytest.raises(StoreError, match="No action 'ghost'"):
        state.defer_action("ghost", "", T0)
    with pytest.raises(StoreError, match="No message 'ghost'"):
        state.finish_message("ghost", delivered=True, now=T0)


def test_messages_are_claimed_in_order_retried_and_finally_failed(state: StateStore) -> None:
    state.commit(commit(messages=(message("m2", T0 + STEP), message("m1"))))
    assert state.claim_messages("one", T0, MINUTE) == (message("m1"),)
    assert state.claim_messages("two", T0 + STEP, MINUTE) == (message("m2", T0 + STEP),)
    state.finish_message("m1", delivered=False, now=T0, retry_at=T0 + 5 * MINUTE, error="503")
    state.finish_message("m2", delivered=False, now=T0, error="410 gone")
    assert state.claim_messages("one", T0 + 4 * MINUTE, MINUTE) == ()
    assert state.claim_messages("one", T0 + 5 * MINUTE, MINUTE) == (message("m1"),)
    state.finish_message("m1", delivered=True, now=T0 + 5 * MINUTE)
    assert state.claim_messages("one", T0 + timedelta(days=1), MINUTE) == ()
    assert len(state.messages(incident="i1")) == 2
    assert state.messages(incident="other") == ()


def test_a_message_of_a_dead_sender_is_claimed_again(state: StateStore) -> None:
    state.commit(commit(messages=(message(),)))
    assert state.claim_messages("dies", T0, MINUTE)
    assert state.claim_messages("next", T0 + MINUTE, MINUTE) == (message(),)


def test_urgent_messages_are_claimed_first(state: StateStore) -> None:
    report = message("a", reason=NotifyReason.REPORT, priority=None, incident=None)
    end = message("b", reason=NotifyReason.RESOLVED, priority=Priority.P0, incident="i0")
    state.commit(commit(messages=(report, end, message("c", T0 + STEP), message("d", T0 + STEP, priority=Priority.P0))))
    claimed = state.claim_messages("one", T0 + STEP, MINUTE)
    assert [item.id for item in claimed] == ["d", "c", "a", "b"]


def test_messages_are_claimed_by_channel(state: StateStore) -> None:
    state.commit(commit(messages=(message("m1"), message("m2", channel="mail"), message("m3", T0 + 5 * MINUTE))))
    assert state.due_channels(T0) == ("im", "mail")
    assert [item.id for item in state.claim_messages("one", T0, MINUTE, channel="mail")] == ["m2"]
    assert state.due_channels(T0) == ("im",)
    assert state.claim_messages("one", T0, MINUTE, channel="other") == ()


def test_the_end_of_an_incident_does_not_overtake_its_first_message(state: StateStore) -> None:
    end = message("m2", T0 + STEP, reason=NotifyReason.RESOLVED)
    raised = message("m3", T0 + STEP, reason=NotifyReason.PRIORITY_RAISED, priority=Priority.P0)
    elsewhere = message("m4", T0 + STEP, reason=NotifyReason.RESOLVED, channel="mail")
    state.commit(commit(messages=(message("m1"), end, raised, elsewhere)))
    assert [item.id for item in state.claim_messages("one", T0, MINUTE, limit=1)] == ["m1"]
    claimed = state.claim_messages("two", T0 + STEP, MINUTE)
    assert [item.id for item in claimed] == ["m3", "m4"], "an urgent one overtakes, and so does another channel"
    state.finish_message("m1", delivered=False, now=T0 + STEP, retry_at=T0 + 5 * MINUTE, error="503")
    state.finish_message("m3", delivered=True, now=T0 + STEP)
    assert state.claim_messages("one", T0 + 4 * MINUTE, MINUTE, channel="im") == ()
    assert [item.id for item in state.claim_messages("one", T0 + 5 * MINUTE, MINUTE, channel="im")] == ["m1", "m2"]


def test_a_store_has_an_id_of_its_own(state: StateStore) -> None:
    assert len(state.installation()) == 8
    assert state.installation() == state.installation() != MemoryStateStore().installation()


def test_the_first_receipt_of_an_incident_is_kept(state: StateStore) -> None:
    later = message("m2", T0 + STEP, reason=NotifyReason.REPEAT)
    state.commit(commit(messages=(message("m0"), message("m1", T0 + STEP), later)))
    state.claim_messages("one", T0 + STEP, MINUTE)
    assert state.first_receipt("im", "i1") is None
    state.finish_message("m0", delivered=True, now=T0 + STEP, receipt=Receipt("1.1", merged=3))
    state.finish_message("m1", delivered=True, now=T0 + 2 * STEP, receipt=Receipt("1.2"))
    state.finish_message("m2", delivered=True, now=T0 + 3 * STEP, receipt=Receipt("1.3"))
    assert state.first_receipt("im", "i1") == Receipt("1.2"), "that of a merged delivery belongs to several incidents"
    assert state.first_receipt("mail", "i1") is None
    assert state.first_receipt("im", "i2") is None


def test_the_first_receipt_is_the_one_that_began_a_new_thread(state: StateStore) -> None:
    names = [f"m{number:02}" for number in range(30)]
    state.commit(commit(messages=tuple(message(name, T0 + STEP) for name in names)))
    state.claim_messages("one", T0 + STEP, MINUTE, limit=30)
    for number, name in enumerate(names):
        receipt = Receipt(name, new_thread=number == 25)
        state.finish_message(name, delivered=True, now=T0 + number * STEP, receipt=receipt)
    assert state.first_receipt("im", "i1") == Receipt("m25", new_thread=True)


def test_a_failure_and_its_follow_up_are_recorded_together(state: StateStore) -> None:
    copy = message("m1:fallback:mail", T0, channel="mail", failed_channels=("im",))
    state.commit(commit(messages=(message(),)))
    state.claim_messages("one", T0, MINUTE)
    for _ in range(2):
        state.finish_message("m1", delivered=False, now=T0, retry_at=T0 + MINUTE, error="503", follow_ups=(copy,))
    assert state.claim_messages("one", T0, MINUTE) == (copy,)


def test_messages_that_were_sent_as_one_are_delivered_together(state: StateStore) -> None:
    state.commit(commit(messages=(message("m1"), message("m2"), message("m3"))))
    state.claim_messages("one", T0, MINUTE)
    copy = message("copy", channel="mail")
    with pytest.raises(StoreError, match="No message 'ghost'"):
        state.deliver_messages(["m3", "ghost"], Receipt("1"), T0)
    state.deliver_messages(["m1", "m2"], Receipt("1", merged=2), T0, (copy,))
    claimed = state.claim_messages("two", T0 + timedelta(hours=1), MINUTE)
    assert {item.id for item in claimed} >= {"copy"}
    assert not {"m1", "m2"} & {item.id for item in claimed}


def test_a_dead_letter_is_listed_and_may_be_retried(state: StateStore) -> None:
    state.commit(commit(messages=(message("m1"), message("m2", T0 + STEP), message("m3"))))
    state.claim_messages("one", T0 + STEP, MINUTE)
    for name in ("m1", "m2"):
        state.finish_message(name, delivered=False, now=T0 + MINUTE, error="410 gone")
    state.finish_message("m3", delivered=True, now=T0 + MINUTE)
    newest, oldest = state.dead_letters()
    assert newest == DeadLetter(message("m2", T0 + STEP), T0 + MINUTE, 1, "410 gone")
    assert state.dead_letters(limit=1) == (newest,)
    assert state.dead_letters(after=position_of(newest.message)) == (oldest,)
    assert state.retry_message("m1", "ann", T0 + 2 * MINUTE)
    assert not state.retry_message("m1", "ann", T0 + 2 * MINUTE)
    assert not state.retry_message("m3", "ann", T0 + 2 * MINUTE)
    assert state.dead_letters() == (newest,)
    assert state.claim_messages("one", T0 + 2 * MINUTE, MINUTE) == (message("m1"),)
    assert [(record.event, record.subject, record.by) for record in state.audit()] == [("message_retried", "m1", "ann")]


def test_approval_creates_an_intent_and_rejection_ends_it(state: StateStore) -> None:
    waiting = tuple(action(name, ActionStatus.WAITING_APPROVAL) for name in ("a1", "a2"))
    state.commit(commit(actions=waiting))
    assert state.decide_action("a1", True, "ann", T0)
    assert state.decide_action("a2", False, "bob", T0)
    assert not state.decide_action("a1", False, "bob", T0)
    assert not state.decide_action("ghost", True, "ann", T0)
    refused, approved = state.actions()
    assert (approved.status, approved.decision, approved.reason, approved.approved_by) == (
        ActionStatus.INTENDED,
        Verdict.ALLOWED,
        DecisionReason.APPROVED,
        "ann",
    )
    assert (refused.status, refused.decision, refused.reason) == (
        ActionStatus.REFUSED,
        Verdict.REFUSED,
        DecisionReason.REJECTED_BY_HAND,
    )
    assert [found.id for found in state.claim_actions("one", T0, MINUTE)] == ["a1"]
    assert [record.event for record in state.audit()] == [AuditEvent.ACTION_REJECTED, AuditEvent.ACTION_APPROVED]


def test_two_people_approve_and_the_same_person_counts_once(state: StateStore) -> None:
    state.commit(commit(actions=(replace(action("a1", ActionStatus.WAITING_APPROVAL), approvals_needed=2),)))
    assert state.decide_action("a1", True, "ann", T0)
    assert state.decide_action("a1", True, "Ann", T0)
    (first,) = state.actions()
    assert (first.status, first.approvals) == (ActionStatus.WAITING_APPROVAL, ("ann",))
    assert first.reason is DecisionReason.NEEDS_SECOND_APPROVAL
    assert state.claim_actions("one", T0, MINUTE) == ()
    assert state.decide_action("a1", True, "bob", T0)
    (second,) = state.actions()
    assert (second.status, second.approvals, second.approved_by) == (ActionStatus.INTENDED, ("ann", "bob"), "ann, bob")
    assert [(record.event, record.by, record.reason) for record in state.audit()] == [
        (AuditEvent.ACTION_APPROVED, "bob", "approved"),
        (AuditEvent.ACTION_APPROVED, "ann", "needs_second_approval"),
    ]


def test_a_recommendation_waits_for_approval_once_it_is_requested(state: StateStore) -> None:
    proposed = replace(action("a1", ActionStatus.PROPOSED), approvals_needed=2)
    state.commit(commit(actions=(proposed,)))
    assert not state.decide_action("a1", True, "ann", T0)
    assert state.request_action("a1", "ann", T0 + STEP)
    assert not state.request_action("a1", "bob", T0 + STEP)
    assert not state.request_action("ghost", "ann", T0)
    (waiting,) = state.actions(statuses=[ActionStatus.WAITING_APPROVAL], since=T0 + STEP)
    assert (waiting.requested_by, waiting.decision, waiting.decided_at) == ("ann", Verdict.ASK, T0 + STEP)
    for person in ("ann", "bob", "cy"):
        assert state.decide_action("a1", True, person, T0 + STEP)
    (approved,) = state.actions()
    assert (approved.status, approved.approvals) == (ActionStatus.INTENDED, ("bob", "cy"))
    assert state.audit()[-1].event is AuditEvent.ACTION_REQUESTED


def test_nothing_is_requested_once_its_session_is_closed(state: StateStore) -> None:
    proposed, session = action("a1", ActionStatus.PROPOSED), RemediationSession("s1", "i1", T0)
    assert proposed.session == session.id
    state.commit(commit(actions=(proposed,), sessions=(replace(session, closed_at=T0 + STEP),)))
    assert not state.request_action("a1", "ann", T0 + MINUTE)
    state.commit(commit(sessions=(session,)))
    assert state.request_action("a1", "ann", T0 + MINUTE)


def test_a_cycle_expires_a_request_unless_a_person_was_faster(state: StateStore) -> None:
    waiting = tuple(action(name, ActionStatus.WAITING_APPROVAL) for name in ("a1", "a2", "a3"))
    state.commit(commit(actions=waiting))
    state.decide_action("a2", True, "ann", T0)
    state.decide_action("a3", False, "ann", T0)
    late = {"status": ActionStatus.REFUSED, "decision": Verdict.REFUSED, "reason": DecisionReason.EXPIRED}
    state.commit(commit(actions=tuple(replace(item, **late, ended_at=T0 + MINUTE) for item in waiting)))
    found = {item.id: (item.status, item.reason) for item in state.actions()}
    assert found["a1"] == (ActionStatus.REFUSED, DecisionReason.EXPIRED)
    assert found["a2"] == (ActionStatus.INTENDED, DecisionReason.APPROVED)
    assert found["a3"] == (ActionStatus.REFUSED, DecisionReason.REJECTED_BY_HAND)
    assert state.request_action("a1", "ann", T0 + MINUTE)
    assert not state.request_action("a3", "ann", T0 + MINUTE)


def test_the_breaker_stays_open_until_a_person_resets_it(state: StateStore) -> None:
    assert state.breaker() == BreakerState()
    assert not state.reset_breaker("ann", T0)
    opened = BreakerState(opened_at=T0, unsuccessful=4, performed=6)
    state.commit(commit(breaker=opened))
    state.commit(commit())
    assert state.breaker() == opened
    assert state.reset_breaker("ann", T0 + MINUTE)
    assert state.breaker() == BreakerState(reset_at=T0 + MINUTE, reset_by="ann")
    state.commit(commit(breaker=opened))
    assert not state.breaker().is_open, "a cycle that had not seen the reset does not open it again"
    state.commit(commit(breaker=replace(opened, reset_at=T0 + MINUTE, reset_by="ann")))
    assert state.breaker().is_open
    assert [(record.event, record.by) for record in state.audit()] == [(AuditEvent.BREAKER_RESET, "ann")]


def test_an_acknowledgement_survives_a_concurrent_cycle(state: StateStore) -> None:
    state.commit(commit(incidents=(incident(),)))
    assert state.acknowledge("i1", "ann", T0 + STEP)
    assert state.acknowledge("i1", "bob", T0 + MINUTE)
    state.commit(commit(incidents=(replace(incident(), pages=2),)))
    found = state.incident("i1")
    assert found is not None
    assert (found.acknowledged_by, found.acknowledged_at, found.pages) == ("ann", T0 + STEP, 2)
    state.commit(commit(incidents=(replace(incident(), resolved_at=T0 + MINUTE),)))
    assert not state.acknowledge("i1", "ann", T0)
    assert not state.acknowledge("ghost", "ann", T0)
    assert [(record.event, record.by) for record in state.audit()] == [(AuditEvent.ACKNOWLEDGED, "ann")]


def test_a_manually_resolved_alert_stays_resolved_until_its_next_occurrence(state: StateStore) -> None:
    state.commit(commit(alerts=(alert(),)))
    assert state.resolve_alert("f1", "ann", T0 + STEP)
    assert not state.resolve_alert("f1", "ann", T0 + STEP)
    assert not state.resolve_alert("ghost", "ann", T0)
    state.commit(commit(alerts=(replace(alert(), seen_at=T0 + MINUTE),)))
    found = state.alert("f1")
    assert found is not None
    assert (found.state, found.reason, found.ends_at) == (AlertState.RESOLVED, AlertReason.RESOLVED_BY_HAND, T0 + STEP)
    again = alert(starts_at=T0 + 2 * MINUTE)
    state.commit(commit(alerts=(again,)))
    assert state.alert("f1") == again


def test_actions_by_incident_and_time(state: StateStore) -> None:
    other = replace(action("a2", at=T0 + MINUTE), because="plan")
    state.commit(commit(actions=(action(), other)))
    assert state.actions() == (other, action())
    assert state.actions(incident="i1") == (action(),)
    assert state.actions(since=T0 + MINUTE) == (other,)
    assert state.actions(limit=1) == (other,)


def test_actions_by_session_by_status_and_by_id(state: StateStore) -> None:
    waits = replace(action("a2", ActionStatus.WAITING_APPROVAL, at=T0 + MINUTE), session="s2")
    state.commit(commit(actions=(action(), waits)))
    assert state.actions(sessions=["s1", "ghost"]) == (action(),)
    assert state.actions(sessions=[]) == ()
    assert state.actions(sessions=["s1", "s2"], since=T0 + MINUTE) == (waits,)
    assert state.actions(statuses=[ActionStatus.WAITING_APPROVAL, ActionStatus.CLAIMED]) == (waits,)
    assert state.action("a2") == waits
    assert state.action("ghost") is None


def test_sessions_open_and_closed(state: StateStore) -> None:
    session = RemediationSession("s1", "i1", T0)
    state.commit(commit(sessions=(session,)))
    closed = replace(session, closed_at=T0 + MINUTE)
    state.commit(commit(sessions=(closed,)))
    assert state.sessions() == ()
    assert state.sessions(open_only=False) == (closed,)


def test_pause_is_stored_and_audited_on_change(state: StateStore) -> None:
    state.set_paused(True, "ann", T0)
    state.set_paused(True, "ann", T0)
    assert state.paused()
    state.set_paused(False, "bob", T0 + STEP)
    assert not state.paused()
    assert [(record.event, record.by) for record in state.audit()] == [
        (AuditEvent.RESUMED, "bob"),
        (AuditEvent.PAUSED, "ann"),
    ]


def test_silences_end_and_can_be_removed(state: StateStore) -> None:
    long, short = (
        Silence(name, "gpu-lost", None, T0 + span, "ann") for name, span in (("l", 2 * MINUTE), ("s", MINUTE))
    )
    state.add_silence(long)
    state.add_silence(short)
    assert state.silences(T0) == (short, long)
    assert state.silences(T0 + MINUTE) == (long,)
    assert state.remove_silence("l")
    assert not state.remove_silence("l")


def test_drills_are_stored_with_their_state(state: StateStore) -> None:
    first, second = (
        Drill(
            name,
            "engine-hung",
            EntityRef("c", EntityKind.REPLICA, "n", name),
            7,
            T0 + start,
            T0 + start + MINUTE,
            "ann",
        )
        for name, start in (("a", timedelta()), ("b", 5 * MINUTE))
    )
    state.save_drill(first)
    state.save_drill(second)
    assert state.drills() == (second, first)
    assert state.drills(since=T0 + 2 * MINUTE) == (second,)
    assert state.drills(limit=1) == (second,)
    stopped = replace(first, stopped_at=T0 + MINUTE / 2, game_day="tuesday")
    state.save_drill(stopped)
    assert state.drills() == (second, stopped)
    assert state.drill_windows(T0 + MINUTE) == (DrillWindow("c", second.starts_at, second.ends_at, "drill"),)
    assert state.drill_windows(T0)[1] == DrillWindow("c", T0, T0 + MINUTE / 2, "tuesday")
    assert stopped.running(T0 + MINUTE / 4)
    assert not stopped.running(T0 + MINUTE / 2)
    assert first.running(T0)
    assert not first.running(first.ends_at)


def verdict(spell: Alert, word: Usefulness, by: str = "ann", minutes: int = 9, **more: str) -> Feedback:
    return judged(spell, word, by=by, at=T0 + minutes * MINUTE, **more)


def test_a_second_verdict_of_a_person_replaces_the_first_and_the_audit_log_has_both(state: StateStore) -> None:
    first = verdict(alert(), Usefulness.USEFUL)
    assert state.save_feedback([first]) == 1
    again = replace(first, at=T0 + 10 * MINUTE)
    assert state.save_feedback([again, again]) == 0, "a repeated verdict is not new"
    assert state.feedback() == (first,)
    other = verdict(alert(), Usefulness.NOT_USEFUL, "bob", 11)
    second = verdict(alert(), Usefulness.WRONG_CAUSE, minutes=12, cause="node-lost", comment="the node, 节点")
    assert state.save_feedback([other, second]) == 2
    assert state.feedback() == (second, other)
    assert second.id == first.id != other.id
    audit_records = state.audit()
    assert [(record.event, record.reason, record.by) for record in audit_records] == [
        (AuditEvent.FEEDBACK_GIVEN, "wrong_cause", "ann"),
        (AuditEvent.FEEDBACK_GIVEN, "not_useful", "bob"),
        (AuditEvent.FEEDBACK_GIVEN, "useful", "ann"),
    ]
    assert (audit_records[0].detail["before"], audit_records[0].detail["cause"]) == ("useful", "node-lost")
    assert "before" not in audit_records[1].detail


def test_verdicts_by_rule_incident_time_and_occurrence(state: StateStore) -> None:
    later, elsewhere = alert(starts_at=T0 + 5 * MINUTE), replace(alert("f2"), rule="xid", incident=None)
    first = verdict(alert(), Usefulness.USEFUL, minutes=1)
    second = verdict(later, Usefulness.NOT_USEFUL, minutes=6)
    third = verdict(elsewhere, Usefulness.NOT_USEFUL, minutes=7)
    assert state.save_feedback([first, second, third]) == 3
    assert state.feedback(rule="gpu-lost") == (second, first)
    assert state.feedback(rule="gpu-lost", limit=1) == (second,)
    assert state.feedback(incident="i1", since=T0 + 2 * MINUTE) == (second,)
    assert state.feedback(rule="unheard") == ()


def test_the_values_of_a_verdict_stay_when_it_is_replaced(state: StateStore) -> None:
    kept = Window(
        EntityKind.GPU, (gpu("a"),), np.array([1.0, 2.0]), (POWER, SignalKey(TTFT, bucket=3)),
        np.array([[[1.5, NAN], [2.5, 4.0]]]), np.array([[[0, 3], [0, 0]]], dtype=np.uint8), STEP,
    )  # fmt: skip
    first = verdict(alert(), Usefulness.USEFUL)
    other = verdict(alert("f2"), Usefulness.USEFUL)
    state.save_feedback([first, other], {first.id: kept})
    state.save_feedback([replace(first, verdict=Usefulness.NOT_USEFUL)])
    found = state.feedback_values([first.id, other.id, "unheard"])
    assert list(found) == [first.id]
    again = found[first.id]
    assert (again.kind, again.entities, again.keys, again.step) == (kept.kind, kept.entities, kept.keys, STEP)
    for name in ("times", "values", "status"):
        np.testing.assert_array_equal(getattr(again, name), getattr(kept, name))


def test_the_occurrences_of_an_alert_are_newest_first(state: StateStore) -> None:
    old, new = alert(status=AlertState.RESOLVED), alert(starts_at=T0 + 5 * MINUTE)
    state.commit(commit(alerts=(old, new, alert("f2"))))
    assert state.spells("f1") == (new, old)
    assert state.spells("f1", 1) == (new,)
    assert state.spells("unheard") == ()


def test_the_audit_log_is_newest_first_and_keeps_the_order_within_a_timestamp(state: StateStore) -> None:
    records = [AuditRecord(T0, AuditEvent.WRITE_REFUSED, str(index), "no token") for index in range(3)]
    state.append_audit(records[:2])
    state.append_audit(records[2:])
    state.append_audit([])
    assert [record.subject for record in state.audit()] == ["2", "1", "0"]
    assert len(state.audit(limit=2)) == 2


def test_only_the_newest_cycles_are_kept(state: StateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.state.state_rows.KEPT_CYCLES", 3)
    for index in range(5):
        state.commit(commit(cycle=cycle(f"c{index}", T0 + index * STEP)))
    assert [found.id for found in state.cycles()] == ["c4", "c3", "c2"]
    assert [found.id for found in state.cycles(limit=1)] == ["c4"]


def test_detector_states_are_replaced_by_the_newest_checkpoint(state: StateStore) -> None:
    first = DetectorState(2, (gpu("a"),), {"level": np.array([1.5]), "seen": np.array([True])})
    state.save_detector_states({"seasonal": first, "forest": first}, T0)
    second = DetectorState(3, (), {})
    state.save_detector_states({"forest": second}, T0 + MINUTE)
    found = state.load_detector_states()
    assert set(found) == {"seasonal", "forest"}
    assert found["forest"].version == 3
    assert found["seasonal"].entities == (gpu("a"),)
    assert found["seasonal"].arrays["level"].tolist() == [1.5]
    assert found["seasonal"].arrays["seen"].dtype == np.bool_


def test_the_newest_statuses_of_the_detectors_are_kept(state: StateStore) -> None:
    assert state.detector_statuses() == ()
    rate = AlarmRate(0.25, None, 1.5, 0.4)
    held = ShadowFinding(gpu("a"), ("hw_accel_power_watts",), T0)
    one = DetectorStatus(
        "seasonal", EntityKind.GPU, Stage.SHADOW, StageReason.ON_TRIAL, T0, 6, 1,
        {NoVerdictReason.NO_EXPECTATION: 2}, NoVerdictReason.WARMING_UP, 3600.0, 172800.0, rate, (held,),
    )  # fmt: skip
    other = DetectorStatus("liveness", EntityKind.REPLICA, Stage.ALERTING, StageReason.NEEDS_NO_PAST, T0)
    state.commit(replace(commit(), detector_statuses=(one, other)))
    assert state.detector_statuses() == (other, one)
    state.commit(commit(cycle=cycle("c2", T0 + STEP)))
    assert state.detector_statuses() == (other, one), "a cycle without statuses keeps the stored ones"
    learnt = replace(one, stage=Stage.ALERTING, reason=StageReason.LEARNT, shadowed=())
    state.commit(replace(commit(cycle=cycle("c3", T0 + 2 * STEP)), detector_statuses=(learnt,)))
    assert state.detector_statuses() == (learnt,)
