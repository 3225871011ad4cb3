"""Decision tables in SQL: append-only logs, retention, query columns, and topology written only if changed."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import sqlalchemy as sa

from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import StoreError
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    CycleRecord,
    DecisionReason,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    Layer,
    NoPlanReason,
    NoRecommendation,
    Plan,
    PlanReason,
    Priority,
    Recommendation,
    Verdict,
)
from outrider.ports import DEFAULT_STATE_RETENTION, CycleCommit
from outrider.records.change_log import Change, ChangeEnd, ChangeStatus
from outrider.records.feedback import Feedback, Usefulness
from outrider.topology import Topology
from store.factory import SqlStateStore, open_change_log, open_state, urls_of
from store.schema import metadata

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE, DAY = timedelta(minutes=1), timedelta(days=1)
NODE = EntityRef("prod", EntityKind.NODE, None, "node-1")
SERVICE = EntityRef("prod", EntityKind.SERVICE, "llm", "chat")


def cycle(at: datetime = T0) -> CycleRecord:
    return CycleRecord(f"c {at}", at, 0.4, 1, 1, 1, 0, 0, 0)


def rows(state: SqlStateStore, query: str) -> list[tuple[object, ...]]:
    with state._database.reading() as connection:
        return [tuple(row) for row in connection.execute(sa.text(query))]


def execute(state: SqlStateStore, statement: str) -> None:
    with state._database.writing() as connection:
        connection.execute(sa.text(statement))


def action(at: datetime = T0, status: ActionStatus = ActionStatus.REFUSED, name: str = "a") -> Action:
    return Action(
        name, "s", ActionKind.CORDON, NODE, {}, "i", True, Verdict.REFUSED, DecisionReason.COOLDOWN, status, at,
        ended_at=at,
    )  # fmt: skip


def incident(at: datetime = T0) -> Incident:
    cause = Hypothesis(NODE, "node-lost", 0.9)
    return Incident("i", Layer.HARDWARE, Priority.P1, at, (cause,), (), (), (), at, at + MINUTE, at + MINUTE / 2, "ann")


# --- append-only ----------------------------------------------------------------------------------


@pytest.fixture
def append_only_store(state: SqlStateStore, store_url: str) -> SqlStateStore:
    """A row in each append-only table."""
    state.append_audit([AuditRecord(T0, AuditEvent.PAUSED, "x", "y")])
    ledger = open_change_log(urls_of(store_url)[0])
    ledger.append_changes([Change("x", "image", SERVICE, T0, "kubernetes")])
    ledger.append_ends([ChangeEnd("x", ChangeStatus.SUCCEEDED, T0 + MINUTE)])
    ledger.close()
    return state


@pytest.mark.parametrize("table", ["audit", "change", "change_end"])
@pytest.mark.parametrize("statement", ["UPDATE {} SET body = 'forged'", "DELETE FROM {}", "TRUNCATE {}"])
def test_append_only_tables_reject_changes(
    append_only_store: SqlStateStore, table: str, statement: str, store_url: str
) -> None:
    if statement.startswith("TRUNCATE") and store_url.startswith("sqlite"):
        statement = "DELETE FROM {} WHERE 1 = 1"  # SQLite has no other way to empty a table
    with pytest.raises(StoreError, match=f"{table} is append-only"):
        execute(append_only_store, statement.format(table))
    assert rows(append_only_store, f"SELECT count(*) FROM {table} WHERE body LIKE '{{%'") == [(1,)]


def test_only_retention_deletes_old_rows_of_append_only_tables(append_only_store: SqlStateStore) -> None:
    append_only_store.append_audit([AuditRecord(T0 + 2 * DAY, AuditEvent.RESUMED, "x", "y")])
    assert append_only_store.prune(T0 + DAY) == {}
    deleted = append_only_store.prune(T0 + DEFAULT_STATE_RETENTION.decisions + DAY)
    assert deleted == {"audit": 1, "change": 1, "change_end": 1}
    assert [record.event for record in append_only_store.audit()] == [AuditEvent.RESUMED]
    assert rows(append_only_store, "SELECT count(*) FROM flag WHERE name = 'pruning'") == [(0,)]
    with pytest.raises(StoreError, match="append-only"):
        execute(append_only_store, "DELETE FROM audit")


# --- retention ------------------------------------------------------------------------------------


def test_ongoing_rows_are_never_pruned(state: SqlStateStore) -> None:
    firing = Alert("f", "r", Priority.P1, NODE, AlertState.FIRING, AlertReason.STILL_TRUE, T0, T0)
    over = replace(firing, fingerprint="g", state=AlertState.RESOLVED, ends_at=T0 + MINUTE)
    waiting = action(T0, ActionStatus.WAITING_APPROVAL, "waits")
    open_ = replace(incident(), id="open", resolved_at=None)
    graph = Topology.build([(NODE, SERVICE)], (), {NODE: {"zone": "a"}}, T0)
    state.commit(CycleCommit(cycle(), (firing, over), (incident(), open_), actions=(action(), waiting), topology=graph))
    state.commit(CycleCommit(cycle(T0 + MINUTE), topology=Topology.build([], [NODE])))
    assert state.prune(T0 + 399 * DAY) == {}
    deleted = state.prune(T0 + 402 * DAY)
    topology = {"topology_entity": 1, "topology_edge": 1, "topology_label": 1}
    assert deleted == {"alert": 1, "incident": 1, "action": 1, **topology}
    assert state.alerts() == (firing,)
    assert [result.id for result in state.incidents()] == ["open"]
    assert [result.id for result in state.actions()] == ["waits"]
    assert state.topology(T0 + 401 * DAY).entities == {NODE}


def test_verdicts_are_kept_as_long_as_decisions(state: SqlStateStore) -> None:
    verdict = Feedback("f", T0, "r", NODE, Priority.P1, Usefulness.USEFUL, "ann", T0 + DAY)
    state.save_feedback([verdict])
    assert state.prune(T0 + 400 * DAY) == {}
    assert state.prune(T0 + 402 * DAY) == {"audit": 1, "feedback": 1}
    assert state.feedback() == ()


def test_many_rows_are_deleted_in_short_transactions(state: SqlStateStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.state.retention._AT_ONCE", 10)
    state.append_audit([AuditRecord(T0, AuditEvent.PAUSED, str(number), "y") for number in range(35)])
    ends = tuple(
        Alert("f", "r", Priority.P1, NODE, AlertState.RESOLVED, AlertReason.CONDITION_GONE, at, at, at)
        for at in (T0 + number * MINUTE for number in range(25))
    )
    state.commit(CycleCommit(cycle(), ends))
    assert state.prune(T0 + 500 * DAY) == {"alert": 25, "audit": 35}


# --- query columns ----------------------------------------------------------------------------------


def test_frequent_query_fields_have_columns(state: SqlStateStore, store_url: str) -> None:
    state.commit(CycleCommit(cycle(), incidents=(incident(),), actions=(action(),)))
    query = "SELECT acknowledged_by, (acknowledged_at_us - opened_at_us) / 1000000, cause, cause_entity FROM incident"
    assert rows(state, query) == [("ann", 30, "node-lost", "prod/node//node-1")]
    assert rows(state, "SELECT decision, reason, dry_run, ended_at_us - decided_at_us FROM action") == [
        ("refused", "cooldown", True, 0)
    ]
    ledger = open_change_log(urls_of(store_url)[0])
    ledger.append_changes([Change("x", "image", SERVICE, T0, "kubernetes", actor="ada", service="chat")])
    ledger.close()
    assert rows(state, "SELECT code, entity, service, source, actor FROM change") == [
        ("image", "prod/service/llm/chat", "chat", "kubernetes", "ada")
    ]


def test_recommendations_and_their_absence_are_rows(state: SqlStateStore) -> None:
    recommendation = Recommendation(
        SERVICE, "H100", 4, 6, 24, 2, 10, "demand", T0 + 2 * MINUTE, T0 + MINUTE, MINUTE, 12.5, "USD", {},
        PlanReason.FORECAST_PEAK, T0,
    )  # fmt: skip
    without = NoRecommendation(SERVICE, NoPlanReason.NO_CALIBRATION, T0)
    state.commit(CycleCommit(cycle(), plan=Plan(recommendations=(recommendation, without))))
    names = "reason, gpu_type, current_replicas, target_replicas, gpus, needed_by_us - made_at_us, cost_per_hour"
    assert rows(state, f"SELECT {names} FROM recommendation ORDER BY id") == [
        ("forecast_peak", "H100", 4, 6, 24, 60_000_000, 12.5),
        ("no_calibration", None, None, None, None, None, None),
    ]


# --- topology -------------------------------------------------------------------------------------


def fleet(moved: int = 0) -> Topology:
    edges = []
    for number in range(50):
        replica = EntityRef("prod", EntityKind.REPLICA, "llm", f"chat-{number}{'-new' if number < moved else ''}")
        edges += [(EntityRef("prod", EntityKind.NODE, None, f"node-{number}"), replica), (replica, SERVICE)]
    return Topology.build(edges, (), {SERVICE: {"model": "m"}}, T0)


def counts(state: SqlStateStore) -> tuple[int, ...]:
    tables = ("topology_entity", "topology_edge", "topology_label")
    return tuple(int(str(rows(state, f"SELECT count(*) FROM {table}")[0][0])) for table in tables)


def test_only_changes_of_the_topology_are_written(state: SqlStateStore, store_url: str) -> None:
    state.commit(CycleCommit(cycle(), topology=fleet()))
    assert counts(state) == (101, 100, 1)
    state.commit(CycleCommit(cycle(T0 + MINUTE), topology=fleet()))
    assert counts(state) == (101, 100, 1)
    state.commit(CycleCommit(cycle(T0 + 2 * MINUTE), topology=fleet(3)))
    assert counts(state) == (104, 106, 1)
    other = open_state(urls_of(store_url)[0])  # an engine after a restart reads the rows
    other.commit(CycleCommit(cycle(T0 + 3 * MINUTE), topology=fleet(3)))
    assert counts(state) == (104, 106, 1)
    other.commit(CycleCommit(cycle(T0 + 4 * MINUTE), topology=fleet(5)))
    other.close()
    state.commit(CycleCommit(cycle(T0 + 5 * MINUTE), topology=fleet(5)))  # an engine that takes over again
    assert counts(state) == (106, 110, 1)
    assert rows(state, "SELECT count(*) FROM topology_edge WHERE valid_to_us IS NULL") == [(100,)]


def test_a_failed_cycle_leaves_the_topology_history_unchanged(
    state: SqlStateStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    state.commit(CycleCommit(cycle(), topology=fleet()))
    monkeypatch.setattr("store.state.sql_state._trim", lambda *_: (_ for _ in ()).throw(StoreError("cut off")))
    with pytest.raises(StoreError, match="cut off"):
        state.commit(CycleCommit(cycle(T0 + MINUTE), topology=fleet(9)))
    monkeypatch.undo()
    assert counts(state) == (101, 100, 1)
    state.commit(CycleCommit(cycle(T0 + 2 * MINUTE), topology=fleet(2)))
    assert counts(state) == (103, 104, 1)
    assert state.topology(T0 + MINUTE).entities == fleet().entities


# --- comments ------------------------------------------------------------------------------------


def test_postgresql_has_the_comments_of_tables_and_columns(postgres_url: str) -> None:
    state = open_state(urls_of(postgres_url)[0])
    query = "SELECT obj_description('audit'::regclass), col_description('audit'::regclass, 5)"
    (result,) = rows(state, query)
    assert result == (metadata.audit.comment, metadata.audit.c.reason.comment)
    state.close()
