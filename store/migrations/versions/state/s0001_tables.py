"""Tables of the state database, and the triggers that keep three of them append-only."""

import sqlalchemy as sa
from alembic import op

revision = "s0001"
down_revision = None
branch_labels = None
depends_on = None

_APPEND_ONLY = ("audit", "change", "change_end")
_REFUSE = """
CREATE FUNCTION outrider_append_only() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF TG_OP <> 'UPDATE' AND EXISTS (SELECT 1 FROM flag WHERE name = 'pruning') THEN
    RETURN OLD;
  END IF;
  RAISE EXCEPTION '% is append-only', TG_TABLE_NAME USING ERRCODE = 'restrict_violation';
END $$
"""


def _big() -> sa.types.TypeEngine[int]:
    """A 64-bit id. SQLite numbers rows only for INTEGER, which holds 64 bits there."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def upgrade() -> None:
    _create_decisions()
    _create_on_call()
    _create_ingest()
    _create_planning()
    if op.get_bind().dialect.name == "postgresql":
        _protect_on_postgresql()
    else:
        _protect_on_sqlite()


def _create_decisions() -> None:
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
        sa.Column("acknowledged_at_us", sa.BigInteger()),
        sa.Column("acknowledged_by", sa.Text()),
        sa.Column("cause", sa.Text()),
        sa.Column("cause_entity", sa.Text()),
    )
    op.create_index("incident_by_end", "incident", ["resolved_at_us"])
    op.create_index("incident_by_opening", "incident", ["opened_at_us"])
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
        sa.Column("decision", sa.Text(), nullable=False, server_default=""),
        sa.Column("reason", sa.Text(), nullable=False, server_default=""),
        sa.Column("dry_run", sa.Boolean(), nullable=False, server_default=sa.false()),
        sa.Column("ended_at_us", sa.BigInteger()),
        sa.Column("approvals", sa.Integer(), nullable=False, server_default="0"),
        sa.Column("approvals_needed", sa.Integer(), nullable=False, server_default="1"),
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
        sa.Column("urgency", sa.Integer(), nullable=False, server_default="2"),
        sa.Column("receipt", sa.Text()),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("message_by_creation", "message", ["created_at_us"])
    op.create_index("message_by_incident", "message", ["incident"])
    op.create_index("message_by_status", "message", ["status", "retry_at_us"])
    op.create_table(
        "audit",
        sa.Column("id", _big(), primary_key=True),
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
    op.create_table(
        "drill",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("starts_at_us", sa.BigInteger(), nullable=False),
        sa.Column("ends_at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("cluster", sa.Text(), nullable=False, server_default=""),
        sa.Column("name", sa.Text(), nullable=False, server_default=""),
    )
    op.create_index("drill_by_start", "drill", ["starts_at_us"])
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
    op.create_index("feedback_by_incident", "feedback", ["incident"])
    op.create_index("feedback_by_rule", "feedback", ["rule", "at_us"])
    op.create_index("feedback_by_time", "feedback", ["at_us"])


def _create_on_call() -> None:
    op.create_table(
        "incident_note",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("incident", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("by", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("incident_note_by_incident", "incident_note", ["incident", "at_us"])
    op.create_index("incident_note_by_time", "incident_note", ["at_us"])
    op.create_table(
        "follow_up",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("incident", sa.Text(), nullable=False),
        sa.Column("owner", sa.Text(), nullable=False),
        sa.Column("due", sa.Text(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("closed_at_us", sa.BigInteger()),
        sa.Column("fault", sa.Text()),
        sa.Column("entity", sa.Text()),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("follow_up_by_end", "follow_up", ["closed_at_us"])
    op.create_index("follow_up_by_incident", "follow_up", ["incident"])
    op.create_index("follow_up_by_time", "follow_up", ["at_us"])
    op.create_table(
        "shift_override",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("schedule", sa.Text(), nullable=False),
        sa.Column("person", sa.Text(), nullable=False),
        sa.Column("start_us", sa.BigInteger(), nullable=False),
        sa.Column("end_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("shift_override_by_end", "shift_override", ["end_us"])
    op.create_table(
        "calendar",
        sa.Column("schedule", sa.Text(), primary_key=True),
        sa.Column("read_at_us", sa.BigInteger()),
        sa.Column("error", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_table(
        "button_use",
        sa.Column("nonce", sa.Text(), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
    )


def _create_ingest() -> None:
    op.create_table(
        "heartbeat",
        sa.Column("name", sa.Text(), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
    )
    op.create_table(
        "received_alert",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("source", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("state", sa.Text(), nullable=False),
        sa.Column("group_key", sa.Text(), nullable=False),
        sa.Column("starts_at_us", sa.BigInteger(), nullable=False),
        sa.Column("ends_at_us", sa.BigInteger()),
        sa.Column("received_at_us", sa.BigInteger(), nullable=False),
        sa.Column("expires_at_us", sa.BigInteger()),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("received_alert_by_end", "received_alert", ["ends_at_us"])
    op.create_index("received_alert_by_start", "received_alert", ["starts_at_us"])
    op.create_index("received_alert_by_state", "received_alert", ["state", "group_key"])
    op.create_table(
        "pushed",
        sa.Column("id", _big(), primary_key=True),
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
    op.create_table(
        "change",
        sa.Column("id", sa.Text(), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sa.Column("code", sa.Text(), nullable=False, server_default=""),
        sa.Column("entity", sa.Text(), nullable=False, server_default=""),
        sa.Column("service", sa.Text(), nullable=False, server_default=""),
        sa.Column("source", sa.Text(), nullable=False, server_default=""),
        sa.Column("actor", sa.Text(), nullable=False, server_default=""),
    )
    op.create_index("change_by_time", "change", ["at_us"])
    op.create_table(
        "change_end",
        sa.Column("id", _big(), primary_key=True),
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
        sa.Column("id", _big(), primary_key=True),
        sa.Column("dedup_key", sa.Text(), nullable=False, unique=True),
        sa.Column("came_at_us", sa.BigInteger(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("posted_by_time", "posted", ["came_at_us"])


def _create_planning() -> None:
    op.create_table(
        "plan",
        sa.Column("id", _big(), primary_key=True),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("cycle", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
    op.create_index("plan_by_time", "plan", ["at_us"])
    op.create_table(
        "forecast",
        sa.Column("id", _big(), primary_key=True),
        sa.Column("made_at_us", sa.BigInteger(), nullable=False),
        sa.Column("entity", sa.Text(), nullable=False),
        sa.Column("signal", sa.Text(), nullable=False),
        sa.Column("model", sa.Text(), nullable=False),
        sa.Column("horizon_seconds", sa.Integer(), nullable=False),
        sa.Column("at_us", sa.BigInteger(), nullable=False),
        sa.Column("q05", sa.Double()),
        sa.Column("q50", sa.Double()),
        sa.Column("q80", sa.Double()),
        sa.Column("q90", sa.Double()),
        sa.Column("q95", sa.Double()),
        sa.Column("peak_q05", sa.Double()),
        sa.Column("peak_q50", sa.Double()),
        sa.Column("peak_q80", sa.Double()),
        sa.Column("peak_q90", sa.Double()),
        sa.Column("peak_q95", sa.Double()),
    )
    op.create_index("forecast_by_entity", "forecast", ["entity", "at_us"])
    op.create_index("forecast_by_making", "forecast", ["made_at_us"])
    op.create_table(
        "recommendation",
        sa.Column("id", _big(), primary_key=True),
        sa.Column("made_at_us", sa.BigInteger(), nullable=False),
        sa.Column("cycle", sa.Text(), nullable=False),
        sa.Column("service", sa.Text(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=False),
        sa.Column("gpu_type", sa.Text()),
        sa.Column("current_replicas", sa.Integer()),
        sa.Column("target_replicas", sa.Integer()),
        sa.Column("gpus", sa.Integer()),
        sa.Column("floor", sa.Integer()),
        sa.Column("ceiling", sa.Integer()),
        sa.Column("binding", sa.Text()),
        sa.Column("need_at_us", sa.BigInteger()),
        sa.Column("needed_by_us", sa.BigInteger()),
        sa.Column("lead_time_seconds", sa.Double()),
        sa.Column("cost_per_hour", sa.Double()),
        sa.Column("currency", sa.Text()),
    )
    op.create_index("recommendation_by_making", "recommendation", ["made_at_us"])
    op.create_index("recommendation_by_service", "recommendation", ["service", "made_at_us"])
    op.create_table(
        "baseline",
        sa.Column("service", sa.Text(), primary_key=True),
        sa.Column("model", sa.Text(), primary_key=True),
        sa.Column("gpu_type", sa.Text(), primary_key=True),
        sa.Column("engine_version", sa.Text(), primary_key=True),
        sa.Column("tensor_parallel", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("pipeline_parallel", sa.Integer(), primary_key=True, autoincrement=False),
        sa.Column("measured_at_us", sa.BigInteger(), nullable=False),
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
        sa.Column("startup_seconds", sa.Double(), nullable=False),
        sa.Column("startup_source", sa.Text(), nullable=False),
        sa.Column("body", sa.Text(), nullable=False),
    )
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
    op.create_table(
        "topology_entity",
        sa.Column("id", _big(), primary_key=True),
        sa.Column("entity", sa.Text(), nullable=False),
        sa.Column("kind", sa.Text(), nullable=False),
        sa.Column("valid_from_us", sa.BigInteger(), nullable=False),
        sa.Column("valid_to_us", sa.BigInteger()),
    )
    op.create_index("topology_entity_by_end", "topology_entity", ["valid_to_us", "valid_from_us"])
    op.create_index("topology_entity_by_name", "topology_entity", ["entity", "valid_to_us"])
    op.create_table(
        "topology_edge",
        sa.Column("id", _big(), primary_key=True),
        sa.Column("supporter", sa.Text(), nullable=False),
        sa.Column("supported", sa.Text(), nullable=False),
        sa.Column("valid_from_us", sa.BigInteger(), nullable=False),
        sa.Column("valid_to_us", sa.BigInteger()),
    )
    op.create_index("topology_edge_by_end", "topology_edge", ["valid_to_us", "valid_from_us"])
    op.create_index("topology_edge_by_supported", "topology_edge", ["supported", "valid_to_us"])
    op.create_index("topology_edge_by_supporter", "topology_edge", ["supporter", "valid_to_us"])
    op.create_table(
        "topology_label",
        sa.Column("id", _big(), primary_key=True),
        sa.Column("entity", sa.Text(), nullable=False),
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("value", sa.Text(), nullable=False),
        sa.Column("valid_from_us", sa.BigInteger(), nullable=False),
        sa.Column("valid_to_us", sa.BigInteger()),
    )
    op.create_index("topology_label_by_end", "topology_label", ["valid_to_us", "valid_from_us"])
    op.create_index("topology_label_by_entity", "topology_label", ["entity", "valid_to_us"])


def _protect_on_sqlite() -> None:
    """Allows DELETE only while the flag ``pruning`` is set, which retention and restore do in their transaction."""
    unless = "WHEN NOT EXISTS (SELECT 1 FROM flag WHERE name = 'pruning')"
    for table in _APPEND_ONLY:
        for verb, when in (("UPDATE", ""), ("DELETE", unless)):
            op.execute(
                f"CREATE TRIGGER {table}_refuses_{verb.lower()} BEFORE {verb} ON {table} {when} "
                f"BEGIN SELECT RAISE(ABORT, '{table} is append-only'); END"
            )


def _protect_on_postgresql() -> None:
    op.execute(_REFUSE)
    for table in _APPEND_ONLY:
        op.execute(
            f"CREATE TRIGGER {table}_append_only BEFORE UPDATE OR DELETE ON {table} "
            "FOR EACH ROW EXECUTE FUNCTION outrider_append_only()"
        )
        op.execute(
            f"CREATE TRIGGER {table}_not_emptied BEFORE TRUNCATE ON {table} "
            "FOR EACH STATEMENT EXECUTE FUNCTION outrider_append_only()"
        )


def downgrade() -> None:
    raise NotImplementedError("restore a backup instead: a downgrade would lose what the newer version wrote")
