"""Tables of both databases, as the code refers to them; the migrations create them.

Timestamps are integers, microseconds since 1970 in UTC, so that order and ranges need no parsing. The
``latest_<kind>`` and ``hourly_<kind>`` tables are defined elsewhere: their columns follow the signal catalog
(``store.tsdb.latest``, ``store.tsdb.hourly``).
"""

from __future__ import annotations

from typing import Final, Literal

import sqlalchemy as sa

from store.schema.column_types import BIG, FreeText, Key, instant, instant_column, metrics, micros, state
from store.schema.decision_tables import (
    action,
    alert,
    audit,
    cycle,
    document,
    drill,
    feedback,
    flag,
    incident,
    message,
    session,
    silence,
)
from store.schema.ingest_tables import (
    change,
    change_end,
    heartbeat,
    posted,
    pushed,
    pushed_left_out,
    received_alert,
    startup,
)
from store.schema.on_call_tables import button_use, calendar, follow_up, incident_note, shift_override
from store.schema.planning_tables import (
    baseline,
    forecast,
    load_test,
    plan,
    recommendation,
    topology_edge,
    topology_entity,
    topology_label,
)

__all__ = [
    "BIG", "HEADS", "RAW", "VERSION_TABLES", "Database", "action", "alert", "audit", "baseline", "block", "button_use",
    "calendar", "change", "change_end", "cohort", "cycle", "document", "drill", "due", "entity", "event", "feedback",
    "flag", "follow_up", "forecast", "heartbeat", "hidden", "incident", "incident_note", "instant", "kept_from",
    "keyset", "load_test", "message", "metrics", "micros", "plan", "posted", "pushed", "pushed_left_out",
    "received_alert", "recommendation", "refused", "session", "shift_override", "signal", "silence", "startup", "state",
    "topology_edge", "topology_entity", "topology_label",
]  # fmt: skip

Database = Literal["metrics", "state"]
HEADS: Final[dict[Database, str]] = {"metrics": "m0001", "state": "s0001"}
VERSION_TABLES: Final[dict[Database, str]] = {"metrics": "metrics_revision", "state": "state_revision"}
RAW = "raw"  # tier of values as collected; store.tsdb.tiers has the others

entity = sa.Table(
    "entity",
    metrics,
    sa.Column("id", sa.Integer, primary_key=True, comment="entity number, used in every table of this database"),
    sa.Column("kind", FreeText, nullable=False, comment="node, gpu, pod, replica, service, ..."),
    sa.Column("key", Key, nullable=False, unique=True, comment="cluster/kind/namespace/name"),
    instant_column("first_seen_us", "time of its first stored value"),
    instant_column("last_seen_us", "time of its last stored value, up to ten minutes behind"),
    sa.Index("entity_by_kind", "kind"),
    comment="Entities with stored values.",
)
signal = sa.Table(
    "signal",
    metrics,
    sa.Column("id", sa.Integer, primary_key=True, comment="number"),
    sa.Column("key", Key, nullable=False, unique=True, comment="name, or name#3 for a bucket of a histogram"),
    comment="One stored column of values.",
)
cohort = sa.Table(
    "cohort",
    metrics,
    sa.Column("id", sa.Integer, primary_key=True, comment="number"),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True, comment="digest of the members"),
    sa.Column("members", sa.LargeBinary, nullable=False, comment="entity numbers, int32, ascending"),
    comment="A list of entities: the rows of a block.",
)
keyset = sa.Table(
    "keyset",
    metrics,
    sa.Column("id", sa.Integer, primary_key=True, comment="number"),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True, comment="digest of the members"),
    sa.Column("members", sa.LargeBinary, nullable=False, comment="signal numbers, int32, grouped by signal"),
    comment="A list of signals: the columns of a block.",
)  # fmt: skip
block = sa.Table(
    "block",
    metrics,
    sa.Column("id", BIG, primary_key=True, comment="increases with each write"),
    sa.Column("tier", FreeText, nullable=False, comment="raw, 10m or 1h"),
    sa.Column("kind", FreeText, nullable=False, comment="kind of the entities"),
    instant_column("start_us", "first timestamp inside", nullable=False),
    instant_column("end_us", "last timestamp inside, inclusive", nullable=False),
    sa.Column("instants", sa.Integer, nullable=False, comment="number of timestamps"),
    sa.Column("cohort_id", sa.ForeignKey("cohort.id"), nullable=False, comment="its rows"),
    sa.Column("keyset_id", sa.ForeignKey("keyset.id"), nullable=False, comment="its columns"),
    sa.Column(
        "payload", sa.LargeBinary, nullable=False, comment="packed values"
    ),  # last column: the others are read without it
    sa.Index("block_by_time", "kind", "tier", "end_us", "start_us"),
    sa.Index("block_by_cohort", "cohort_id"),
    comment="Packed values: one cycle, or many timestamps of one signal.",
)
hidden = sa.Table(
    "hidden",
    metrics,
    sa.Column("block_id", BIG, primary_key=True, autoincrement=False, comment="number of the block"),
    comment="Blocks that reads skip: still being written by maintenance, or about to be deleted.",
)
due = sa.Table(
    "due",
    metrics,
    sa.Column("work", Key, primary_key=True, comment="compact, 10m, 1h, merge_10m or merge_1h"),
    sa.Column("kind", Key, primary_key=True, comment="kind of the entities"),
    instant_column("start_us", "start of the span: an hour, or a day for the merges", primary_key=True),
    sa.Column("writes", sa.BigInteger, nullable=False, comment="writes to the span since the work was last done"),
    comment="Maintenance work that a span of values waits for.",
)
kept_from = sa.Table(
    "kept_from",
    metrics,
    sa.Column("tier", Key, primary_key=True, comment="raw, 10m, 1h, or entity (entities last seen before are deleted)"),
    sa.Column("kind", Key, primary_key=True, comment="kind of the entities"),
    instant_column("start_us", "everything before this time is deleted", nullable=False),
    comment="Retention cut of each tier.",
)
refused = sa.Table(
    "refused",
    metrics,
    sa.Column("reason", Key, primary_key=True, comment="reason"),
    sa.Column("cells", sa.BigInteger, nullable=False, comment="number since the database was created"),
    comment="Values that arrived too late, or that the metrics server rejected.",
)
event = sa.Table(
    "event",
    metrics,
    sa.Column("dedup_key", Key, primary_key=True, comment="deduplication key"),
    instant_column("at_us", "when it happened", nullable=False),
    sa.Column("entity", FreeText, nullable=False, comment="key of the entity"),
    sa.Column("entity_kind", FreeText, nullable=False, comment="kind of the entity"),
    sa.Column("body", FreeText, nullable=False, comment="the whole event as JSON"),
    sa.Index("event_by_time", "at_us"),
    comment="Events: an XID, a Kubernetes event, a change, a log line.",
)
