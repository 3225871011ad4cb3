"""Earlier decisions and actions: steps in flight, finished steps, changes to undo."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

from outrider.model import Action, ActionKind, ActionStatus, DecisionReason, EntityRef, GuardAnswer
from remediation.playbooks.model import UNDOES

IN_FLIGHT = frozenset({ActionStatus.INTENDED, ActionStatus.CLAIMED})
WAITING = frozenset({ActionStatus.PROPOSED, ActionStatus.WAITING_APPROVAL})
CANCELLABLE = WAITING | {ActionStatus.INTENDED}
PERFORMED = IN_FLIGHT | {ActionStatus.DONE, ActionStatus.DRY_RUN, ActionStatus.FAILED}
UNDO = frozenset({*UNDOES.values(), ActionKind.RUN_DIAGNOSTIC}) - {ActionKind.WAKE_ENGINE}
"""Actions that give capacity back or check it first. No breaker blocks them."""
LADDER = frozenset({ActionKind.DEGRADE_SERVICE, ActionKind.RESTORE_SERVICE})
CORDONING = frozenset({ActionKind.CORDON, ActionKind.DRAIN})  # an evicted node takes no new pods either
STOPPING = CORDONING | {ActionKind.REBOOT_NODE, ActionKind.RESET_GPU}
"""Actions that take a node out of service. The reset of a device stops its node's work."""

_NOT_REPEATED = frozenset({ActionKind.REBOOT_NODE, ActionKind.RESET_GPU})  # another one is another disruption
_AFTER_STOP = timedelta(seconds=15)  # until the next decision about a step that a guard stopped
_OVER = frozenset({DecisionReason.RECOVERED, DecisionReason.RECOVERED_BY_VALUES})
NOT_PERFORMED = "not performed"  # detail of an action that a guard stopped at the last moment
STOPPED = "stopped after it began"  # detail of one that a guard stopped between two attempts
NOT_DONE = "not done after"  # detail of one that took longer than its limit
# These refusals end by themselves or by a person; later steps wait for it.
_HELD = frozenset(
    {
        DecisionReason.PAUSED,
        DecisionReason.KILL_SWITCH,
        DecisionReason.BREAKER_OPEN,
        DecisionReason.AUTONOMY_OBSERVE,
        DecisionReason.MONITOR_BLIND,
        DecisionReason.RATE_LIMIT,
        DecisionReason.FREEZE,
        DecisionReason.NOT_IN_MAINTENANCE_WINDOW,
        DecisionReason.DISRUPTION_BUDGET,
    }
)

# Nobody else reports these, and they may never end: a budget without room, a service that gets no more replicas.
_OBSTRUCTIONS = frozenset(
    {DecisionReason.DISRUPTION_BUDGET, DecisionReason.SERVICE_MINIMUM, DecisionReason.NO_HEADROOM}
)

Key = tuple[str, ActionKind, EntityRef]


def action_id(session: str, kind: ActionKind, target: EntityRef, ordinal: int) -> str:
    """The idempotency key: the same decision gives the same id."""
    text = f"{session}\n{kind}\n{target.key}\n{ordinal}"
    return f"act-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


