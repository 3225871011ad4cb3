"""Plans messages: one per change of an incident, with an id that two engines compute alike.

Earlier messages are recorded in the incident's own timeline. A restart therefore neither repeats nor drops a message,
and the end of a silence sends one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from alerts.routing import simultaneous, wording
from alerts.routing.routes import NotificationSettings
from alerts.state.silence import QUIET, lead_alert
from outrider.model import (
    Action,
    ActionStatus,
    Alert,
    AlertState,
    BreakerState,
    DecisionReason,
    Incident,
    IncidentProgress,
    Message,
    NotifyReason,
    Priority,
    TimelineEntry,
)
from outrider.text.i18n import Language

__all__ = ["MessagePlan", "NotificationSettings", "messages", "sample_messages"]

_TIMELINE = "notify.timeline."


@dataclass(frozen=True, slots=True)
class MessagePlan:
    """Messages for the outbox, and the incidents with their messages and pages recorded.

    ``reasons`` gives for every incident why a message was sent or not.
    """

    messages: tuple[Message, ...]
    incidents: tuple[Incident, ...]
    reasons: Mapping[str, NotifyReason]


@dataclass(frozen=True, slots=True)
class _SentMessages:
    """Earlier messages of an incident, from its timeline."""

    priority: Priority | None
    at: datetime | None
    resolved: bool
    requested: frozenset[str]
    channels: tuple[str, ...]
    status: str | None = None
    status_at: datetime | None = None

    @staticmethod
    def of(incident: Incident) -> _SentMessages:
        """Reads the timeline."""
        entries = [entry for entry in incident.timeline if entry.what.startswith(_TIMELINE)]
        reports = [entry for entry in entries if entry.what == _TIMELINE + NotifyReason.STATUS]
        pages = [entry for entry in entries if "priority" in entry.arguments]
        priorities = [Priority(entry.arguments["priority"]) for entry in pages]
        names = [name for entry in pages for name in entry.arguments.get("channels", "").split(", ") if name]
        return _SentMessages(
            priority=min(priorities, key=lambda priority: priority.rank) if priorities else None,
            at=max((entry.at for entry in pages), default=None),
            resolved=any(entry.what == _TIMELINE + NotifyReason.RESOLVED for entry in entries),
            requested=frozenset(entry.arguments["action"] for entry in entries if "action" in entry.arguments),
            channels=tuple(dict.fromkeys(names)),
            status=next((entry.arguments["state"] for entry in reversed(reports)), None),
            status_at=next((entry.at for entry in reversed(reports)), None),
        )


def messages(
    before: Sequence[Incident],
    after: Sequence[Incident],
    alerts: Sequence[Alert],
    actions: Sequence[Action],
    messaging: NotificationSettings,
    now: datetime,
    progress: Mapping[str, IncidentProgress] | None = None,
    *,
    breaker: BreakerState | None = None,
) -> MessagePlan:
    """The messages of one cycle.

    ``after`` are the incidents open now and those that resolved in this cycle; one already resolved in ``before`` is
    skipped. ``alerts`` carry ``muted_by``. ``actions`` are those to mention; each one that waits for approval is
    requested once, and reported once if the request expires. A silenced incident sends nothing. An acknowledged one
    sends only a higher priority, its end, and the ``progress`` of its repair, which is by incident. ``breaker`` is the
    breaker of remediation if it opened in this cycle.
    """
    closed = {incident.id for incident in before if incident.resolved_at is not None}
    by_print = {alert.fingerprint: alert for alert in alerts}
    of_incident: dict[str, list[Action]] = {}
    for action in actions:
        of_incident.setdefault(action.because, []).append(action)
    planned: list[Message] = []
    incidents: list[Incident] = []
    reasons: dict[str, NotifyReason] = {}
    for incident in after:
        if incident.id in closed:
            incidents.append(incident)
            continue
        members = [by_print[print_] for print_ in incident.alerts if print_ in by_print]
        planner = _MessagePlanner(
            incident, members, of_incident.get(incident.id, []), messaging, now, (progress or {}).get(incident.id)
        )
        reasons[incident.id] = planner.run()
        planned += planner.messages
        incidents.append(planner.incident)
    sent = simultaneous.group_simultaneous(planned, {incident.id: incident for incident in incidents})
    others = [*_plan_approvals(of_incident.get("plan", []), messaging, now), *_of_breaker(breaker, messaging, now)]
    return MessagePlan((*sent, *others), _counted(incidents, planned, sent), reasons)


def _counted(
    incidents: Sequence[Incident], planned: Sequence[Message], sent: Sequence[Message]
) -> tuple[Incident, ...]:
    """The incidents; one that was merged into another's page has no page of its own, so a higher priority pages."""
    paging = {message.incident for message in sent if message.is_page}
    merged = {message.incident for message in planned if message.is_page} - paging
    return tuple(replace(incident, pages=0) if incident.id in merged else incident for incident in incidents)


