"""Operator limits, fleet state, and decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from math import floor
from typing import Final

from outrider.model import (
    Action,
    ActionKind,
    BreakerState,
    EntityRef,
    GuardAnswer,
    HoldReason,
    Incident,
    IncidentProgress,
    RemediationSession,
    StepStatus,
)
from outrider.topology import Topology
from remediation.decide.autonomy import AutonomyLevels, Environment
from remediation.decide.owners import Owners
from remediation.decide.service_entry import ServiceEntry
from remediation.decide.service_load import ServiceLoad
from remediation.decide.time_windows import TimeWindow

DISRUPTIVE: Final = frozenset(
    {
        ActionKind.DRAIN,
        ActionKind.RESTART_POD,
        ActionKind.DELETE_STUCK_POD,
        ActionKind.ROLLBACK,
        ActionKind.SLEEP_ENGINE,
        ActionKind.DRAIN_ENGINE,
        ActionKind.RESET_GPU,
        ActionKind.REBOOT_NODE,
        ActionKind.SWITCH_CLUSTER,
    }
)
"""Kinds that wait for a maintenance window unless the operator names others."""
ACTION_TIME_LIMIT: Final = timedelta(minutes=10)
"""An action that is not done after this time has failed, unless its kind has a limit of its own."""


@dataclass(frozen=True, slots=True)
class BreakerLimits:
    """The breaker opens if more than ``max_unsuccessful`` actions within ``window`` did not help.

    They must also be more than ``max_unsuccessful_ratio`` of the performed ones. An action did not help if it failed,
    or if its target still has an alert ``recovers_within`` after it ended.
    """

    window: timedelta = timedelta(hours=1)
    max_unsuccessful: int = 3
    max_unsuccessful_ratio: float = 0.5
    recovers_within: timedelta = timedelta(minutes=10)


@dataclass(frozen=True, slots=True)
class HalfOpen:
    """Return of a diverted replica: ``weights`` of its share, each for ``time``, then all of it.

    An alert on the replica meanwhile diverts it again. Without weights it returns at once. A replica that nobody has
    repaired or restarted is tried only after ``hold``: without traffic its faults do not show.
    """

    weights: tuple[float, ...] = (0.01, 0.1)
    time: timedelta = timedelta(seconds=30)
    hold: timedelta = timedelta(minutes=10)


def _names(service: EntityRef) -> tuple[str, str]:
    """The names of a service in the configuration."""
    return f"{service.namespace}/{service.name}", service.name


@dataclass(frozen=True, slots=True)
class Policy:
    """Limits set by the operator.

    ``autonomy`` are the levels of the general case, of playbooks, services and environments. ``disruptive`` kinds wait
    for a maintenance window of the service, if it has one. During a freeze nothing is done but undo. Kinds of
    ``two_person`` need two approvals. A request for approval expires after ``approval_expires``.
    Circuit breakers count nodes in absolute numbers and as a ratio of the fleet. One scale-in removes at most
    ``scale_in_step_ratio`` of the replicas (at least one), then waits for ``scale_in_cooldown``, so that a wrong plan
    is noticed early. ``service_minimum`` is the minimum number of serving replicas, ``service_minimums`` that of
    services as name or namespace/name, and ``ceilings`` their most replicas. ``fixed_nodes``: no node joins the
    clusters, so that a replica without a free GPU never starts. ``plan_acts`` False is shadow
    mode: plans cause no actions. With ``diagnostic`` a node that was cordoned for a hardware fault returns only after a
    passed diagnostic, which may take up to ``diagnostic_timeout``. At most ``max_ejected_ratio`` of the serving
    replicas of a service are out of rotation because of us. ``writes_replicas``: SCALE patches the workload itself, not
    its autoscaler. ``ejecting`` are services, as name or namespace/name, whose route is only an outlier detection.
    ``time_limits`` replace ``ACTION_TIME_LIMIT`` for some kinds. ``clusters`` are by kind: the only cluster that its
    performer reaches; other kinds reach every cluster. ``unperformed`` are kinds that nothing configured can perform.
    """

    autonomy: AutonomyLevels = field(default_factory=AutonomyLevels)
    environments: Mapping[str, Environment] = field(default_factory=dict)
    maintenance_windows: tuple[TimeWindow, ...] = ()
    freezes: tuple[TimeWindow, ...] = ()
    disruptive: frozenset[ActionKind] = DISRUPTIVE
    two_person: frozenset[ActionKind] = frozenset()
    approval_expires: timedelta = timedelta(minutes=30)
    breaker: BreakerLimits = field(default_factory=BreakerLimits)
    dry_run: bool = True
    max_cordoned_nodes: int = 2
    max_cordoned_ratio: float = 0.2
    max_actions_per_hour: int = 20
    cooldown: timedelta = timedelta(minutes=10)
    scale_in_cooldown: timedelta = timedelta(minutes=30)
    scale_in_step_ratio: float = 0.25
    service_minimum: int = 1
    service_minimums: Mapping[str, int] = field(default_factory=dict)
    ceilings: Mapping[str, int] = field(default_factory=dict)
    fixed_nodes: bool = False
    min_confidence: float = 0.6
    ask_for: frozenset[ActionKind] = frozenset()
    plan_acts: bool = True
    diagnostic: bool = False
    diagnostic_timeout: timedelta = timedelta(minutes=30)
    half_open: HalfOpen = HalfOpen()
    max_ejected_ratio: float = 0.5
    writes_replicas: bool = False
    ejecting: frozenset[str] = frozenset()
    time_limits: Mapping[ActionKind, timedelta] = field(default_factory=dict)
    clusters: Mapping[ActionKind, str] = field(default_factory=dict)
    unperformed: frozenset[ActionKind] = frozenset()

    def time_limit(self, kind: ActionKind) -> timedelta:
        """Time after which an action of this kind that is not done has failed."""
        return self.time_limits.get(kind, ACTION_TIME_LIMIT)

    def unreached(self, kind: ActionKind, target: EntityRef) -> str:
        """The target's cluster and the only one that the performer reaches, if they differ; else empty."""
        reached = self.clusters.get(kind, target.cluster)
        return "" if reached == target.cluster else f"{target.cluster}, not {reached}"

    def ejects(self, service: EntityRef) -> bool:
        """True if a shift of the service only enables outlier ejection, which may leave a replica its traffic."""
        return bool(self.ejecting & set(_names(service)))

    def scale_in_to(self, current: int, wanted: int) -> int:
        """Replicas after one scale-in step towards ``wanted``."""
        return max(wanted, current - max(1, floor(current * self.scale_in_step_ratio)))

    def minimum_of(self, service: EntityRef) -> int:
        """The minimum number of serving replicas of a service; the name with its namespace takes precedence."""
        named = (self.service_minimums[name] for name in _names(service) if name in self.service_minimums)
        return next(named, self.service_minimum)

    def within_ceiling(self, service: EntityRef, replicas: int) -> int:
        """The replicas, at most the configured ceiling of the service."""
        return min([replicas, *(self.ceilings[name] for name in _names(service) if name in self.ceilings)])

    def node_allowed(self, ours: int, others: int, total: int) -> bool:
        """True if one more node may be cordoned besides ``ours`` and those of ``others``.

        The ratio never rounds down to zero: a pool of three may still repair one node.
        """
        return ours < self.max_cordoned_nodes and ours + others < self.node_share(total)

    def node_share(self, total: int) -> int:
        """The most nodes of a fleet that may be out of service."""
        return max(1, floor(self.max_cordoned_ratio * total)) if self.max_cordoned_ratio > 0 else 0

    def ejection_allowed(self, ejected: int, total: int) -> bool:
        """True if ``ejected`` of ``total`` serving replicas may be out of rotation; one is always allowed."""
        return ejected <= self.ejection_share(total)

    def ejection_share(self, total: int) -> int:
        """The most of ``total`` serving replicas that may be out of rotation."""
        return max(1, floor(self.max_ejected_ratio * total)) if self.max_ejected_ratio > 0 else 0


