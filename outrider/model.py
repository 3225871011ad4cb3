"""The types that cross package lines.

Frozen and slotted. Datetimes are aware and in UTC. Units end names: ``_seconds``, ``_ratio``
(0-1), ``_per_second``. Arrays carry instants as float64 unix seconds, because numpy has no
aware datetimes. "No answer" is a type of its own (``NoVerdict``, ``NoRecommendation``), and every
decision carries an enum reason, which goes unchanged to the log, the metric label, the store and
the dashboard.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import IntEnum, StrEnum
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from outrider.fitting import MOST_NAME_BYTES, fitted, is_fit

Floats = NDArray[np.float64]
Statuses = NDArray[np.uint8]


# --- entities -------------------------------------------------------------------------------------


class EntityKind(StrEnum):
    """What a signal can be about. ``device`` of ``signals.yaml`` is GPU, ``engine_instance`` REPLICA."""

    CLUSTER = "cluster"
    POOL = "pool"
    NODE = "node"
    SWITCH = "switch"
    STORAGE = "storage"
    GPU = "gpu"
    PORT = "port"
    POD = "pod"
    CONTAINER = "container"
    REPLICA = "replica"
    WORKLOAD = "workload"
    SERVICE = "service"


@dataclass(frozen=True, slots=True)
class EntityRef:
    """One component. A replica is one TP x PP group with one scheduler.

    Names come from outside: what no store could keep is replaced, and what is too long is cut
    (``outrider.fitting``), so that one bad label harms nothing but its own entity.
    """

    cluster: str
    kind: EntityKind
    namespace: str | None
    name: str

    def __post_init__(self) -> None:
        """The usual name is looked at, nothing more."""
        if not is_fit(f"{self.cluster}{self.namespace}{self.name}"):
            object.__setattr__(self, "name", fitted(self.name, MOST_NAME_BYTES))
            object.__setattr__(self, "cluster", fitted(self.cluster, MOST_NAME_BYTES // 2))
            if self.namespace:
                object.__setattr__(self, "namespace", fitted(self.namespace, MOST_NAME_BYTES // 2))

    def __str__(self) -> str:
        """``kind/name``, with the namespace between them where there is one."""
        return "/".join(part for part in (self.kind.value, self.namespace, self.name) if part)

    @property
    def key(self) -> str:
        """The one spelling used as a database and dictionary key: cluster/kind/namespace/name."""
        return f"{self.cluster}/{self.kind.value}/{self.namespace or ''}/{self.name}"

    @staticmethod
    def from_key(key: str) -> EntityRef:
        """Read back what ``key`` wrote. Raises ValueError when a part is missing."""
        cluster, kind, namespace, name = key.split("/", 3)
        return EntityRef(cluster, EntityKind(kind), namespace or None, name)


# --- signals --------------------------------------------------------------------------------------


class SignalKind(StrEnum):
    """How a column of values is read. Counters are stored as DELTA: the increase since the last scrape."""

    GAUGE = "gauge"
    DELTA = "delta"
    STATE = "state"
    HISTOGRAM = "histogram"


class Statistic(StrEnum):
    """What a step of a window says of a gauge or state that had several values in it."""

    LAST = "last"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"


class Layer(StrEnum):
    """Where a signal, a fault or an incident sits."""

    HARDWARE = "hardware"
    PLATFORM = "platform"
    ENGINE = "engine"
    TRAFFIC = "traffic"
    BUSINESS = "business"
    MONITORING = "monitoring"


class CellStatus(IntEnum):
    """Why a cell holds the value it holds.

    Safety rule 1 (hold scale-in and cordon) is about ABSENT, STALE, RESET and UNTRUSTED; rule 2
    (zero traffic still scales in) about UNDEFINED.
    """

    PRESENT = 0
    UNDEFINED = 1  # 0/0 on a fresh page: nothing happened, so the ratio or quantile has no value
    BELOW_FIRST_BUCKET = 2  # the value is the first bound; the truth lies below it
    ABSENT = 3
    STALE = 4
    RESET = 5
    UNTRUSTED = 6


HOLDING_STATUSES = (CellStatus.ABSENT, CellStatus.STALE, CellStatus.RESET, CellStatus.UNTRUSTED)
SUM_BUCKET = -1


@dataclass(frozen=True, slots=True)
class SignalKey:
    """One column of values.

    ``quantile`` is set on a quantile derived from a histogram. ``bucket`` is set on a raw histogram
    column: the index into the signal's fixed ladder (the last index is +Inf) whose increments the
    column holds, not cumulated over buckets; ``SUM_BUCKET`` holds the increase of the sum.
    """

    name: str
    quantile: float | None = None
    bucket: int | None = None

    def __str__(self) -> str:
        """``name``, ``name@0.99`` or ``name#3``: the spelling used in the store."""
        if self.quantile is not None:
            return f"{self.name}@{self.quantile:g}"
        return self.name if self.bucket is None else f"{self.name}#{self.bucket}"

    @staticmethod
    def parse(text: str) -> SignalKey:
        """Read back what ``str`` wrote."""
        if "@" in text:
            name, quantile = text.split("@", 1)
            return SignalKey(name, quantile=float(quantile))
        if "#" in text:
            name, bucket = text.split("#", 1)
            return SignalKey(name, bucket=int(bucket))
        return SignalKey(text)


