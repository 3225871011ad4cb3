"""Tables of the state database: decisions and the work that follows from them."""

from __future__ import annotations

import sqlalchemy as sa

from store.schema.column_types import BIG, FreeText, Key, instant_column
from store.schema.column_types import state as state_tables

_BODY = "the whole record as JSON; the other columns are copies of its fields"

alert = sa.Table(
    "alert",
    state_tables,
    sa.Column("fingerprint", Key, primary_key=True, comment="hash of rule and entity; the same for every occurrence"),
    instant_column("starts_at_us", "start of the condition", primary_key=True),
    sa.Column("state", FreeText, nullable=False, comment="pending, firing or resolved"),
    sa.Column("priority", FreeText, nullable=False, comment="P0 to P3"),
    sa.Column("rule", FreeText, nullable=False, comment="name of the rule"),
    sa.Column("entity", FreeText, nullable=False, comment="key of the entity: cluster/kind/namespace/name"),
    sa.Column("incident", FreeText, comment="id of the incident that groups it"),
    instant_column("ends_at_us", "when it was resolved"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("alert_by_state", "state", "starts_at_us"),
    sa.Index("alert_by_start", "starts_at_us"),
    sa.Index("alert_by_end", "ends_at_us"),
    comment="One occurrence of an alert; the next one has the same fingerprint and another starts_at_us.",
)
incident = sa.Table(
    "incident",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="incident id, as displayed"),
    sa.Column("priority", FreeText, nullable=False, comment="P0 to P3"),
    sa.Column("layer", FreeText, nullable=False, comment="hardware, platform, engine, traffic, business or monitoring"),
    instant_column("opened_at_us", "when it was opened", nullable=False),
    instant_column("resolved_at_us", "when its last alert ended; NULL while it is open"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    instant_column("acknowledged_at_us", "when a person acknowledged it"),
    sa.Column("acknowledged_by", FreeText, comment="who acknowledged it"),
    sa.Column("cause", FreeText, comment="fault id of the suspected cause; NULL when it is unknown"),
    sa.Column("cause_entity", FreeText, comment="key of the entity of the suspected cause"),
    sa.Index("incident_by_opening", "opened_at_us"),
    sa.Index("incident_by_end", "resolved_at_us"),
    comment="One incident with the alerts that it groups.",
)
action = sa.Table(
    "action",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="idempotency key: the same id is never performed twice"),
    sa.Column("session", FreeText, nullable=False, comment="id of the session it belongs to"),
    sa.Column("because", Key, nullable=False, comment="id of the incident, or plan"),
    sa.Column("kind", FreeText, nullable=False, comment="cordon, uncordon, drain, restart_pod, shift_traffic, ..."),
    sa.Column("target", FreeText, nullable=False, comment="key of the entity to act on"),
    sa.Column(
        "status", FreeText, nullable=False,
        comment="proposed, waiting_approval, intended, claimed, done, dry_run, failed, refused or cancelled",
    ),
    instant_column("decided_at_us", "when it was decided", nullable=False),
    sa.Column("owner", FreeText, comment="who claimed it"),
    instant_column("lease_until_us", "end of the claim"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0", comment="number of claims"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Column("decision", FreeText, nullable=False, server_default="", comment="verdict: allowed, refused, ask"),
    sa.Column("reason", FreeText, nullable=False, server_default="", comment="reason of the verdict"),
    sa.Column("dry_run", sa.Boolean, nullable=False, server_default=sa.false(), comment="true: changes nothing"),
    instant_column("ended_at_us", "when it ended, was refused or cancelled"),
    sa.Column("approvals", sa.Integer, nullable=False, server_default="0", comment="people who have approved it"),
    sa.Column("approvals_needed", sa.Integer, nullable=False, server_default="1", comment="approvals it needs, 1 or 2"),
    sa.Index("action_by_status", "status", "decided_at_us"),
    sa.Index("action_by_decision", "decided_at_us"),
    sa.Index("action_by_cause", "because"),
    comment="One action: decided, refused, waiting for approval, or performed.",
)  # fmt: skip
session = sa.Table(
    "session",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="id"),
    sa.Column("incident", FreeText, nullable=False, comment="id of the incident"),
    instant_column("opened_at_us", "when its first action was decided", nullable=False),
    instant_column("closed_at_us", "when everything was undone or kept on purpose; NULL while it is open"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    comment="All actions taken for one incident, and the nodes they cordoned.",
)
message = sa.Table(
    "message",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="deduplication key: the same on every engine"),
    sa.Column("channel", FreeText, nullable=False, comment="name of the channel"),
    sa.Column("incident", Key, comment="id of the incident"),
    instant_column("created_at_us", "when it was written", nullable=False),
    sa.Column("status", FreeText, nullable=False, comment="waiting, claimed, delivered or failed"),
    instant_column("retry_at_us", "earliest time of the next attempt", nullable=False),
    sa.Column("owner", FreeText, comment="who claimed it"),
    instant_column("lease_until_us", "end of the claim"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0", comment="number of claims"),
    instant_column("ended_at_us", "when it was delivered or failed for good"),
    sa.Column("error", FreeText, nullable=False, server_default="", comment="last error of the channel"),
    sa.Column("urgency", sa.Integer, nullable=False, server_default="2", comment="0 urgent P0, 1 urgent P1, 2 other"),
    sa.Column("receipt", FreeText, comment="JSON: what the channel returned on delivery"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("message_by_status", "status", "retry_at_us"),
    sa.Index("message_by_creation", "created_at_us"),
    sa.Index("message_by_incident", "incident"),
    comment="The outbox: one message to one channel, sent at least once.",
)
audit = sa.Table(
    "audit",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="increases with each write"),
    instant_column("at_us", "when it was decided", nullable=False),
    sa.Column("event", FreeText, nullable=False, comment="kind of decision or action"),
    sa.Column("subject", Key, nullable=False, comment="subject: an id, or a name with its entity"),
    sa.Column("reason", FreeText, nullable=False, comment="reason code, also of a decision to do nothing"),
    sa.Column("cycle", FreeText, nullable=False, comment="id of the deciding cycle; empty for an action of a person"),
    sa.Column("by", FreeText, nullable=False, comment="name of a person, or outrider"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("audit_by_time", "at_us"),
    sa.Index("audit_by_subject", "subject"),
    comment="Audit log, append-only: triggers reject every UPDATE, and every DELETE except by retention.",
)
cycle = sa.Table(
    "cycle",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="timestamp and four random characters"),
    instant_column("at_us", "timestamp of the cycle", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("cycle_by_time", "at_us"),
    comment="One cycle: duration, targets that answered, findings.",
)
silence = sa.Table(
    "silence",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="id"),
    instant_column("until_us", "when it ends", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    comment="A rule, an entity or both, muted by a person until a given time.",
)
drill = sa.Table(
    "drill",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="id"),
    instant_column("starts_at_us", "when the fault begins", nullable=False),
    instant_column("ends_at_us", "when it ends; earlier than planned if it was stopped", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Column("cluster", FreeText, nullable=False, server_default="", comment="the simulated fleet"),
    sa.Column("name", FreeText, nullable=False, server_default="", comment="name of the game day, or drill"),
    sa.Index("drill_by_start", "starts_at_us"),
    comment="A fault injected into a simulated fleet, with its ground truth.",
)
feedback = sa.Table(
    "feedback",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="the same for every verdict of a person on an alert occurrence"),
    sa.Column("fingerprint", Key, nullable=False, comment="fingerprint of the alert"),
    instant_column("starts_at_us", "start of the judged occurrence", nullable=False),
    sa.Column("rule", Key, nullable=False, comment="name of the rule"),
    sa.Column("incident", Key, comment="id of the incident that grouped it"),
    sa.Column("verdict", FreeText, nullable=False, comment="useful, not_useful or wrong_cause"),
    sa.Column("cause", FreeText, comment="fault id of the true cause, if the verdict is wrong_cause and it is known"),
    sa.Column("by", FreeText, nullable=False, comment="name of the person"),
    instant_column("at_us", "when it was given", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Column(
        "payload", sa.LargeBinary, comment="the values that the rule evaluated, packed; kept longer than raw values"
    ),
    sa.Index("feedback_by_time", "at_us"),
    sa.Index("feedback_by_rule", "rule", "at_us"),
    sa.Index("feedback_by_incident", "incident"),
    comment="Operator feedback on alerts: the newest verdict per person and occurrence; older ones: audit log.",
)
flag = sa.Table(
    "flag",
    state_tables,
    sa.Column("name", Key, primary_key=True, comment="paused, breaker, engine; pruning while retention deletes"),
    sa.Column("value", FreeText, nullable=False, comment="its value"),
    comment="Flags.",
)
document = sa.Table(
    "document",
    state_tables,
    sa.Column("area", Key, primary_key=True, comment="topology, topology_at, detector, standings or paper"),
    sa.Column("name", Key, primary_key=True, comment="name within the area"),
    instant_column("at_us", "when it was written", nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False, comment="packed, internal format"),
    comment="The newest version of large documents: topology, detector state, workload audit.",
)