class History:
    """Actions by session, kind and target, oldest first."""

    def __init__(self, actions: Iterable[Action]) -> None:
        """``actions`` must hold those of every open session and of the last day."""
        self.actions = sorted(actions, key=lambda action: (action.decided_at, action.id))
        self._by_key: dict[Key, list[Action]] = {}
        for action in self.actions:
            self._by_key.setdefault((action.session, action.kind, action.target), []).append(action)

    def of(self, session: str, kind: ActionKind, target: EntityRef) -> list[Action]:
        """Every decision about one step and one target."""
        return self._by_key.get((session, kind, target), [])

    def of_session(self, session: str) -> list[Action]:
        """Every decision of a session."""
        return [action for action in self.actions if action.session == session]

    def newest(self, session: str, kind: ActionKind, target: EntityRef) -> Action | None:
        """The last decision about one step and one target."""
        result = self.of(session, kind, target)
        return result[-1] if result else None

    def last_performed(self, kind: ActionKind, target: EntityRef) -> datetime | None:
        """Last time this was done to the target, or is in progress, in any session."""
        return max(
            (
                action.ended_at or action.started_at or action.decided_at
                for action in self.actions
                if action.kind is kind and action.target == target and was_performed(action)
            ),
            default=None,
        )

    def last_scaled(self, service: EntityRef) -> Action | None:
        """The action that last changed a number of replicas, in any session; None if there is none."""
        return max(
            (
                action
                for action in self.actions
                if action.kind is ActionKind.SCALE
                and action.target == service
                and action.status is ActionStatus.DONE
                and not action.dry_run
                and "replicas" in action.params
            ),
            key=lambda action: action.ended_at or action.decided_at,
            default=None,
        )

    def performed_since(self, start: datetime) -> int:
        """Number of actions since then, without undo actions."""
        return sum(
            action.decided_at >= start and was_performed(action) and not gives_back(action) for action in self.actions
        )

    def cordoned(self, session: str | None = None) -> frozenset[EntityRef]:
        """Nodes cordoned by us (by one session) and not uncordoned since."""
        return self._standing(CORDONING, ActionKind.UNCORDON, session)

    def shifted(self, session: str | None = None) -> frozenset[EntityRef]:
        """Replicas whose traffic we currently divert."""
        return self._standing(frozenset({ActionKind.SHIFT_TRAFFIC}), ActionKind.RESTORE_TRAFFIC, session)

    def diverted(self) -> frozenset[EntityRef]:
        """Shifted replicas that certainly get no traffic: outlier ejection alone decides by the errors it sees."""
        newest = {action.target: action for action in self._performed(frozenset({ActionKind.SHIFT_TRAFFIC}))}
        return frozenset(target for target in self.shifted() if newest[target].params.get("diverts") is not False)

    def ladder(self, service: EntityRef) -> list[Action]:
        """Performed changes of a service's degrade level, in any session, oldest first."""
        return self._performed(LADDER, service)

    def degraded(self, session: str | None = None) -> frozenset[EntityRef]:
        """Services below level 0 (whose level one session set)."""
        newest = {action.target: action for action in self._performed(LADDER)}
        return frozenset(
            service
            for service, action in newest.items()
            if action.params.get("level", 0) and session in (None, action.session)
        )

    def switches(self, service: EntityRef) -> list[Action]:
        """Performed switches of a service between clusters, in any session, oldest first."""
        return self._performed(frozenset({ActionKind.SWITCH_CLUSTER}), service)

    def switched(self, session: str | None = None) -> frozenset[EntityRef]:
        """Services of which another cluster serves a share (switched by one session)."""
        newest = {action.target: action for action in self._performed(frozenset({ActionKind.SWITCH_CLUSTER}))}
        return frozenset(
            service
            for service, action in newest.items()
            if session in (None, action.session)
            and not (action.params.get("cluster") == service.cluster and action.params.get("share") == 1.0)
        )

    def uncordoned(self, since: datetime) -> frozenset[EntityRef]:
        """Nodes uncordoned by a decision since then."""
        return frozenset(
            action.target
            for action in self.actions
            if action.kind is ActionKind.UNCORDON
            and action.status is ActionStatus.DONE
            and not action.dry_run
            and action.decided_at >= since
        )

    def existing(self) -> frozenset[EntityRef]:
        """Nodes that were taken for deleted, and that the API server still has: their un-cordon failed."""
        ended = (action for action in self.actions if action.status in (ActionStatus.DONE, ActionStatus.FAILED))
        newest = {action.target: action for action in ended if _forgets_node(action)}
        return frozenset(target for target, action in newest.items() if action.status is ActionStatus.FAILED)

    def in_flight(self, kinds: Iterable[ActionKind]) -> list[Action]:
        """Intended or in progress, and not a dry run."""
        selected = frozenset(kinds)
        return [
            action
            for action in self.actions
            if action.kind in selected and action.status in IN_FLIGHT and not action.dry_run
        ]

    def _performed(self, kinds: frozenset[ActionKind], target: EntityRef | None = None) -> list[Action]:
        """Actions that took effect, in the order of their end."""
        effective = [
            action
            for action in self.actions
            if action.kind in kinds
            and target in (None, action.target)
            and action.status is ActionStatus.DONE
            and not action.dry_run
        ]
        return sorted(effective, key=lambda action: action.ended_at or action.decided_at)

    def standing(self, undone: ActionKind, session: str) -> frozenset[EntityRef]:
        """Targets of a session's changes that this kind of action undoes, and that are not undone yet."""
        return self._standing(frozenset(kind for kind, undo in UNDOES.items() if undo is undone), undone, session)

    def _standing(self, done: frozenset[ActionKind], undone: ActionKind, session: str | None) -> frozenset[EntityRef]:
        targets: set[EntityRef] = set()
        ordered = sorted(self.actions, key=lambda action: action.ended_at or action.decided_at)
        for action in ordered:
            if (
                action.dry_run
                or action.params.get("undo") == "none"
                or not (action.status is ActionStatus.DONE or _is_partly_done(action))
            ):
                continue
            if action.kind in done and session in (None, action.session):
                targets.add(action.target)
            elif action.kind is undone:
                targets.discard(action.target)
        return frozenset(targets)


