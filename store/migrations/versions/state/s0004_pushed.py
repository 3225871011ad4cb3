"""The buffer between the doors that receive samples and the engine."""

import sqlalchemy as sa
from alembic import op

revision = "s0004"
down_revision = "s0003"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "pushed",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("door", sa.Text(), nullable=False),
        sa.Column("sender", sa.Text(), nullable=False),
        sa.Column("came_at_us", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("bytes", sa.Integer(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "pushed_left_out",
        sa.Column("reason", sa.Text(), primary_key=True),
        sa.Column("samples", sa.BigInteger(), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
