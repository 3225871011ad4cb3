"""What people said of alerts: useful, not useful, wrong cause."""

import sqlalchemy as sa
from alembic import op

revision = "s0008"
down_revision = "s0007"
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "feedback",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("fingerprint", sa.Text(), nullable=False),
        sa.Column("starts_at_us", sa.BigInteger(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("incident", sa.Text()),
        sa.Column("verdict", sa.Text(), nullable=False),
        sa.Column("cause", sa.Text()),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("payload", sa.LargeBinary()),
    )
    op.create_index("feedback_by_time", "feedback", ["at_us"])
    op.create_index("feedback_by_rule", "feedback", ["rule", "at_us"])
    op.create_index("feedback_by_incident", "feedback", ["incident"])


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
