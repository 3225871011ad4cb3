"""Column types: text that accepts any input, ids and timestamps."""

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
"""A 64-bit id. SQLite numbers rows only for INTEGER, which holds 64 bits there."""


class FreeText(sa.types.TypeDecorator[str]):
    """Unindexed text of any length. Characters that databases reject are replaced on write."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: str | None, dialect: sa.Dialect) -> str | None:
        """Cleans the value, in rows and in conditions."""
        del dialect
        return None if value is None else clean(value)


class Key(sa.types.TypeDecorator[str]):
    """Indexed text, truncated to the longest key that an index accepts.

    Conditions are truncated like rows, so that a truncated row is found by its full text.
    """

    impl = sa.Text
    cache_ok = True

    def __init__(self, most_bytes: int = MOST_KEY_BYTES) -> None:
        """``most_bytes`` is smaller if one index covers several columns."""
        super().__init__()
        self.most_bytes = most_bytes

    def process_bind_param(self, value: str | None, dialect: sa.Dialect | None) -> str | None:
        """Truncates the value, in rows and in conditions."""
        del dialect
        return None if value is None else fitted(value, self.most_bytes)


def instant_column(name: str, comment: str, **more: Any) -> sa.Column[int]:
    """A timestamp column: microseconds since 1970, UTC."""
    return sa.Column(name, sa.BigInteger, comment=comment, **more)


def micros(instant: datetime) -> int:
    """An aware datetime as microseconds since 1970."""
    return (instant - _EPOCH) // _MICROSECOND


def instant(micros_since_1970: int) -> datetime:
    """Microseconds since 1970 as an aware UTC datetime."""
    return _EPOCH + micros_since_1970 * _MICROSECOND