class TrustVerdict(StrEnum):
    """What to believe of one batch as a whole."""

    FRESH = "fresh"
    FAILED = "failed"  # the scrape failed: there are no values beside target_up
    STALE = "stale"
    RESET = "reset"
    PARTIAL = "partial"  # what stood on the page before is missing: devices until they are back, all else for a while
    CLOCK_STEP = "clock_step"
    FROZEN = "frozen"  # what always moves on this page has stood still: somebody serves an old one
    DUPLICATE = "duplicate"  # a series stands on the page more than once; the first one counts
    EXPLOSION = "explosion"  # more series than the target may have; only what an adapter reads was kept

    @property
    def code(self) -> float:
        """The value of signal ``target_trust_code``."""
        return float(tuple(TrustVerdict).index(self))

    @property
    def is_doubtful(self) -> bool:
        """True when nothing may be taken away on the word of such a batch (safety rule 1)."""
        return self not in {TrustVerdict.FRESH, TrustVerdict.DUPLICATE, TrustVerdict.EXPLOSION}


@dataclass(frozen=True, slots=True)
class SampleBatch:
    """What one scrape of one target said about the entities of one kind.

    ``values`` and ``status`` have shape (entities, keys). A cell without a value is NaN with the
    status that says why. ``interval_seconds`` is the time since the target's last good scrape, None
    on the first: deltas and rates are about that interval.
    """

    source: str
    scraped_at: datetime
    kind: EntityKind
    keys: tuple[SignalKey, ...]
    entities: tuple[EntityRef, ...]
    values: Floats
    status: Statuses
    interval_seconds: float | None = None
    trust: TrustVerdict = TrustVerdict.FRESH


class EventKind(StrEnum):
    """What sort of happening a float matrix cannot hold."""

    XID = "xid"
    KUBERNETES = "kubernetes"
    CHANGE = "change"
    LOG = "log"
    ACTION = "action"


@dataclass(frozen=True, slots=True)
class Event:
    """A happening at an instant. Two events with one ``dedup_key`` are one."""

    id: str
    kind: EventKind
    entity: EntityRef
    at: datetime
    source: str
    code: str
    attributes: Mapping[str, str] = field(default_factory=dict)
    dedup_key: str = ""


