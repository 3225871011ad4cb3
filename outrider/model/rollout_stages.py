"""Rollout stage of a detector for a class of entities: learning, shadow, alerting."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from outrider.model.entities import EntityKind, EntityRef
from outrider.model.findings import NoVerdictReason


class Stage(StrEnum):
    """Rollout stage. In the shadow stage findings are stored and shown, and raise no alert."""

    LEARNING = "learning"
    SHADOW = "shadow"
    ALERTING = "alerting"


class StageReason(StrEnum):
    """Reason for the stage of a detector."""

    NEEDS_NO_PAST = "needs_no_past"  # a rule, or a comparison with peers: alerts from the first cycle
    NOTHING_SEEN = "nothing_seen"  # no entity of its class yet
    TOO_LITTLE_PAST = "too_little_past"  # no baseline yet
    ON_TRIAL = "on_trial"  # has a baseline, but less than two days of it
    OVER_BUDGET = "over_budget"  # would exceed its alarm budget by far
    LEARNT_DAY = "learnt_day"  # time of day known, but less than two weeks: the day of the week is unknown or borrowed
    LEARNT = "learnt"


@dataclass(frozen=True, slots=True)
class ShadowFinding:
    """A finding that would have raised an alert."""

    entity: EntityRef
    signals: tuple[str, ...]
    since: datetime


@dataclass(frozen=True, slots=True)
class AlarmRate:
    """Alarms per entity-day: budget and actual rate, and the factor on the detector's threshold.

    ``realised`` is an exponentially weighted mean over the last week, None before a whole entity-day.
    """

    budget: float
    realised: float | None
    factor: float
    entity_days: float = 0.0


@dataclass(frozen=True, slots=True)
class DetectorStatus:
    """One detector in the newest cycle.

    ``learnt_seconds`` is the history learned for its class, ``needed_seconds`` the history needed to alert; None if it
    needs none. ``silent`` counts entities without a verdict by reason; with ``everyone_silent`` the reason applies to
    all.
    """

    detector: str
    kind: EntityKind
    stage: Stage
    reason: StageReason
    since: datetime
    entities: int = 0
    findings: int = 0
    silent: Mapping[NoVerdictReason, int] = field(default_factory=dict)
    everyone_silent: NoVerdictReason | None = None
    learnt_seconds: float | None = None
    needed_seconds: float | None = None
    rate: AlarmRate | None = None
    shadowed: tuple[ShadowFinding, ...] = ()
