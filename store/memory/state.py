"""The state store in memory, for tests, replays and drills. One process, any number of threads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta

from outrider.audit import AuditEvent, AuditRecord
from outrider.model import (
    Action,
    ActionStatus,
    AlertState,
    BreakerState,
    Calibration,
    DetectorState,
    Message,
    Outcome,
    Plan,
    Receipt,
    Window,
)
from outrider.ports import DEFAULT_STATE_RETENTION, CycleCommit, Silence, StateRetention
from outrider.records.drill import Drill
from outrider.records.feedback import Feedback
from outrider.records.on_call import ButtonPress, PressResult
from outrider.records.received_alerts import ended
from outrider.topology import Topology
from store.memory.received_alerts import MemoryReceivedAlerts
from store.memory.state_reader import MemoryStateReader, OutboxEntry
from store.state import plan_rows, state_rows


class MemoryStateStore(MemoryStateReader, MemoryReceivedAlerts):
    """Implements ``outrider.ports.StateStore``."""

    # --- write ------------------------------------------------------------------------------------

    def take_over(self, owner: str) -> None:
        """No effect: a store in memory has one handle."""

    def owned(self) -> bool:
        """True: no other handle exists."""
        return True

    def commit(self, commit: CycleCommit) -> None:
        """Writes a whole cycle, by the rules of the SQL store."""
        with self._lock:
            for alert in commit.alerts:
                spell = (alert.fingerprint, alert.starts_at)
                self._alerts[spell] = state_rows.keep_hand(self._alerts.get(spell), alert)
            for incident in commit.incidents:
                stored = self._incidents.get(incident.id)
                self._incidents[incident.id] = state_rows.keep_acknowledgement(stored, incident)
            self._sessions.update({session.id: session for session in commit.sessions})
            for action in commit.actions:
                known = self._actions.setdefault(action.id, action)
                if state_rows.cancels(known, action):
                    self._actions[action.id] = action
            self._add_messages(commit.messages)
            if commit.plan is not None:
                self._plans = [*self._plans, (commit.cycle.at, commit.plan)][-state_rows.KEPT_PLANS :]
                self._keep_plan(commit.plan)
            if commit.topology is not None:
                self._keep_topology(commit.topology, commit.cycle.at)
            self._statuses = state_rows.by_name(commit.detector_statuses) or self._statuses
            if commit.breaker is not None and commit.breaker.reset_at == self._breaker.reset_at:
                self._breaker = commit.breaker  # unless a person reset it meanwhile
            self._append(commit.audit)
            if not commit.early:
                self._cycles[commit.cycle.id] = commit.cycle
            while len(self._cycles) > state_rows.KEPT_CYCLES:
                del self._cycles[next(iter(self._cycles))]

    def claim_actions(self, owner: str, now: datetime, lease: timedelta, limit: int = 10) -> tuple[Action, ...]:
        """Claims due INTENDED actions, or CLAIMED ones with an expired lease, oldest first."""
        with self._lock:
            free = [
                action
                for action in self._actions.values()
                if action.status in (ActionStatus.INTENDED, ActionStatus.CLAIMED)
                and (action.id not in self._leases or self._leases[action.id][0] <= now)
            ]
            claimed = []
            for action in sorted(free, key=lambda action: (action.decided_at, action.id))[:limit]:
                claimed_action = state_rows.claimed(action, now)
                self._actions[action.id], self._leases[action.id] = claimed_action, (now + lease, owner)
                claimed.append(claimed_action)
            return tuple(claimed)

    def defer_action(self, action_id: str, detail: str, until: datetime) -> None:
        """Returns a claimed action to INTENDED until then. Raises StoreError for an unknown id."""
        with self._lock:
            action = self._actions.get(action_id)
            if action is None:
                raise state_rows.unknown("action", action_id)
            if action.status is ActionStatus.CLAIMED:
                self._actions[action_id] = state_rows.deferred(action, detail)
                self._leases[action_id] = (until, "")

    def finish_action(self, outcome: Outcome) -> None:
        """Records the outcome of a claimed action; the first record stays. Raises StoreError for an unknown id."""
        with self._lock:
            action = self._actions.get(outcome.action_id)
            if action is None:
                raise state_rows.unknown("action", outcome.action_id)
            if action.status is ActionStatus.CLAIMED:
                self._actions[action.id] = state_rows.finished(action, outcome)

    def claim_messages(
        self, owner: str, now: datetime, lease: timedelta, limit: int = 50, *, channel: str | None = None
    ) -> tuple[Message, ...]:
        """Claims unsent messages that are due, urgent ones first, then oldest first."""

        def order(sending: OutboxEntry) -> tuple[int, datetime, str]:
            return state_rows.urgency_of(sending.message), sending.message.created_at, sending.message.id

        with self._lock:
            free = [
                sending
                for sending in self._outbox.values()
                if sending.is_free(now) and channel in (None, sending.message.channel) and not self._waits(sending, now)
            ]
            chosen = sorted(free, key=order)[:limit]
            for sending in chosen:
                sending.status, sending.until, sending.owner = "claimed", now + lease, owner
                sending.attempts += 1
            return tuple(sending.message for sending in chosen)

    def _waits(self, sending: OutboxEntry, now: datetime) -> bool:
        """True if a message that is not urgent waits for an earlier one of its incident and channel."""
        urgent = state_rows.urgency_of(sending.message) < state_rows.NOT_URGENT
        return not urgent and any(sending.is_behind(other, now) for other in self._outbox.values())

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
        with self._lock:
            sending = self._known(message_id)
            if sending.status == "delivered":
                return ()
            sending.error = error
            if delivered:
                sending.deliver(receipt, now)
            elif retry_at is not None:
                sending.status, sending.until = "waiting", retry_at
            else:
                sending.status, sending.until, sending.ended_at = "failed", now, now
            new = tuple(message.id for message in follow_ups if message.id not in self._outbox)
            self._add_messages(follow_ups)
            return new

    def _known(self, message_id: str) -> OutboxEntry:
        sending = self._outbox.get(message_id)
        if sending is None:
            raise state_rows.unknown("message", message_id)
        return sending

    def deliver_messages(
        self, message_ids: Sequence[str], receipt: Receipt, now: datetime, follow_ups: Sequence[Message] = ()
    ) -> None:
        """Records the delivery of messages that were sent as one."""
        with self._lock:
            for sending in [self._known(message_id) for message_id in message_ids]:
                if sending.status != "delivered":
                    sending.deliver(receipt, now)
            self._add_messages(follow_ups)

    def _add_messages(self, messages: Sequence[Message]) -> None:
        for message in messages:
            self._outbox.setdefault(message.id, OutboxEntry(message, "waiting", message.created_at))

    def retry_message(self, message_id: str, by: str, now: datetime) -> bool:
        """Returns a dead letter to the outbox, with audit; False if it is not one."""
        with self._lock:
            sending = self._outbox.get(message_id)
            if sending is None or sending.status != "failed":
                return False
            sending.status, sending.until, sending.ended_at = "waiting", now, None
            self._append([state_rows.operator_audit(AuditEvent.MESSAGE_RETRIED, message_id, by, now)])
            return True

    # --- operator actions -----------------------------------------------------------------------------

    def acknowledge(self, incident_id: str, by: str, now: datetime) -> bool:
        """Acknowledges an open incident, with audit; False if it is unknown or resolved. The first one stays."""
        with self._lock:
            incident = self._incidents.get(incident_id)
            if incident is None or incident.resolved_at is not None:
                return False
            if incident.acknowledged_at is None:
                self._incidents[incident_id] = replace(incident, acknowledged_at=now, acknowledged_by=by)
                self._append([state_rows.operator_audit(AuditEvent.ACKNOWLEDGED, incident_id, by, now)])
            return True

    def resolve_alert(self, fingerprint: str, by: str, now: datetime) -> bool:
        """Resolves an alert manually, with audit; False if it is unknown or already resolved."""
        with self._lock:
            alert = self.alert(fingerprint)
            if alert is None or alert.state is AlertState.RESOLVED:
                return False
            self._alerts[fingerprint, alert.starts_at] = state_rows.resolved_by_hand(alert, now)
            received = self._received.get(fingerprint)
            if received is not None and received.is_firing:
                self._received[fingerprint] = ended(received, now, now)
            self._append([state_rows.operator_audit(AuditEvent.RESOLVED_BY_HAND, fingerprint, by, now)])
            return True

    def decide_action(self, action_id: str, approve: bool, by: str, now: datetime) -> bool:
        """Approves or rejects a WAITING_APPROVAL action, with audit; False if it is in another status."""
        with self._lock:
            action = self._actions.get(action_id)
            if action is None or action.status is not ActionStatus.WAITING_APPROVAL:
                return False
            answer = state_rows.decided(action, by, now, approve=approve)
            if answer == action:
                return True  # the same person again
            self._actions[action_id] = answer
            event = AuditEvent.ACTION_APPROVED if approve else AuditEvent.ACTION_REJECTED
            self._append([state_rows.operator_audit(event, action_id, by, now, answer.reason.value)])
            return True

    def press_button(self, press: ButtonPress) -> PressResult:
        """Uses a button and makes its changes: all of them, or none."""
        with self._lock:
            if press.nonce in self._buttons_used:
                return PressResult.USED
            done = [self.acknowledge(incident, press.by, press.at) for incident in press.acknowledges]
            if press.approves is not None:
                done.append(self.decide_action(press.approves, True, press.by, press.at))
            done += [self.add_note(note) for note in press.notes]
            for silence in press.silences:
                self.add_silence(silence)
            if not any(done) and not press.silences:
                return PressResult.NOT_POSSIBLE
            self._buttons_used.add(press.nonce)
            self._append(press.audit)
            return PressResult.DONE

    def request_action(self, action_id: str, by: str, now: datetime) -> bool:
        """Requests approval of a PROPOSED or expired action by hand, with audit; False if that is impossible."""
        with self._lock:
            action = self._actions.get(action_id)
            session = self._sessions.get(action.session) if action else None
            waiting = state_rows.requested(action, session, by, now) if action else None
            if waiting is None:
                return False
            self._actions[action_id] = waiting
            self._append([state_rows.operator_audit(AuditEvent.ACTION_REQUESTED, action_id, by, now)])
            return True

    def set_paused(self, paused: bool, by: str, now: datetime) -> None:
        """Pauses or resumes remediation, with audit if that is a change."""
        with self._lock:
            if self._paused is not paused:
                self._paused = paused
                event = AuditEvent.PAUSED if paused else AuditEvent.RESUMED
                self._append([state_rows.operator_audit(event, "remediation", by, now)])

    def reset_breaker(self, by: str, now: datetime) -> bool:
        """Closes the breaker, with audit; earlier actions no longer count. False if it was closed."""
        with self._lock:
            if not self._breaker.is_open:
                return False
            self._breaker = BreakerState(reset_at=now, reset_by=by)
            self._append([state_rows.operator_audit(AuditEvent.BREAKER_RESET, "remediation", by, now)])
            return True

    def heartbeats(self) -> dict[str, datetime]:
        """The last heartbeat of each name."""
        return dict(self._heartbeats)

    def beat(self, name: str, at: datetime) -> None:
        """Records a heartbeat."""
        self._heartbeats[name] = at

    def add_silence(self, silence: Silence) -> None:
        """Adds a silence. The caller audits it."""
        self._silences[silence.id] = silence

    def remove_silence(self, silence_id: str) -> bool:
        """Removes a silence; False if unknown. The caller audits it."""
        return self._silences.pop(silence_id, None) is not None

    def save_drill(self, drill: Drill) -> None:
        """Writes a drill, or its new state. The caller audits it."""
        self._drills[drill.id] = drill

    def save_feedback(self, verdicts: Sequence[Feedback], values: Mapping[str, Window] | None = None) -> int:
        """Writes verdicts, with audit; returns the number of new ones."""
        new = 0
        with self._lock:
            self._feedback_values.update(values or {})
            for verdict in verdicts:
                before = self._feedback.get(verdict.id)
                if before is None or not verdict.same_verdict(before):
                    self._feedback[verdict.id] = verdict
                    self._append([state_rows.feedback_audit(verdict, before)])
                    new += 1
        return new

    def save_load_test(self, calibration: Calibration) -> None:
        """Stores a load-test result, replacing the last one of its shape and source."""
        plan_rows.of_load_test(calibration)
        with self._lock:
            self._load_tests[(*plan_rows.shape_of(calibration), calibration.source)] = calibration

    def append_audit(self, records: Sequence[AuditRecord]) -> None:
        """Appends audit records outside a cycle."""
        with self._lock:
            self._append(records)

    def save_detector_states(self, states: Mapping[str, DetectorState], at: datetime) -> None:  # noqa: ARG002 - the protocol's
        """Saves the detector states, replacing the previous checkpoint."""
        self._states.update(states)

    def load_detector_states(self) -> dict[str, DetectorState]:
        """The newest checkpoint; empty if there is none."""
        return dict(self._states)

    def prune(self, now: datetime, kept: StateRetention = DEFAULT_STATE_RETENTION) -> dict[str, int]:  # noqa: ARG002 - the protocol's
        """No effect: a store in memory lives as long as its test or drill."""
        return {}

    def close(self) -> None:
        """No resources to release."""

    def _keep_plan(self, plan: Plan) -> None:
        if plan.revised is not None:
            return  # its forecasts and calibrations are those of the scheduled plan
        self._points += [point for forecast in plan.forecasts for point in plan_rows.points_of(forecast)]
        for calibration in plan.calibrations:
            if plan_rows.is_baseline(calibration):
                self._baselines[plan_rows.shape_of(calibration)] = calibration

    def _keep_topology(self, graph: Topology, at: datetime) -> None:
        """A graph that differs only in its timestamp replaces the previous one."""
        since = at
        if self._topologies and graph.shares_graph(self._topologies[-1][1]):
            since, _ = self._topologies.pop()
        self._topologies.append((since, graph))
