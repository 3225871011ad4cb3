"""The first tables of the metrics database."""

import sqlalchemy as sa
from alembic import op

revision = "m0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "cohort",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("digest", sa.LargeBinary(), nullable=False, unique=True),
        sa.Column("members", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "entity",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("key", sa.Text(), nullable=False, unique=True),
    )
    op.create_index("entity_by_kind", "entity", ["kind"])
    op.create_table(
        "event",
        sa.Column("dedup_key", sa.Text(), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("entity", sa.Text(), nullable=False),
        sa.Column("entity_kind", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("event_by_time", "event", ["at_us"])
    op.create_table(
        "keyset",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("digest", sa.LargeBinary(), nullable=False, unique=True),
        sa.Column("members", sa.LargeBinary(), nullable=False),
    )
    op.create_table(
        "signal",
        sa.Column("id", sa.Integer(), primary_key=True),
        sa.Column("key", sa.Text(), nullable=False, unique=True),
    )
    op.create_table(
        "block",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("end_us", sa.BigInteger(), nullable=False),
        sa.Column("instants", sa.Integer(), nullable=False),
        sa.Column("cohort_id", sa.Integer(), sa.ForeignKey("cohort.id"), nullable=False),
        sa.Column("keyset_id", sa.Integer(), sa.ForeignKey("keyset.id"), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
    )
    op.create_index("block_by_time", "block", ["kind", "tier", "end_us", "start_us"])
    if op.get_bind().dialect.name == "postgresql":  # packed already: the server need not try to pack it again
        op.execute("ALTER TABLE block ALTER COLUMN payload SET STORAGE EXTERNAL")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
