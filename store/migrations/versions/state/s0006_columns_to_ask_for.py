"""What people ask for in columns of its own: who acknowledged, why an action was refused, what was changed."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "s0006"
down_revision = "s0005"
branch_labels = None
depends_on = None

_EMPTY = {"nullable": False, "server_default": ""}
_NEW: dict[str, tuple[Any, ...]] = {
    "incident": (
        ("acknowledged_at_us", sa.BigInteger(), {}),
        ("acknowledged_by", sa.Text(), {}),
        ("cause", sa.Text(), {}),
        ("cause_entity", sa.Text(), {}),
    ),
    "action": (
        ("decision", sa.Text(), _EMPTY),
        ("reason", sa.Text(), _EMPTY),
        ("dry_run", sa.Boolean(), {"nullable": False, "server_default": sa.false()}),
        ("ended_at_us", sa.BigInteger(), {}),
    ),
    "change": tuple((name, sa.Text(), _EMPTY) for name in ("code", "entity", "service", "source", "actor")),
}


def upgrade() -> None:
    for table, columns in _NEW.items():
        for name, kind, more in columns:
            op.add_column(table, sa.Column(name, kind, **more))
    for table, columns in _NEW.items():
        _fill(table, [name for name, _, _ in columns])


def _fill(table: str, names: list[str]) -> None:
    connection = op.get_bind()
    rows = sa.table(table, sa.column("id"), sa.column("body"), *(sa.column(name) for name in names))
    for number, body in connection.execute(sa.select(rows.c.id, rows.c.body)).all():
        values = _values(json.loads(body), names)
        if values:
            connection.execute(sa.update(rows).where(rows.c.id == number).values(values))


def _values(record: dict[str, Any], names: list[str]) -> dict[str, Any]:
    cause = (record.get("hypotheses") or [{}])[0]
    told = {**record, "cause": cause.get("fault"), "cause_entity": cause.get("entity")}
    found = {name: told.get(name) for name in names if not name.endswith("_us")}
    found |= {name: _micros(told.get(name.removesuffix("_us"))) for name in names if name.endswith("_us")}
    return {name: value for name, value in found.items() if value is not None}


def _micros(instant: str | None) -> int | None:
    if instant is None:
        return None
    return (datetime.fromisoformat(instant) - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
