"""The first tables of the state database."""

import sqlalchemy as sa
from alembic import op

revision = "s0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "alert",
        sa.Column("fingerprint", sa.Text(), primary_key=True),
        sa.Column("starts_at_us", sa.BigInteger(), primary_key=True),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("rule", sa.Text(), nullable=False),
        sa.Column("entity", sa.Text(), nullable=False),
        sa.Column("incident", sa.Text()),
        sa.Column("ends_at_us", sa.BigInteger()),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("alert_by_end", "alert", ["ends_at_us"])
    op.create_index("alert_by_start", "alert", ["starts_at_us"])
    op.create_index("alert_by_state", "alert", ["state", "starts_at_us"])
    op.create_table(
        "incident",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("priority", sa.Text(), nullable=False),
        sa.Column("layer", sa.Text(), nullable=False),
        sa.Column("opened_at_us", sa.BigInteger(), nullable=False),
        sa.Column("resolved_at_us", sa.BigInteger()),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("incident_by_end", "incident", ["resolved_at_us"])
    op.create_index("incident_by_opening", "incident", ["opened_at_us"])
    op.create_table(
        "plan",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("cycle", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("plan_by_time", "plan", ["at_us"])
    op.create_table(
        "action",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("session", sa.Text(), nullable=False),
        sa.Column("because", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("target", sa.Text(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("decided_at_us", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until_us", sa.BigInteger()),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("action_by_cause", "action", ["because"])
    op.create_index("action_by_decision", "action", ["decided_at_us"])
    op.create_index("action_by_status", "action", ["status", "decided_at_us"])
    op.create_table(
        "session",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("incident", sa.Text(), nullable=False),
        sa.Column("opened_at_us", sa.BigInteger(), nullable=False),
        sa.Column("closed_at_us", sa.BigInteger()),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "message",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("channel", sa.Text(), nullable=False),
        sa.Column("incident", sa.Text()),
        sa.Column("created_at_us", sa.BigInteger(), nullable=False),
        sa.Column("status", sa.Text(), nullable=False),
        sa.Column("retry_at_us", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.Text()),
        sa.Column("lease_until_us", sa.BigInteger()),
        sa.Column("attempts", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("ended_at_us", sa.BigInteger()),
        sa.Column("error", sa.Text(), nullable=False, server_default=""),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("message_by_creation", "message", ["created_at_us"])
    op.create_index("message_by_incident", "message", ["incident"])
    op.create_index("message_by_status", "message", ["status", "retry_at_us"])
    op.create_table(
        "audit",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("event", sa.Text(), nullable=False),
        sa.Column("subject", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("cycle", sa.Text(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("audit_by_subject", "audit", ["subject"])
    op.create_index("audit_by_time", "audit", ["at_us"])
    op.create_table(
        "cycle",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("cycle_by_time", "cycle", ["at_us"])
    op.create_table(
        "silence",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("until_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "flag",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("value", sa.Text(), nullable=False),
    )
    op.create_table(
        "document",
        sa.Column("area", sa.Text(), primary_key=True),
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("payload", sa.LargeBinary(), nullable=False),
    )


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
