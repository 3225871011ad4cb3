"""How long decisions are kept: what is older goes, some thousand rows a transaction.

The newest ten thousand cycles and two thousand plans are kept by the commits themselves, events that others
leave by the ledger. Open incidents, firing alerts, waiting actions and facts that hold never go.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Final

import sqlalchemy as sa

from outrider.model import ActionStatus
from store import schema
from store.backend import put
from store.database import Database
from store.schema import micros

DECISIONS: Final = timedelta(days=400)
"""More than a year, so that this quarter can be held against the same of last year."""
FORECASTS: Final = timedelta(days=90)
MESSAGES: Final = timedelta(days=90)
SILENCES: Final = timedelta(days=30)

_AT_ONCE = 2_000  # rows a transaction: some 50 ms, others write in between
_APPEND_ONLY = (schema.audit, schema.change, schema.change_end)
_OVER = [
    status.value
    for status in (
        ActionStatus.DONE, ActionStatus.DRY_RUN, ActionStatus.FAILED, ActionStatus.REFUSED, ActionStatus.CANCELLED,
    )
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Rule:
    """Rows whose instant is longer ago than ``kept`` go; NULL means that something still goes on."""

    table: sa.Table
    instant: str
    kept: timedelta
    only: sa.ColumnElement[bool] | None = None


RULES: Final = (
    Rule(schema.alert, "ends_at_us", DECISIONS),
    Rule(schema.incident, "resolved_at_us", DECISIONS),
    Rule(schema.action, "decided_at_us", DECISIONS, schema.action.c.status.in_(_OVER)),
    Rule(schema.session, "closed_at_us", DECISIONS),
    Rule(schema.message, "ended_at_us", MESSAGES),
    Rule(schema.audit, "at_us", DECISIONS),
    Rule(schema.silence, "until_us", SILENCES),
    Rule(schema.drill, "ends_at_us", DECISIONS),
    Rule(schema.forecast, "made_at_us", FORECASTS),
    Rule(schema.recommendation, "made_at_us", FORECASTS),
    Rule(schema.topology_entity, "valid_to_us", DECISIONS),
    Rule(schema.topology_edge, "valid_to_us", DECISIONS),
    Rule(schema.topology_label, "valid_to_us", DECISIONS),
    Rule(schema.change, "at_us", DECISIONS),
    Rule(schema.change_end, "at_us", DECISIONS),
    Rule(schema.startup, "gone_at_us", DECISIONS),
)


def prune(database: Database, now: datetime) -> dict[str, int]:
    """Delete what is past its time; how many rows went, by table. Cut off anywhere, it goes on the next time."""
    gone: dict[str, int] = {}
    for rule in RULES:
        while (done := _some(database, rule, now)) > 0:
            gone[rule.table.name] = gone.get(rule.table.name, 0) + done
    return gone


def _some(database: Database, rule: Rule, now: datetime) -> int:
    table, keys = rule.table, list(rule.table.primary_key)
    old = sa.select(*keys).where(table.c[rule.instant] < micros(now - rule.kept)).limit(_AT_ONCE)
    if rule.only is not None:
        old = old.where(rule.only)
    with database.reading() as connection:  # mostly there is nothing to do: no writer waits for the answer
        if connection.execute(old.limit(1)).first() is None:
            return 0
    key = sa.tuple_(*keys) if len(keys) > 1 else keys[0]
    with database.writing() as connection:
        guarded = any(table is one for one in _APPEND_ONLY)
        if guarded:  # the triggers look for it; no other transaction ever sees it
            put(connection, schema.flag, {"name": "pruning", "value": "true"})
        done = connection.execute(sa.delete(table).where(key.in_(old))).rowcount
        if guarded:
            connection.execute(sa.delete(schema.flag).where(schema.flag.c.name == "pruning"))
    return int(done)
