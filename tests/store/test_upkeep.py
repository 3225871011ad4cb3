"""Upkeep changes what is stored and no answer, wherever it is cut off and whoever writes meanwhile."""

from __future__ import annotations

import contextlib
import itertools
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path

import numpy as np
import pytest
import sqlalchemy as sa

from outrider.model import CellStatus, EntityKind, EntityRef, Event, EventKind, SampleBatch, Statistic
from store import hourly, retention, rewrite, schema, space
from store.database import Database
from store.memory import MemoryMetricStore
from store.retention import Because, Retention
from store.sql import SqlMetricStore, open_metrics, urls_of
from store.tiers import Work
from tests.store import lived
from tests.store.lived import EVERY, GPU_KEYS, GPUS, HOUR, MINUTE, NEXT_DAYS, POWER, START, fill, same_answers

KEEPS = Retention(raw=timedelta(days=3))


@pytest.fixture
def truth() -> MemoryMetricStore:
    store = MemoryMetricStore()
    fill(store)
    return store


def rows(store_url: str, query: str) -> list[tuple[object, ...]]:
    database = Database(urls_of(store_url)[1], "metrics")
    try:
        with database.reading() as connection:
            return [tuple(row) for row in connection.execute(sa.text(query))]
    finally:
        database.close()


def tiers(store_url: str) -> dict[object, object]:
    seen = "SELECT tier, count(*) FROM block WHERE id NOT IN (SELECT block_id FROM hidden) GROUP BY tier"
    return dict(rows(store_url, seen))  # type: ignore[arg-type]


def test_every_tier_gives_the_same_answers(metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore) -> None:
    fill(metrics)
    same_answers(metrics, truth)
    during = metrics.upkeep(START + 3 * HOUR + 5 * MINUTE, KEEPS)  # the first day is over
    hours = {Work.COMPACT: 6, Work.TEN_MINUTES: 6, Work.ONE_HOUR: 6}
    assert during.done == {**hours, Work.MERGE_TEN_MINUTES: 2, Work.MERGE_HOURS: 2}
    same_answers(metrics, truth)
    done = metrics.upkeep(NEXT_DAYS, KEEPS)
    hours = {Work.COMPACT: 2, Work.TEN_MINUTES: 2, Work.ONE_HOUR: 2}
    assert done.done == {**hours, Work.MERGE_TEN_MINUTES: 2, Work.MERGE_HOURS: 2}
    same_answers(metrics, truth)
    assert rows(store_url, "SELECT count(*) FROM hidden") == rows(store_url, "SELECT count(*) FROM due") == [(0,)]
    # a day has one row for what is rolled up alike: five signals of GPUs; buckets and quantiles of replicas
    assert tiers(store_url) == {"raw": 4 * (6 + 3), "10m": 2 * (5 + 2), "1h": 2 * (5 + 2)}
    assert not metrics.upkeep(NEXT_DAYS, KEEPS), "nothing is left to do"


def test_a_span_that_ends_inside_an_hour_says_what_raw_values_say(
    metrics: SqlMetricStore, truth: MemoryMetricStore
) -> None:
    fill(metrics)
    metrics.upkeep(NEXT_DAYS, KEEPS)
    for late in (MINUTE, 10 * MINUTE, 25 * MINUTE):
        same_answers(metrics, truth, (10 * MINUTE, HOUR), START, START + 2 * HOUR + late)
        same_answers(metrics, truth, (10 * MINUTE, HOUR), START + late, START + 3 * HOUR)


