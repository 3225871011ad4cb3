"""A tentative cycle on top of the recent values: what a cache with that cycle would return, without changing it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np

from outrider.model import CellStatus, EntityKind, EntityRef, Event, EventKind, SampleBatch, SignalKey
from service.engine.preview_window import PreviewWindow
from service.engine.window_cache import WindowCache

NOW = datetime(2026, 11, 21, 8, 0, tzinfo=UTC)
STEP = timedelta(seconds=15)
SPAN = timedelta(minutes=1)
A, B = SignalKey("hw_accel_power_watts"), SignalKey("hw_accel_seen")
GPUS = tuple(EntityRef("c", EntityKind.GPU, None, f"GPU-{number}") for number in range(4))


class Cache:
    """A window cache with a fixed step."""

    def __init__(self) -> None:
        self.cache = WindowCache({EntityKind.GPU: (A, B)}, 8)

    def window(self, kind, keys, span):
        return self.cache.window(kind, keys, span, STEP)


def batch(at: datetime, entities: tuple[EntityRef, ...], **values: float) -> SampleBatch:
    keys = (B, A)  # another order than that of the cache
    cells = np.array([[values.get("seen", 1.0), values.get("watts", 300.0)]] * len(entities))
    return SampleBatch(
        "t", at, EntityKind.GPU, keys, entities, cells, np.full(cells.shape, CellStatus.PRESENT, np.uint8)
    )


def caches(cycles: int = 6) -> tuple[Cache, Cache]:
    made = Cache(), Cache()
    for cache in made:
        for number in range(cycles):
            at = NOW + number * STEP
            cache.cache.push(at, [batch(at, GPUS[:3], watts=300.0 + number)])
    return made


def test_a_preview_equals_a_cache_that_took_the_cycle() -> None:
    preview, real = caches()
    at = NOW + 6 * STEP
    new = [batch(at, GPUS[1:], watts=np.inf, seen=0.0)]
    event = Event("x", EventKind.XID, GPUS[1], at, "dcgm", "79", {}, "x")
    real.cache.push(at, new, [event])
    expected = real.window(EntityKind.GPU, (A, B), SPAN)
    window = PreviewWindow(preview, at, new, [event]).window(EntityKind.GPU, (A, B), SPAN)
    assert (window.entities, window.events) == (expected.entities, expected.events)
    np.testing.assert_array_equal(window.times, expected.times)
    np.testing.assert_array_equal(window.values, expected.values)
    np.testing.assert_array_equal(window.status, expected.status)


def test_the_cache_below_does_not_change() -> None:
    preview, untouched = caches()
    at = NOW + 6 * STEP
    PreviewWindow(preview, at, [batch(at, GPUS)], ()).window(EntityKind.GPU, (A,), SPAN)
    one, other = (cache.window(EntityKind.GPU, (A, B), SPAN) for cache in (preview, untouched))
    assert one.entities == other.entities
    np.testing.assert_array_equal(one.values, other.values)


def test_a_preview_of_few_entities_has_only_their_rows() -> None:
    preview, _ = caches()
    at = NOW + 6 * STEP
    limited = PreviewWindow(preview, at, [batch(at, GPUS)], (), frozenset({GPUS[0], GPUS[3]}))
    window = limited.window(EntityKind.GPU, (A,), SPAN)
    assert set(window.entities) == {GPUS[0], GPUS[3]}
    assert np.isnan(window.values[window.entities.index(GPUS[3]), :-1]).all()
