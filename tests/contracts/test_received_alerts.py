"""Contract of every store of received alerts: memory, SQLite, PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outrider.model import Alert, AlertReason, AlertState, CycleRecord, EntityKind, EntityRef, Priority
from outrider.ports import CycleCommit, StateStore
from outrider.records.received_alerts import ReceiptOutcome, ReceivedAlert, ended
from outrider.wire.cursors import position_of
from store.factory import open_state
from store.memory import MemoryStateStore

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
MOST = 1000


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def state(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[StateStore]:
    if request.param == "memory":
        yield MemoryStateStore()
        return
    url = f"sqlite:///{tmp_path}/s.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    store = open_state(url)
    yield store
    store.close()


def received(number: int, *, at: datetime = T0, expires: datetime | None = None, group: str = "") -> ReceivedAlert:
    return ReceivedAlert(
        source="alertmanager",
        fingerprint=f"{number:016x}",
        name="KubePodNotReady",
        state=AlertState.FIRING,
        priority=Priority.P2,
        starts_at=at,
        reported_at=at,
        received_at=at,
        expires_at=expires,
        labels={"pod": f"p{number}", "odd": "\0<b>\ud800"},
        group=group,
    )


def test_a_delivery_is_stored_and_a_repetition_is_one_alert(state):
    assert state.receive_alerts([received(1), received(2)], MOST).counts == {ReceiptOutcome.NEW: 2}
    again = state.receive_alerts([replace(received(1), received_at=T0 + MINUTE)], MOST)
    assert again.counts == {ReceiptOutcome.REPEATED: 1}
    stored = state.received_alert(received(1).id)
    assert (stored.deliveries, stored.received_at, stored.starts_at) == (2, T0 + MINUTE, T0)
    assert len(state.received_alerts()) == 2


def test_resolved_alerts_are_filtered_and_listed(state):
    state.receive_alerts([received(1), received(2)], MOST)
    state.receive_alerts([ended(received(2), T0 + MINUTE, T0 + MINUTE)], MOST)
    assert [alert.fingerprint for alert in state.received_alerts(states=[AlertState.FIRING])] == [f"{1:016x}"]
    assert len(state.received_alerts(states=[AlertState.RESOLVED])) == 1


def test_the_list_is_paginated_newest_start_first(state):
    state.receive_alerts([received(number, at=T0 + number * MINUTE) for number in range(5)], MOST)
    first = state.received_alerts(limit=2)
    rest = state.received_alerts(limit=10, after=position_of(first[-1]))
    assert [int(alert.fingerprint, 16) for alert in (*first, *rest)] == [4, 3, 2, 1, 0]


def test_too_many_open_alerts_store_nothing_but_ends_are_accepted(state):
    state.receive_alerts([received(1), received(2)], 2)
    assert state.receive_alerts([received(3)], 2).full
    assert state.received_alert(received(3).id) is None
    assert not state.receive_alerts([received(1), ended(received(2), T0 + MINUTE, T0 + MINUTE)], 1).full


def test_the_end_of_a_group_ends_all_of_it(state):
    state.receive_alerts([received(1, group="n1/xid"), received(2, group="n1/xid"), received(3, group="n2/xid")], MOST)
    end = replace(ended(received(9, group="n1/xid"), T0 + MINUTE, T0 + MINUTE), resolves_group=True)
    state.receive_alerts([end], MOST)
    assert [alert.group for alert in state.received_alerts(states=[AlertState.FIRING])] == ["n2/xid"]


def test_an_alert_that_is_not_repeated_expires(state):
    state.receive_alerts([received(1, expires=T0 + MINUTE), received(2)], MOST)
    assert state.expire_received_alerts(T0) == 0
    assert state.expire_received_alerts(T0 + MINUTE) == 1
    assert state.received_alert(received(1).id).ends_at == T0 + MINUTE
    assert state.received_alert(received(2).id).is_firing


def test_an_alert_resolved_by_hand_is_over_at_its_source_too(state):
    state.receive_alerts([received(1)], MOST)
    entity = EntityRef("c", EntityKind.POD, "ns", "p1")
    alert = Alert(
        received(1).id, "alertmanager:X", Priority.P2, entity, AlertState.FIRING, AlertReason.RECEIVED, T0, T0
    )
    state.commit(CycleCommit(CycleRecord("c1", T0, 0.0, 0, 0, 0, 0, 1, 0), alerts=(alert,)))
    assert state.resolve_alert(alert.fingerprint, "ann", T0 + MINUTE)
    assert not state.received_alert(received(1).id).is_firing


def test_the_last_heartbeat_of_each_name_is_kept(state):
    assert state.heartbeats() == {}
    state.beat("watchdog/prometheus", T0)
    state.beat("watchdog/prometheus", T0 + MINUTE)
    state.beat("alertmanager/http://am:9093", T0)
    assert state.heartbeats() == {"watchdog/prometheus": T0 + MINUTE, "alertmanager/http://am:9093": T0}


def test_many_alerts_in_one_delivery(state):
    many = [received(number) for number in range(1200)]
    assert state.receive_alerts(many, 5000).counts == {ReceiptOutcome.NEW: 1200}
    assert state.receive_alerts(many, 5000).counts == {ReceiptOutcome.REPEATED: 1200}
