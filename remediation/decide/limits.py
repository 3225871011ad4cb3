"""What the operators allow, what the fleet looks like, and what was decided."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from math import floor
from typing import Literal

from outrider.model import Action, ActionKind, EntityRef, HoldReason, RemediationSession

Autonomy = Literal["off", "suggest", "act"]


@dataclass(frozen=True, slots=True)
class Policy:
    """The limits the operators set.

    ``off`` does nothing but undo what Outrider did, ``suggest`` asks about every step, ``act`` performs
    what the guard rails allow. A breaker counts nodes in absolute numbers and as a ratio of the fleet.
    One scale-in takes ``scale_in_step_ratio`` of the replicas at most (and one at least), then waits for
    ``scale_in_cooldown``: a plan that is wrong is noticed before much is gone. ``service_minimum`` is the
    number of serving replicas that is never gone below. ``plan_acts`` False is shadow mode: nothing follows
    from a plan.
    """

    autonomy: Autonomy = "suggest"
    dry_run: bool = True
    max_cordoned_nodes: int = 2
    max_cordoned_ratio: float = 0.2
    max_actions_per_hour: int = 20
    cooldown: timedelta = timedelta(minutes=10)
    scale_in_cooldown: timedelta = timedelta(minutes=30)
    scale_in_step_ratio: float = 0.25
    service_minimum: int = 1
    min_confidence: float = 0.6
    ask_for: frozenset[ActionKind] = frozenset()
    plan_acts: bool = True

    def scale_in_to(self, current: int, wanted: int) -> int:
        """How far one scale-in may go towards ``wanted``."""
        return max(wanted, current - max(1, floor(current * self.scale_in_step_ratio)))

    def node_allowed(self, ours: int, others: int, total: int) -> bool:
        """True when one more node may be cordoned beside ``ours`` and those of ``others``.

        The ratio never rounds down to nothing: a pool of three may still repair one node.
        """
        share = max(1, floor(self.max_cordoned_ratio * total)) if self.max_cordoned_ratio > 0 else 0
        return ours < self.max_cordoned_nodes and ours + others < share


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """The fleet as it is seen now.

    ``untrusted`` are components whose values are absent, stale, reset or partial. ``ready_replicas`` and
    ``needed_replicas`` are by service; a service that is missing is not known. ``healthy`` are components
    with fresh values that nothing speaks against. ``burning`` are services that spend their error budget.
    ``not_ready`` are nodes of which the control plane itself says that it hears nothing.
    """

    paused: bool = False
    blind: bool = False
    untrusted: frozenset[EntityRef] = frozenset()
    nodes_total: int = 0
    nodes_cordoned_by_us: frozenset[EntityRef] = frozenset()
    nodes_cordoned_by_others: frozenset[EntityRef] = frozenset()
    ready_replicas: Mapping[EntityRef, int] = field(default_factory=dict)
    needed_replicas: Mapping[EntityRef, int] = field(default_factory=dict)
    healthy: frozenset[EntityRef] = frozenset()
    burning: frozenset[EntityRef] = frozenset()
    not_ready: frozenset[EntityRef] = frozenset()


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing new is done about ``subject``: an incident's id, or the scaling of a service."""

    subject: str
    reason: HoldReason


@dataclass(frozen=True, slots=True)
class Decisions:
    """New and changed actions (refused and cancelled ones too), changed sessions, and where nothing is done."""

    actions: tuple[Action, ...] = ()
    sessions: tuple[RemediationSession, ...] = ()
    holds: tuple[Hold, ...] = ()