@dataclass(frozen=True, slots=True)
class Window:
    """What a detector reads: the recent past of the entities of one kind.

    ``values`` and ``status`` have shape (entities, times, keys); ``times`` are unix seconds, rising,
    one per cycle and not necessarily evenly spaced. ``events`` are those of this kind of entity
    inside the window. Raises nothing; a column that was never collected is all ABSENT.
    """

    kind: EntityKind
    entities: tuple[EntityRef, ...]
    times: Floats
    keys: tuple[SignalKey, ...]
    values: Floats
    status: Statuses
    step: timedelta
    events: tuple[Event, ...] = ()
    _places: Mapping[SignalKey, int] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        """Detectors ask for hundreds of columns a cycle: none of them is searched for."""
        object.__setattr__(self, "_places", {key: place for place, key in enumerate(self.keys)})

    def column(self, key: SignalKey | str) -> Floats:
        """The (entities, times) values of one key; all NaN when the window does not carry it."""
        place = self._places.get(SignalKey(key) if isinstance(key, str) else key)
        return np.full(self.values.shape[:2], np.nan) if place is None else self.values[:, :, place]

    def column_status(self, key: SignalKey | str) -> Statuses:
        """The (entities, times) statuses of one key; all ABSENT when the window does not carry it."""
        place = self._places.get(SignalKey(key) if isinstance(key, str) else key)
        if place is None:
            return np.full(self.values.shape[:2], CellStatus.ABSENT, dtype=np.uint8)
        return self.status[:, :, place]


# --- detection ------------------------------------------------------------------------------------


class Priority(StrEnum):
    """P0 wakes two people, P3 waits for the weekly report."""

    P0 = "P0"
    P1 = "P1"
    P2 = "P2"
    P3 = "P3"

    @property
    def rank(self) -> int:
        """0 for P0: smaller is more urgent."""
        return int(self.value[1])


@dataclass(frozen=True, slots=True)
class Interval:
    """A closed range; None is an open end."""

    low: float | None
    high: float | None


@dataclass(frozen=True, slots=True)
class TimeRange:
    """Half-open: start <= t < end."""

    start: datetime
    end: datetime


@dataclass(frozen=True, slots=True)
class Evidence:
    """One observation that speaks for (or against) a finding. ``text`` is an i18n key."""

    signal: str
    observed: float | None
    expected: Interval | None = None
    text: str = ""
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Finding:
    """A detector saw something out of the ordinary.

    ``fault`` is the fault id the detector itself believes in, None when it only saw a deviation.
    ``score`` is 0-1. ``fingerprint`` is stable while the same thing goes on: detector, entity, fault
    or signal.
    """

    detector: str
    entity: EntityRef
    signals: tuple[str, ...]
    severity: Priority
    score: float
    observed: float | None
    expected: Interval | None
    window: TimeRange
    evidence: tuple[Evidence, ...]
    fingerprint: str
    fault: str | None = None


class NoVerdictReason(StrEnum):
    """Why a detector says nothing about an entity."""

    WARMING_UP = "warming_up"
    NO_VALUES = "no_values"
    UNTRUSTED_VALUES = "untrusted_values"
    NOT_ENOUGH_PEERS = "not_enough_peers"
    NO_EXPECTATION = "no_expectation"
    CLOCK_STEP = "clock_step"


@dataclass(frozen=True, slots=True)
class NoVerdict:
    """The detector cannot say, and why. ``entity`` None means: about every entity of the window."""

    detector: str
    entity: EntityRef | None
    reason: NoVerdictReason


@dataclass(frozen=True, slots=True)
class DetectorState:
    """What a detector remembers between cycles, as versioned arrays.

    Row i of every per-entity array is about ``entities[i]``. ``version`` is the detector's own: a
    state of another version is dropped and learning starts anew.
    """

    version: int
    entities: tuple[EntityRef, ...]
    arrays: Mapping[str, NDArray[Any]]


# --- alerts and incidents -------------------------------------------------------------------------


