"""Queues and entries of services, from the values of the last minutes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import CellStatus, EntityKind, EntityRef, SignalKey, Window
from service.engine import service_facts

T0 = datetime(2026, 11, 23, 12, tzinfo=UTC)
CHAT = EntityRef("c", EntityKind.SERVICE, "serving", "chat")
STEP = timedelta(seconds=15)


class Values:
    """The same values in each of four cycles, with overrides of single cells."""

    def __init__(self, **values: float | Sequence[float]) -> None:
        self._values = values

    def window(self, kind: EntityKind, keys: Sequence[SignalKey], span: timedelta) -> Window:
        del span
        columns = [np.broadcast_to(np.asarray(self._values.get(key.name, np.nan), dtype=float), 4) for key in keys]
        values = np.stack(columns, axis=1)[None]
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        times = np.array([(T0 + STEP * slot).timestamp() for slot in range(4)])
        return Window(kind, (CHAT,), times, tuple(keys), values, status, STEP)


def test_lost_and_rejected_requests_are_not_served():
    values = Values(
        svc_queue_requests=30.0,
        svc_requests_per_second=10.0,
        svc_abandoned_total=30.0,
        svc_rate_limited_ratio=0.2,
    )
    load = service_facts.loads(values)[CHAT]
    newest = load.newest
    assert (newest.waiting, newest.served, newest.lost, newest.rejected) == (30.0, 8.0, 2.0, pytest.approx(2.5))
    assert load.offered == pytest.approx(12.5)


def test_without_a_source_of_429_the_offered_load_is_unknown():
    load = service_facts.loads(Values(svc_queue_requests=0.0, svc_requests_per_second=10.0))[CHAT]
    assert load.newest.rejected is None
    assert load.offered is None
    assert load.arriving == pytest.approx(10.0)


def test_a_service_without_values_is_unknown():
    assert service_facts.loads(Values(svc_queue_requests=3.0)) == {}
    assert service_facts.loads(Values()) == {}


def test_an_entry_is_viewed_by_the_values_of_the_newest_cycle():
    seen = service_facts.entries(Values(probe_success=[1, 1, 0, 0], svc_requests_per_second=[4, 5, 6, np.nan]))[CHAT]
    assert [good for _, good in seen.probes] == [True, True, False, False]
    assert (seen.viewed, seen.load, seen.failing_for()) == (False, 6.0, STEP)
