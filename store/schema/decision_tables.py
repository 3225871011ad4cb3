"""Tables of the state database: what was decided, and the work that follows from it."""

from __future__ import annotations

import sqlalchemy as sa

from store.schema.column_types import BIG, FreeText, Key, instant_column
from store.schema.column_types import state as state_tables

_BODY = "the whole record as JSON: the other columns are copies of what is asked for"

alert = sa.Table(
    "alert",
    state_tables,
    sa.Column("fingerprint", Key, primary_key=True, comment="rule and entity: stays the same from spell to spell"),
    instant_column("starts_at_us", "when the condition was first seen", primary_key=True),
    sa.Column("state", FreeText, nullable=False, comment="pending, firing or resolved"),
    sa.Column("priority", FreeText, nullable=False, comment="P0 to P3"),
    sa.Column("rule", FreeText, nullable=False, comment="name of the rule"),
    sa.Column("entity", FreeText, nullable=False, comment="key of the entity: cluster/kind/namespace/name"),
    sa.Column("incident", FreeText, comment="id of the incident it is folded into"),
    instant_column("ends_at_us", "when it was resolved"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("alert_by_state", "state", "starts_at_us"),
    sa.Index("alert_by_start", "starts_at_us"),
    sa.Index("alert_by_end", "ends_at_us"),
    comment="One spell of an alert: the same fingerprint starts again with another starts_at_us.",
)
incident = sa.Table(
    "incident",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="id, as people see it"),
    sa.Column("priority", FreeText, nullable=False, comment="P0 to P3"),
    sa.Column("layer", FreeText, nullable=False, comment="hardware, platform, engine, traffic, business or monitoring"),
    instant_column("opened_at_us", "when it was opened", nullable=False),
    instant_column("resolved_at_us", "when its last alert ended; NULL while it is open"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    instant_column("acknowledged_at_us", "when a person took it on"),
    sa.Column("acknowledged_by", FreeText, comment="who took it on"),
    sa.Column("cause", FreeText, comment="fault id of the suspected cause; NULL when it is unknown"),
    sa.Column("cause_entity", FreeText, comment="key of the entity of the suspected cause"),
    sa.Index("incident_by_opening", "opened_at_us"),
    sa.Index("incident_by_end", "resolved_at_us"),
    comment="One thing that is or was broken, with everything folded under it.",
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
    instant_column("lease_until_us", "until when the claim holds"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0", comment="how often it was claimed"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Column("decision", FreeText, nullable=False, server_default="", comment="guard rails: allowed, refused, ask"),
    sa.Column("reason", FreeText, nullable=False, server_default="", comment="why the guard rails answered so"),
    sa.Column("dry_run", sa.Boolean, nullable=False, server_default=sa.false(), comment="true: nothing is changed"),
    instant_column("ended_at_us", "when it was over, refused or cancelled"),
    sa.Index("action_by_status", "status", "decided_at_us"),
    sa.Index("action_by_decision", "decided_at_us"),
    sa.Index("action_by_cause", "because"),
    comment="One step to take: decided, refused, waiting for a person, performed.",
)  # fmt: skip
session = sa.Table(
    "session",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="id"),
    sa.Column("incident", FreeText, nullable=False, comment="id of the incident"),
    instant_column("opened_at_us", "when its first action was decided", nullable=False),
    instant_column("closed_at_us", "when all it did was undone or kept on purpose; NULL while it is open"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    comment="All actions taken for one incident, and the nodes they cordoned.",
)
message = sa.Table(
    "message",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="deduplicates: two engines compute it alike"),
    sa.Column("channel", FreeText, nullable=False, comment="name of the channel"),
    sa.Column("incident", Key, comment="id of the incident it tells of"),
    instant_column("created_at_us", "when it was written", nullable=False),
    sa.Column("status", FreeText, nullable=False, comment="waiting, claimed, delivered or failed"),
    instant_column("retry_at_us", "not sent before", nullable=False),
    sa.Column("owner", FreeText, comment="who claimed it"),
    instant_column("lease_until_us", "until when the claim holds"),
    sa.Column("attempts", sa.Integer, nullable=False, server_default="0", comment="how often it was claimed"),
    instant_column("ended_at_us", "when it was delivered or given up"),
    sa.Column("error", FreeText, nullable=False, server_default="", comment="what the channel answered last"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("message_by_status", "status", "retry_at_us"),
    sa.Index("message_by_creation", "created_at_us"),
    sa.Index("message_by_incident", "incident"),
    comment="The outbox: one message to one channel, sent at least once.",
)
audit = sa.Table(
    "audit",
    state_tables,
    sa.Column("id", BIG, primary_key=True, comment="rises with writing"),
    instant_column("at_us", "when it was decided", nullable=False),
    sa.Column("event", FreeText, nullable=False, comment="what sort of decision or act"),
    sa.Column("subject", Key, nullable=False, comment="what it is about: an id, or a name with its entity"),
    sa.Column("reason", FreeText, nullable=False, comment="the enum reason, also of the decision to do nothing"),
    sa.Column("cycle", FreeText, nullable=False, comment="id of the cycle that decided; empty for an act of a person"),
    sa.Column("by", FreeText, nullable=False, comment="name of a person, or outrider"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("audit_by_time", "at_us"),
    sa.Index("audit_by_subject", "subject"),
    comment="The decision record, append-only: triggers refuse every UPDATE, and every DELETE but that of retention.",
)
cycle = sa.Table(
    "cycle",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="its instant and four random characters"),
    instant_column("at_us", "its instant", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("cycle_by_time", "at_us"),
    comment="One round of the loop: how long it took, how many targets answered, what was found.",
)
silence = sa.Table(
    "silence",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="id"),
    instant_column("until_us", "when it ends", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    comment="A rule, an entity or both muted by a person until an instant.",
)
drill = sa.Table(
    "drill",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="id"),
    instant_column("starts_at_us", "when the fault begins", nullable=False),
    instant_column("ends_at_us", "when it is over, before its time if it was stopped", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Column("cluster", FreeText, nullable=False, server_default="", comment="the simulated fleet"),
    sa.Column("name", FreeText, nullable=False, server_default="", comment="name of the game day, or drill"),
    sa.Index("drill_by_start", "starts_at_us"),
    comment="A fault put into a simulated fleet on purpose, and the truth about it.",
)
feedback = sa.Table(
    "feedback",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="the same for every verdict of this person on this spell"),
    sa.Column("fingerprint", Key, nullable=False, comment="of the alert"),
    instant_column("starts_at_us", "start of the spell that is judged", nullable=False),
    sa.Column("rule", Key, nullable=False, comment="name of the rule"),
    sa.Column("incident", Key, comment="id of the incident it was folded into"),
    sa.Column("verdict", FreeText, nullable=False, comment="useful, not_useful or wrong_cause"),
    sa.Column("cause", FreeText, comment="fault id of the right cause, where the verdict is wrong_cause and it is known"),
    sa.Column("by", FreeText, nullable=False, comment="name of the person"),
    instant_column("at_us", "when it was given", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Column("payload", sa.LargeBinary, comment="the values the rule looked at, packed: outlive raw values"),
    sa.Index("feedback_by_time", "at_us"),
    sa.Index("feedback_by_rule", "rule", "at_us"),
    sa.Index("feedback_by_incident", "incident"),
    comment="What people said of an alert: the newest verdict of each person on each spell; older ones in the audit.",
)
flag = sa.Table(
    "flag",
    state_tables,
    sa.Column("name", Key, primary_key=True, comment="paused, engine; pruning while retention deletes"),
    sa.Column("value", FreeText, nullable=False, comment="its value"),
    comment="Single facts.",
)
document = sa.Table(
    "document",
    state_tables,
    sa.Column("area", Key, primary_key=True, comment="topology, topology_at, detector, standings or paper"),
    sa.Column("name", Key, primary_key=True, comment="which of them"),
    instant_column("at_us", "when it was written", nullable=False),
    sa.Column("payload", sa.LargeBinary, nullable=False, comment="packed: for our own code"),
    comment="The newest of something big: the topology, what each detector remembers, the workload audit.",
)
