"""Tables of the state database: the ingest buffer, the change log and start-ups."""

from __future__ import annotations

import sqlalchemy as sa

from store.schema.column_types import BIG, FreeText, Key, instant_column
from store.schema.column_types import state as state_tables

_BODY = "the whole record as JSON; the other columns are copies of its fields"

pushed = sa.Table(
    "pushed",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="increases with arrival, never reused"),
    sa.Column("door", FreeText, nullable=False, comment="ingest protocol: remote_write, otlp, ..."),
    sa.Column("sender", FreeText, nullable=False, comment="sender"),
    instant_column("came_at_us", "time of arrival", nullable=False),
    sa.Column("samples", sa.Integer, nullable=False, comment="number of samples"),
    sa.Column("bytes", sa.Integer, nullable=False, comment="size of the payload"),
    sa.Column("payload", sa.LargeBinary, nullable=False, comment="packed, internal format"),  # last: read separately
    sqlite_autoincrement=True,  # ids are never reused, although the table is empty most of the time
    comment="Pushed samples that the engine has not written yet.",
)  # fmt: skip
pushed_left_out = sa.Table(
    "pushed_left_out",
    state_tables,
    sa.Column("reason", Key, primary_key=True, comment="reason"),
    sa.Column("samples", sa.BigInteger, nullable=False, comment="number since the store was created"),
    comment="Pushed samples that the engine rejected.",
)
change = sa.Table(
    "change",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="deduplication key"),
    instant_column("at_us", "when it was made", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Column("code", FreeText, nullable=False, server_default="", comment="rollout, image, flags, scale, driver, ..."),
    sa.Column("entity", FreeText, nullable=False, server_default="", comment="key of what was changed"),
    sa.Column("service", FreeText, nullable=False, server_default="", comment="name of the service; may be empty"),
    sa.Column(
        "source", FreeText, nullable=False, server_default="", comment="source of the report: kubernetes, github, ..."
    ),
    sa.Column("actor", FreeText, nullable=False, server_default="", comment="who made it; may be empty"),
    sa.Index("change_by_time", "at_us"),
    comment="Change log, append-only like the audit log.",
)
change_end = sa.Table(
    "change_end",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="increases with each write; the newest row of a change counts"),
    sa.Column("change_id", Key, nullable=False, comment="id of the change, which may arrive later"),
    instant_column("at_us", "when it ended", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("change_end_by_change", "change_id"),
    comment="Ends of changes, append-only like the audit log.",
)
startup = sa.Table(
    "startup",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="uid of the pod"),
    instant_column("began_at_us", "when the pod was created", nullable=False),
    instant_column("gone_at_us", "when the pod was gone; NULL while it exists"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("startup_by_time", "began_at_us"),
    comment="One start of a replica's pod: phases and node.",
)
received_alert = sa.Table(
    "received_alert",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="hash of source and fingerprint; fingerprint of its alert"),
    sa.Column("source", Key, nullable=False, comment="alertmanager, grafana, nvsentinel, or a configured source"),
    sa.Column("name", FreeText, nullable=False, comment="name of the alert at its source"),
    sa.Column("state", Key, nullable=False, comment="firing or resolved"),
    sa.Column("group_key", Key, nullable=False, comment="group of its source; may be empty"),
    instant_column("starts_at_us", "start of its newest occurrence", nullable=False),
    instant_column("ends_at_us", "when that ended; NULL while it fires"),
    instant_column("received_at_us", "when its last delivery arrived", nullable=False),
    instant_column("expires_at_us", "when it ends unless it is delivered again; NULL: only its source ends it"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("received_alert_by_start", "starts_at_us"),
    sa.Index("received_alert_by_end", "ends_at_us"),
    sa.Index("received_alert_by_state", "state", "group_key"),
    comment="Alerts of other monitors, received by webhook, with their newest occurrence.",
)
heartbeat = sa.Table(
    "heartbeat",
    state_tables,
    sa.Column("name", Key, primary_key=True, comment="watchdog/NAME, or alertmanager/URL"),
    instant_column("at_us", "time of its last heartbeat", nullable=False),
    comment="Times at which external watchdogs and Alertmanagers last proved that they work.",
)
posted = sa.Table(
    "posted",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="increases with arrival"),
    sa.Column("dedup_key", Key, nullable=False, unique=True, comment="deduplication key"),
    instant_column("came_at_us", "time of arrival", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment="the event as JSON"),
    sa.Index("posted_by_time", "came_at_us"),
    sqlite_autoincrement=True,
    comment="Events that other processes post for the engine, kept for a day.",
)
