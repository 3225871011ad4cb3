"""Tables of the state database: what other processes bring, and the ledger of changes and starts."""

from __future__ import annotations

import sqlalchemy as sa

from store.schema.column_types import BIG, FreeText, Key, instant_column
from store.schema.column_types import state as state_tables

_BODY = "the whole record as JSON: the other columns are copies of what is asked for"

pushed = sa.Table(
    "pushed",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="rises with arrival, never used twice"),
    sa.Column("door", FreeText, nullable=False, comment="where it came in: remote_write, otlp, ..."),
    sa.Column("sender", FreeText, nullable=False, comment="who sent it"),
    instant_column("came_at_us", "when it came", nullable=False),
    sa.Column("samples", sa.Integer, nullable=False, comment="how many samples"),
    sa.Column("bytes", sa.Integer, nullable=False, comment="size of the payload"),
    sa.Column("payload", sa.LargeBinary, nullable=False, comment="packed: for our own code"),  # last: read apart
    sqlite_autoincrement=True,  # an id is never used twice, though the table is empty most of the time
    comment="Samples that senders pushed and the engine has not written yet.",
)  # fmt: skip
pushed_left_out = sa.Table(
    "pushed_left_out",
    state_tables,
    sa.Column("reason", Key, primary_key=True, comment="why"),
    sa.Column("samples", sa.BigInteger, nullable=False, comment="how many since the store was made"),
    comment="Pushed samples that the engine left out.",
)
change = sa.Table(
    "change",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="deduplicates: the same change told twice is one"),
    instant_column("at_us", "when it was made", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Column("code", FreeText, nullable=False, server_default="", comment="rollout, image, flags, scale, driver, ..."),
    sa.Column("entity", FreeText, nullable=False, server_default="", comment="key of what was changed"),
    sa.Column("service", FreeText, nullable=False, server_default="", comment="name of the service; may be empty"),
    sa.Column("source", FreeText, nullable=False, server_default="", comment="who told us: kubernetes, github, ..."),
    sa.Column("actor", FreeText, nullable=False, server_default="", comment="who made it; may be empty"),
    sa.Index("change_by_time", "at_us"),
    comment="The change ledger, append-only as the audit is.",
)
change_end = sa.Table(
    "change_end",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="rises with writing; the newest of a change counts"),
    sa.Column("change_id", Key, nullable=False, comment="id of the change, which may come later"),
    instant_column("at_us", "when it ended", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("change_end_by_change", "change_id"),
    comment="How a change ended, append-only as the audit is.",
)
startup = sa.Table(
    "startup",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="uid of the pod"),
    instant_column("began_at_us", "when the pod was made", nullable=False),
    instant_column("gone_at_us", "when it was gone; NULL while it is there"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("startup_by_time", "began_at_us"),
    comment="One start of a replica's pod with its phases, and where it ran.",
)
posted = sa.Table(
    "posted",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="rises with arrival"),
    sa.Column("dedup_key", Key, nullable=False, unique=True, comment="two events with one key are one"),
    instant_column("came_at_us", "when it came", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment="the event as JSON"),
    sa.Index("posted_by_time", "came_at_us"),
    sqlite_autoincrement=True,
    comment="Events that other processes leave for the engine, for a day.",
)