def test_old_raw_values_go_and_roll_ups_answer(
    metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore
) -> None:
    fill(metrics)
    found = metrics.upkeep(NEXT_DAYS, Retention(raw=NEXT_DAYS - START - 3 * HOUR))
    assert found.forgotten.rows.pop(("cohort", Because.UNUSED)) > 0
    assert found.forgotten.rows == {("raw", Because.AGE): 3 * 9, ("latest", Because.AGE): 2}
    same_answers(metrics, truth, (10 * MINUTE, 30 * MINUTE, HOUR))
    ecc = metrics.read_windows(EntityKind.GPU, [GPU_KEYS[1]], START, START + HOUR, 5 * MINUTE, GPUS)
    assert np.flatnonzero((ecc.status[:, :, 0] != CellStatus.ABSENT).any(axis=0)).tolist() == [0, 2, 4, 6, 8, 10]
    known = truth.read_windows(EntityKind.GPU, [GPU_KEYS[1]], START, START + HOUR, HOUR, GPUS)
    np.testing.assert_array_equal(np.nansum(ecc.values, axis=1), np.nan_to_num(known.values[:, 0]))
    same_answers(metrics, truth, (EVERY,), START + 3 * HOUR)
    metrics.upkeep(NEXT_DAYS, Retention(raw=HOUR, ten_minutes=HOUR))
    assert set(tiers(store_url)) == {"1h"}
    same_answers(metrics, truth, (HOUR, 3 * HOUR))
    metrics.upkeep(NEXT_DAYS + timedelta(days=3), Retention(raw=HOUR, ten_minutes=HOUR, hours=2 * HOUR))
    assert tiers(store_url) == {}


@contextmanager
def cut_off(store: SqlMetricStore, after: int) -> Iterator[list[int]]:
    """Every write transaction after so many fails before it begins, as after a kill."""
    begun = [0]
    writing = store._database.writing

    @contextmanager
    def counted() -> Iterator[sa.Connection]:
        begun[0] += 1
        if begun[0] > after:
            raise InterruptedError
        with writing() as connection:
            yield connection

    store._database.writing = counted  # type: ignore[method-assign]
    try:
        yield begun
    finally:
        store._database.writing = writing  # type: ignore[method-assign]


def test_cut_off_after_any_transaction_it_goes_on_where_it_was(tmp_path: Path) -> None:
    start = START + HOUR  # an hour of each day
    retention = Retention(raw=NEXT_DAYS - start - HOUR, hourly_tables=timedelta(days=9))
    first, truth = tmp_path / "first.db", MemoryMetricStore()
    store = open_metrics(f"sqlite:///{first}")
    fill(store, truth, start=start, end=start + 2 * HOUR)
    store.close()
    after = 0

    def unchanged() -> None:
        same_answers(store, truth, (10 * MINUTE,), start, start + 2 * HOUR, (Statistic.MEAN,))

    while True:
        copy = tmp_path / f"copy-{after}.db"
        shutil.copy(first, copy)
        store = open_metrics(f"sqlite:///{copy}")
        finished = False
        with cut_off(store, after):
            try:
                store.upkeep(NEXT_DAYS, retention)
                finished = True
            except InterruptedError:
                pass
        unchanged()
        store.close()
        store = open_metrics(f"sqlite:///{copy}")
        store.upkeep(NEXT_DAYS, retention)
        unchanged()
        with store._database.reading() as connection:
            left = connection.execute(sa.text("SELECT (SELECT count(*) FROM hidden), (SELECT count(*) FROM due)"))
            assert tuple(left.one()) == (0, 0)
            stored = connection.execute(sa.text("SELECT tier, count(*) FROM block GROUP BY tier"))
            assert {row.tier: row[1] for row in stored} == {"raw": 9, "10m": 14, "1h": 14}
        store.close()
        copy.unlink()
        if finished:
            break
        after += 1 + after // 6  # the later ones, which are alike, in wider steps
    assert after > 20


def batch(at: object, power: float, names: tuple[int, ...] = (0, 1)) -> list[SampleBatch]:
    values = np.full((len(names), 1), power)
    entities = tuple(GPUS[name] for name in names)
    return [SampleBatch("late", at, EntityKind.GPU, (POWER,), entities, values, np.zeros(values.shape, np.uint8))]  # type: ignore[arg-type]


