"""A commit writes what is new in it: what stands as it stood costs a look."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
import sqlalchemy as sa

from outrider.model import (
    Alert,
    AlertReason,
    AlertState,
    CycleRecord,
    EntityKind,
    EntityRef,
    Incident,
    Layer,
    Priority,
)
from outrider.ports import CycleCommit
from store.factory import SqlStateStore

T0 = datetime(2026, 3, 1, tzinfo=UTC)
GPU = EntityRef("prod", EntityKind.GPU, None, "gpu-1")
MANY = 1_200  # more than one part


def alert(fingerprint: str, **changes: Any) -> Alert:
    found = Alert(fingerprint, "r", Priority.P2, GPU, AlertState.FIRING, AlertReason.STILL_TRUE, T0, T0)
    return replace(found, **changes)


def incident(name: str) -> Incident:
    return Incident(name, Layer.HARDWARE, Priority.P1, T0, (), (), (), (), T0)


def commit(number: int, alerts: tuple[Alert, ...], incidents: tuple[Incident, ...] = ()) -> CycleCommit:
    cycle = CycleRecord(f"c{number}", T0 + timedelta(seconds=number), 0.1, 1, 1, 1, 0, 0, 0)
    return CycleCommit(cycle, alerts, incidents)


@contextmanager
def written(state: SqlStateStore) -> Iterator[list[tuple[str, int]]]:
    """The statements that the store sends meanwhile, and how many rows each brings."""
    said: list[tuple[str, int]] = []
    engine = state._database._opened.pool

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        said.append((statement, len(parameters) if many else 1))

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield said
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def rows_of(said: list[tuple[str, int]], table: str) -> int:
    return sum(rows for statement, rows in said if statement.startswith(f"INSERT INTO {table} "))


def test_what_stands_as_it_stood_is_not_written_again(state: SqlStateStore) -> None:
    alerts = tuple(alert(f"f{number}") for number in range(MANY))
    incidents = tuple(incident(f"i{number}") for number in range(MANY))
    state.commit(commit(1, alerts, incidents))
    with written(state) as said:
        state.commit(commit(2, alerts, incidents))
    assert (rows_of(said, "alert"), rows_of(said, "incident"), rows_of(said, "cycle")) == (0, 0, 1)
    assert len(said) < 25
    changed = (replace(alerts[7], value=3.0), *alerts[:7], *alerts[8:], alert("new"))
    with written(state) as said:
        state.commit(commit(3, changed, (replace(incidents[0], resolved_at=T0), *incidents[1:])))
    assert (rows_of(said, "alert"), rows_of(said, "incident")) == (2, 1)
    found = {one.fingerprint: one for one in state.alerts(limit=MANY + 9)}
    assert found == {one.fingerprint: one for one in changed}


def test_many_alerts_do_not_undo_what_hands_did(state: SqlStateStore) -> None:
    alerts = tuple(alert(f"f{number}") for number in range(MANY))
    state.commit(commit(1, alerts, (incident("i"),)))
    assert state.resolve_alert("f900", "ann", T0)
    assert state.acknowledge("i", "ann", T0)
    later = tuple(replace(one, seen_at=T0 + timedelta(minutes=1)) for one in alerts)
    state.commit(commit(2, later, (replace(incident("i"), priority=Priority.P0),)))
    by_hand, other = state.alert("f900"), state.alert("f901")
    assert by_hand is not None
    assert other is not None
    assert (by_hand.reason, other) == (AlertReason.RESOLVED_BY_HAND, later[901])
    found = state.incident("i")
    assert found is not None
    assert (found.priority, found.acknowledged_by) == (Priority.P0, "ann")


@pytest.mark.parametrize("odd", ["nul \0 here", "ü" * 2_000])
def test_a_key_that_no_index_takes_is_known_again(state: SqlStateStore, odd: str) -> None:
    state.commit(commit(1, (alert(odd),)))
    assert state.resolve_alert(odd, "ann", T0)
    state.commit(commit(2, (alert(odd, value=2.0),)))
    found = state.alert(odd)
    assert found is not None
    assert found.reason is AlertReason.RESOLVED_BY_HAND


def test_of_two_with_one_key_the_later_stays(state: SqlStateStore) -> None:
    state.commit(commit(1, (alert("f", value=1.0), alert("f", value=2.0))))
    assert [found.value for found in state.alerts()] == [2.0]