class _MessagePlanner:
    """Plans the messages of one incident. ``incident`` and ``messages`` hold the result after ``run``."""

    def __init__(
        self,
        incident: Incident,
        alerts: Sequence[Alert],
        actions: Sequence[Action],
        messaging: NotificationSettings,
        now: datetime,
        progress: IncidentProgress | None,
    ) -> None:
        """``alerts`` and ``actions`` are those of the incident."""
        self._progress = progress
        self.incident = incident
        self.messages: list[Message] = []
        self._alerts = alerts
        self._actions = actions
        self._messaging = messaging
        self._now = now
        self._sent = _SentMessages.of(incident)

    def run(self) -> NotifyReason:
        """Plans messages for the changes; the reason also explains why there are none."""
        reason = self._due()
        channels = self._channels(reason)
        if reason in (NotifyReason.NOT_CHANGED, NotifyReason.MUTED):
            self._request_approvals(reason)
            return self._report_status() if reason is NotifyReason.NOT_CHANGED else reason
        if not channels:
            return NotifyReason.NOT_CHANGED
        before, priority = self._sent.priority, self.incident.priority
        first_page = (
            priority.rank <= Priority.P1.rank
            and reason
            in (
                NotifyReason.OPENED,
                NotifyReason.PRIORITY_RAISED,
            )
            and self.incident.pages == 0
        )
        self._send(reason, channels, self._nth(reason), is_page=first_page, before=before)
        arguments = {"priority": priority.value, "channels": ", ".join(channels)}
        self._note(reason, arguments)
        if first_page:
            self.incident = replace(self.incident, pages=1)
        self._request_approvals(reason)
        return reason

    def _report_status(self) -> NotifyReason:
        """Reports the progress of a repair when its state changes, and at its interval."""
        progress, sent = self._progress, self._sent
        channels = self._channels(NotifyReason.STATUS)
        if progress is None or self.incident.resolved_at is not None or not channels or sent.at is None:
            return NotifyReason.NOT_CHANGED
        last = sent.status_at or sent.at
        if progress.state == sent.status and self._now - last < progress.every:
            return NotifyReason.NOT_CHANGED
        self._send(NotifyReason.STATUS, channels, int(self._now.timestamp()))
        self._note(NotifyReason.STATUS, {"state": progress.state, "to": ", ".join(channels)})
        return NotifyReason.STATUS

    def _due(self) -> NotifyReason:
        incident, sent = self.incident, self._sent
        if incident.resolved_at is not None:
            return NotifyReason.RESOLVED if sent.priority and not sent.resolved else NotifyReason.NOT_CHANGED
        firing = [alert for alert in self._alerts if alert.state is AlertState.FIRING and _counts(alert)]
        if firing and all(alert.muted_by in QUIET for alert in firing):
            return NotifyReason.MUTED
        if sent.priority is None:
            return NotifyReason.OPENED if incident.acknowledged_at is None else NotifyReason.MUTED
        if incident.priority.rank < sent.priority.rank:
            return NotifyReason.PRIORITY_RAISED
        interval = self._messaging.repeat.get(incident.priority)
        if incident.acknowledged_at is None and interval and sent.at and self._now - sent.at >= interval:
            return NotifyReason.REPEAT
        return NotifyReason.NOT_CHANGED

    def _channels(self, reason: NotifyReason) -> tuple[str, ...]:
        if reason is NotifyReason.RESOLVED:
            return self._sent.channels
        unsilenced = [alert for alert in self._alerts if alert.muted_by not in QUIET]
        return self._messaging.channels(self.incident.priority, unsilenced)

    def _nth(self, reason: NotifyReason) -> int:
        interval = self._messaging.repeat.get(self.incident.priority)
        if reason is not NotifyReason.REPEAT or not interval:
            return 0
        return (self._now - self.incident.opened_at) // interval

    def _request_approvals(self, reason: NotifyReason) -> None:
        """Requests approval once for every action that waits for it, and reports requests that expired."""
        if reason is NotifyReason.MUTED or self.incident.resolved_at is not None:
            return
        for action in self._actions:
            about = approval_reason(action)
            if about is None or (about is NotifyReason.APPROVAL_WANTED and action.id in self._sent.requested):
                continue
            channels = self._channels(about)
            if channels:
                self._send(about, channels, action.id, action=action)
                self._note(about, {"action": action.id, "channels": ", ".join(channels)})

    def _send(
        self,
        reason: NotifyReason,
        channels: Iterable[str],
        nth: int | str,
        *,
        is_page: bool = False,
        before: Priority | None = None,
        action: Action | None = None,
    ) -> None:
        lead = lead_alert(self.incident, self._alerts) or (self._alerts[0] if self._alerts else None)
        for channel in channels:
            language = self._messaging.language_of(channel)
            text = wording.Wording(
                self.incident,
                lead,
                tuple(self._actions),
                language,
                self._messaging.base_url,
                self._explained(language),
                self._progress,
            )
            self.messages.append(
                Message(
                    id=f"{self.incident.id}:{reason}:{self.incident.priority}:{channel}:{nth}",
                    channel=channel,
                    reason=reason,
                    priority=self.incident.priority,
                    incident=self.incident.id,
                    title=text.title(reason, before, action),
                    body=text.body(reason, action),
                    created_at=self._now,
                    language=language,
                    link=text.link,
                    is_page=is_page,
                    labels=text.labels,
                )
            )

    def _explained(self, language: Language) -> tuple[str, ...]:
        explain = self._messaging.explain
        if explain is None or self.incident.priority.rank > Priority.P1.rank:
            return ()
        return tuple(explain(self.incident, language))

    def _note(self, reason: NotifyReason, arguments: Mapping[str, str]) -> None:
        entry = TimelineEntry(self._now, _TIMELINE + reason, arguments)
        self.incident = replace(self.incident, timeline=(*self.incident.timeline, entry))


