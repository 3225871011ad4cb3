"""The tables of both databases.

The migrations create them; this file is how the code names them. Instants are integers,
microseconds since 1970 in UTC, so that order and ranges need no parsing. The ``latest_<kind>`` and
``hourly_<kind>`` tables are not here: their columns follow the signal catalogue (``store.tsdb.latest``,
``store.tsdb.hourly``).
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
from store.schema.ingest_tables import change, change_end, posted, pushed, pushed_left_out, startup
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
    "BIG", "HEADS", "RAW", "VERSION_TABLES", "Database", "action", "alert", "audit", "baseline", "block", "change",
    "change_end", "cohort", "cycle", "document", "drill", "due", "entity", "event", "feedback", "flag", "forecast",
    "hidden", "incident", "instant", "kept_from", "keyset", "load_test", "message", "metrics", "micros", "plan",
    "posted", "pushed", "pushed_left_out", "recommendation", "refused", "session", "signal", "silence", "startup",
    "state", "topology_edge", "topology_entity", "topology_label",
]  # fmt: skip

Database = Literal["metrics", "state"]
HEADS: Final[dict[Database, str]] = {"metrics": "m0001", "state": "s0001"}
VERSION_TABLES: Final[dict[Database, str]] = {"metrics": "metrics_revision", "state": "state_revision"}
RAW = "raw"  # the tier of values as they were collected; store.tsdb.tiers has the others

entity = sa.Table(
    "entity",
    metrics,
    sa.Column("id", sa.Integer, primary_key=True, comment="its number, in every table of this database"),
    sa.Column("kind", FreeText, nullable=False, comment="node, gpu, pod, replica, service, ..."),
    sa.Column("key", Key, nullable=False, unique=True, comment="cluster/kind/namespace/name"),
    instant_column("first_seen_us", "instant of the first value of it that was written"),
    instant_column("last_seen_us", "instant of the last value of it, up to ten minutes behind"),
    sa.Index("entity_by_kind", "kind"),
    comment="Everything that a kept value was written about.",
)
signal = sa.Table(
    "signal",
    metrics,
    sa.Column("id", sa.Integer, primary_key=True, comment="its number"),
    sa.Column("key", Key, nullable=False, unique=True, comment="name, or name#3 for a bucket of a histogram"),
    comment="One stored column of values.",
)
cohort = sa.Table(
    "cohort",
    metrics,
    sa.Column("id", sa.Integer, primary_key=True, comment="its number"),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True, comment="of the members"),
    sa.Column("members", sa.LargeBinary, nullable=False, comment="numbers of entities, int32, rising"),
    comment="A list of entities: the rows of a block.",
)
keyset = sa.Table(
    "keyset",
    metrics,
    sa.Column("id", sa.Integer, primary_key=True, comment="its number"),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True, comment="of the members"),
    sa.Column("members", sa.LargeBinary, nullable=False, comment="numbers of signals, int32, each signal's together"),
    comment="A list of signals: the columns of a block.",
)  # fmt: skip
block = sa.Table(
    "block",
    metrics,
    sa.Column("id", BIG, primary_key=True, comment="rises with writing"),
    sa.Column("tier", FreeText, nullable=False, comment="raw, 10m or 1h"),
    sa.Column("kind", FreeText, nullable=False, comment="kind of the entities"),
    instant_column("start_us", "first instant inside", nullable=False),
    instant_column("end_us", "last instant inside, not one beyond", nullable=False),
    sa.Column("instants", sa.Integer, nullable=False, comment="how many instants"),
    sa.Column("cohort_id", sa.ForeignKey("cohort.id"), nullable=False, comment="its rows"),
    sa.Column("keyset_id", sa.ForeignKey("keyset.id"), nullable=False, comment="its columns"),
    sa.Column("payload", sa.LargeBinary, nullable=False, comment="packed values"),  # last: others are read alone
    sa.Index("block_by_time", "kind", "tier", "end_us", "start_us"),
    sa.Index("block_by_cohort", "cohort_id"),
    comment="Packed values: of one cycle, or of one signal and many instants.",
)
hidden = sa.Table(
    "hidden",
    metrics,
    sa.Column("block_id", BIG, primary_key=True, autoincrement=False, comment="number of the block"),
    comment="Blocks that no read sees: not yet, while upkeep writes them, or no more, until it deletes them.",
)
due = sa.Table(
    "due",
    metrics,
    sa.Column("work", Key, primary_key=True, comment="compact, 10m, 1h, merge_10m or merge_1h"),
    sa.Column("kind", Key, primary_key=True, comment="kind of the entities"),
    instant_column("start_us", "start of the span: an hour, or a day for the merges", primary_key=True),
    sa.Column("writes", sa.BigInteger, nullable=False, comment="how often the span was written to since it was done"),
    comment="Upkeep that a span of values waits for.",
)
kept_from = sa.Table(
    "kept_from",
    metrics,
    sa.Column("tier", Key, primary_key=True, comment="raw, 10m, 1h, or entity: those last seen before are forgotten"),
    sa.Column("kind", Key, primary_key=True, comment="kind of the entities"),
    instant_column("start_us", "everything before this instant is gone", nullable=False),
    comment="What retention left of a tier.",
)
refused = sa.Table(
    "refused",
    metrics,
    sa.Column("reason", Key, primary_key=True, comment="why"),
    sa.Column("cells", sa.BigInteger, nullable=False, comment="how many since the database was made"),
    comment="Values that came too late to be kept, or that the server of the values did not want.",
)
event = sa.Table(
    "event",
    metrics,
    sa.Column("dedup_key", Key, primary_key=True, comment="two events with one key are one"),
    instant_column("at_us", "when it happened", nullable=False),
    sa.Column("entity", FreeText, nullable=False, comment="key of the entity"),
    sa.Column("entity_kind", FreeText, nullable=False, comment="kind of the entity"),
    sa.Column("body", FreeText, nullable=False, comment="the whole event as JSON"),
    sa.Index("event_by_time", "at_us"),
    comment="What a number cannot hold: an XID, a Kubernetes event, a change, a line of a log.",
)
