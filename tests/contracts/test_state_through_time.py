"""Contract of every state store for pagination and history: memory, SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import StoreError
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    BacktestScore,
    Calibration,
    CycleRecord,
    DecisionReason,
    EntityKind,
    EntityRef,
    Forecast,
    Incident,
    Interval,
    Layer,
    Message,
    NoPlanReason,
    NoRecommendation,
    NotifyReason,
    Plan,
    Priority,
    Verdict,
)
from outrider.ports import CycleCommit, StateStore
from outrider.records.change_log import Change, ChangeLog, Startup
from outrider.records.drill import Drill
from outrider.records.feedback import Feedback, Usefulness
from outrider.topology import Topology
from outrider.wire.cursors import Position, position_of
from store.factory import open_change_log, open_state, urls_of
from store.memory import MemoryChangeLog, MemoryStateStore

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SERVICE = EntityRef("prod", EntityKind.SERVICE, "llm", "chat")
NODES = tuple(EntityRef("prod", EntityKind.NODE, None, f"node-{number}") for number in range(3))
REPLICAS = tuple(EntityRef("prod", EntityKind.REPLICA, "llm", f"chat-{number}") for number in range(3))


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def both(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[StateStore, ChangeLog]]:
    if request.param == "memory":
        yield MemoryStateStore(), MemoryChangeLog()
        return
    sqlite = f"sqlite:///{tmp_path}/x.db"
    url = sqlite if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    state, ledger = open_state(urls_of(url)[0]), open_change_log(urls_of(url)[0])
    yield state, ledger
    for store in (state, ledger):
        assert store.connections_in_use == 0
        store.close()


@pytest.fixture
def state(both: tuple[StateStore, ChangeLog]) -> StateStore:
    return both[0]


def cycle(number: int = 0) -> CycleRecord:
    return CycleRecord(f"c{number}", T0 + number * MINUTE, 0.4, 1, 1, 1, 0, 0, 0)


# --- pagination -------------------------------------------------------------------------------------


def instants(count: int) -> list[datetime]:
    """Timestamps, each shared by several entries, as in one cycle."""
    return [T0 + (number // 4) * MINUTE for number in range(count)]


def fill(state: StateStore, ledger: ChangeLog, count: int) -> None:
    node, made = NODES[0], list(enumerate(instants(count)))
    state.commit(
        CycleCommit(
            cycle(),
            alerts=tuple(
                Alert(f"f{n:03}", "r", Priority.P1, node, AlertState.FIRING, AlertReason.STILL_TRUE, at, at)
                for n, at in made
            ),
            incidents=tuple(
                Incident(f"i{n:03}", Layer.ENGINE, Priority.P1, at, (), (), (), (), at) for n, at in made
            ),
            actions=tuple(
                Action(
                    f"a{n:03}", "s", ActionKind.CORDON, node, {}, "i", True, Verdict.ALLOWED,
                    DecisionReason.WITHIN_LIMITS, ActionStatus.INTENDED, at,
                )
                for n, at in made
            ),
            messages=tuple(Message(f"m{n:03}", "im", NotifyReason.OPENED, None, "i", "t", "b", at) for n, at in made),
            audit=tuple(AuditRecord(at, AuditEvent.PLAN_MADE, f"s{n}", "enough") for n, at in made),
        )
    )  # fmt: skip
    for n, at in made:
        state.save_drill(Drill(f"d{n:03}", "gpu-lost", node, n, at, at + MINUTE, "ann"))
    state.save_feedback([Feedback(f"f{n}", T0, "r", node, Priority.P1, Usefulness.USEFUL, "ann", at) for n, at in made])
    ledger.append_changes([Change(f"x{n:03}", "image", SERVICE, at, "kubernetes") for n, at in made])
    ledger.save_startups([Startup(f"u{n:03}", REPLICAS[0], at) for n, at in made])


LISTS: dict[str, Callable[[StateStore, ChangeLog, int, Position | None], Sequence[Any]]] = {
    "alerts": lambda state, _, limit, after: state.alerts(limit=limit, after=after),
    "incidents": lambda state, _, limit, after: state.incidents(limit=limit, after=after),
    "actions": lambda state, _, limit, after: state.actions(limit=limit, after=after),
    "messages": lambda state, _, limit, after: state.messages(limit=limit, after=after),
    "audit": lambda state, _, limit, after: state.audit(limit, after),
    "drills": lambda state, _, limit, after: state.drills(limit=limit, after=after),
    "feedback": lambda state, _, limit, after: state.feedback(limit=limit, after=after),
    "changes": lambda _, ledger, limit, after: ledger.changes(limit=limit, after=after),
    "startups": lambda _, ledger, limit, after: ledger.startups(limit=limit, after=after),
}


@pytest.mark.parametrize("name", LISTS)
def test_keyset_pages_cover_a_list_once_despite_new_entries(both: tuple[StateStore, ChangeLog], name: str) -> None:
    read = LISTS[name]
    fill(*both, 22)
    rows = 44 if name == "audit" else 22  # a verdict is audited, too
    whole = read(*both, 100, None)
    assert len(whole) == rows
    assert [position_of(entry).at for entry in whole] == sorted(
        (position_of(entry).at for entry in whole), reverse=True
    )
    seen: list[Any] = []
    place: Position | None = None
    while found := read(*both, 5, place):
        assert len(found) <= 5
        seen += found
        place = position_of(found[-1])
        if len(seen) == 5:
            fill_more(*both)
    assert [position_of(entry) for entry in seen] == [position_of(entry) for entry in whole]
    assert len(read(*both, 100, None)) == rows + (1 if name in ("audit", "changes") else 0)


def fill_more(state: StateStore, ledger: ChangeLog) -> None:
    """Adds entries between two pages."""
    late = T0 + timedelta(hours=1)
    state.append_audit([AuditRecord(late, AuditEvent.PAUSED, "late", "late")])
    ledger.append_changes([Change("late", "image", SERVICE, late, "kubernetes")])


def test_pagination_works_with_filters(both: tuple[StateStore, ChangeLog]) -> None:
    state, ledger = both
    fill(state, ledger, 12)
    first = state.actions(incident="i", since=T0 + MINUTE, limit=3)
    second = state.actions(incident="i", since=T0 + MINUTE, limit=30, after=position_of(first[-1]))
    assert [action.id for action in (*first, *second)] == [f"a{number:03}" for number in reversed(range(4, 12))]
    assert state.alerts(states=[AlertState.PENDING], after=position_of(state.alerts()[0])) == ()
    since = ledger.changes(since=T0 + MINUTE, until=T0 + 2 * MINUTE, after=Position(T0 + MINUTE, "x006"))
    assert [change.id for change in since] == ["x005", "x004"]


def test_an_unknown_position_is_not_an_error(state: StateStore) -> None:
    state.append_audit([AuditRecord(T0, AuditEvent.PAUSED, "x", "y")])
    assert state.audit(10, Position(T0, "no number")) == ()
    assert len(state.audit(10, Position(T0 + MINUTE, "no number"))) == 1


def test_audit_records_are_numbered_by_the_store(state: StateStore) -> None:
    record = AuditRecord(T0, AuditEvent.PAUSED, "x", "y")
    state.append_audit([record, record])
    state.commit(CycleCommit(cycle(), audit=(record,)))
    assert [found.id for found in state.audit()] == [3, 2, 1]
    assert state.audit() == (record, record, record)


# --- topology -------------------------------------------------------------------------------------


def graph(number: int, *replicas: int, labels: dict[EntityRef, dict[str, str]] | None = None) -> Topology:
    """Each replica runs on the node with its number."""
    edges = [edge for one in replicas for edge in ((NODES[one], REPLICAS[one]), (REPLICAS[one], SERVICE))]
    return Topology.build(edges, NODES[:1], labels, T0 + number * MINUTE)


def same(found: Topology, expected: Topology) -> bool:
    """True if equal except for the timestamp and the order of edges."""
    return (
        found.entities == expected.entities
        and set(found.edges) == set(expected.edges)
        and dict(found.labels) == dict(expected.labels)
    )


def test_the_topology_at_a_time_is_the_one_known_then(state: StateStore) -> None:
    past = {
        0: graph(0, 0, 1, labels={REPLICAS[0]: {"model": "m", "version": "1"}}),
        2: graph(2, 0, 2, labels={REPLICAS[0]: {"model": "m", "version": "2"}, NODES[2]: {"zone": "b"}}),
        4: graph(4, 1),
        6: graph(6, 0, 1, labels={REPLICAS[0]: {"model": "m", "version": "1"}}),
    }
    for number in range(8):
        state.commit(CycleCommit(cycle(number), topology=past.get(number)))
    assert state.topology(T0 - MINUTE) == Topology()
    for number in range(8):
        at = T0 + number * MINUTE + timedelta(seconds=30)
        found = state.topology(at)
        assert found.at == at
        assert same(found, past[number // 2 * 2])
        assert same(state.topology(T0 + number * MINUTE), past[number // 2 * 2])
    assert state.topology() == past[6]
    assert {node.name for node in state.topology(T0 + 3 * MINUTE).below(SERVICE, EntityKind.NODE)} == {
        "node-0",
        "node-2",
    }


def test_an_unchanged_graph_is_stored_once(state: StateStore) -> None:
    first = graph(0, 0, 1)
    for number in range(4):
        state.commit(CycleCommit(cycle(number), topology=replace(first, at=T0 + number * MINUTE)))
    assert state.topology().at == T0 + 3 * MINUTE
    assert same(state.topology(T0), first)
    assert state.topology(T0 - timedelta(seconds=1)) == Topology()


def test_an_empty_graph_ends_all_facts(state: StateStore) -> None:
    state.commit(CycleCommit(cycle(0), topology=graph(0, 0, 1)))
    state.commit(CycleCommit(cycle(1), topology=Topology(at=T0 + MINUTE)))
    assert state.topology().entities == frozenset()
    assert state.topology(T0 + 2 * MINUTE).entities == frozenset()
    assert same(state.topology(T0), graph(0, 0, 1))


# --- forecasts and calibrations ---------------------------------------------------------------------


def forecast(made_at: datetime, steps: int = 144) -> Forecast:
    step = timedelta(minutes=10)
    times = made_at.timestamp() + step.total_seconds() * np.arange(1, steps + 1)
    rising = np.arange(1.0, steps + 1)
    quantiles = {0.05: rising / 2, 0.5: rising, 0.8: rising * 2, 0.9: np.full(steps, np.nan), 0.99: rising}
    score = BacktestScore(0.1, 0.2, None, 3)
    peaks = {0.5: rising + 0.5, 0.95: rising + 2, 0.995: rising + 3}
    return Forecast("svc_requests_per_second", SERVICE, made_at, step, times, quantiles, "prophet", score, peaks=peaks)


def test_forecasts_are_stored_for_comparison_with_observed_values(state: StateStore) -> None:
    for number in (0, 10):
        made_at = T0 + number * MINUTE
        state.commit(CycleCommit(cycle(number), plan=Plan((forecast(made_at),))))
    found = state.forecasts(entity=SERVICE, since=T0 + 60 * MINUTE, until=T0 + 61 * MINUTE)
    (point,) = found
    assert (point.made_at, point.horizon, point.at) == (T0, 60 * MINUTE, T0 + 60 * MINUTE)
    assert (point.signal, point.model) == ("svc_requests_per_second", "prophet")
    assert point.quantiles == {0.05: 3.0, 0.5: 6.0, 0.8: 12.0}
    assert point.peaks == {0.5: 6.5, 0.95: 8.0}
    everything = state.forecasts()
    assert len(everything) == 14
    assert [point.at for point in everything] == sorted(point.at for point in everything)
    assert state.forecasts(entity=NODES[0]) == ()


def test_a_revised_plan_is_the_newest_and_stores_its_forecasts_once(state: StateStore) -> None:
    held = NoRecommendation(SERVICE, NoPlanReason.NO_HISTORY, T0)
    made = Plan((forecast(T0),), (held, replace(held, service=NODES[0])), (calibration(),))
    state.commit(CycleCommit(cycle(0), plan=made))
    later = replace(held, reason=NoPlanReason.NO_VALUES, made_at=T0 + MINUTE)
    revised = replace(made, recommendations=(later, made.recommendations[1]), revised=(SERVICE,))
    state.commit(CycleCommit(cycle(1), plan=revised))
    newest = state.plan()
    assert (newest.recommendations, newest.calibrations, newest.revised) == (
        revised.recommendations,
        made.calibrations,
        (SERVICE,),
    )
    assert newest.new_recommendations == (later,)
    assert newest.forecasts[0].quantiles[0.5].tolist() == made.forecasts[0].quantiles[0.5].tolist()
    assert len(state.forecasts()) == 7
    assert state.baselines() == made.calibrations


def test_a_short_forecast_has_fewer_horizons(state: StateStore) -> None:
    state.commit(CycleCommit(cycle(), plan=Plan((forecast(T0, steps=3),))))
    assert [point.horizon for point in state.forecasts()] == [10 * MINUTE, 30 * MINUTE]


def calibration(**changes: Any) -> Calibration:
    made = Calibration(
        SERVICE, "H100", 250.0, 64.0, 20.0, 4, 1, 210.0, 100, "measured", "prior", "llama", "0.9",
        T0, {"batch": Interval(48.0, 70.0)},
    )  # fmt: skip
    return replace(made, **changes)


def test_the_newest_measured_calibration_of_each_shape_is_the_baseline(state: StateStore) -> None:
    newer = calibration(batch=72.0, measured_at=T0 + MINUTE)
    other = calibration(engine_version="0.10", measured_at=T0 + 2 * MINUTE)
    configured = calibration(gpu_type="A100", origin="configured", measured_at=None)
    for number, plan in enumerate((Plan(calibrations=(calibration(), configured)), Plan(calibrations=(newer, other)))):
        state.commit(CycleCommit(cycle(number), plan=plan))
    assert state.baselines() == (other, newer)
    assert state.baselines(SERVICE) == (other, newer)
    assert state.baselines(NODES[0]) == ()


def test_load_tests_are_stored_per_shape_and_source_apart_from_baselines(state: StateStore) -> None:
    tested = calibration(source="load_test", valid_until=T0 + 600 * MINUTE)
    newer = replace(tested, batch=72.0, measured_at=T0 + MINUTE)
    imported = replace(tested, source="vllm", measured_at=T0 + 2 * MINUTE)
    for found in (tested, newer, imported):
        state.save_load_test(found)
    assert state.load_tests() == (imported, newer)
    # a plan based on a load test does not make it a live measurement
    state.commit(CycleCommit(cycle(), plan=Plan(calibrations=(newer,))))
    assert state.baselines() == ()
    for wrong in (calibration(), replace(tested, valid_until=None), replace(tested, measured_at=None)):
        with pytest.raises(StoreError):
            state.save_load_test(wrong)
