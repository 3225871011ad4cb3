"""Return of a cordoned node: after a hardware fault only once a diagnostic has passed. Pure.

The node is healthy by values already. Without a configured diagnostic it returns by values alone (safety rule 6), and
the reason names it. A failed diagnostic, or one that does not end, keeps the node out and pages a person. One that a
guard stopped has no result, and is repeated.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from enum import StrEnum

from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    DecisionReason,
    EntityRef,
    Layer,
    RemediationSession,
)
from outrider.vocabulary.faults import faults, layer_of
from remediation.decide.context import DecisionContext
from remediation.decide.history import CORDONING, IN_FLIGHT, exceeded_limit, stopped_by_guard

COUNTS_FOR = timedelta(minutes=2)  # a node that stays out for another reason is tested again before its return
_NOTICED_WITHIN = timedelta(minutes=2)  # by then metrics show a cordon
FAILED_TEXT = "playbooks.diagnostic_failed"
ENDLESS_TEXT = "playbooks.diagnostic_endless"


class Return(StrEnum):
    """The next step of a node that is healthy by values."""

    UNCORDON = "uncordon"
    DIAGNOSE = "diagnose"
    WAIT = "wait"
    STAY_OUT = "stay_out"


@dataclass(frozen=True, slots=True)
class NodeReturn:
    """The next step, the reason of an un-cordon, and the text for a person if the node stays out."""

    step: Return
    reason: DecisionReason = DecisionReason.RECOVERED
    page: str = ""


def decide_return(
    context: DecisionContext, session: RemediationSession, node: EntityRef, fault: str | None
) -> NodeReturn:
    """Decides about a node that this session cordoned and that is healthy by values.

    ``fault`` is that of the session's incident; the cordon itself names it as well, unless a rule caused it. An unknown
    fault may be one of the hardware.
    """
    cordons = [action for action in context.history.of_session(session.id) if _is_cordon_of(action, node)]
    named = next((name for action in cordons if (name := str(action.params.get("fault", ""))) in faults()), fault)
    hardware = layer_of(named) is Layer.HARDWARE
    if _is_released(context, cordons, node) or not (hardware or named is None):
        return NodeReturn(Return.UNCORDON)
    if context.policy.diagnostic and not context.policy.dry_run:
        return _by_diagnostic(context, session, node)
    return NodeReturn(Return.UNCORDON, DecisionReason.RECOVERED_BY_VALUES if hardware else DecisionReason.RECOVERED)


def _by_diagnostic(context: DecisionContext, session: RemediationSession, node: EntityRef) -> NodeReturn:
    newest = _newest(context, node)
    if newest is None or newest.decided_at < session.opened_at:
        return NodeReturn(Return.DIAGNOSE)
    if newest.status in IN_FLIGHT:
        endless = context.now - newest.decided_at >= context.policy.diagnostic_timeout
        return NodeReturn(Return.STAY_OUT, page=ENDLESS_TEXT) if endless else NodeReturn(Return.WAIT)
    disturbed = _disturbed_since(context, node, newest)
    if newest.status is ActionStatus.FAILED:
        if disturbed or stopped_by_guard(newest):
            return NodeReturn(Return.DIAGNOSE)
        return NodeReturn(Return.STAY_OUT, page=ENDLESS_TEXT if exceeded_limit(newest) else FAILED_TEXT)
    ended = newest.ended_at or newest.decided_at
    if newest.status is ActionStatus.DONE and not disturbed and context.now - ended <= COUNTS_FOR:
        return NodeReturn(Return.UNCORDON)
    return NodeReturn(Return.DIAGNOSE)


def _newest(context: DecisionContext, node: EntityRef) -> Action | None:
    runs = [
        action
        for action in context.history.actions
        if action.kind is ActionKind.RUN_DIAGNOSTIC and action.target == node and not action.dry_run
    ]
    return runs[-1] if runs else None


def _disturbed_since(context: DecisionContext, node: EntityRef, run: Action) -> bool:
    """True if another repair of the node began after the diagnostic, which therefore does not cover that fault."""
    repairs = (ActionKind.CORDON, ActionKind.DRAIN, ActionKind.RESET_GPU, ActionKind.REBOOT_NODE)
    return any(
        action.kind in repairs
        and action.status not in (ActionStatus.REFUSED, ActionStatus.CANCELLED)
        and action.decided_at > run.decided_at
        and (action.target == node or node in context.topology.below(action.target, node.kind))
        for action in context.history.actions
    )


def _is_cordon_of(action: Action, node: EntityRef) -> bool:
    return action.kind in CORDONING and action.target == node and action.status is not ActionStatus.REFUSED


def _is_released(context: DecisionContext, cordons: list[Action], node: EntityRef) -> bool:
    """True if an operator un-cordoned the node: the control plane has reported it as schedulable long enough."""
    ended = [action.ended_at for action in cordons if action.ended_at is not None]
    return node in context.facts.schedulable and bool(ended) and context.now - max(ended) >= _NOTICED_WITHIN