@dataclass(frozen=True, slots=True)
class FleetFacts:
    """Current state of the fleet.

    ``untrusted`` are components with absent, stale, reset or partial values. ``ready_replicas`` and
    ``needed_replicas`` are by service; a missing service is unknown. ``healthy`` are components with fresh values and
    no contrary evidence. ``burning`` are services that spend their error budget. ``not_ready`` are nodes that the
    control plane itself reports as unreachable. ``blind``: monitoring is lost; ``blind_clusters`` are those whose loss
    is reported. ``killed``: the kill-switch file is present. ``incidents`` are the open
    ones by id. ``owners`` are other programs and people, by what they manage.

    ``serving`` are the replicas that ``ready_replicas`` counts, None if only those in ``healthy`` are known.
    ``carrying_replicas`` carry the current load of a service without a buffer. ``unschedulable`` and ``schedulable``
    are nodes as the control plane reports them, ``asleep`` and ``awake`` replicas as their engines report.
    ``ready_pods`` pass their readiness probe. ``changed_at`` is the last change of a service, ``started_at``
    the start of an engine process. ``alerted`` are (entity, fault) of active alerts, ``scores`` the highest score (0-1)
    of each. ``reported_only`` are incidents whose cause only other monitors report. ``deleted_nodes`` are nodes that we
    cordoned and that the cluster no longer has; they count for no limit.
    ``listed_clusters`` have a listed service whose pods their control plane has reported for some minutes;
    ``recent_services`` have had values meanwhile.
    ``load`` and ``entries`` are the queues and the probed entries of services in the last minutes; a missing service
    is unknown. ``traffic_weights`` of services with skewed traffic are whole numbers by replica name.
    """

    paused: bool = False
    killed: bool = False
    breaker: BreakerState = field(default_factory=BreakerState)
    blind: bool = False
    blind_clusters: frozenset[str] = frozenset()
    untrusted: frozenset[EntityRef] = frozenset()
    nodes_total: int = 0
    nodes_cordoned_by_us: frozenset[EntityRef] = frozenset()
    nodes_cordoned_by_others: frozenset[EntityRef] = frozenset()
    ready_replicas: Mapping[EntityRef, int] = field(default_factory=dict)
    needed_replicas: Mapping[EntityRef, int] = field(default_factory=dict)
    healthy: frozenset[EntityRef] = frozenset()
    burning: frozenset[EntityRef] = frozenset()
    not_ready: frozenset[EntityRef] = frozenset()
    serving: frozenset[EntityRef] | None = None
    carrying_replicas: Mapping[EntityRef, int] = field(default_factory=dict)
    unschedulable: frozenset[EntityRef] = frozenset()
    schedulable: frozenset[EntityRef] = frozenset()
    asleep: frozenset[EntityRef] = frozenset()
    awake: frozenset[EntityRef] = frozenset()
    ready_pods: frozenset[EntityRef] = frozenset()
    changed_at: Mapping[EntityRef, datetime] = field(default_factory=dict)
    started_at: Mapping[EntityRef, datetime] = field(default_factory=dict)
    alerted: frozenset[tuple[EntityRef, str]] = frozenset()
    scores: Mapping[tuple[EntityRef, str], float] = field(default_factory=dict)
    reported_only: frozenset[str] = frozenset()
    deleted_nodes: frozenset[EntityRef] = frozenset()
    listed_clusters: frozenset[str] = frozenset()
    recent_services: frozenset[EntityRef] = frozenset()
    load: Mapping[EntityRef, ServiceLoad] = field(default_factory=dict)
    entries: Mapping[EntityRef, ServiceEntry] = field(default_factory=dict)
    traffic_weights: Mapping[EntityRef, Mapping[str, int]] = field(default_factory=dict)
    owners: Mapping[EntityRef, Owners] = field(default_factory=dict)
    incidents: Mapping[str, Incident] = field(default_factory=dict, compare=False, repr=False)
    topology: Topology = field(default_factory=Topology, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Hold:
    """Nothing new is done about ``subject``: an incident's id, or the scaling of a service.

    ``objection`` is that of the guard that holds the next step.
    """

    subject: str
    reason: HoldReason
    objection: GuardAnswer | None = None


@dataclass(frozen=True, slots=True)
class StepResults:
    """Decisions about one session, and the states of its steps."""

    actions: Sequence[Action] = ()
    steps: Sequence[StepStatus] = ()


@dataclass(frozen=True, slots=True)
class Decisions:
    """New and changed actions (rejected and cancelled ones too), changed sessions, holds, and states of steps.

    ``breaker`` is its state if it opened in this round. ``progress`` is by incident, for status messages.
    """

    actions: tuple[Action, ...] = ()
    sessions: tuple[RemediationSession, ...] = ()
    holds: tuple[Hold, ...] = ()
    steps: tuple[StepStatus, ...] = ()
    breaker: BreakerState | None = None
    progress: Mapping[str, IncidentProgress] = field(default_factory=dict)