def test_late_cycles_are_rolled_up_again(metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore) -> None:
    fill(metrics)
    metrics.upkeep(NEXT_DAYS, KEEPS)
    late = [START + timedelta(minutes=1), START + HOUR + timedelta(minutes=1), START + 3 * HOUR + timedelta(minutes=31)]
    for number, at in enumerate(late):
        for store in (metrics, truth):
            store.write(at, batch(at, 5000.0 + number))
    again = START + HOUR + 3 * MINUTE  # and a second write of an instant that is there
    for store in (metrics, truth):
        store.write(again, batch(again, 7000.0))
    same_answers(metrics, truth)
    done = metrics.upkeep(NEXT_DAYS, KEEPS)
    assert done.done[Work.TEN_MINUTES] == done.done[Work.ONE_HOUR] == 3
    assert done.done[Work.MERGE_TEN_MINUTES] == 2
    same_answers(metrics, truth)
    assert tiers(store_url) == {"raw": 4 * 9, "10m": 2 * 7, "1h": 2 * 7}


def test_what_comes_after_raw_values_are_gone_fills_gaps_and_the_rest_is_counted(
    metrics: SqlMetricStore, store_url: str
) -> None:
    fill(metrics)
    retention = Retention(raw=timedelta(hours=2))
    metrics.upkeep(NEXT_DAYS, retention)
    before = metrics.read_windows(EntityKind.GPU, [POWER], START, START + HOUR, 10 * MINUTE, GPUS)
    newcomer = START + 15 * MINUTE
    gone = [place for place in range(len(GPUS)) if np.isnan(before.values[place, 1, 0])]
    there = [place for place in range(len(GPUS)) if not np.isnan(before.values[place, 1, 0])]
    assert gone
    assert there
    assert metrics.write(newcomer, batch(newcomer, 77.0, (*gone, *there))) == len(GPUS)
    assert metrics.upkeep(NEXT_DAYS, retention).refused == 0, "the first run lets late values settle"
    found = metrics.upkeep(NEXT_DAYS, retention)
    assert found.refused == len(there)
    assert metrics.condition().refused == {"rolled_up_already": len(there)}
    for step, place in ((10 * MINUTE, 1), (HOUR, 0)):
        after = metrics.read_windows(EntityKind.GPU, [POWER], START, START + HOUR, step, GPUS)
        assert after.values[gone, place, 0].tolist() == [77.0] * len(gone)
    after = metrics.read_windows(EntityKind.GPU, [POWER], START, START + HOUR, 10 * MINUTE, GPUS)
    np.testing.assert_array_equal(after.values[there], before.values[there])
    others = [0, 2, 3, 4, 5]
    np.testing.assert_array_equal(after.values[:, others], before.values[:, others])
    assert "raw" not in tiers(store_url)
    metrics.write(newcomer, batch(newcomer, 78.0, (*gone, *there)))
    assert metrics.prune(NEXT_DAYS, retention).refused == len(GPUS), "what was filled in is not counted twice"


def test_values_older_than_all_that_is_kept_are_refused_at_once(metrics: SqlMetricStore) -> None:
    fill(metrics)
    nothing = Retention(raw=HOUR, ten_minutes=HOUR, hours=HOUR)
    metrics.upkeep(NEXT_DAYS + timedelta(days=2), nothing)
    assert metrics.write(START, batch(START, 1.0)) == 0
    assert metrics.condition().refused == {"older_than_kept": 2}
    assert metrics.write(NEXT_DAYS + timedelta(days=2), batch(START, 1.0)) == 2


