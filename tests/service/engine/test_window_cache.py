from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from outrider.model import CellStatus, EntityKind, EntityRef, Event, EventKind, SampleBatch, SignalKey
from service.engine.window_cache import WindowCache

START = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
A, B = SignalKey("a"), SignalKey("b")


def replica(name):
    return EntityRef("c", EntityKind.REPLICA, None, name)


def batch(at, cells, keys=(A,)):
    values = np.array(list(cells.values()), dtype=float)
    status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    return SampleBatch("t", at, EntityKind.REPLICA, keys, tuple(map(replica, cells)), values, status)


def cache(slots=4):
    return WindowCache({EntityKind.REPLICA: [A, B]}, slots)


def window(of, span=timedelta(hours=1)):
    return of.window(EntityKind.REPLICA, [A, B], span, STEP)


def test_slots_are_oldest_first_and_missing_cells_absent():
    ring = cache()
    ring.push(START, [batch(START, {"x": [1.0]})])
    ring.push(START + STEP, [batch(START + STEP, {"x": [2.0], "y": [5.0]})])
    seen = window(ring)
    assert [entity.name for entity in seen.entities] == ["x", "y"]
    assert seen.column(A)[0].tolist() == [1.0, 2.0]
    assert np.isnan(seen.column(A)[1][0])
    assert (seen.column_status(B) == CellStatus.ABSENT).all()


def test_the_ring_overwrites_the_oldest_slots():
    ring = cache(slots=3)
    for cycle in range(5):
        ring.push(START + cycle * STEP, [batch(START, {"x": [float(cycle)]})])
    assert window(ring).column(A)[0].tolist() == [2.0, 3.0, 4.0]
    assert window(ring, span=STEP * 2).column(A)[0].tolist() == [3.0, 4.0]


def test_a_present_cell_wins_over_an_absent_one():
    ring = cache()
    ring.push(START, [batch(START, {"x": [1.0]}), batch(START, {"x": [np.nan]})])
    assert window(ring).column(A)[0].tolist() == [1.0]


def test_entities_without_values_leave_after_a_whole_ring():
    ring = cache(slots=3)
    ring.push(START, [batch(START, {"gone": [1.0]})])
    for cycle in range(1, 9):
        ring.push(START + cycle * STEP, [batch(START, {"x": [float(cycle)]})])
    assert [entity.name for entity in window(ring).entities] == ["x"]


def test_a_clock_step_back_leaves_no_future_slots():
    ring = cache()
    ring.push(START, [batch(START, {"x": [1.0]})])
    ring.push(START - timedelta(minutes=5), [batch(START, {"x": [2.0]})])
    assert window(ring).column(A)[0].tolist() == [2.0]


def test_many_entities_grow_the_ring_and_keep_their_values():
    ring = cache()
    ring.push(START, [batch(START, {str(i): [float(i)] for i in range(10)})])
    ring.push(START + STEP, [batch(START, {str(i): [float(i)] for i in range(500)})])
    seen = window(ring)
    assert len(seen.entities) == 500
    assert seen.column(A)[:10, 0].tolist() == [float(i) for i in range(10)]


def test_an_empty_cache_gives_an_empty_window():
    seen = window(cache())
    assert seen.values.shape == (0, 0, 2)
    assert cache().window(EntityKind.NODE, [A], STEP, STEP).entities == ()


def test_batches_of_one_kind_enter_together_with_the_same_result():
    keys = (A, B)
    found = [batch(START, {f"x{number}": [float(number), np.nan]}, keys) for number in range(5)]
    together, single = cache(), cache()
    together.push(START, found)
    single.push(START, [batch(START, {f"x{number}": [float(number), np.nan]}, (A, B)) for number in range(5)])
    assert np.array_equal(window(together).values, window(single).values, equal_nan=True)
    assert window(together).column(A)[:, 0].tolist() == [0.0, 1.0, 2.0, 3.0, 4.0]


def test_an_entity_in_two_batches_keeps_the_first_present_value():
    keys, ring = (A,), cache()
    ring.push(START, [batch(START, {"x": [value]}, keys) for value in (np.nan, 1.0, 2.0)])
    assert window(ring).column(A)[0].tolist() == [1.0]


def test_an_event_received_again_replaces_the_earlier_one():
    made = cache()
    first = Event("x", EventKind.XID, replica("r"), START, "page", "79")
    made.push(START - STEP, ())
    made.push(START - STEP / 2, (), (first,))
    made.push(START + STEP, (), (replace(first, attributes={"pid": "7"}), replace(first, id="y")))
    kept = made.window(EntityKind.REPLICA, (A,), timedelta(hours=1), STEP).events
    assert [(one.id, dict(one.attributes)) for one in kept] == [("x", {"pid": "7"}), ("y", {})]
