"""The tables of both databases.

The migrations create them; this file is how the code names them. Instants are integers,
microseconds since 1970 in UTC, so that order and ranges need no parsing. The ``latest_<kind>`` and
``hourly_<kind>`` tables are not here: their columns follow the signal catalogue (``store.latest``,
``store.hourly``).
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Final, Literal

import sqlalchemy as sa

Database = Literal["metrics", "state"]
HEADS: Final[dict[Database, str]] = {"metrics": "m0002", "state": "s0005"}
VERSION_TABLES: Final[dict[Database, str]] = {"metrics": "metrics_revision", "state": "state_revision"}
RAW = "raw"  # the tier of values as they were collected; store.tiers has the others

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""An id that many rows need: SQLite numbers rows by INTEGER alone, which holds 64 bits there."""

metrics = sa.MetaData()
state = sa.MetaData()

# --- metrics --------------------------------------------------------------------------------------

entity = sa.Table(
    "entity",
    metrics,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("key", sa.Text, nullable=False, unique=True),
    sa.Index("entity_by_kind", "kind"),
)
signal = sa.Table(  # one stored column: "name" or, for a bucket of a histogram, "name#3"
    "signal",
    metrics,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("key", sa.Text, nullable=False, unique=True),
)
cohort = sa.Table(  # a list of entity ids (int32, rising): the rows of a block
    "cohort",
    metrics,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("members", sa.LargeBinary, nullable=False),
)
keyset = sa.Table(  # a list of signal ids (int32, one signal's columns side by side): the columns of a block
    "keyset",
    metrics,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("digest", sa.LargeBinary, nullable=False, unique=True),
    sa.Column("members", sa.LargeBinary, nullable=False),
)
block = sa.Table(
    "block",
    metrics,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("tier", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("start_us", sa.BigInteger, nullable=False),
    sa.Column("end_us", sa.BigInteger, nullable=False),  # the last instant inside, not one beyond
    sa.Column("instants", sa.Integer, nullable=False),
    sa.Column("cohort_id", sa.ForeignKey("cohort.id"), nullable=False),
    sa.Column("keyset_id", sa.ForeignKey("keyset.id"), nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),  # last, so that the columns before it are read alone
    sa.Index("block_by_time", "kind", "tier", "end_us", "start_us"),
    sa.Index("block_by_cohort", "cohort_id"),
)
hidden = sa.Table(  # blocks that no read sees: not yet, while upkeep writes them, or no more, until it deletes them
    "hidden",
    metrics,
    sa.Column("block_id", BIG, primary_key=True, autoincrement=False),
)
due = sa.Table(  # upkeep that a span waits for; ``writes`` counts what changed it since it was last done
    "due",
    metrics,
    sa.Column("work", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("start_us", sa.BigInteger, primary_key=True),
    sa.Column("writes", sa.BigInteger, nullable=False),
)
kept_from = sa.Table(  # what retention left: of a tier and kind, everything before this instant is gone
    "kept_from",
    metrics,
    sa.Column("tier", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, primary_key=True),
    sa.Column("start_us", sa.BigInteger, nullable=False),
)
refused = sa.Table(  # values that came too late to be kept
    "refused",
    metrics,
    sa.Column("reason", sa.Text, primary_key=True),
    sa.Column("cells", sa.BigInteger, nullable=False),
)
event = sa.Table(
    "event",
    metrics,
    sa.Column("dedup_key", sa.Text, primary_key=True),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("entity", sa.Text, nullable=False),
    sa.Column("entity_kind", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("event_by_time", "at_us"),
)

# --- state ----------------------------------------------------------------------------------------

alert = sa.Table(  # one row a spell: the same fingerprint starts again with another starts_at
    "alert",
    state,
    sa.Column("fingerprint", sa.Text, primary_key=True),
    sa.Column("starts_at_us", sa.BigInteger, primary_key=True),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("priority", sa.Text, nullable=False),
    sa.Column("rule", sa.Text, nullable=False),
    sa.Column("entity", sa.Text, nullable=False),
    sa.Column("incident", sa.Text),
    sa.Column("ends_at_us", sa.BigInteger),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("alert_by_state", "state", "starts_at_us"),
    sa.Index("alert_by_start", "starts_at_us"),
    sa.Index("alert_by_end", "ends_at_us"),
)
incident = sa.Table(
    "incident",
    state,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("priority", sa.Text, nullable=False),
    sa.Column("layer", sa.Text, nullable=False),
    sa.Column("opened_at_us", sa.BigInteger, nullable=False),
    sa.Column("resolved_at_us", sa.BigInteger),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("incident_by_opening", "opened_at_us"),
    sa.Index("incident_by_end", "resolved_at_us"),
)
plan = sa.Table(
    "plan",
    state,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("cycle", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("plan_by_time", "at_us"),
)
action = sa.Table(
    "action",
    state,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("session", sa.Text, nullable=False),
    sa.Column("because", sa.Text, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("target", sa.Text, nullable=False),
    sa.Column("status", sa.Text, nullable=False),
    sa.Column("decided_at_us", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.Text),
    sa.Column("lease_until_us", sa.BigInteger),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("action_by_status", "status", "decided_at_us"),
    sa.Index("action_by_decision", "decided_at_us"),
    sa.Index("action_by_cause", "because"),
)
session = sa.Table(
    "session",
    state,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("incident", sa.Text, nullable=False),
    sa.Column("opened_at_us", sa.BigInteger, nullable=False),
    sa.Column("closed_at_us", sa.BigInteger),
    sa.Column("body", sa.Text, nullable=False),
)
message = sa.Table(  # the outbox
    "message",
    state,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("channel", sa.Text, nullable=False),
    sa.Column("incident", sa.Text),
    sa.Column("created_at_us", sa.BigInteger, nullable=False),
    sa.Column("status", sa.Text, nullable=False),  # waiting, claimed, delivered, failed
    sa.Column("retry_at_us", sa.BigInteger, nullable=False),
    sa.Column("owner", sa.Text),
    sa.Column("lease_until_us", sa.BigInteger),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0"),
    sa.Column("ended_at_us", sa.BigInteger),
    sa.Column("error", sa.Text, nullable=False, server_default=""),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("message_by_status", "status", "retry_at_us"),
    sa.Index("message_by_creation", "created_at_us"),
    sa.Index("message_by_incident", "incident"),
)
audit = sa.Table(  # append-only: nothing here updates or deletes a row
    "audit",
    state,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("event", sa.Text, nullable=False),
    sa.Column("subject", sa.Text, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("cycle", sa.Text, nullable=False),
    sa.Column("by", sa.Text, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("audit_by_time", "at_us"),
    sa.Index("audit_by_subject", "subject"),
)
cycle = sa.Table(
    "cycle",
    state,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("cycle_by_time", "at_us"),
)
silence = sa.Table(
    "silence",
    state,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("until_us", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
)
drill = sa.Table(
    "drill",
    state,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("starts_at_us", sa.BigInteger, nullable=False),
    sa.Column("ends_at_us", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Column("cluster", sa.Text, nullable=False, server_default=""),
    sa.Column("name", sa.Text, nullable=False, server_default=""),
    sa.Index("drill_by_start", "starts_at_us"),
)
flag = sa.Table(
    "flag",
    state,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("value", sa.Text, nullable=False),
)
document = sa.Table(  # the newest of something big: the topology, one row a detector's state
    "document",
    state,
    sa.Column("area", sa.Text, primary_key=True),
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),
)
pushed = sa.Table(  # what senders pushed and the engine has not written yet
    "pushed",
    state,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("door", sa.Text, nullable=False),
    sa.Column("sender", sa.Text, nullable=False),
    sa.Column("came_at_us", sa.BigInteger, nullable=False),
    sa.Column("samples", sa.Integer, nullable=False),
    sa.Column("bytes", sa.Integer, nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False),  # last, so that the columns before it are read alone
    sqlite_autoincrement=True,  # an id is never used twice, though the table is empty most of the time
)
pushed_left_out = sa.Table(  # samples that the engine left out, by reason
    "pushed_left_out",
    state,
    sa.Column("reason", sa.Text, primary_key=True),
    sa.Column("samples", sa.BigInteger, nullable=False),
)
change = sa.Table(  # append-only, like change_end
    "change",
    state,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("change_by_time", "at_us"),
)
change_end = sa.Table(
    "change_end",
    state,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("change_id", sa.Text, nullable=False),
    sa.Column("at_us", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("change_end_by_change", "change_id"),
)
startup = sa.Table(
    "startup",
    state,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("began_at_us", sa.BigInteger, nullable=False),
    sa.Column("gone_at_us", sa.BigInteger),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("startup_by_time", "began_at_us"),
)
posted = sa.Table(  # events that other processes leave for the engine
    "posted",
    state,
    sa.Column("id", BIG, primary_key=True),
    sa.Column("dedup_key", sa.Text, nullable=False, unique=True),
    sa.Column("came_at_us", sa.BigInteger, nullable=False),
    sa.Column("body", sa.Text, nullable=False),
    sa.Index("posted_by_time", "came_at_us"),
    sqlite_autoincrement=True,
)


def micros(instant: datetime) -> int:
    """An aware datetime as microseconds since 1970."""
    return (instant - _EPOCH) // _MICROSECOND


def instant(micros_since_1970: int) -> datetime:
    """Microseconds since 1970 as an aware UTC datetime."""
    return _EPOCH + micros_since_1970 * _MICROSECOND