def test_a_first_history_of_a_kind_lands_whatever_its_age(metrics: SqlMetricStore, store_url: str) -> None:
    times = START.timestamp() + 300.0 * np.arange(12 * 24 * 5)
    values = np.tile(np.arange(times.size, dtype=float)[None, :, None] % 97, (2, 1, 1))
    metrics.write_block(EntityKind.GPU, times, [POWER], GPUS[:2], values)
    end = START + timedelta(days=5)
    found = metrics.upkeep(end + timedelta(minutes=1), Retention())
    assert found.done[Work.TEN_MINUTES] == found.done[Work.ONE_HOUR] == 120 - 1, "the newest hour is to settle"
    assert found.done[Work.MERGE_TEN_MINUTES] == 5
    window = metrics.read_windows(EntityKind.GPU, [POWER], START, end, 10 * MINUTE)
    np.testing.assert_array_equal(window.values[:, :, 0], values[:, 1::2, 0])
    assert rows(store_url, "SELECT min(start_us) >= 1772571600000000 - 86400000000 FROM block WHERE tier = 'raw'")[0][0]


def test_a_cycle_that_comes_in_between_is_not_lost(
    metrics: SqlMetricStore, truth: MemoryMetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(metrics)
    came: list[int] = []
    stage = rewrite.stage

    def interrupted(*arguments: object) -> list[int]:
        found = stage(*arguments)  # type: ignore[arg-type]
        if len(came) < 4:
            at = START + len(came) * MINUTE / 4 + MINUTE
            came.append(1)
            for store in (metrics, truth):
                store.write(at, batch(at, 9000.0 + len(came)))
        return found

    monkeypatch.setattr(rewrite, "stage", interrupted)
    found = metrics.upkeep(NEXT_DAYS, KEEPS)
    assert len(came) == 4
    assert found.put_off == 1, "three attempts were written into; the next run does it"
    same_answers(metrics, truth, (10 * MINUTE, HOUR))
    metrics.upkeep(NEXT_DAYS, KEEPS)
    same_answers(metrics, truth, (10 * MINUTE, HOUR))


def test_two_keepers_do_not_take_each_others_rows_away(
    metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(metrics)
    other = open_metrics(urls_of(store_url)[1])
    stage, swap = rewrite.stage, rewrite.swap
    begun: list[int] = []

    def with_another(*arguments: object) -> bool:
        if not begun:
            begun.append(1)
            monkeypatch.setattr(rewrite, "swap", swap)
            other.upkeep(NEXT_DAYS, KEEPS)  # deletes what it finds hidden, and does all the work
        return swap(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(rewrite, "swap", with_another)
    metrics.upkeep(NEXT_DAYS, KEEPS)
    assert rewrite.stage is stage
    other.close()
    same_answers(metrics, truth)
    assert tiers(store_url) == {"raw": 36, "10m": 14, "1h": 14}


def test_rows_that_another_keeper_shows_meanwhile_are_not_deleted(
    metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(metrics)
    other = open_metrics(urls_of(store_url)[1])
    swap, batches = rewrite.swap, rewrite.batches
    shown: list[bool] = []

    def with_another(access: rewrite.Access, new: list[int], *arguments: object) -> bool:
        if not new or shown:
            return swap(access, new, *arguments)  # type: ignore[arg-type]

        def between(sized: object) -> Iterator[list[int]]:
            listed = list(sized)  # type: ignore[call-overload]
            if not shown:
                shown.append(swap(access, new, *arguments))  # type: ignore[arg-type]
            yield from batches(listed)

        monkeypatch.setattr(rewrite, "batches", between)
        freed.append(rewrite.purge(other._upkeep._access))
        monkeypatch.setattr(rewrite, "batches", batches)
        return shown[0]

    freed: list[int] = []
    monkeypatch.setattr(rewrite, "swap", with_another)
    metrics.upkeep(NEXT_DAYS, KEEPS)
    other.close()
    assert (shown, freed) == ([True], [0]), "what was listed as hidden was shown before it was deleted"
    same_answers(metrics, truth)
    assert tiers(store_url) == {"raw": 36, "10m": 14, "1h": 14}


def test_no_number_is_given_twice_whoever_deletes(metrics: SqlMetricStore, store_url: str) -> None:
    fill(metrics, end=START + HOUR)
    access = metrics._upkeep._access
    copied = rows(store_url, "SELECT count(*) FROM block")[0][0]
    staged = [stage_again(access) for _ in range(3)]
    rewrite.purge(access)
    assert rows(store_url, "SELECT count(*) FROM block") == [(copied + 1,)]  # type: ignore[operator]
    assert stage_again(access) > max(staged)
    fill(metrics, start=START + HOUR, end=START + HOUR + EVERY)
    rewrite.purge(access)
    assert rows(store_url, "SELECT count(*) FROM hidden") == [(0,)]


def stage_again(access: rewrite.Access) -> int:
    """The oldest block once more, hidden; its number."""
    with access.reading() as connection:
        row = connection.execute(sa.select(schema.block).order_by(schema.block.c.id).limit(1)).one()
    with access.writing() as connection:
        again = {name: value for name, value in row._mapping.items() if name != "id"}
        (number,) = connection.execute(sa.insert(schema.block), again).inserted_primary_key  # type: ignore[misc]
        connection.execute(sa.insert(schema.hidden), {"block_id": number})
    return int(number)


def test_a_history_written_anew_leaves_hidden_rows_to_upkeep(metrics: SqlMetricStore, store_url: str) -> None:
    times = START.timestamp() + 60.0 * np.arange(30)
    values = np.arange(30.0).reshape(1, 30, 1)
    for key in (POWER, lived.ECC):
        metrics.write_block(EntityKind.GPU, times, [key], GPUS[:1], values)
    stage_again(metrics._upkeep._access)
    metrics.write_block(EntityKind.GPU, times, [POWER], GPUS[:1], values)
    window = metrics.read_windows(EntityKind.GPU, [POWER], START, START + 30 * MINUTE, MINUTE)
    np.testing.assert_array_equal(window.values[:, :, 0], values[:, :, 0])


def test_it_stops_when_asked_to(metrics: SqlMetricStore) -> None:
    fill(metrics, end=START + 2 * HOUR)
    answers = iter([False, True])
    found = metrics.upkeep(NEXT_DAYS, KEEPS, stop=lambda: next(answers))
    assert (found.complete, found.done) == (False, {Work.COMPACT: 1})
    assert metrics.upkeep(NEXT_DAYS, KEEPS).complete


def test_size_takes_the_oldest_raw_values_first_and_then_coarser_ones(
    metrics: SqlMetricStore, store_url: str, truth: MemoryMetricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.retention._SLACK", 0.0)
    fill(metrics)
    metrics.upkeep(NEXT_DAYS, KEEPS)
    with metrics._database.reading() as connection:
        used = space.measure(connection).used
    found = metrics.upkeep(NEXT_DAYS, Retention(raw=timedelta(days=3), size_bytes=used - 1000))
    assert set(found.forgotten.rows) - {("cohort", Because.UNUSED)} == {("raw", Because.SIZE)}
    same_answers(metrics, truth, (10 * MINUTE, HOUR))
    found = metrics.upkeep(NEXT_DAYS, Retention(raw=timedelta(days=3), size_bytes=1))
    found.forgotten.rows.pop(("cohort", Because.UNUSED), None)
    assert {what for what, _ in found.forgotten.rows} == {"raw", "hourly", "10m", "1h"}
    assert {because for _, because in found.forgotten.rows} == {Because.SIZE}
    assert tiers(store_url) == {}


def test_values_that_nothing_else_holds_go_last_and_it_says_so(metrics: SqlMetricStore, store_url: str) -> None:
    fill(metrics)
    now = START + 4 * HOUR + MINUTE  # the last hour is not settled, and not rolled up
    found = metrics.upkeep(now, Retention(size_bytes=1))
    assert found.forgotten.rows["raw", Because.SIZE_NOTHING_ELSE_LEFT] > 0
    assert "10m" not in tiers(store_url)
    metrics.write(now, batch(now, 1.0))
    metrics.upkeep(now + MINUTE, Retention(size_bytes=1))
    assert metrics.latest(EntityKind.GPU, [POWER]).values.size == 2, "the hour at hand stays"


def test_by_age_nothing_goes_that_is_not_rolled_up(metrics: SqlMetricStore, store_url: str) -> None:
    fill(metrics, end=START + 2 * HOUR)
    found = metrics.upkeep(START + 2 * HOUR + MINUTE, Retention(raw=MINUTE))
    assert found.forgotten.kept[Because.NOT_ROLLED_UP] == 2, "the second hour of both kinds is not settled"
    assert tiers(store_url)["raw"] == 2 * 20


def test_lists_of_entities_that_nothing_names_go_and_come_again(metrics: SqlMetricStore, store_url: str) -> None:
    for minute in range(4):
        at = START + minute * MINUTE
        metrics.write(at, batch(at, 1.0, (minute,)))
    metrics.upkeep(START + timedelta(hours=1, minutes=3), KEEPS)
    assert rows(store_url, "SELECT count(*) FROM cohort") == [(1,)], "of the hour; those of its cycles are gone"
    at = START + HOUR
    assert metrics.write(at, batch(at, 5.0, (0,))) == 1
    assert metrics.latest(EntityKind.GPU, [POWER]).entities == (GPUS[0],)


def test_a_history_from_before_the_cut_is_seen_before_it_is_rolled_up(metrics: SqlMetricStore) -> None:
    fill(metrics)
    metrics.upkeep(NEXT_DAYS, Retention(raw=HOUR))
    long_ago = START - timedelta(days=2)
    times = long_ago.timestamp() + 60.0 * np.arange(30)
    metrics.write_block(EntityKind.GPU, times, [POWER], GPUS[:1], np.arange(30.0).reshape(1, 30, 1))
    for _ in range(3):
        window = metrics.read_windows(EntityKind.GPU, [POWER], long_ago, long_ago + HOUR, 10 * MINUTE, GPUS[:1])
        assert window.values[0, :3, 0].tolist() == [9.0, 19.0, 29.0]
        metrics.upkeep(NEXT_DAYS, Retention(raw=HOUR))


def test_a_file_gives_room_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(space, "_SPARE_BYTES", 0)
    monkeypatch.setattr(space, "_SPARE_RATIO", 0.0)
    path = tmp_path / "m.db"
    store = open_metrics(f"sqlite:///{path}")
    fill(store)
    with store._database.reading() as connection:
        full = space.measure(connection)
    found = store.upkeep(NEXT_DAYS, Retention(raw=HOUR, ten_minutes=HOUR))
    with store._database.reading() as connection:
        after = space.measure(connection)
        assert connection.exec_driver_sql("PRAGMA integrity_check").scalar() == "ok"
    store.close()
    assert found.given_back > 0
    assert after.free == 0
    assert path.stat().st_size == after.used < full.used


def test_a_file_that_cannot_shrink_learns_it_when_it_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, truth: MemoryMetricStore
) -> None:
    path = tmp_path / "old.db"
    with monkeypatch.context() as patch:
        patch.setattr("store.sqlite._ON_CONNECT", ("journal_mode=WAL", "foreign_keys=ON"))
        store = open_metrics(f"sqlite:///{path}")
        fill(store)
        store.close()
    store = open_metrics(f"sqlite:///{path}")
    assert not shrinks(store)
    assert store.upkeep(NEXT_DAYS, KEEPS).given_back == 0
    same_answers(store, truth, (10 * MINUTE, HOUR))
    store.prune(NEXT_DAYS, KEEPS, vacuum=True)
    assert shrinks(store)
    same_answers(store, truth, (10 * MINUTE, HOUR))
    store.close()


def shrinks(store: SqlMetricStore) -> bool:
    with store._database.reading() as connection:
        return space.shrinks(connection)


def test_a_server_is_asked_to_vacuum(metrics: SqlMetricStore, truth: MemoryMetricStore) -> None:
    fill(metrics)
    metrics.prune(NEXT_DAYS, KEEPS, vacuum=True)
    same_answers(metrics, truth, (10 * MINUTE, HOUR))


def test_the_longest_transaction_is_told(metrics: SqlMetricStore) -> None:
    assert metrics.longest_upkeep_seconds == 0.0
    fill(metrics, end=START + HOUR)
    metrics.upkeep(NEXT_DAYS, KEEPS)
    assert metrics.longest_upkeep_seconds > 0.0


def test_the_helper_covers_both_days() -> None:
    assert lived.START.day != lived.END.day


def test_a_list_of_entities_that_another_process_forgot_comes_again(metrics: SqlMetricStore, store_url: str) -> None:
    other = open_metrics(urls_of(store_url)[1])
    for minute, names in enumerate([(0, 1), (1, 2), (0, 2), (2, 3)]):
        at = START + minute * MINUTE
        metrics.write(at, batch(at, 1.0, names))
    assert other.prune(START + 2 * HOUR, KEEPS).forgotten.rows["cohort", Because.UNUSED] > 0
    other.close()
    at = START + 2 * HOUR
    assert metrics.write(at, batch(at, 5.0, (0, 1))) == 2
    assert metrics.latest(EntityKind.GPU, [POWER]).values[:, 0, 0].tolist() == [5.0, 5.0]


@contextmanager
def watched(store: SqlMetricStore, query: str) -> Iterator[list[dict[object, object]]]:
    """What a query of two columns says after each write transaction."""
    seen: list[dict[object, object]] = []
    writing = store._database.writing

    @contextmanager
    def looked_at() -> Iterator[sa.Connection]:
        with writing() as connection:
            yield connection
        with store._database.reading() as connection:
            seen.append({row[0]: row[1] for row in connection.execute(sa.text(query))})

    store._database.writing = looked_at  # type: ignore[method-assign]
    try:
        yield seen
    finally:
        store._database.writing = writing  # type: ignore[method-assign]


MANY = tuple(EntityRef("prod", EntityKind.GPU, None, f"many-{number:03}") for number in range(400))


def write_many(metrics: SqlMetricStore, at: datetime, power: float, entities: tuple[EntityRef, ...] = MANY) -> None:
    values = np.full((len(entities), 1), power)
    found = SampleBatch("x", at, EntityKind.GPU, (POWER,), entities, values, np.zeros(values.shape, np.uint8))
    metrics.write(at, [found])


BY_HOUR = "SELECT at, count(*) FROM hourly_gpu GROUP BY at"


def test_an_hour_of_the_wide_tables_is_shown_and_goes_at_once(metrics: SqlMetricStore, store_url: str) -> None:
    write_many(metrics, START, 1.0)
    write_many(metrics, START + HOUR, 1.0)
    with watched(metrics, BY_HOUR) as seen:
        metrics.upkeep(START + 3 * HOUR, KEEPS)
        write_many(metrics, START + MINUTE, 9.0)
        metrics.upkeep(START + 3 * HOUR, KEEPS)
        metrics.upkeep(START + 3 * HOUR, Retention(raw=timedelta(days=3), hourly_tables=HOUR))
    assert {rows for one in seen for rows in one.values()} == {400}
    assert [len(one) for one in seen][-1] == 0
    assert 2 in [len(one) for one in seen]


def test_a_large_hour_is_written_anew_and_forgotten_in_parts(
    metrics: SqlMetricStore, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hourly, "ROWS_AT_ONCE", 150)
    write_many(metrics, START, 1.0, MANY[:350])
    metrics.upkeep(START + 2 * HOUR, KEEPS)
    write_many(metrics, START + MINUTE, 9.0)
    with watched(metrics, BY_HOUR) as seen:
        metrics.upkeep(START + 2 * HOUR, KEEPS)
        said = "SELECT count(*), count(DISTINCT name), max(hw_accel_power_watts), min(hw_accel_power_watts)"
        assert rows(store_url, f"{said} FROM hourly_gpu") == [(400, 400, 9.0, 5.0)]
        metrics.upkeep(START + 9 * HOUR, Retention(raw=timedelta(days=3), hourly_tables=HOUR))
    counts = [next(iter(one.values()), 0) for one in seen]
    assert counts[-1] == 0
    assert max(before - after for before, after in itertools.pairwise(counts)) <= 150  # type: ignore[operator,type-var]
    assert min(counts[: counts.index(400)]) == 350, "what an hour had stays until it is replaced"


def test_events_go_some_at_a_time(metrics: SqlMetricStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retention, "_ROWS_AT_ONCE", 3)
    times = [START + number * MINUTE for number in range(10)]
    events = [Event(f"e{n}", EventKind.LOG, GPUS[0], at, "log", "oom", {}, f"k{n}") for n, at in enumerate(times)]
    metrics.write(START, [], events)
    with watched(metrics, "SELECT 'event', count(*) FROM event") as seen:
        found = metrics.upkeep(START + 7 * MINUTE + timedelta(days=400))
    counts = [one["event"] for one in seen]
    assert found.forgotten.rows["event", Because.AGE] == 7
    assert counts[-1] == 3
    assert max(before - after for before, after in itertools.pairwise([10, *counts])) <= 3  # type: ignore[operator,type-var]


def test_size_takes_no_more_of_the_wide_tables_than_it_must(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("store.retention._SLACK", 0.0)
    store_url, metrics = postgres_url, open_metrics(urls_of(postgres_url)[1])  # a file has pages, too coarse for this
    fill(metrics)
    metrics.upkeep(NEXT_DAYS, KEEPS)
    rolled = {tier: many for tier, many in tiers(store_url).items() if tier != "raw"}
    used = [measured(metrics).used]
    hours = dict(rows(store_url, "SELECT at, count(*) FROM hourly_gpu GROUP BY at"))  # type: ignore[arg-type]
    ((raw, many),) = rows(store_url, "SELECT sum(length(payload)), count(*) FROM block WHERE tier = 'raw'")
    limit = used[0] - int(raw) - space._ROW_BYTES * int(many) - 500  # type: ignore[call-overload]
    found = metrics.upkeep(NEXT_DAYS + timedelta(days=1), Retention(raw=timedelta(days=3), size_bytes=limit))
    assert found.forgotten.rows["raw", Because.SIZE] == many
    left = rows(store_url, "SELECT at, count(*) FROM hourly_gpu GROUP BY at")
    assert left == [(max(hours), hours[max(hours)])], "the first day is gone, and that is enough"
    assert tiers(store_url) == rolled
    assert measured(metrics).used <= limit
    metrics.close()


def test_size_leaves_the_wide_tables_when_that_makes_no_room(
    metrics: SqlMetricStore, store_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    fill(metrics)
    metrics.upkeep(NEXT_DAYS, KEEPS)
    monkeypatch.setattr(space, "measure", lambda *_, **__: space.Space(1000, 0))
    metrics.upkeep(NEXT_DAYS + timedelta(days=1), Retention(raw=timedelta(days=3), size_bytes=10))
    ((left,),) = rows(store_url, "SELECT count(DISTINCT at) FROM hourly_gpu")
    assert left == 1


def measured(store: SqlMetricStore) -> space.Space:
    with store._database.reading() as connection:
        return space.measure(connection, exact=True)


def test_what_a_server_estimates_is_near_what_it_counts(postgres_url: str) -> None:
    metrics = open_metrics(urls_of(postgres_url)[1])
    fill(metrics)
    metrics.prune(NEXT_DAYS, KEEPS, vacuum=True)
    with metrics._database.reading() as connection:
        assert space.measure(connection) == space.measure(connection, exact=True)
    metrics.close()


def test_a_journal_that_grew_is_cut_off_again(tmp_path: Path) -> None:
    with contextlib.closing(open_metrics(f"sqlite:///{tmp_path}/m.db")) as store:
        with store._database.reading() as connection:
            limit = connection.exec_driver_sql("PRAGMA journal_size_limit").scalar_one()
        assert limit == 64 << 20
