"""The ledger: changes with their ends, start-ups of replicas, and events that other processes leave for the engine."""

import sqlalchemy as sa
from alembic import op

revision = "s0005"
down_revision = "s0004"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "change",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("change_by_time", "change", ["at_us"])
    op.create_table(
        "change_end",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("change_id", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("change_end_by_change", "change_end", ["change_id"])
    op.create_table(
        "startup",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("began_at_us", sa.BigInteger(), nullable=False),
        sa.Column("gone_at_us", sa.BigInteger()),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("startup_by_time", "startup", ["began_at_us"])
    op.create_table(
        "posted",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("dedup_key", sa.Text(), nullable=False, unique=True),
        sa.Column("came_at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("posted_by_time", "posted", ["came_at_us"])


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
