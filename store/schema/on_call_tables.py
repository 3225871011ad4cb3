"""Tables of the state database: how people respond to incidents, and the stored parts of on-call schedules."""

from __future__ import annotations

import sqlalchemy as sa

from store.schema.column_types import FreeText, Key, instant_column
from store.schema.column_types import state as state_tables

_BODY = "the whole record as JSON; the other columns are copies of its fields"

incident_note = sa.Table(
    "incident_note",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="id"),
    sa.Column("incident", Key, nullable=False, comment="id of the incident"),
    sa.Column("kind", FreeText, nullable=False, comment="comment, assignment or escalation"),
    instant_column("at_us", "when it was written", nullable=False),
    sa.Column("by", FreeText, nullable=False, comment="name of the person"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("incident_note_by_incident", "incident", "at_us"),
    sa.Index("incident_note_by_time", "at_us"),
    comment="What people added to an incident: comments, assignments, requests to escalate.",
)
follow_up = sa.Table(
    "follow_up",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="id"),
    sa.Column("incident", Key, nullable=False, comment="id of the incident"),
    sa.Column("owner", FreeText, nullable=False, comment="person or team that does it"),
    sa.Column("due", FreeText, nullable=False, comment="due date, as 2026-11-20"),
    instant_column("at_us", "when it was added", nullable=False),
    instant_column("closed_at_us", "when it was closed; NULL while it is open"),
    sa.Column("fault", FreeText, comment="fault id of the incident's suspected cause; NULL when it is unknown"),
    sa.Column("entity", FreeText, comment="key of the entity of the suspected cause"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("follow_up_by_time", "at_us"),
    sa.Index("follow_up_by_end", "closed_at_us"),
    sa.Index("follow_up_by_incident", "incident"),
    comment="Work that remains after an incident.",
)
shift_override = sa.Table(
    "shift_override",
    state_tables,
    sa.Column("id", Key, primary_key=True, comment="id"),
    sa.Column("schedule", FreeText, nullable=False, comment="name of the on-call schedule"),
    sa.Column("person", FreeText, nullable=False, comment="who is on call instead of the scheduled person"),
    instant_column("start_us", "from when on", nullable=False),
    instant_column("end_us", "until when, not included", nullable=False),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    sa.Index("shift_override_by_end", "end_us"),
    comment="A person who is on call instead of the scheduled one.",
)
calendar = sa.Table(
    "calendar",
    state_tables,
    sa.Column("schedule", Key, primary_key=True, comment="name of the on-call schedule"),
    instant_column("read_at_us", "when its text was last read; NULL if it never could be"),
    sa.Column("error", FreeText, nullable=False, comment="why a later attempt failed; empty if none did"),
    sa.Column("body", FreeText, nullable=False, comment=_BODY),
    comment="The calendar of an on-call schedule, as last read from its file or URL.",
)
button_use = sa.Table(
    "button_use",
    state_tables,
    sa.Column("nonce", Key, primary_key=True, comment="number of the button"),
    instant_column("at_us", "when it was used", nullable=False),
    comment="Buttons of messages that were used: each acts once.",
)
