"""Types shared across packages, frozen and slotted; import them from here.

Datetimes are aware and in UTC. Must not import ``outrider.text`` or ``outrider.vocabulary``.
"""

# Names end with their unit: ``_seconds``, ``_ratio`` (0-1), ``_per_second``. Arrays hold timestamps as float64 unix
# seconds, because numpy has no aware datetimes. "No answer" is a type of its own (``NoVerdict``, ``NoRecommendation``).
# Every decision has an enum reason, which is used unchanged in logs, metric labels, the store and the dashboard.

from __future__ import annotations

from outrider.model.actions import (
    TARGET_KINDS,
    Action,
    ActionKind,
    ActionRequest,
    ActionStatus,
    BreakerState,
    DecisionReason,
    GuardAnswer,
    HoldReason,
    Outcome,
    OutcomeStatus,
    RemediationSession,
    StepState,
    StepStatus,
    Verdict,
)
from outrider.model.alerts import RECEIVED_FROM, SOURCE_LABEL, Alert, AlertReason, AlertState, MuteReason
from outrider.model.cycles import CycleRecord
from outrider.model.entities import EntityKind, EntityRef
from outrider.model.events import Event, EventKind
from outrider.model.findings import (
    DetectorState,
    Evidence,
    Finding,
    Interval,
    NoVerdict,
    NoVerdictReason,
    Priority,
    TimeRange,
)
from outrider.model.incidents import (
    Hypothesis,
    Incident,
    IncidentProgress,
    ProgressLine,
    RejectedHypothesis,
    TimelineEntry,
)
from outrider.model.messages import Message, NotifyReason
from outrider.model.plans import (
    LIVE,
    BacktestScore,
    Calibration,
    EngineLoad,
    FleetService,
    Forecast,
    ForecastPoint,
    LeadPart,
    LeadTime,
    NoPlanReason,
    NoRecommendation,
    Plan,
    PlanReason,
    ReasonText,
    Recommendation,
)
from outrider.model.rollout_stages import AlarmRate, DetectorStatus, ShadowFinding, Stage, StageReason
from outrider.model.samples import Floats, SampleBatch, Statuses, TrustVerdict, Window
from outrider.model.signals import (
    HOLDING_STATUSES,
    SUM_BUCKET,
    CellStatus,
    Layer,
    SignalKey,
    SignalKind,
    Statistic,
    signal_keys,
)
from outrider.model.stored_forecasts import ForecastView

__all__ = [
    "HOLDING_STATUSES",
    "LIVE",
    "RECEIVED_FROM",
    "SOURCE_LABEL",
    "SUM_BUCKET",
    "TARGET_KINDS",
    "Action",
    "ActionKind",
    "ActionRequest",
    "ActionStatus",
    "AlarmRate",
    "Alert",
    "AlertReason",
    "AlertState",
    "BacktestScore",
    "BreakerState",
    "Calibration",
    "CellStatus",
    "CycleRecord",
    "DecisionReason",
    "DetectorState",
    "DetectorStatus",
    "EngineLoad",
    "EntityKind",
    "EntityRef",
    "Event",
    "EventKind",
    "Evidence",
    "Finding",
    "FleetService",
    "Floats",
    "Forecast",
    "ForecastPoint",
    "ForecastView",
    "GuardAnswer",
    "HoldReason",
    "Hypothesis",
    "Incident",
    "IncidentProgress",
    "Interval",
    "Layer",
    "LeadPart",
    "LeadTime",
    "Message",
    "MuteReason",
    "NoPlanReason",
    "NoRecommendation",
    "NoVerdict",
    "NoVerdictReason",
    "NotifyReason",
    "Outcome",
    "OutcomeStatus",
    "Plan",
    "PlanReason",
    "Priority",
    "ProgressLine",
    "ReasonText",
    "Recommendation",
    "RejectedHypothesis",
    "RemediationSession",
    "SampleBatch",
    "ShadowFinding",
    "SignalKey",
    "SignalKind",
    "Stage",
    "StageReason",
    "Statistic",
    "Statuses",
    "StepState",
    "StepStatus",
    "TimeRange",
    "TimelineEntry",
    "TrustVerdict",
    "Verdict",
    "Window",
    "signal_keys",
]
