"""The queries of docs/reference/tables.md and the statements of its how-to, run on real servers and files."""

from __future__ import annotations

import re
import sqlite3
import subprocess
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sqlalchemy as sa

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
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
    SampleBatch,
    SignalKey,
    Verdict,
)
from outrider.ports import CycleCommit
from outrider.records.change_log import ActorKind, Change
from outrider.topology import Topology
from outrider.vocabulary import catalog
from store.factory import open_change_log, open_metrics, open_state, urls_of
from store.schema.column_types import micros
from tests.support import postgres

DOCS = Path(__file__).parents[3] / "docs"
T0 = datetime(2026, 11, 18, 8, 0, tzinfo=UTC)  # a Wednesday
MONDAY = datetime(2026, 11, 16, tzinfo=UTC)
MINUTE, HOUR, DAY = timedelta(minutes=1), timedelta(hours=1), timedelta(days=1)
CHAT, EMBED = (EntityRef("prod", EntityKind.SERVICE, "llm", name) for name in ("chat", "embed"))
NODES = tuple(EntityRef("prod", EntityKind.NODE, None, f"node-{number}") for number in range(3))
REPLICA = EntityRef("prod", EntityKind.REPLICA, "llm", "chat-0")
TEMPERATURE, POWER = SignalKey("hw_accel_temperature_celsius"), SignalKey("hw_accel_power_watts")

QueryRunner = Callable[..., list[tuple[Any, ...]]]


def statement(name: str) -> tuple[str, str]:
    """The database of a query and its text."""
    _, database, _, *lines = (DOCS / "reference" / "queries" / f"{name}.sql").read_text().splitlines()
    return database.removeprefix("-- "), "\n".join(lines)


