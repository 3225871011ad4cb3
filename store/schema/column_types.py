"""Kinds of columns: text that any input fits into, ids, and instants."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from outrider.wire.sanitize import MOST_KEY_BYTES, clean, fitted

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MICROSECOND = timedelta(microseconds=1)

metrics = sa.MetaData()
state = sa.MetaData()

BIG = sa.BigInteger().with_variant(sa.Integer, "sqlite")
"""An id that many rows need: SQLite numbers rows by INTEGER alone, which holds 64 bits there."""


class FreeText(sa.types.TypeDecorator[str]):
    """Text of any length that no index holds. What no database takes in a text is replaced on the way in."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        """On the way to the database, in rows and in conditions alike."""
        del dialect
        return None if value is None else clean(value)


class Key(sa.types.TypeDecorator[str]):
    """Text that an index may hold: never longer than an index takes, whatever comes.

    A condition is cut like a row, so that what was cut is found by its whole text.
    """

    impl = sa.Text
    cache_ok = True

    def __init__(self, most_bytes: int = MOST_KEY_BYTES) -> None:
        """``most_bytes`` is less where one index holds several."""
        super().__init__()
        self.most_bytes = most_bytes

    def process_bind_param(self, value: str | None, dialect: sa.Dialect | None) -> str | None:
        """On the way to the database, in rows and in conditions alike."""
        del dialect
        return None if value is None else fitted(value, self.most_bytes)


def instant_column(name: str, comment: str, **more: Any) -> sa.Column[int]:
    """A column of microseconds since 1970 in UTC."""
    return sa.Column(name, sa.BigInteger, comment=comment, **more)


def micros(instant: datetime) -> int:
    """An aware datetime as microseconds since 1970."""
    return (instant - _EPOCH) // _MICROSECOND


def instant(micros_since_1970: int) -> datetime:
    """Microseconds since 1970 as an aware UTC datetime."""
    return _EPOCH + micros_since_1970 * _MICROSECOND
