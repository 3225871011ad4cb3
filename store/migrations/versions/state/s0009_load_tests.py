"""What load tests and results of other testers say that one replica carries."""

import sqlalchemy as sa
from alembic import op

revision = "s0009"
down_revision = "s0008"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "load_test",
        sa.Column("service", sa.Text(), primary_key=True),
        sa.Column("model", sa.Text(), primary_key=True),
        sa.Column("gpu_type", sa.Text(), primary_key=True),
        sa.Column("engine_version", sa.Text(), primary_key=True),
        sa.Column("tensor_parallel", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("pipeline_parallel", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("source", sa.Text(), primary_key=True),
        sa.Column("measured_at_us", sa.BigInteger(), nullable=False),
        sa.Column("valid_until_us", sa.BigInteger(), nullable=False),
        sa.Column("samples", sa.Integer(), nullable=False),
        sa.Column("tokens_per_request", sa.Double(), nullable=False),
        sa.Column("tokens_per_request_low", sa.Double()),
        sa.Column("tokens_per_request_high", sa.Double()),
        sa.Column("batch", sa.Double(), nullable=False),
        sa.Column("batch_low", sa.Double()),
        sa.Column("batch_high", sa.Double()),
        sa.Column("tokens_per_second", sa.Double(), nullable=False),
        sa.Column("tokens_per_second_low", sa.Double()),
        sa.Column("tokens_per_second_high", sa.Double()),
        sa.Column("body", sa.Text(), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