def _forgets_node(action: Action) -> bool:
    """True for the un-cordon of a node that was taken for deleted, unless a guard stopped it."""
    deleted = action.kind is ActionKind.UNCORDON and bool(action.params.get("deleted"))
    return deleted and not stopped_by_guard(action)


def _is_partly_done(action: Action) -> bool:
    """True for a drain that has begun: it cordons first, whatever becomes of the evictions."""
    begun = action.started_at is not None and not action.detail.startswith(NOT_PERFORMED)
    return action.kind is ActionKind.DRAIN and begun


def stopped_by_guard(action: Action) -> bool:
    """True for an action that a guard stopped at the last moment, or between two attempts."""
    return action.detail.startswith((NOT_PERFORMED, STOPPED))


def is_undecided(action: Action) -> bool:
    """True for an action that a guard stopped: its step is decided again, and goes on where it was stopped.

    False for a reboot that was stopped after it began: it may have happened.
    """
    return stopped_by_guard(action) and (action.kind not in _NOT_REPEATED or action.detail.startswith(NOT_PERFORMED))


def was_performed(action: Action) -> bool:
    """True for an action that was performed or will be. One that a guard stopped before its start changed nothing."""
    return action.status in PERFORMED and not action.detail.startswith(NOT_PERFORMED)


def stop_holds(before: Sequence[Action], now: datetime, longest: timedelta) -> bool:
    """True for a short time after a guard stopped the newest action of a step: it doubles with each stop in a row.

    Another decision at once would meet the same guard again.
    """
    stops = 0
    for action in reversed(before):
        if not stopped_by_guard(action):
            break
        stops += 1
    if not stops:
        return False
    wait = min(longest, _AFTER_STOP * (1 << min(stops - 1, 10)))
    return now - (before[-1].ended_at or before[-1].decided_at) < wait


def objection_of(action: Action) -> GuardAnswer | None:
    """The objection for which an action was refused; None if it was not."""
    if action.status is not ActionStatus.REFUSED:
        return None
    given = (answer for answer in action.objections if answer.reason is action.reason)
    return next(given, GuardAnswer("", action.decision, action.reason, action.detail))


def obstructed_since(before: Sequence[Action]) -> datetime | None:
    """The time since which a guard has refused a step for something that may never end; None if none does now."""
    since: datetime | None = None
    for action in reversed(before):
        if action.status is not ActionStatus.REFUSED or action.reason not in _OBSTRUCTIONS:
            break
        since = action.decided_at
    return since


def exceeded_limit(action: Action) -> bool:
    """True for an action that was not done within its time limit. Its result is not known."""
    return action.status is ActionStatus.FAILED and action.detail.startswith(NOT_DONE)


class Kinded(Protocol):
    """An action or a proposal."""

    @property
    def kind(self) -> ActionKind:
        """Its kind."""
        ...

    @property
    def params(self) -> Mapping[str, Any]:
        """Its parameters."""
        ...


def is_half_open(action: Kinded) -> bool:
    """True for a step back into rotation: a shift to a part of the share."""
    return action.kind is ActionKind.SHIFT_TRAFFIC and float(action.params.get("weight", 0.0)) > 0.0


def gives_back(action: Kinded) -> bool:
    """True for an action that takes no capacity: an undo, a diagnostic, or a step back into rotation.

    Traffic that returns to its home cluster is such a step.
    """
    return action.kind in UNDO or is_half_open(action) or bool(action.params.get("fail_back"))


def is_over(actions: Iterable[Action]) -> bool:
    """True if a session has begun to undo: a later fault belongs to a new session."""
    return any(action.reason in _OVER for action in actions)


def rejected(action: Action) -> bool:
    """True if an operator rejected it."""
    return action.reason is DecisionReason.REJECTED_BY_HAND


def is_expired(action: Action, now: datetime, after: timedelta) -> bool:
    """True for a request or recommendation that nobody answered in time."""
    return action.status in WAITING and now - action.decided_at >= after


def begun_at(action: Action) -> datetime:
    """When the time of an action begins to count: at its start, else its approval, else its decision."""
    return action.started_at or action.approved_at or action.decided_at


def settled(action: Action | None, now: datetime, timeout: timedelta) -> bool:
    """True if a step is over: done, failed, refused for good, or rejected. ``timeout`` is that of the action.

    After a guard has stopped it at the last moment, the step is decided again. It is over if nothing was decided.
    """
    if action is None or (action.status is ActionStatus.REFUSED and action.reason in _HELD):
        return False
    if is_undecided(action):
        return now - (action.ended_at or action.decided_at) > timeout
    if action.status in IN_FLIGHT:
        return now - begun_at(action) > timeout
    return action.status not in WAITING