class AlertState(StrEnum):
    """pending -> firing -> resolved."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class AlertReason(StrEnum):
    """Why an alert is in its state."""

    CONDITION_SEEN = "condition_seen"
    WAITING_TIME_OVER = "waiting_time_over"
    STILL_TRUE = "still_true"
    CONDITION_GONE = "condition_gone"
    KEPT_WITHOUT_VALUES = "kept_without_values"
    NEVER_FIRED = "never_fired"
    RESOLVED_BY_HAND = "resolved_by_hand"


class MuteReason(StrEnum):
    """Why a firing alert sends nothing."""

    ACKNOWLEDGED = "acknowledged"
    SILENCED = "silenced"
    FOLDED = "folded"
    INHIBITED = "inhibited"


@dataclass(frozen=True, slots=True)
class Alert:
    """A rule holds for an entity. ``fingerprint`` is (rule, entity)."""

    fingerprint: str
    rule: str
    priority: Priority
    entity: EntityRef
    state: AlertState
    reason: AlertReason
    starts_at: datetime
    seen_at: datetime
    ends_at: datetime | None = None
    value: float | None = None
    fault: str | None = None
    labels: Mapping[str, str] = field(default_factory=dict)
    annotations: Mapping[str, str] = field(default_factory=dict)
    muted_by: MuteReason | None = None
    incident: str | None = None


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A candidate cause. ``confidence`` is 0-1."""

    entity: EntityRef
    fault: str
    confidence: float
    evidence: tuple[Evidence, ...] = ()


@dataclass(frozen=True, slots=True)
class Rejected:
    """A candidate that was looked at and turned down; ``why`` is an i18n key."""

    entity: EntityRef
    fault: str
    why: str


@dataclass(frozen=True, slots=True)
class TimelineEntry:
    """One line of an incident's story. ``what`` is an i18n key, ``arguments`` fill it."""

    at: datetime
    what: str
    arguments: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Incident:
    """One thing that is broken: the suspected cause and everything folded under it.

    ``hypotheses`` are best first, the first one is the suspected cause; empty means "cause unknown".
    ``alerts`` are fingerprints. ``pages`` counts first notifications to a person.
    """

    id: str
    layer: Layer
    priority: Priority
    opened_at: datetime
    hypotheses: tuple[Hypothesis, ...]
    rejected: tuple[Rejected, ...]
    alerts: tuple[str, ...]
    timeline: tuple[TimelineEntry, ...]
    updated_at: datetime
    resolved_at: datetime | None = None
    acknowledged_at: datetime | None = None
    acknowledged_by: str | None = None
    services: tuple[str, ...] = ()
    pages: int = 0

    @property
    def suspected_cause(self) -> Hypothesis | None:
        """The best hypothesis, None when the cause is unknown."""
        return self.hypotheses[0] if self.hypotheses else None


# --- planning -------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class BacktestScore:
    """Error of a forecaster on history it had not seen. WAPE is a ratio; None means not measured."""

    wape: float | None
    wape_rival: float | None
    coverage90: float | None
    folds: int


@dataclass(frozen=True, slots=True)
class Forecast:
    """What a signal will do. ``times`` are unix seconds; each quantile maps to values of that length."""

    signal: str
    entity: EntityRef
    made_at: datetime
    step: timedelta
    times: Floats
    quantiles: Mapping[float, Floats]
    model: str
    score: BacktestScore
    why_model: str = ""


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """What was forecast for one instant at one horizon, kept to be held against what came.

    ``at`` is the start of a step of the history that the forecast was made from; ``quantiles`` map to
    values in the unit of the signal.
    """

    made_at: datetime
    entity: EntityRef
    signal: str
    model: str
    horizon: timedelta
    at: datetime
    quantiles: Mapping[float, float]


