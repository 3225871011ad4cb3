"""Retention of decisions: old rows are deleted, some thousand per transaction.

Commits limit cycles to ten thousand and plans to two thousand; the change log limits queued events. Open incidents,
firing alerts, waiting actions and valid facts are never deleted.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime
from typing import Final, Literal

import sqlalchemy as sa

from outrider.model import ActionStatus
from outrider.ports import StateRetention
from store.schema import metadata
from store.schema.metadata import micros
from store.sql.backend import put
from store.sql.database import Database

_AT_ONCE = 2_000  # rows per transaction: about 50 ms, with other writers in between
_PRUNING = "pruning"
_APPEND_ONLY = (metadata.audit, metadata.change, metadata.change_end)
_OVER = [
    status.value
    for status in (
        ActionStatus.DONE, ActionStatus.DRY_RUN, ActionStatus.FAILED, ActionStatus.REFUSED, ActionStatus.CANCELLED,
    )
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """Rows whose time is older than ``kept`` of the retention are deleted; NULL means ongoing."""

    table: sa.Table
    instant: str
    kept: Literal["decisions", "forecasts", "messages", "silences"]
    only: sa.ColumnElement[bool] | None = None


RULES: Final = (
    Rule(metadata.alert, "ends_at_us", "decisions"),
    Rule(metadata.incident, "resolved_at_us", "decisions"),
    Rule(metadata.action, "decided_at_us", "decisions", metadata.action.c.status.in_(_OVER)),
    Rule(metadata.session, "closed_at_us", "decisions"),
    Rule(metadata.message, "ended_at_us", "messages"),
    Rule(metadata.audit, "at_us", "decisions"),
    Rule(metadata.silence, "until_us", "silences"),
    Rule(metadata.drill, "ends_at_us", "decisions"),
    Rule(metadata.feedback, "at_us", "decisions"),
    Rule(metadata.incident_note, "at_us", "decisions"),
    Rule(metadata.follow_up, "closed_at_us", "decisions"),
    Rule(metadata.shift_override, "end_us", "decisions"),
    Rule(metadata.button_use, "at_us", "silences"),
    Rule(metadata.forecast, "made_at_us", "forecasts"),
    Rule(metadata.recommendation, "made_at_us", "forecasts"),
    Rule(metadata.topology_entity, "valid_to_us", "decisions"),
    Rule(metadata.topology_edge, "valid_to_us", "decisions"),
    Rule(metadata.topology_label, "valid_to_us", "decisions"),
    Rule(metadata.change, "at_us", "decisions"),
    Rule(metadata.change_end, "at_us", "decisions"),
    Rule(metadata.received_alert, "ends_at_us", "decisions"),
    Rule(metadata.startup, "gone_at_us", "decisions"),
)


def prune(database: Database, now: datetime, kept: StateRetention) -> dict[str, int]:
    """Deletes expired rows; returns counts by table. An interrupted run is continued by the next one."""
    gone: dict[str, int] = {}
    for rule in RULES:
        while (done := _some(database, rule, now - getattr(kept, rule.kept))) > 0:
            gone[rule.table.name] = gone.get(rule.table.name, 0) + done
    return gone


def _some(database: Database, rule: Rule, before: datetime) -> int:
    table, keys = rule.table, list(rule.table.primary_key)
    old = sa.select(*keys).where(table.c[rule.instant] < micros(before)).limit(_AT_ONCE)
    if rule.only is not None:
        old = old.where(rule.only)
    with database.reading() as connection:  # mostly there is nothing to do, and no writer has to wait
        if connection.execute(old.limit(1)).first() is None:
            return 0
    key = sa.tuple_(*keys) if len(keys) > 1 else keys[0]
    guarded = any(table is item for item in _APPEND_ONLY)
    with database.writing() as connection, allowing_deletes(connection) if guarded else nullcontext():
        return int(connection.execute(sa.delete(table).where(key.in_(old))).rowcount)


@contextmanager
def allowing_deletes(connection: sa.Connection) -> Iterator[None]:
    """Allows deletes in append-only tables inside the block: sets a flag that only this transaction sees."""
    put(connection, metadata.flag, {"name": _PRUNING, "value": "true"})
    yield
    connection.execute(sa.delete(metadata.flag).where(metadata.flag.c.name == _PRUNING))
