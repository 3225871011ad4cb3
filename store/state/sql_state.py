"""The state store on SQLite and PostgreSQL: whole cycles, claims, and operator actions."""

from __future__ import annotations

import secrets
from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, TypeVar

import sqlalchemy as sa

from outrider import log
from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import StoreError, TakenOverError
from outrider.model import (
    Action,
    ActionStatus,
    Alert,
    AlertState,
    BreakerState,
    Calibration,
    DetectorState,
    Message,
    Outcome,
    Receipt,
    RemediationSession,
    Window,
)
from outrider.ports import DEFAULT_STATE_RETENTION, CycleCommit, Silence, StateRetention
from outrider.records.drill import Drill
from outrider.records.feedback import Feedback
from store.migrations.runner import open_upgraded
from store.schema import json_codec, metadata
from store.schema.metadata import micros
from store.sql.backend import added, put
from store.state import operator_rows, outbox, plan_rows, retention, state_rows
from store.state.audit_rows import append as _append
from store.state.commit_rows import CommitRows
from store.state.heartbeats import SqlHeartbeats
from store.state.received_alerts import SqlReceivedAlerts, resolve_by_hand
from store.state.sql_response import SqlResponseWriter
from store.state.sql_state_reader import BREAKER, DETECTOR_STATUSES, INSTALLATION, SqlStateReader, breaker_of
from store.state.topology_history import TopologyHistory

T = TypeVar("T")
_OWNER = "engine"
_log = log.get("store")


