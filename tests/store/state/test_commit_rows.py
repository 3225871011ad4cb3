"""A commit writes only rows that differ from the stored ones."""

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
    base = Alert(fingerprint, "r", Priority.P2, GPU, AlertState.FIRING, AlertReason.STILL_TRUE, T0, T0)
    return replace(base, **changes)


def incident(name: str) -> Incident:
    return Incident(name, Layer.HARDWARE, Priority.P1, T0, (), (), (), (), T0)


def commit(number: int, alerts: tuple[Alert, ...], incidents: tuple[Incident, ...] = ()) -> CycleCommit:
    cycle = CycleRecord(f"c{number}", T0 + timedelta(seconds=number), 0.1, 1, 1, 1, 0, 0, 0)
    return CycleCommit(cycle, alerts, incidents)


@contextmanager
def sent_statements(state: SqlStateStore) -> Iterator[list[tuple[str, int]]]:
    """Collects the statements that the store sends, with their numbers of rows."""
    statements: list[tuple[str, int]] = []
    engine = state._database._opened.pool

    def note(_connection: Any, _cursor: Any, statement: str, parameters: Any, _context: Any, many: bool) -> None:
        statements.append((statement, len(parameters) if many else 1))

    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


def rows_of(statements: list[tuple[str, int]], table: str) -> int:
    return sum(rows for statement, rows in statements if statement.startswith(f"INSERT INTO {table} "))


def test_unchanged_rows_are_not_written_again(state: SqlStateStore) -> None:
    alerts = tuple(alert(f"f{number}") for number in range(MANY))
    incidents = tuple(incident(f"i{number}") for number in range(MANY))
    state.commit(commit(1, alerts, incidents))
    with sent_statements(state) as statements:
        state.commit(commit(2, alerts, incidents))
    assert (rows_of(statements, "alert"), rows_of(statements, "incident"), rows_of(statements, "cycle")) == (0, 0, 1)
    assert len(statements) < 25
    changed = (replace(alerts[7], value=3.0), *alerts[:7], *alerts[8:], alert("new"))
    with sent_statements(state) as statements:
        state.commit(commit(3, changed, (replace(incidents[0], resolved_at=T0), *incidents[1:])))
    assert (rows_of(statements, "alert"), rows_of(statements, "incident")) == (2, 1)
    stored = {alert.fingerprint: alert for alert in state.alerts(limit=MANY + 9)}
    assert stored == {alert.fingerprint: alert for alert in changed}


def test_many_alerts_do_not_undo_operator_actions(state: SqlStateStore) -> None:
    alerts = tuple(alert(f"f{number}") for number in range(MANY))
    state.commit(commit(1, alerts, (incident("i"),)))
    assert state.resolve_alert("f900", "ann", T0)
    assert state.acknowledge("i", "ann", T0)
    later = tuple(replace(alert, seen_at=T0 + timedelta(minutes=1)) for alert in alerts)
    state.commit(commit(2, later, (replace(incident("i"), priority=Priority.P0),)))
    by_hand, other = state.alert("f900"), state.alert("f901")
    assert by_hand is not None
    assert other is not None
    assert (by_hand.reason, other) == (AlertReason.RESOLVED_BY_HAND, later[901])
    found = state.incident("i")
    assert found is not None
    assert (found.priority, found.acknowledged_by) == (Priority.P0, "ann")


@pytest.mark.parametrize("key", ["nul \0 here", "ü" * 2_000])
def test_a_key_too_long_or_invalid_for_an_index_is_recognized(state: SqlStateStore, key: str) -> None:
    state.commit(commit(1, (alert(key),)))
    assert state.resolve_alert(key, "ann", T0)
    state.commit(commit(2, (alert(key, value=2.0),)))
    found = state.alert(key)
    assert found is not None
    assert found.reason is AlertReason.RESOLVED_BY_HAND


def test_the_later_of_two_alerts_with_the_same_key_is_stored(state: SqlStateStore) -> None:
    state.commit(commit(1, (alert("f", value=1.0), alert("f", value=2.0))))
    assert [found.value for found in state.alerts()] == [2.0]