class PlanReason(StrEnum):
    """Why a recommendation says what it says."""

    FORECAST_PEAK = "forecast_peak"
    LOAD_NOW = "load_now"
    AT_FLOOR = "at_floor"
    AT_CEILING = "at_ceiling"
    ENOUGH = "enough"
    SURVIVORS_TOO_BUSY = "survivors_too_busy"
    SCALE_IN_HELD_NO_VALUES = "scale_in_held_no_values"


class NoPlanReason(StrEnum):
    """Why there is no recommendation."""

    NO_HISTORY = "no_history"
    NO_CALIBRATION = "no_calibration"
    NO_VALUES = "no_values"
    NO_REPLICAS = "no_replicas"


@dataclass(frozen=True, slots=True)
class Calibration:
    """What one running engine of a service does, measured under load.

    ``batch`` is the sequences running at once in one replica. ``startup_seconds`` is the p95 of
    trigger to first served request; ``startup_source`` says where it comes from. ``intervals`` holds the
    5th and 95th percentile of the samples of a measured figure, by its field's name. ``measured_at``
    is the end of the measured span, None for what was not measured.
    """

    service: EntityRef
    gpu_type: str
    tokens_per_request: float
    batch: float
    tokens_per_second_per_sequence: float
    tensor_parallel: int
    pipeline_parallel: int
    startup_seconds: float
    samples: int
    origin: Literal["measured", "configured", "prior"]
    startup_source: str = ""
    model: str = ""
    engine_version: str = ""
    measured_at: datetime | None = None
    intervals: Mapping[str, Interval] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FleetService:
    """A service as the planner sees it now. ``floor`` and ``ceiling`` are replicas."""

    service: EntityRef
    gpu_type: str
    current_replicas: int
    ready_replicas: int
    floor: int
    ceiling: int
    price_per_gpu_hour: float | None
    currency: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """How many replicas a service needs, by when, and why. ``derivation`` is the printed arithmetic.

    ``need_at`` is when the load is there, ``needed_by`` when the replicas must be ordered: that moment
    minus the measured start-up time, which is ``lead_time``.
    """

    service: EntityRef
    gpu_type: str
    current_replicas: int
    target_replicas: int
    gpus: int
    floor: int
    ceiling: int
    binding: str
    need_at: datetime | None
    needed_by: datetime | None
    lead_time: timedelta
    cost_per_hour: float | None
    currency: str
    derivation: Mapping[str, Any]
    reason: PlanReason
    made_at: datetime


@dataclass(frozen=True, slots=True)
class NoRecommendation:
    """The planner cannot say, and why."""

    service: EntityRef
    reason: NoPlanReason
    made_at: datetime


@dataclass(frozen=True, slots=True)
class Plan:
    """What the planner said at one instant, and the calibrations it counted with."""

    forecasts: tuple[Forecast, ...] = ()
    recommendations: tuple[Recommendation | NoRecommendation, ...] = ()
    calibrations: tuple[Calibration, ...] = ()


# --- action ---------------------------------------------------------------------------------------


class ActionKind(StrEnum):
    """What remediation can do to a cluster."""

    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    RESTART_POD = "restart_pod"
    SHIFT_TRAFFIC = "shift_traffic"
    RESTORE_TRAFFIC = "restore_traffic"
    SCALE = "scale"
    ROLLBACK = "rollback"


class Verdict(StrEnum):
    """The guard rails' answer."""

    ALLOWED = "allowed"
    REFUSED = "refused"
    ASK = "ask"