class SqlStateStore(SqlStateReader, SqlResponseWriter, SqlReceivedAlerts, SqlHeartbeats):
    """Implements ``outrider.ports.StateStore``. Short transactions; several processes may use one file."""

    def __init__(self, url: str) -> None:
        """Opens and upgrades the database; raises StoreError or SchemaTooNewError."""
        super().__init__(open_upgraded(url, "state"))
        self._owner: str | None = None
        self._topologies = TopologyHistory()
        self._plans = plan_rows.PlanEncoder()
        try:
            self._name_installation()
        except StoreError:
            self.close()
            raise

    def _name_installation(self) -> None:
        """Gives a new store its id."""
        if not self.installation():
            with self._database.writing() as connection:
                name = secrets.token_hex(state_rows.INSTALLATION_BYTES)
                added(connection, metadata.flag, {"name": INSTALLATION, "value": name})

    def take_over(self, owner: str) -> None:
        """Makes this handle the only one that may commit cycles; late commits of others are rejected."""
        self._owner = owner
        with self._database.writing() as connection:
            put(connection, metadata.flag, {"name": _OWNER, "value": owner})

    def owned(self) -> bool:
        """False once another handle has taken over."""
        with self._database.reading() as connection:
            return self._is_owner(connection)

    def _is_owner(self, connection: sa.Connection) -> bool:
        return self._owner is None or _flag(connection, _OWNER) == self._owner

    def commit(self, commit: CycleCommit) -> None:
        """Writes a whole cycle in one transaction.

        Actions and messages with a known id stay unchanged, except that a CANCELLED action cancels an unclaimed one.
        Alerts resolved and incidents acknowledged manually meanwhile stay so. Unchanged rows are not written again.
        """
        rows = CommitRows.of(commit)
        with self._database.writing() as connection:
            if not self._is_owner(connection):
                raise TakenOverError(
                    "Another engine took over this store; this cycle was rolled back.",
                    hint="No action needed: this engine exits, and becomes a standby when restarted.",
                )
            rows.write(connection)
            self._put_plan(connection, commit)
            if commit.breaker is not None:
                _open_breaker(connection, commit.breaker)
            if commit.topology is not None:
                self._topologies.put(connection, commit.topology, commit.cycle.at)
            if commit.detector_statuses:
                payload = state_rows.pack_statuses(commit.detector_statuses)
                put(
                    connection,
                    metadata.document,
                    _document(DETECTOR_STATUSES, DETECTOR_STATUSES, commit.cycle.at, payload),
                )
            _append(connection, commit.audit)
            if commit.early:
                return
            cycle = {"id": commit.cycle.id, "at_us": micros(commit.cycle.at), "body": json_codec.dumps(commit.cycle)}
            put(connection, metadata.cycle, cycle)
            _trim(connection, metadata.cycle, state_rows.KEPT_CYCLES)

    def _put_plan(self, connection: sa.Connection, commit: CycleCommit) -> None:
        if commit.plan is None:
            return
        row = {"at_us": micros(commit.cycle.at), "cycle": commit.cycle.id, "body": self._plans.text(commit.plan)}
        connection.execute(sa.insert(metadata.plan), row)
        plan_rows.write(connection, commit)
        _trim(connection, metadata.plan, state_rows.KEPT_PLANS)

    # --- work -------------------------------------------------------------------------------------

    def claim_actions(self, owner: str, now: datetime, lease: timedelta, limit: int = 10) -> tuple[Action, ...]:
        """Claims due INTENDED actions, or CLAIMED ones with an expired lease, oldest first, by conditional UPDATEs."""
        table = metadata.action
        free = sa.and_(
            table.c.status.in_((ActionStatus.INTENDED.value, ActionStatus.CLAIMED.value)),
            sa.or_(table.c.lease_until_us.is_(None), table.c.lease_until_us <= micros(now)),
        )
        query = sa.select(table.c.body).where(free).order_by(table.c.decided_at_us, table.c.id).limit(limit)
        claimed: list[Action] = []
        with self._database.writing() as connection:
            for (body,) in connection.execute(query).all():
                action = state_rows.claimed(json_codec.loads(Action, body), now)
                changes = {
                    **state_rows.of_action(action),
                    "owner": owner,
                    "lease_until_us": micros(now + lease),
                    "attempts": table.c.attempts + 1,
                }
                done = connection.execute(sa.update(table).where(table.c.id == action.id, free).values(changes))
                if done.rowcount == 1:
                    claimed.append(action)
        return tuple(claimed)

    def defer_action(self, action_id: str, detail: str, until: datetime) -> None:
        """Returns a claimed action to INTENDED until then. Raises StoreError for an unknown id."""
        table = metadata.action
        with self._database.writing() as connection:
            action = operator_rows.stored(connection, Action, table, action_id)
            if action is None:
                raise state_rows.unknown("action", action_id)
            if action.status is not ActionStatus.CLAIMED:
                return
            row = state_rows.of_action(state_rows.deferred(action, detail))
            changes = {**row, "lease_until_us": micros(until), "owner": ""}
            connection.execute(sa.update(table).where(table.c.id == action_id).values(changes))

    def finish_action(self, outcome: Outcome) -> None:
        """Records the outcome of a claimed action; the first record stays. Raises StoreError for an unknown id."""
        table = metadata.action
        with self._database.writing() as connection:
            action = operator_rows.stored(connection, Action, table, outcome.action_id)
            if action is None:
                raise state_rows.unknown("action", outcome.action_id)
            if action.status is not ActionStatus.CLAIMED:
                return
            row = state_rows.of_action(state_rows.finished(action, outcome))
            connection.execute(sa.update(table).where(table.c.id == action.id).values({**row, "lease_until_us": None}))

    def claim_messages(
        self, owner: str, now: datetime, lease: timedelta, limit: int = 50, *, channel: str | None = None
    ) -> tuple[Message, ...]:
        """Claims unsent messages that are due, urgent ones first, then oldest first."""
        with self._database.writing() as connection:
            return outbox.claim(connection, owner, now, lease, limit, channel)

    def finish_message(
        self,
        message_id: str,
        *,
        delivered: bool,
        now: datetime,
        retry_at: datetime | None = None,
        error: str = "",
        receipt: Receipt | None = None,
        follow_ups: Sequence[Message] = (),
    ) -> tuple[str, ...]:
        """Records a delivery, a retry, or (neither) a final failure. A delivered message stays delivered."""
        with self._database.writing() as connection:
            return outbox.finish(
                connection,
                message_id,
                delivered=delivered,
                now=now,
                retry_at=retry_at,
                error=error,
                receipt=receipt,
                follow_ups=follow_ups,
            )

    def deliver_messages(
        self, message_ids: Sequence[str], receipt: Receipt, now: datetime, follow_ups: Sequence[Message] = ()
    ) -> None:
        """Records the delivery of messages that were sent as one, in one transaction."""
        with self._database.writing() as connection:
            for message_id in message_ids:
                outbox.finish(
                    connection,
                    message_id,
                    delivered=True,
                    now=now,
                    retry_at=None,
                    error="",
                    receipt=receipt,
                    follow_ups=follow_ups,
                )

    def retry_message(self, message_id: str, by: str, now: datetime) -> bool:
        """Returns a dead letter to the outbox, with audit; False if it is not one."""
        with self._database.writing() as connection:
            if not outbox.retry(connection, message_id, now):
                return False
            _append(connection, [state_rows.operator_audit(AuditEvent.MESSAGE_RETRIED, message_id, by, now)])
        return True

    # --- operator actions -----------------------------------------------------------------------------

    def acknowledge(self, incident_id: str, by: str, now: datetime) -> bool:
        """Acknowledges an open incident, with audit; False if it is unknown or resolved. The first one stays."""
        with self._database.writing() as connection:
            return operator_rows.acknowledge(connection, incident_id, by, now)

    def resolve_alert(self, fingerprint: str, by: str, now: datetime) -> bool:
        """Resolves an alert manually, with audit; False if it is unknown or already resolved."""
        table = metadata.alert
        query = sa.select(table.c.body).where(table.c.fingerprint == fingerprint)
        with self._database.writing() as connection:
            body = connection.execute(query.order_by(table.c.starts_at_us.desc()).limit(1)).scalar()
            alert = None if body is None else json_codec.loads(Alert, body)
            if alert is None or alert.state is AlertState.RESOLVED:
                return False
            put(connection, table, state_rows.of_alert(state_rows.resolved_by_hand(alert, now)))
            resolve_by_hand(connection, fingerprint, now)
            _append(connection, [state_rows.operator_audit(AuditEvent.RESOLVED_BY_HAND, fingerprint, by, now)])
        return True

    def decide_action(self, action_id: str, approve: bool, by: str, now: datetime) -> bool:
        """Approves or rejects a WAITING_APPROVAL action, with audit; False if it is in another status."""
        with self._database.writing() as connection:
            return operator_rows.decide(connection, action_id, by, now, approve=approve)

    def request_action(self, action_id: str, by: str, now: datetime) -> bool:
        """Requests approval of a PROPOSED or expired action by hand, with audit; False if that is impossible."""
        table = metadata.action
        with self._database.writing() as connection:
            action = operator_rows.stored(connection, Action, table, action_id)
            session = None
            if action is not None:
                session = operator_rows.stored(connection, RemediationSession, metadata.session, action.session)
            waiting = state_rows.requested(action, session, by, now) if action else None
            if waiting is None:
                return False
            connection.execute(sa.update(table).where(table.c.id == action_id).values(state_rows.of_action(waiting)))
            _append(connection, [state_rows.operator_audit(AuditEvent.ACTION_REQUESTED, action_id, by, now)])
        return True

    def set_paused(self, paused: bool, by: str, now: datetime) -> None:
        """Pauses or resumes remediation, with audit if that is a change."""
        with self._database.writing() as connection:
            table = metadata.flag
            value = "true" if paused else "false"
            if (_flag(connection, "paused") or "false") == value:
                return
            put(connection, table, {"name": "paused", "value": value})
            event = AuditEvent.PAUSED if paused else AuditEvent.RESUMED
            _append(connection, [state_rows.operator_audit(event, "remediation", by, now)])

    def reset_breaker(self, by: str, now: datetime) -> bool:
        """Closes the breaker, with audit; earlier actions no longer count. False if it was closed."""
        with self._database.writing() as connection:
            state = breaker_of(_flag(connection, BREAKER))
            if not state.is_open:
                return False
            closed = json_codec.dumps(BreakerState(reset_at=now, reset_by=by))
            put(connection, metadata.flag, {"name": BREAKER, "value": closed})
            _append(connection, [state_rows.operator_audit(AuditEvent.BREAKER_RESET, "remediation", by, now)])
        return True

    def add_silence(self, silence: Silence) -> None:
        """Adds a silence. The caller audits it."""
        with self._database.writing() as connection:
            operator_rows.add_silence(connection, silence)

    def remove_silence(self, silence_id: str) -> bool:
        """Removes a silence; False if unknown. The caller audits it."""
        with self._database.writing() as connection:
            done = connection.execute(sa.delete(metadata.silence).where(metadata.silence.c.id == silence_id))
        return bool(done.rowcount)

    def save_drill(self, drill: Drill) -> None:
        """Writes a drill, or its new state. The caller audits it."""
        row = {
            "id": drill.id,
            "starts_at_us": micros(drill.starts_at),
            "ends_at_us": micros(drill.over_at),
            "cluster": drill.window.cluster,
            "name": drill.window.name,
            "body": json_codec.dumps(drill),
        }
        with self._database.writing() as connection:
            put(connection, metadata.drill, row)

    def save_feedback(self, verdicts: Sequence[Feedback], values: Mapping[str, Window] | None = None) -> int:
        """Writes verdicts in one transaction, with audit; returns the number of new ones."""
        new, packed = 0, {name: state_rows.pack_window(window) for name, window in (values or {}).items()}
        with self._database.writing() as connection:
            for verdict in verdicts:
                before = operator_rows.stored(connection, Feedback, metadata.feedback, verdict.id)
                if before is None or not verdict.same_verdict(before):
                    more = {"payload": packed[verdict.id]} if verdict.id in packed else {}
                    put(connection, metadata.feedback, state_rows.of_feedback(verdict) | more)
                    _append(connection, [state_rows.feedback_audit(verdict, before)])
                    new += 1
        return new

    def save_load_test(self, calibration: Calibration) -> None:
        """Stores a load-test result, replacing the last one of its shape and source."""
        with self._database.writing() as connection:
            put(connection, metadata.load_test, plan_rows.of_load_test(calibration))

    def append_audit(self, records: Sequence[AuditRecord]) -> None:
        """Appends audit records outside a cycle."""
        if records:
            with self._database.writing() as connection:
                _append(connection, records)

    # --- detectors --------------------------------------------------------------------------------

    def save_detector_states(self, states: Mapping[str, DetectorState], at: datetime) -> None:
        """Saves the detector states, replacing the previous checkpoint."""
        rows = [_document("detector", name, at, state_rows.pack_state(state)) for name, state in states.items()]
        with self._database.writing() as connection:
            for row in rows:
                put(connection, metadata.document, row)

    def load_detector_states(self) -> dict[str, DetectorState]:
        """The newest checkpoint; empty if there is none. Damaged states are logged and left out."""
        result: dict[str, DetectorState] = {}
        for name, payload in self._documents("detector").items():
            try:
                result[name] = state_rows.unpack_state(payload)
            except StoreError as error:
                _log.error("detector_state_damaged", detector=name, error=error.message, hint=error.hint)
        return result

    def prune(self, now: datetime, kept: StateRetention = DEFAULT_STATE_RETENTION) -> dict[str, int]:
        """Deletes expired rows in short transactions; returns counts by table."""
        return retention.prune(self._database, now, kept)

    @property
    def connections_in_use(self) -> int:
        """Open connections: 0 between calls."""
        return self._database.checked_out

    def close(self) -> None:
        """Releases every connection."""
        self._database.close()


def _flag(connection: sa.Connection, name: str) -> str | None:
    value: str | None = connection.execute(
        sa.select(metadata.flag.c.value).where(metadata.flag.c.name == name)
    ).scalar()
    return value


def _open_breaker(connection: sa.Connection, opened: BreakerState) -> None:
    """Opens the breaker, unless a person reset it after the cycle had read it."""
    if breaker_of(_flag(connection, BREAKER)).reset_at == opened.reset_at:
        put(connection, metadata.flag, {"name": BREAKER, "value": json_codec.dumps(opened)})


def _document(area: str, name: str, at: datetime, payload: bytes) -> dict[str, Any]:
    return {"area": area, "name": name, "at_us": micros(at), "payload": payload}


def _trim(connection: sa.Connection, table: sa.Table, kept: int) -> None:
    """Deletes all but the newest rows."""
    oldest = sa.select(table.c.at_us).order_by(table.c.at_us.desc()).offset(kept - 1).limit(1).scalar_subquery()
    connection.execute(sa.delete(table).where(table.c.at_us < oldest))
