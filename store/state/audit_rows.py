"""Rows of the audit log."""

from __future__ import annotations

from collections.abc import Sequence

import sqlalchemy as sa

from outrider.audit import AuditRecord
from store.schema import metadata
from store.state import state_rows


def append(connection: sa.Connection, records: Sequence[AuditRecord]) -> None:
    """Appends audit records."""
    if records:
        connection.execute(sa.insert(metadata.audit), [state_rows.of_audit(record) for record in records])
