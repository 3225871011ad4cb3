"""Drills: faults put into a simulated fleet on purpose."""

import sqlalchemy as sa
from alembic import op

revision = "s0002"
down_revision = "s0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "drill",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("starts_at_us", sa.BigInteger(), nullable=False),
        sa.Column("ends_at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("drill_by_start", "drill", ["starts_at_us"])


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
