"""A remote store reads the same as every other store, whatever the order of writes."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, example, given, settings
from hypothesis import strategies as st

from outrider.model import SUM_BUCKET, CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey, Statistic, Window
from outrider.vocabulary import catalog
from store.memory import MemoryMetricStore
from store.remote import query_ranges
from tests.support.metric_servers import MetricServer
from tests.support.remote_store import Searchable, searchable

START = datetime(2026, 3, 1, 12, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
TTFT, E2E = "engine_ttft_seconds", "engine_e2e_seconds"
KEYS = (
    SignalKey("engine_requests_running"),
    SignalKey("engine_preemptions_total"),
    SignalKey("kpi_orders"),
    SignalKey(E2E),
    SignalKey(E2E, quantile=0.99),
    SignalKey(E2E, bucket=3),
    SignalKey(E2E, bucket=5),
    *catalog.signal(TTFT).bucket_keys,
)
REQUESTED = (
    *KEYS[:5],
    SignalKey(E2E, quantile=0.5),
    SignalKey(E2E, bucket=3),
    SignalKey(E2E, bucket=4),
    SignalKey(TTFT, quantile=0.9),
    SignalKey(TTFT, bucket=SUM_BUCKET),
    SignalKey(TTFT, bucket=7),
    SignalKey(TTFT, bucket=len(catalog.signal(TTFT).bounds)),
    SignalKey("engine_requests_waiting"),
)
ENTITIES = tuple(
    EntityRef("prod", EntityKind.REPLICA, namespace, name)
    for namespace, name in (("llm", "r-2"), ("llm", "r.1|x"), (None, 'a "b" \\ 副本\n'), ("other", "r-2"))
)


def batch_of(at: datetime, member: int, seed: int, *, alike: bool) -> SampleBatch:
    """Cells of one entity, each a number or a status. ``alike``: all buckets of the histogram share one status."""
    random = np.random.default_rng(seed)
    status = random.choice([0, 0, 0, 0, 1, 3, 4, 5, 6], len(KEYS)).astype(np.uint8)
    if alike:
        status[7:] = status[7]
    values = random.integers(0, 50, len(KEYS)) * random.choice([1.0, 0.25])
    values[status != CellStatus.PRESENT] = np.nan
    return SampleBatch(f"t{member}", at, EntityKind.REPLICA, KEYS, (ENTITIES[member],), values[None], status[None])


def same(window: Window, expected: Window, *, others: bool = False) -> None:
    """Asserts equal windows. ``others``: entities of the millisecond before the span may be present, all ABSENT."""
    if not others:
        assert window.entities == expected.entities
    rows = [window.entities.index(entity) for entity in expected.entities]
    extra = [row for row in range(len(window.entities)) if row not in rows]
    assert rows == sorted(rows)
    assert (window.status[extra] == CellStatus.ABSENT).all()
    np.testing.assert_array_equal(window.times, expected.times)
    np.testing.assert_array_equal(window.status[rows], expected.status)
    np.testing.assert_allclose(window.values[rows], expected.values, rtol=1e-6)


member = st.tuples(st.integers(0, 3), st.integers(0, 1 << 30), st.booleans())
cycles = st.lists(
    st.tuples(
        st.integers(0, 12), st.sampled_from([0, 0, 0, 1, 999, 14_999_999]), st.lists(member, min_size=1, max_size=4)
    ),
    min_size=1,
    max_size=12,
)


@pytest.mark.slow
@pytest.mark.parametrize("server", ["victoria", "prometheus"])
@settings(
    deadline=None,
    max_examples=15,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # a real server is too slow to shrink on
)
@given(drawn=cycles, first=st.integers(-1, 3), named=st.sets(st.integers(0, 3)))
@example(drawn=[(11, 14_999_999, [(2, 1, True)]), (12, 1, [(0, 2, False)])], first=3, named={1})
@example(drawn=[(1, 0, [(1, 1, False)]), (11, 0, [(1, 2, True)]), (11, 1, [(2, 3, False)])], first=2, named={0})
def test_a_server_returns_the_same_as_memory(
    server: str,
    request: pytest.FixtureRequest,
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[int, int, list[tuple[int, int, bool]]]],
    first: int,
    named: set[int],
) -> None:
    """Includes timestamps in microseconds, out of order, and rewritten with other entities."""
    metric_server: MetricServer = request.getfixturevalue(f"{server}_server")
    remote, memory = searchable(metric_server, tmp_path_factory.mktemp("remote")), MemoryMetricStore()
    try:
        for slot, micros, members in drawn:
            at = START + timedelta(seconds=15 * slot, microseconds=micros)
            batches = [batch_of(at, *member[:2], alike=member[2]) for member in members]
            assert remote.write(at, batches) == memory.write(at, batches)
        start = START + first * MINUTE
        for step in (timedelta(seconds=15), MINUTE, 5 * MINUTE):
            span = (start, start + 6 * MINUTE, step)
            for statistic in Statistic:
                expected = memory.read_windows(EntityKind.REPLICA, REQUESTED, *span, statistic=statistic)
                window = remote.read_windows(EntityKind.REPLICA, REQUESTED, *span, statistic=statistic)
                same(window, expected, others=server == "prometheus")
            chosen = [ENTITIES[member] for member in sorted(named)]
            expected = memory.read_windows(EntityKind.REPLICA, REQUESTED, *span, chosen)
            same(remote.read_windows(EntityKind.REPLICA, REQUESTED, *span, chosen), expected)
        newest, expected = remote.latest(EntityKind.REPLICA, REQUESTED), memory.latest(EntityKind.REPLICA, REQUESTED)
        same(newest, expected, others=server == "prometheus")
        assert set(remote.latest(EntityKind.REPLICA).keys) <= {*KEYS, *catalog.signal(E2E).bucket_keys}
    finally:
        remote.close()


@pytest.mark.parametrize("server", ["victoria", "prometheus"])
def test_server_aggregation_equals_aggregation_of_raw_samples(
    server: str, request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = searchable(request.getfixturevalue(f"{server}_server"), tmp_path)
    random = np.random.default_rng(7)
    for slot in range(80):
        at = START + slot * timedelta(seconds=15) + timedelta(microseconds=int(random.integers(0, 900_000)))
        batches = [batch_of(at, member, int(random.integers(1 << 30)), alike=True) for member in range(3)]
        store.write(at, batches)
    span = (START, START + 20 * MINUTE, 2 * MINUTE)
    keys = [key for key in REQUESTED if key.name != E2E]  # half a histogram with separate statuses is only read raw
    read = partial(store.read_windows, EntityKind.REPLICA, keys, *span)
    expected = {statistic: read(statistic=statistic) for statistic in Statistic}
    monkeypatch.setattr(query_ranges, "FOLD_FROM", 0)
    monkeypatch.setattr(query_ranges.Raw, "fields", None)  # raw samples must not be queried
    for statistic in Statistic:
        same(read(statistic=statistic), expected[statistic])
    monkeypatch.setattr(query_ranges, "_POINTS", 3)
    same(read(), expected[Statistic.LAST])
    store.close()


@pytest.mark.parametrize("server", ["victoria", "prometheus"])
def test_promql_returns_quantiles_and_totals(server: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """The recipes of docs/explanation/scaling-out.md."""
    metric_server: MetricServer = request.getfixturevalue(f"{server}_server")
    store = searchable(metric_server, tmp_path)
    random, buckets = np.random.default_rng(3), catalog.signal(TTFT).bucket_keys
    counts = random.integers(0, 9, (4, 2, len(buckets))).astype(float)
    for slot in range(4):
        at = START + slot * timedelta(seconds=15)
        replicas = ENTITIES[:2]
        status = np.zeros(counts[slot].shape, dtype=np.uint8)
        store.write(at, [SampleBatch("t", at, EntityKind.REPLICA, buckets, replicas, counts[slot], status)])
    owner = f'outrider="{store.owner}"'
    total = counts.sum(axis=(0, 1))
    expected, _ = catalog.bucket_quantile(total[:-1], catalog.signal(TTFT).bounds, 0.9)
    query = f"histogram_quantile(0.9, sum by (le) (sum_over_time(outrider_{TTFT}_bucket{{{owner}}}[5m])))"
    assert store.ask(query, START + MINUTE) == pytest.approx(float(expected))
    mean = (
        f"sum(sum_over_time(outrider_{TTFT}_sum{{{owner}}}[5m])) / "
        f'sum(sum_over_time(outrider_{TTFT}_bucket{{{owner},le="+Inf"}}[5m]))'
    )
    assert store.ask(mean, START + MINUTE) == pytest.approx(total[-1] / total[:-1].sum())
    store.close()


def test_two_platforms_share_a_server(victoria_server: MetricServer, tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    first, second = searchable(victoria_server, tmp_path / "a"), searchable(victoria_server, tmp_path / "b")
    first.write(START, [batch_of(START, 0, 1, alike=True)])
    second.write(START, [batch_of(START, 1, 1, alike=True)])
    assert first.latest(EntityKind.REPLICA, KEYS).entities == (ENTITIES[0],)
    assert second.latest(EntityKind.REPLICA, KEYS).entities == (ENTITIES[1],)
    assert second.entities(EntityKind.REPLICA) == (ENTITIES[1],)
    first.close()
    second.close()


def test_a_timestamp_of_another_process_is_rewritten(victoria_server: MetricServer, tmp_path: Path) -> None:
    """As after a restart: the cache is empty, and the server is queried."""
    before = searchable(victoria_server, tmp_path)
    before.write(START, [batch_of(START, member, 1, alike=True) for member in (0, 1)])
    before.close()
    after = Searchable(victoria_server, f"sqlite:///{tmp_path}/remote-metrics.db", before.remote)
    after.write(START, [batch_of(START, 1, 2, alike=True)])
    memory = MemoryMetricStore()
    memory.write(START, [batch_of(START, 1, 2, alike=True)])
    span = (START, START + MINUTE, MINUTE)
    same(after.read_windows(EntityKind.REPLICA, KEYS, *span), memory.read_windows(EntityKind.REPLICA, KEYS, *span))
    after.close()
