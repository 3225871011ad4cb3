"""Tables of the metrics database."""

import sqlalchemy as sa
from alembic import op

revision = "m0001"
down_revision = None
branch_labels = None
depends_on = None


def _big() -> sa.types.TypeEngine[int]:
    """A 64-bit id. SQLite numbers rows only for INTEGER, which holds 64 bits there."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


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
        sa.Column("first_seen_us", sa.BigInteger()),
        sa.Column("last_seen_us", sa.BigInteger()),
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
        sa.Column("id", _big(), primary_key=True),
        sa.Column("tier", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("end_us", sa.BigInteger(), nullable=False),
        sa.Column("instants", sa.Integer(), nullable=False),
        sa.Column("cohort_id", sa.Integer(), sa.ForeignKey("cohort.id"), nullable=False),
        sa.Column("keyset_id", sa.Integer(), sa.ForeignKey("keyset.id"), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
    )
    op.create_index("block_by_cohort", "block", ["cohort_id"])
    op.create_index("block_by_time", "block", ["kind", "tier", "end_us", "start_us"])
    op.create_table(
        "hidden",
        sa.Column("block_id", _big(), primary_key=True, autoincrement=False),
    )
    op.create_table(
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
    if op.get_bind().dialect.name == "postgresql":  # already compressed: TOAST need not try again
        op.execute("ALTER TABLE block ALTER COLUMN payload SET STORAGE EXTERNAL")


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