def approval_reason(action: Action) -> NotifyReason | None:
    """The message that an action needs: a request for approval, or the end of one; None for most."""
    if action.status is ActionStatus.WAITING_APPROVAL:
        return NotifyReason.APPROVAL_WANTED
    recommended = any(answer.reason is DecisionReason.AUTONOMY_RECOMMEND for answer in action.objections)
    if action.reason is DecisionReason.EXPIRED and (action.requested_by is not None or not recommended):
        return NotifyReason.APPROVAL_EXPIRED
    return None


def _counts(alert: Alert) -> bool:
    """False for a symptom: it never pages, so it sends nothing if the rest of its incident is silenced."""
    return alert.priority is not Priority.P3 or alert.fault is not None


def _of_breaker(opened: BreakerState | None, messaging: NotificationSettings, now: datetime) -> list[Message]:
    """Reports that the breaker of remediation opened; routed like a P1, because faults are no longer repaired."""
    if opened is None:
        return []
    result = []
    for channel in messaging.channels(Priority.P1):
        language = messaging.language_of(channel)
        counts = {"unsuccessful": opened.unsuccessful, "performed": opened.performed}
        result.append(
            Message(
                id=f"breaker:{now.isoformat()}:{channel}",
                channel=channel,
                reason=NotifyReason.BREAKER_OPENED,
                priority=Priority.P1,
                incident=None,
                title=wording.localize("title.breaker_opened", language, priority=Priority.P1),
                body=wording.localize("body.breaker_opened", language, **counts),
                created_at=now,
                language=language,
                link=messaging.base_url.rstrip("/"),
            )
        )
    return result


def _plan_approvals(actions: Iterable[Action], messaging: NotificationSettings, now: datetime) -> list[Message]:
    """Approval requests for actions of the capacity plan, and their expiry; without incident, routed like a P2."""
    result = []
    for action in actions:
        reason = approval_reason(action)
        if reason is None or now not in (action.decided_at, action.ended_at):
            continue
        for channel in messaging.channels(Priority.P2):
            language = messaging.language_of(channel)
            text = wording.action_line(action, language)
            result.append(
                Message(
                    id=f"plan:{reason}:{channel}:{action.id}",
                    channel=channel,
                    reason=reason,
                    priority=Priority.P2,
                    incident=None,
                    title=wording.approval_title(action, Priority.P2, language),
                    body="\n".join([text, wording.approve_line(action, language)]),
                    created_at=now,
                    language=language,
                    link=messaging.base_url.rstrip("/"),
                )
            )
    return result


def sample_messages(channel: str, messaging: NotificationSettings, now: datetime) -> tuple[Message, ...]:
    """A sample of each priority for ``outrider notify test``."""
    language = messaging.language_of(channel)
    return tuple(
        Message(
            id=f"test:{channel}:{priority}:{now.isoformat()}",
            channel=channel,
            reason=NotifyReason.TEST,
            priority=priority,
            incident=None,
            title=wording.localize("title.test", language, priority=priority),
            body=wording.localize("body.test", language, priority=priority),
            created_at=now,
            language=language,
            link=messaging.base_url.rstrip("/"),
        )
        for priority in Priority
    )
