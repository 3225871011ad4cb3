"""Roll-ups and retention: what is hidden, what waits for upkeep, what retention left."""

import sqlalchemy as sa
from alembic import op

revision = "m0002"
down_revision = "m0001"
branch_labels = None
depends_on = None

_HOUR = 3_600_000_000  # microseconds


def upgrade() -> None:
    big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    op.create_table("hidden", sa.Column("block_id", big, primary_key=True, autoincrement=False))
    due = op.create_table(
        "due",
        sa.Column("work", sa.Text(), primary_key=True),
        sa.Column("kind", sa.Text(), primary_key=True),
        sa.Column("start_us", sa.BigInteger(), primary_key=True),
        sa.Column("writes", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "kept_from",
        sa.Column("tier", sa.Text(), primary_key=True),
        sa.Column("kind", sa.Text(), primary_key=True),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "refused",
        sa.Column("reason", sa.Text(), primary_key=True),
        sa.Column("cells", sa.BigInteger(), nullable=False),
    )
    op.create_index("block_by_cohort", "block", ["cohort_id"])
    stored = op.get_bind().execute(sa.text("SELECT DISTINCT kind, start_us, end_us FROM block")).all()
    hours = {
        (kind, hour) for kind, start, end in stored for hour in range(start // _HOUR * _HOUR, end + 1, _HOUR)
    }  # nothing was rolled up yet: every hour that has a row waits for it
    rows = [
        {"work": work, "kind": kind, "start_us": hour, "writes": 1}
        for kind, hour in sorted(hours)
        for work in ("compact", "10m")
    ]
    if rows:
        op.bulk_insert(due, rows)


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
