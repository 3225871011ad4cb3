"""The read side of the state store on SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from datetime import datetime

import sqlalchemy as sa

from outrider.audit import AuditRecord
from outrider.model import (
    Action,
    ActionStatus,
    Alert,
    AlertState,
    BreakerState,
    Calibration,
    CycleRecord,
    DeadLetter,
    DetectorStatus,
    EntityRef,
    ForecastPoint,
    Incident,
    Message,
    Plan,
    Priority,
    Receipt,
    RemediationSession,
    Window,
)
from outrider.ports import Silence
from outrider.records.drill import Drill, DrillWindow
from outrider.records.feedback import Feedback
from outrider.topology import Topology
from outrider.wire.cursors import Position
from store.schema import json_codec, metadata
from store.schema.metadata import instant, micros
from store.state import keyset_pagination, outbox, plan_rows, state_rows, topology_history
from store.state.sql_response import SqlResponseReader

DETECTOR_STATUSES = "standings"  # statuses of all detectors, one document; the stored name
INSTALLATION = "installation"
BREAKER = "breaker"
_IDS_AT_ONCE = 500


def breaker_of(value: str | None) -> BreakerState:
    """The breaker from its flag; closed if there is none."""
    return BreakerState() if value is None else json_codec.loads(BreakerState, value)


class SqlStateReader(SqlResponseReader):
    """Implements ``outrider.ports.StateReader``. Each call reads one snapshot of the database."""

    def alerts(
        self,
        *,
        states: Sequence[AlertState] | None = None,
        priorities: Sequence[Priority] | None = None,
        since: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Alert, ...]:
        """Alerts, newest first. ``since`` keeps those that had not ended before."""
        table = metadata.alert
        query = sa.select(table.c.body).order_by(table.c.starts_at_us.desc(), table.c.fingerprint).limit(limit)
        if states is not None:
            query = query.where(table.c.state.in_([state.value for state in states]))
        if priorities is not None:
            query = query.where(table.c.priority.in_([priority.value for priority in priorities]))
        if since is not None:
            query = query.where(table.c.ends_at_us.is_(None) | (table.c.ends_at_us >= micros(since)))
        query = keyset_pagination.beyond(query, table.c.starts_at_us, table.c.fingerprint, after, rising=True)
        return self._read(Alert, query)

    def alert(self, fingerprint: str) -> Alert | None:
        """The newest occurrence of an alert; None if unknown."""
        return next(iter(self.spells(fingerprint, 1)), None)

    def spells(self, fingerprint: str, limit: int = 100) -> tuple[Alert, ...]:
        """All occurrences of an alert, newest first; empty if unknown."""
        table = metadata.alert
        query = sa.select(table.c.body).where(table.c.fingerprint == fingerprint)
        return self._read(Alert, query.order_by(table.c.starts_at_us.desc()).limit(limit))

    def incidents(
        self,
        *,
        open_only: bool = False,
        since: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Incident, ...]:
        """Incidents, newest first. ``since`` keeps those open at or after that time."""
        table = metadata.incident
        query = sa.select(table.c.body).order_by(table.c.opened_at_us.desc(), table.c.id.desc()).limit(limit)
        if open_only:
            query = query.where(table.c.resolved_at_us.is_(None))
        if since is not None:
            query = query.where(table.c.resolved_at_us.is_(None) | (table.c.resolved_at_us >= micros(since)))
        return self._read(Incident, keyset_pagination.beyond(query, table.c.opened_at_us, table.c.id, after))

    def incident(self, incident_id: str) -> Incident | None:
        """An incident; None if unknown."""
        table = metadata.incident
        return next(iter(self._read(Incident, sa.select(table.c.body).where(table.c.id == incident_id))), None)

    def plan(self) -> Plan:
        """The newest plan; empty if the planner has not run."""
        return next(iter(self.plans(limit=1)), Plan())

    def plans(self, *, since: datetime | None = None, limit: int = state_rows.KEPT_PLANS) -> tuple[Plan, ...]:
        """Plans, newest first, to compare forecasts with observed values."""
        table = metadata.plan
        query = sa.select(table.c.body).order_by(table.c.at_us.desc(), table.c.id.desc()).limit(limit)
        if since is not None:
            query = query.where(table.c.at_us >= micros(since))
        return self._read(Plan, query)

    def actions(
        self,
        *,
        incident: str | None = None,
        sessions: Collection[str] | None = None,
        statuses: Collection[ActionStatus] | None = None,
        since: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Action, ...]:
        """Actions, newest first. ``since`` refers to the time of the decision."""
        table = metadata.action
        query = sa.select(table.c.body).order_by(table.c.decided_at_us.desc(), table.c.id.desc()).limit(limit)
        if incident is not None:
            query = query.where(table.c.because == incident)
        if sessions is not None:
            query = query.where(table.c.session.in_(sessions))
        if statuses is not None:
            query = query.where(table.c.status.in_([status.value for status in statuses]))
        if since is not None:
            query = query.where(table.c.decided_at_us >= micros(since))
        return self._read(Action, keyset_pagination.beyond(query, table.c.decided_at_us, table.c.id, after))

    def action(self, action_id: str) -> Action | None:
        """An action; None if unknown."""
        query = sa.select(metadata.action.c.body).where(metadata.action.c.id == action_id)
        return next(iter(self._read(Action, query)), None)

    def sessions(self, *, open_only: bool = True) -> tuple[RemediationSession, ...]:
        """Remediation sessions, oldest first."""
        table = metadata.session
        query = sa.select(table.c.body).order_by(table.c.opened_at_us, table.c.id)
        if open_only:
            query = query.where(table.c.closed_at_us.is_(None))
        return self._read(RemediationSession, query)

    def messages(
        self, *, incident: str | None = None, limit: int = 1000, after: Position | None = None
    ) -> tuple[Message, ...]:
        """Messages of the outbox, newest first, sent or not."""
        table = metadata.message
        query = sa.select(table.c.body).order_by(table.c.created_at_us.desc(), table.c.id.desc()).limit(limit)
        if incident is not None:
            query = query.where(table.c.incident == incident)
        return self._read(Message, keyset_pagination.beyond(query, table.c.created_at_us, table.c.id, after))

    def due_channels(self, now: datetime) -> tuple[str, ...]:
        """The channels with messages that are due, sorted."""
        with self._database.reading() as connection:
            return outbox.due_channels(connection, now)

    def first_receipt(self, channel: str, incident: str) -> Receipt | None:
        """The receipt of the first message of an incident that a channel delivered by itself; None without one."""
        with self._database.reading() as connection:
            return outbox.first_receipt(connection, channel, incident)

    def dead_letters(self, limit: int = 1000, after: Position | None = None) -> tuple[DeadLetter, ...]:
        """Messages that failed for good, newest first; ``after`` is the position of a message."""
        with self._database.reading() as connection:
            return outbox.dead_letters(connection, limit, after)

    def cycles(self, limit: int = 100) -> tuple[CycleRecord, ...]:
        """Cycles, newest first; the newest ten thousand are kept."""
        table = metadata.cycle
        query = sa.select(table.c.body).order_by(table.c.at_us.desc(), table.c.id.desc()).limit(limit)
        return self._read(CycleRecord, query)

    def audit(self, limit: int = 1000, after: Position | None = None) -> tuple[AuditRecord, ...]:
        """Audit records, newest first."""
        table = metadata.audit
        query = sa.select(table.c.id, table.c.body).order_by(table.c.at_us.desc(), table.c.id.desc()).limit(limit)
        with self._database.reading() as connection:
            rows = connection.execute(keyset_pagination.beyond(query, table.c.at_us, table.c.id, after)).all()
        return tuple(replace(json_codec.loads(AuditRecord, row.body), id=row.id) for row in rows)

    def topology(self, at: datetime | None = None) -> Topology:
        """The newest topology, or that of a given time; empty if unknown."""
        with self._database.reading() as connection:
            return topology_history.newest(connection) if at is None else topology_history.at_instant(connection, at)

    def forecasts(
        self,
        *,
        entity: EntityRef | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> tuple[ForecastPoint, ...]:
        """Forecasts for times in [since, until), by that time, then by time of creation."""
        table = metadata.forecast
        query = sa.select(table).order_by(table.c.at_us, table.c.made_at_us, table.c.id)
        if entity is not None:
            query = query.where(table.c.entity == entity.key)
        if since is not None:
            query = query.where(table.c.at_us >= micros(since))
        if until is not None:
            query = query.where(table.c.at_us < micros(until))
        with self._database.reading() as connection:
            rows = connection.execute(query).all()
        return tuple(plan_rows.point(row) for row in rows)

    def baselines(self, service: EntityRef | None = None) -> tuple[Calibration, ...]:
        """The newest measured calibration per service and shape, newest first."""
        table = metadata.baseline
        query = sa.select(table.c.body).order_by(table.c.measured_at_us.desc(), table.c.service, table.c.model)
        if service is not None:
            query = query.where(table.c.service == service.key)
        return self._read(Calibration, query)

    def load_tests(self) -> tuple[Calibration, ...]:
        """The newest load-test result per shape and source, newest first."""
        table = metadata.load_test
        query = sa.select(table.c.body).order_by(table.c.measured_at_us.desc(), table.c.service, table.c.source)
        return self._read(Calibration, query)

    def silences(self, now: datetime) -> tuple[Silence, ...]:
        """Active silences, the first to end first."""
        table = metadata.silence
        query = sa.select(table.c.body).where(table.c.until_us > micros(now))
        return self._read(Silence, query.order_by(table.c.until_us, table.c.id))

    def drills(
        self, *, since: datetime | None = None, limit: int = 1000, after: Position | None = None
    ) -> tuple[Drill, ...]:
        """Drills, newest first."""
        table = metadata.drill
        query = sa.select(table.c.body).order_by(table.c.starts_at_us.desc(), table.c.id.desc()).limit(limit)
        if since is not None:
            query = query.where(table.c.ends_at_us >= micros(since))
        return self._read(Drill, keyset_pagination.beyond(query, table.c.starts_at_us, table.c.id, after))

    def drill_windows(self, since: datetime) -> tuple[DrillWindow, ...]:
        """Times and clusters of drills, newest first. The ground truth is not read."""
        table = metadata.drill
        columns = (table.c.cluster, table.c.starts_at_us, table.c.ends_at_us, table.c.name)
        query = sa.select(*columns).where(table.c.ends_at_us >= micros(since))
        with self._database.reading() as connection:
            rows = connection.execute(query.order_by(table.c.starts_at_us.desc(), table.c.id.desc())).all()
        return tuple(DrillWindow(cluster, instant(start), instant(end), name) for cluster, start, end, name in rows)

    def feedback(
        self,
        *,
        rule: str | None = None,
        incident: str | None = None,
        since: datetime | None = None,
        limit: int = 1000,
        after: Position | None = None,
    ) -> tuple[Feedback, ...]:
        """Verdicts, newest first. ``since`` refers to the time of the verdict."""
        table = metadata.feedback
        query = sa.select(table.c.body).order_by(table.c.at_us.desc(), table.c.id.desc()).limit(limit)
        if rule is not None:
            query = query.where(table.c.rule == rule)
        if incident is not None:
            query = query.where(table.c.incident == incident)
        if since is not None:
            query = query.where(table.c.at_us >= micros(since))
        return self._read(Feedback, keyset_pagination.beyond(query, table.c.at_us, table.c.id, after))

    def feedback_values(self, ids: Sequence[str]) -> dict[str, Window]:
        """Values stored with verdicts, by id; verdicts without values are left out."""
        table, result = metadata.feedback, {}
        with self._database.reading() as connection:
            for index in range(0, len(ids), _IDS_AT_ONCE):
                some = table.c.id.in_(ids[index : index + _IDS_AT_ONCE])
                query = sa.select(table.c.id, table.c.payload).where(some, table.c.payload.is_not(None))
                result.update({row.id: row.payload for row in connection.execute(query)})
        return {name: state_rows.unpack_window(payload) for name, payload in result.items()}

    def installation(self) -> str:
        """The id of the store; empty before the first write."""
        table = metadata.flag
        with self._database.reading() as connection:
            value = connection.execute(sa.select(table.c.value).where(table.c.name == INSTALLATION)).scalar()
        return str(value or "")

    def paused(self) -> bool:
        """True while remediation is paused."""
        table = metadata.flag
        with self._database.reading() as connection:
            value = connection.execute(sa.select(table.c.value).where(table.c.name == "paused")).scalar()
        return value == "true"

    def breaker(self) -> BreakerState:
        """The breaker of remediation: open, or closed with its last reset."""
        table = metadata.flag
        with self._database.reading() as connection:
            value = connection.execute(sa.select(table.c.value).where(table.c.name == BREAKER)).scalar()
        return breaker_of(value)

    def detector_statuses(self) -> tuple[DetectorStatus, ...]:
        """Rollout stage of each detector, by name; empty before the first cycle."""
        held = self._documents(DETECTOR_STATUSES).get(DETECTOR_STATUSES)
        return () if held is None else state_rows.unpack_statuses(held)

    def _documents(self, area: str) -> dict[str, bytes]:
        table = metadata.document
        with self._database.reading() as connection:
            rows = connection.execute(sa.select(table.c.name, table.c.payload).where(table.c.area == area)).all()
        return {row.name: row.payload for row in rows}
