"""Plans messages: one per change of an incident, with an id that two engines compute alike.

Earlier messages are recorded in the incident's own timeline. A restart therefore neither repeats nor drops a message,
and the end of a silence sends one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from alerts.oncall.roster import Team
from alerts.routing import buttons, simultaneous, wording
from alerts.routing.escalation import NOBODY, Duty, Responders, addressees, has_passed
from alerts.routing.recurrence import earlier_follow_ups
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
_ON_CALL = "on_call"  # timeline entry with the people of a message
_TO_STEP = (NotifyReason.OPENED, NotifyReason.PRIORITY_RAISED, NotifyReason.REPEAT)


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
    first_at: datetime | None = None
    reports: int = 0
    reminders: int = 0
    acknowledged: bool = False

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
            at=pages[-1].at if pages else None,
            resolved=any(entry.what == _TIMELINE + NotifyReason.RESOLVED for entry in entries),
            requested=frozenset(entry.arguments["action"] for entry in entries if "action" in entry.arguments),
            channels=tuple(dict.fromkeys(names)),
            status=next((entry.arguments["state"] for entry in reversed(reports)), None),
            status_at=next((entry.at for entry in reversed(reports)), None),
            first_at=pages[0].at if pages else None,
            reports=len(reports),
            reminders=sum(entry.what == _TIMELINE + NotifyReason.REPEAT for entry in entries),
            acknowledged=any(entry.what == _TIMELINE + NotifyReason.ACKNOWLEDGED for entry in entries),
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
    responders: Responders | None = None,
) -> MessagePlan:
    """The messages of one cycle.

    ``after`` are the incidents open now and those that resolved in this cycle; one already resolved in ``before`` is
    skipped. ``alerts`` carry ``muted_by``. ``actions`` are those to mention; each one that waits for approval is
    requested once, and reported once if the request expires. A silenced incident sends nothing. An acknowledged one
    sends only a higher priority, its end, and the ``progress`` of its repair, which is by incident. ``breaker`` is the
    breaker of remediation if it opened in this cycle. With ``responders`` messages address people, and an
    unacknowledged incident escalates.
    """
    responders = responders or Responders()
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
            incident,
            members,
            of_incident.get(incident.id, []),
            messaging,
            now,
            (progress or {}).get(incident.id),
            responders,
        )
        reasons[incident.id] = planner.run()
        planned += planner.messages
        incidents.append(planner.incident)
    sent = simultaneous.group_simultaneous(
        planned, {incident.id: incident for incident in incidents}, messaging.separate
    )
    others = [
        *_plan_approvals(of_incident.get("plan", []), messaging, now),
        *_of_breaker(breaker, messaging, responders, now),
    ]
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
        responders: Responders,
    ) -> None:
        """``alerts`` and ``actions`` are those of the incident."""
        self._progress = progress
        self.incident = incident
        self.messages: list[Message] = []
        self._alerts = alerts
        self._actions = actions
        self._responders = responders
        self._duty = Duty(incident, responders, messaging.ladders, messaging.settle, now)
        self._base = messaging
        self._team = self._duty.team
        self._messaging = messaging.of_team(self._team)
        self._now = now
        self._sent = _SentMessages.of(incident)

    def run(self) -> NotifyReason:
        """Plans messages for the changes; the reason also explains why there are none."""
        reason = self._due()
        channels = self._channels(reason)
        if reason in (NotifyReason.NOT_CHANGED, NotifyReason.MUTED):
            self._request_approvals(reason)
            if reason is NotifyReason.MUTED:
                return reason
            return self._report_acknowledgement() or self._report_status()
        if reason is NotifyReason.REROUTED:
            self._move()
            return reason
        if not channels:
            return NotifyReason.NOT_CHANGED
        if reason is NotifyReason.ASSIGNED:
            self._assign(channels)
        elif reason is NotifyReason.ESCALATED:
            self._escalate(channels)
        else:
            self._notify(reason, channels)
        self._request_approvals(reason)
        return reason

    def _notify(self, reason: NotifyReason, channels: tuple[str, ...]) -> None:
        """The first message, a higher priority, a reminder or the end. The first one of a P0 or P1 is a page."""
        before, priority = self._sent.priority, self.incident.priority
        first = reason in (NotifyReason.OPENED, NotifyReason.PRIORITY_RAISED) and self.incident.pages == 0
        is_page = first and priority.rank <= Priority.P1.rank
        step = self._duty.current_step()
        people = step.people if reason in _TO_STEP else self._duty.position.notified
        self._send(reason, channels, self._nth(reason), is_page=is_page, before=before, people=people)
        self._note(reason, {"priority": priority.value, "channels": ", ".join(channels)})
        if reason in _TO_STEP and self._duty.team is not None:
            reminder = {"reminder": "true"} if reason is NotifyReason.REPEAT else {}
            self._note(_ON_CALL, self._step_entry(self._duty.team, step.index, step.people) | reminder)
        if is_page:
            self.incident = replace(self.incident, pages=1)

    def _escalate(self, channels: tuple[str, ...]) -> None:
        """The next step of the ladder; on request of a person also the last one again."""
        step, team, request = self._duty.due_step(), self._duty.team, self._duty.request
        assert step is not None
        assert team is not None
        ladder = self._duty.ladder
        more = self._messaging.channels_of_groups(ladder.groups) if ladder is not None else ()
        channels = tuple(dict.fromkeys((*channels, *more)))
        nth = f"{self._duty.position.moves}:{team.name}:{step.index}" + (f":{request.id}" if request else "")
        self._send(NotifyReason.ESCALATED, channels, nth, people=step.people)
        entry = self._step_entry(team, step.index, step.people) | self._to(channels)
        self._note(NotifyReason.ESCALATED, entry | ({"note": request.id} if request else {}))

    def _assign(self, channels: tuple[str, ...]) -> None:
        """Notifies the person whom another one assigned the incident to."""
        note, team = self._duty.assignment, self._duty.team
        assert note is not None
        self._send(NotifyReason.ASSIGNED, channels, note.id, people=(note.to,))
        entry = self._to(channels) | {"note": note.id, "to": note.to, "by": note.by}
        if team is not None:
            entry |= self._step_entry(team, self._duty.position.step, (note.to,))
        self._note(NotifyReason.ASSIGNED, entry)

    def _move(self) -> None:
        """Pages the new owner, once for each team, and reports the move to the previous one."""
        owner, position = self._duty.owner, self._duty.position
        assert owner is not None
        number, step = position.moves + 1, self._duty.first_step_of_owner()
        old = self._messaging.silent_channels(self._channels(NotifyReason.MOVED))
        self._team = owner
        nth = f"{number}:{position.team}"
        self._send(NotifyReason.MOVED, old, nth, people=position.notified, named=step.people)
        self._messaging = self._base.of_team(owner)
        channels = self._channels(NotifyReason.REROUTED)
        is_page = self.incident.priority.rank <= Priority.P1.rank and owner.name not in position.teams
        self._send(NotifyReason.REROUTED, channels, f"{number}:{owner.name}", is_page=is_page, people=step.people)
        entry = self._step_entry(owner, step.index, step.people) | self._to(channels)
        self._note(NotifyReason.REROUTED, entry | {"before": position.team or ""})
        if is_page:
            self.incident = replace(self.incident, pages=self.incident.pages + 1)

    def _step_entry(self, team: Team, step: int, people: Sequence[str]) -> dict[str, str]:
        layer = self.incident.layer.value
        return {"team": team.name, "step": str(step), "people": ", ".join(people) or NOBODY, "layer": layer}

    def _to(self, channels: Sequence[str]) -> dict[str, str]:
        return {"priority": self.incident.priority.value, "channels": ", ".join(channels)}

    def _report_acknowledgement(self) -> NotifyReason | None:
        """Reports an acknowledgement once, to the notified channels that show the state of an incident."""
        incident, sent = self.incident, self._sent
        channels = tuple(name for name in sent.channels if name in self._messaging.tracking)
        if incident.acknowledged_at is None or incident.resolved_at is not None or sent.acknowledged or not channels:
            return None
        self._send(NotifyReason.ACKNOWLEDGED, channels, 0, people=self._duty.position.notified)
        self._note(NotifyReason.ACKNOWLEDGED, {"to": ", ".join(channels)})
        return NotifyReason.ACKNOWLEDGED

    def _report_status(self) -> NotifyReason:
        """Reports the progress of a repair when its state changes and at its interval, and on an open P0."""
        progress, sent = self._progress, self._sent
        channels = self._messaging.silent_channels(self._channels(NotifyReason.STATUS))
        if self.incident.resolved_at is not None or not channels or sent.at is None:
            return NotifyReason.NOT_CHANGED
        own = self._messaging.status_every.get(self.incident.priority)
        intervals = [every for every in (own, progress.every if progress is not None else None) if every is not None]
        last = sent.status_at or sent.first_at or sent.at
        waits = not intervals or not has_passed(min(intervals), last, self._now)
        if waits and (progress is None or progress.state == sent.status):
            return NotifyReason.NOT_CHANGED
        is_open = "open" if self.incident.acknowledged_at is None else "acknowledged"
        state = progress.state if progress is not None else is_open
        self._send(NotifyReason.STATUS, channels, sent.reports, people=self._duty.position.notified)
        self._note(NotifyReason.STATUS, {"state": state, "to": ", ".join(channels)})
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
        return self._due_response() or self._due_reminder()

    def _due_response(self) -> NotifyReason | None:
        """A change of who responds: another owner, an assignment, the next step of the ladder."""
        if self._duty.moved:
            return NotifyReason.REROUTED
        if self._duty.assignment is not None:
            return NotifyReason.ASSIGNED
        return NotifyReason.ESCALATED if self._duty.due_step() is not None else None

    def _due_reminder(self) -> NotifyReason:
        incident, sent = self.incident, self._sent
        interval = self._messaging.repeat.get(incident.priority)
        waits = not interval or sent.at is None or not has_passed(interval, sent.at, self._now)
        return NotifyReason.NOT_CHANGED if waits or incident.acknowledged_at is not None else NotifyReason.REPEAT

    def _channels(self, reason: NotifyReason) -> tuple[str, ...]:
        if reason is NotifyReason.RESOLVED:
            return self._sent.channels
        unsilenced = [alert for alert in self._alerts if alert.muted_by not in QUIET]
        return self._messaging.channels(self.incident.priority, unsilenced)

    def _nth(self, reason: NotifyReason) -> int:
        """The number of a reminder; 0 for other messages. It does not depend on the clock, which may step."""
        return self._sent.reminders + 1 if reason is NotifyReason.REPEAT else 0

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
                self._send(about, channels, action.id, action=action, people=self._duty.current_step().people)
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
        people: Sequence[str] = (),
        named: Sequence[str] | None = None,
    ) -> None:
        """Plans a message to each channel. ``people`` are those whom it addresses.

        ``named`` are the people of the team that its text names, if they are others.
        """
        lead = lead_alert(self.incident, self._alerts) or (self._alerts[0] if self._alerts else None)
        reader = self._duty.team if reason is NotifyReason.MOVED else self._team
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
                tuple(self._alerts),
                answer_within=self._messaging.answer_within(self.incident.priority),
                responding=self._responding(language, people if named is None else named),
                zone=UTC if reader is None else reader.zone,
            )
            message = Message(
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
                labels=dict(text.labels) | ({"team": self._team.name} if self._team is not None else {}),
                facts=text.facts,
                recipients=self._responders.roster.recipients(people, channel),
            )
            self.messages.append(
                buttons.with_buttons(
                    message,
                    self.incident,
                    self._messaging.buttons_valid,
                    personal=channel in self._messaging.personal,
                    escalates=self._team is not None and self._duty.ladder is not None,
                    action=action,
                )
            )

    def _responding(self, language: Language, people: Sequence[str]) -> tuple[str, ...]:
        """Lines about the people who respond, and about follow-ups of the same fault."""
        lines = []
        if self._team is not None:
            names = ", ".join(people) or NOBODY
            lines.append(wording.localize("line.team", language, team=self._team.name, people=names))
        if self._duty.assignee is not None:
            lines.append(wording.localize("line.assignee", language, name=self._duty.assignee))
        earlier = earlier_follow_ups(self.incident, self._responders.follow_ups, self._messaging.recurs_within)
        return (*lines, *(wording.follow_up_line(item, language) for item in earlier))

    def _explained(self, language: Language) -> tuple[str, ...]:
        explain = self._messaging.explain
        if explain is None or self.incident.priority.rank > Priority.P1.rank:
            return ()
        return tuple(explain(self.incident, language))

    def _note(self, reason: str, arguments: Mapping[str, str]) -> None:
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


def _of_breaker(
    opened: BreakerState | None, messaging: NotificationSettings, responders: Responders, now: datetime
) -> list[Message]:
    """Reports that the breaker of remediation opened; routed like a P1, because faults are no longer repaired."""
    if opened is None:
        return []
    team, people = addressees(None, responders, messaging.ladders, now)
    messaging, result = messaging.of_team(team), []
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
                recipients=responders.roster.recipients(people, channel),
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
            message = _plan_approval(action, reason, channel, messaging, now)
            valid, personal = messaging.buttons_valid, channel in messaging.personal
            result.append(buttons.with_buttons(message, None, valid, personal=personal, action=action))
    return result


def _plan_approval(
    action: Action, reason: NotifyReason, channel: str, messaging: NotificationSettings, now: datetime
) -> Message:
    language = messaging.language_of(channel)
    lines = [wording.action_line(action, language), wording.approve_line(action, language)]
    return Message(
        id=f"plan:{reason}:{channel}:{action.id}",
        channel=channel,
        reason=reason,
        priority=Priority.P2,
        incident=None,
        title=wording.approval_title(action, Priority.P2, language),
        body="\n".join(lines),
        created_at=now,
        language=language,
        link=messaging.base_url.rstrip("/"),
    )


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