@pytest.fixture
def query(store_url: str, request: pytest.FixtureRequest) -> QueryRunner:
    """Queries a filled store through ``sqlite3`` with parameters, or ``psql`` with variables."""
    fill(store_url)

    def in_files(name: str, **parameters: int | str) -> list[tuple[Any, ...]]:
        database, text = statement(name)
        file = urls_of(store_url)[0 if database == "state" else 1].removeprefix("sqlite:///")
        connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True)
        try:
            return connection.execute(text, parameters).fetchall()
        finally:
            connection.close()

    def on_server(name: str, **parameters: int | str) -> list[tuple[Any, ...]]:
        variables = [
            f"{key}='{value}'" if isinstance(value, str) else f"{key}={value}" for key, value in parameters.items()
        ]
        command = [str(postgres.programs() / "psql"), store_url, "-X", "-At", "-F", "\t", "-v", "ON_ERROR_STOP=1"]
        for variable in variables:
            command += ["-v", variable]
        done = subprocess.run(command, input=statement(name)[1], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        return [tuple(_value(cell) for cell in line.split("\t")) for line in done.stdout.splitlines()]

    return in_files if store_url.startswith("sqlite") else on_server


def _value(cell: str) -> Any:
    if not cell:
        return None
    return float(cell) if re.fullmatch(r"-?\d+(\.\d+)?", cell) else cell


def fill(store_url: str) -> None:
    fill_metrics(store_url)
    fill_decisions(store_url)
    ledger = open_change_log(urls_of(store_url)[0])
    opened = T0 + HOUR
    ledger.append_changes(
        [
            Change("c1", "image", CHAT, opened - 12 * MINUTE, "kubernetes", "ada", ActorKind.PERSON, service="chat"),
            Change("c2", "driver", NODES[0], opened - 90 * MINUTE, "gitlab"),
            Change("c3", "scale", CHAT, opened - 3 * HOUR, "kubernetes"),
            Change("c4", "scale", CHAT, opened + MINUTE, "kubernetes"),
        ]
    )
    ledger.close()


def fill_metrics(store_url: str) -> None:
    metrics = open_metrics(urls_of(store_url)[1])
    for at, gpus in ((T0, {"gpu-old": 99.0}), (T0 + MINUTE, {"gpu-a": 61.0, "gpu-b": 88.5, "gpu-c": float("nan")})):
        entities = tuple(EntityRef("prod", EntityKind.GPU, None, name) for name in gpus)
        values = np.array([[celsius, 300.0] for celsius in gpus.values()])
        status = np.where(np.isnan(values), 3, 0).astype(np.uint8)
        metrics.write(at, [SampleBatch("d", at, EntityKind.GPU, (TEMPERATURE, POWER), entities, values, status)])
    load, buckets = SignalKey("svc_requests_per_second"), catalog.signal("svc_ttft_seconds").bucket_keys
    for minute in range(0, 120, 15):
        at = T0 - 3 * HOUR + minute * MINUTE
        counts = {3: 95.0, 6: 5.0}
        values = np.array([[10.0 * (1 + minute // 30), *(counts.get(index, 0.0) for index in range(len(buckets)))]])
        zeros = np.zeros(values.shape, np.uint8)
        metrics.write(at, [SampleBatch("g", at, EntityKind.SERVICE, (load, *buckets), (CHAT,), values, zeros)])
    metrics.prune(T0 + HOUR)
    metrics.close()


def cycle(at: datetime) -> CycleRecord:
    return CycleRecord(str(at), at, 0.4, 1, 1, 1, 0, 0, 0)


def graph(*nodes: int, gpu_type: str = "H100") -> Topology:
    edges = [(NODES[number], REPLICA) for number in nodes] + [(REPLICA, CHAT)]
    return Topology.build(edges, NODES, {NODES[number]: {"gpu_type": gpu_type} for number in nodes})


def fill_decisions(store_url: str) -> None:
    state = open_state(urls_of(store_url)[0])
    acknowledged = Incident(
        "inc-1", Layer.HARDWARE, Priority.P1, T0 + HOUR, (Hypothesis(NODES[0], "node-lost", 0.9),), (), (), (), T0,
        T0 + 2 * HOUR, T0 + HOUR + 90 * MINUTE / 60, "ann",
    )  # fmt: skip
    unacknowledged = Incident("inc-2", Layer.ENGINE, Priority.P2, T0 + 3 * HOUR, (), (), (), (), T0)
    older = replace(unacknowledged, id="inc-0", opened_at=T0 - 8 * DAY)
    refused = Action(
        "a1", "s", ActionKind.CORDON, NODES[0], {}, "inc-1", True, Verdict.REFUSED, DecisionReason.COOLDOWN,
        ActionStatus.REFUSED, MONDAY,
    )  # fmt: skip
    actions = (
        refused,
        replace(refused, id="a2", decided_at=MONDAY + 7 * DAY - MINUTE),
        replace(refused, id="a3", decided_at=T0, reason=DecisionReason.PAUSED, kind=ActionKind.DRAIN),
        replace(refused, id="a4", decided_at=MONDAY - MINUTE),
        replace(refused, id="a5", decision=Verdict.ALLOWED, reason=DecisionReason.WITHIN_LIMITS),
    )
    recommendation = Recommendation(
        CHAT, "H100", 4, 6, 24, 2, 10, "demand", T0 + HOUR, T0, HOUR, 12.5, "USD", {}, PlanReason.FORECAST_PEAK, T0
    )
    before = Plan(recommendations=(recommendation, replace(recommendation, service=EMBED)))
    now = Plan(
        recommendations=(
            replace(recommendation, target_replicas=7, made_at=T0 + MINUTE),
            NoRecommendation(EMBED, NoPlanReason.NO_VALUES, T0 + MINUTE),
        )
    )
    state.commit(
        CycleCommit(cycle(T0), (), (acknowledged, unacknowledged, older), before, actions, topology=graph(0, 1))
    )
    state.commit(CycleCommit(cycle(T0 + MINUTE), plan=now, topology=graph(1, 2, gpu_type="H200")))
    state.close()


@pytest.mark.slow
def test_hottest_gpus_now(query: QueryRunner) -> None:
    at = "2026-11-18T08:01:00Z"
    assert query("hottest_gpus") == [("gpu-b", at, 88.5, 300.0), ("gpu-a", at, 61.0, 300.0)]


@pytest.mark.slow
def test_load_by_hour(query: QueryRunner) -> None:
    first, second = query("load_by_hour", from_at="2026-11-18T05:00:00Z", to_at="2026-11-18T07:00:00Z")
    assert first[:4] == ("prod", "llm", "chat", "2026-11-18T05:00:00Z")
    assert first[4:6] == (pytest.approx(15.0), 400.0)
    assert catalog.signal("svc_ttft_seconds").bounds[5] < first[6] <= catalog.signal("svc_ttft_seconds").bounds[6]
    assert second[3:6] == ("2026-11-18T06:00:00Z", pytest.approx(35.0), 400.0)


def test_incidents_of_a_week(query: QueryRunner) -> None:
    result = query("incidents_of_a_week", from_us=micros(MONDAY), to_us=micros(MONDAY + 7 * DAY))
    assert result == [
        ("inc-1", "P1", "node-lost", "prod/node//node-0", "ann", 1.5, 60.0),
        ("inc-2", "P2", None, None, None, None, None),
    ]


def test_actions_refused_by_week(query: QueryRunner) -> None:
    monday = micros(MONDAY)
    assert query("actions_refused") == [
        (monday - micros(MONDAY + 7 * DAY) + monday, "cordon", "cooldown", 1),
        (monday, "cordon", "cooldown", 2),
        (monday, "drain", "paused", 1),
    ]


def test_nodes_of_a_service_at_an_instant(query: QueryRunner) -> None:
    def nodes(at: datetime) -> list[tuple[Any, ...]]:
        return query("nodes_of_a_service", service=CHAT.key, at_us=micros(at))

    assert nodes(T0 - MINUTE) == []
    assert nodes(T0 + MINUTE / 2) == [("prod/node//node-0", "H100"), ("prod/node//node-1", "H100")]
    assert nodes(T0 + DAY) == [("prod/node//node-1", "H200"), ("prod/node//node-2", "H200")]


def test_changes_before_an_incident(query: QueryRunner) -> None:
    assert [tuple(cell or "" for cell in row) for row in query("changes_before_an_incident", incident="inc-1")] == [
        (12.0, "image", "chat", "prod/service/llm/chat", "ada", "kubernetes"),
        (90.0, "driver", "", "prod/node//node-0", "", "gitlab"),
    ]


def test_replicas_to_order(query: QueryRunner) -> None:
    assert query("replicas_to_order") == [
        ("prod/service/llm/chat", "H100", 4, 7, "forecast_peak", micros(T0), 12.5, "USD")
    ]


def test_every_documented_query_is_tested() -> None:
    names = {path.stem for path in (DOCS / "reference" / "queries").glob("*.sql")}
    tested = set(re.findall(r'query\("(\w+)"', Path(__file__).read_text()))
    assert tested == names
    assert len(names) >= 5
    reference = (DOCS / "reference" / "tables.md").read_text()
    assert all(statement(name)[1].strip() in reference for name in names)


def test_the_documented_role_reads_every_table_and_writes_nothing(
    postgres_url: str, postgres_server: postgres.Server
) -> None:
    """Runs the documented statements, then creates a table, as a later version would."""
    fill(postgres_url)
    name = postgres_url.rsplit("/", 1)[-1]
    with postgres.documented_reader(postgres_server, postgres_url) as engine:
        postgres_server.sql("CREATE TABLE newer (id int); INSERT INTO newer VALUES (7)", name)
        with engine.connect() as connection:
            for table in ("incident", "audit", "latest_gpu", "topology_edge", "block", "entity"):
                connection.execute(sa.text(f"SELECT * FROM {table}")).all()
            assert connection.execute(sa.text("SELECT id FROM newer")).scalar() == 7
        for refused in ("DELETE FROM incident", "INSERT INTO newer VALUES (8)", "CREATE TABLE mine (id int)"):
            with engine.connect() as connection, pytest.raises(sa.exc.DBAPIError, match=r"read-only|denied"):
                connection.execute(sa.text(refused))
        with engine.connect() as connection:
            connection.execute(sa.text("SET default_transaction_read_only = off"))
            connection.commit()
            with pytest.raises(sa.exc.DBAPIError, match="permission denied"):
                connection.execute(sa.text("DELETE FROM incident"))