class DecisionReason(StrEnum):
    """Why the guard rails answered so. The first that applies, in this order of severity."""

    WITHIN_LIMITS = "within_limits"
    PAUSED = "paused"
    MONITOR_BLIND = "monitor_blind"
    VALUES_NOT_TRUSTED = "values_not_trusted"
    LOW_CONFIDENCE = "low_confidence"
    AUTONOMY_SUGGEST = "autonomy_suggest"
    NEEDS_APPROVAL = "needs_approval"
    COOLDOWN = "cooldown"
    RATE_LIMIT = "rate_limit"
    TOO_MANY_NODES = "too_many_nodes"
    SERVICE_MINIMUM = "service_minimum"
    NO_HEADROOM = "no_headroom"
    NOT_OURS = "not_ours"
    ALREADY_DONE = "already_done"
    NOT_IN_MAINTENANCE_WINDOW = "not_in_maintenance_window"
    UNKNOWN_TARGET = "unknown_target"
    APPROVED = "approved"
    REJECTED_BY_HAND = "rejected_by_hand"
    RECOVERED = "recovered"
    EXPIRED = "expired"


class HoldReason(StrEnum):
    """Why nothing new is done about an open incident, or about a plan that wants another number of replicas."""

    CAUSE_UNKNOWN = "cause_unknown"
    NO_PLAYBOOK = "no_playbook"
    RECOVERED = "recovered"
    NO_STEP_DUE = "no_step_due"  # what could be done is under way, was tried, refused, or waits its turn
    NOT_DUE_YET = "not_due_yet"
    SERVICE_IN_TROUBLE = "service_in_trouble"
    STANDS = "stands"  # decided before, and that decision stands


class ActionStatus(StrEnum):
    """Life of an action: an intent is claimed, performed and its outcome recorded."""

    PROPOSED = "proposed"
    WAITING_APPROVAL = "waiting_approval"
    INTENDED = "intended"
    CLAIMED = "claimed"
    DONE = "done"
    DRY_RUN = "dry_run"
    FAILED = "failed"
    REFUSED = "refused"
    CANCELLED = "cancelled"


@dataclass(frozen=True, slots=True)
class Action:
    """One step to take. ``id`` is the idempotency key: the same id is never performed twice."""

    id: str
    session: str
    kind: ActionKind
    target: EntityRef
    params: Mapping[str, Any]
    because: str  # incident id, or "plan"
    dry_run: bool
    decision: Verdict
    reason: DecisionReason
    status: ActionStatus
    decided_at: datetime
    started_at: datetime | None = None
    ended_at: datetime | None = None
    detail: str = ""
    approved_by: str | None = None


class OutcomeStatus(StrEnum):
    """What became of a performed action."""

    DONE = "done"
    ALREADY = "already"
    DRY_RUN = "dry_run"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class Outcome:
    """The record of one performed action."""

    action_id: str
    status: OutcomeStatus
    detail: str
    started_at: datetime
    ended_at: datetime


@dataclass(frozen=True, slots=True)
class RemediationSession:
    """All actions taken for one incident. ``cordoned`` are the nodes this session cordoned."""

    id: str
    incident: str
    opened_at: datetime
    closed_at: datetime | None = None
    cordoned: tuple[EntityRef, ...] = ()


# --- messages -------------------------------------------------------------------------------------


class NotifyReason(StrEnum):
    """Why a message goes out (or why none does)."""

    OPENED = "opened"
    PRIORITY_RAISED = "priority_raised"
    REPEAT = "repeat"
    RESOLVED = "resolved"
    APPROVAL_WANTED = "approval_wanted"
    REPORT = "report"
    TEST = "test"
    NOT_CHANGED = "not_changed"
    MUTED = "muted"


@dataclass(frozen=True, slots=True)
class Message:
    """One message to one channel, kept in the outbox until it is delivered. ``id`` deduplicates."""

    id: str
    channel: str
    reason: NotifyReason
    priority: Priority | None
    incident: str | None
    title: str
    body: str
    created_at: datetime
    language: str = "en"
    link: str | None = None
    is_page: bool = False
    labels: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CycleRecord:
    """What one cycle did, for the audit and for our own health page."""

    id: str
    at: datetime
    duration_seconds: float
    targets: int
    targets_up: int
    signals_written: int
    findings: int
    alerts_firing: int
    incidents_open: int
    sentences: Sequence[str] = ()
    late: int = 0
