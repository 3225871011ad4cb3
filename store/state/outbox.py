"""The outbox: claims, deliveries, retries and dead letters, on one connection of the caller's transaction."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

import sqlalchemy as sa

from outrider.model import DeadLetter, Message, Receipt
from outrider.wire.cursors import Position
from store.schema import json_codec, metadata
from store.schema.metadata import instant, micros
from store.sql.backend import added
from store.state import keyset_pagination, state_rows

_TABLE = metadata.message


def due_channels(connection: sa.Connection, now: datetime) -> tuple[str, ...]:
    """The channels with messages that are due, sorted."""
    query = sa.select(_TABLE.c.channel).where(_is_free(_TABLE, now)).distinct()
    return tuple(sorted(connection.execute(query).scalars()))


def claim(
    connection: sa.Connection, owner: str, now: datetime, lease: timedelta, limit: int, channel: str | None
) -> tuple[Message, ...]:
    """Claims due messages, urgent ones first, then oldest first, each by a conditional UPDATE."""
    free = sa.and_(_is_free(_TABLE, now), ~_is_behind_another(now))
    query = sa.select(_TABLE.c.body).where(free)
    if channel is not None:
        query = query.where(_TABLE.c.channel == channel)
    query = query.order_by(_TABLE.c.urgency, _TABLE.c.created_at_us, _TABLE.c.id).limit(limit)
    changes: dict[str, Any] = {"status": "claimed", "owner": owner, "lease_until_us": micros(now + lease)}
    claimed: list[Message] = []
    for (body,) in connection.execute(query).all():
        message = json_codec.loads(Message, body)
        update = sa.update(_TABLE).where(_TABLE.c.id == message.id, _is_free(_TABLE, now))
        done = connection.execute(update.values({**changes, "attempts": _TABLE.c.attempts + 1}))
        if done.rowcount == 1:
            claimed.append(message)
    return tuple(claimed)


def finish(
    connection: sa.Connection,
    message_id: str,
    *,
    delivered: bool,
    now: datetime,
    retry_at: datetime | None,
    error: str,
    receipt: Receipt | None,
    follow_ups: Sequence[Message],
) -> tuple[str, ...]:
    """Records a delivery, a retry, or (neither) a final failure. A delivered message stays delivered.

    Returns the ids of the follow-ups that were added.
    """
    changes: dict[str, Any] = {"lease_until_us": None, "error": error}
    if not delivered and retry_at is not None:
        changes |= {"status": "waiting", "retry_at_us": micros(retry_at)}
    else:
        changes |= {"status": "delivered" if delivered else "failed", "ended_at_us": micros(now)}
    if receipt is not None:
        changes["receipt"] = json_codec.dumps(receipt)
    known = connection.execute(sa.select(_TABLE.c.status).where(_TABLE.c.id == message_id)).scalar()
    if known is None:
        raise state_rows.unknown("message", message_id)
    unsent = sa.update(_TABLE).where(_TABLE.c.id == message_id, _TABLE.c.status != "delivered")
    if not connection.execute(unsent.values(changes)).rowcount:
        return ()
    rows = [state_rows.of_message(message) for message in follow_ups]
    return tuple(str(row["id"]) for row in rows if added(connection, _TABLE, row))


def first_receipt(connection: sa.Connection, channel: str, incident: str) -> Receipt | None:
    """The receipt of the first message of an incident that a channel delivered by itself, or of its replacement."""
    query = (
        sa.select(_TABLE.c.receipt)
        .where(_TABLE.c.incident == incident, _TABLE.c.channel == channel, _TABLE.c.status == "delivered")
        .where(_TABLE.c.receipt.is_not(None))
        .order_by(_TABLE.c.ended_at_us, _TABLE.c.created_at_us, _TABLE.c.id)
    )
    receipts = (json_codec.loads(Receipt, text) for text in connection.execute(query).scalars().all())
    return state_rows.first_of_thread(receipts)


def dead_letters(connection: sa.Connection, limit: int, after: Position | None) -> tuple[DeadLetter, ...]:
    """Messages that failed for good, newest first."""
    columns = (_TABLE.c.body, _TABLE.c.ended_at_us, _TABLE.c.attempts, _TABLE.c.error)
    query = sa.select(*columns).where(_TABLE.c.status == "failed")
    query = query.order_by(_TABLE.c.created_at_us.desc(), _TABLE.c.id.desc()).limit(limit)
    query = keyset_pagination.beyond(query, _TABLE.c.created_at_us, _TABLE.c.id, after)
    return tuple(
        DeadLetter(json_codec.loads(Message, row.body), instant(row.ended_at_us), row.attempts, row.error)
        for row in connection.execute(query)
    )


def retry(connection: sa.Connection, message_id: str, now: datetime) -> bool:
    """Returns a message that failed for good to the outbox; False if it has not."""
    changes = {"status": "waiting", "retry_at_us": micros(now), "ended_at_us": None}
    failed = sa.update(_TABLE).where(_TABLE.c.id == message_id, _TABLE.c.status == "failed")
    return connection.execute(failed.values(changes)).rowcount == 1


def _is_free(table: Any, now: datetime) -> sa.ColumnElement[bool]:
    return sa.or_(
        sa.and_(table.c.status == "waiting", table.c.retry_at_us <= micros(now)),
        sa.and_(table.c.status == "claimed", table.c.lease_until_us <= micros(now)),
    )


def _is_behind_another(now: datetime) -> sa.ColumnElement[bool]:
    """True for a message that must not overtake an earlier one of its incident and channel.

    The end of an incident must not arrive before its first message, which waits for a retry or is being sent. Urgent
    messages overtake.
    """
    earlier = _TABLE.alias("earlier")
    not_sent = sa.or_(
        sa.and_(earlier.c.status == "waiting", earlier.c.retry_at_us > micros(now)),
        sa.and_(earlier.c.status == "claimed", earlier.c.lease_until_us > micros(now)),
    )
    before = sa.or_(
        earlier.c.created_at_us < _TABLE.c.created_at_us,
        sa.and_(earlier.c.created_at_us == _TABLE.c.created_at_us, earlier.c.id < _TABLE.c.id),
    )
    same = sa.and_(earlier.c.incident == _TABLE.c.incident, earlier.c.channel == _TABLE.c.channel)
    waits = sa.exists(sa.select(1).select_from(earlier).where(same, before, not_sent))
    return sa.and_(_TABLE.c.urgency >= state_rows.NOT_URGENT, waits)
