"""How far a detector has come with a class of entities: it learns, is tried in the shadow, alerts."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from enum import StrEnum

from outrider.model.entities import EntityKind, EntityRef
from outrider.model.findings import NoVerdictReason


class Stage(StrEnum):
    """What becomes of a detector's findings. In the shadow they are kept and shown, and raise no alert."""

    LEARNING = "learning"
    SHADOW = "shadow"
    ALERTING = "alerting"


class StageReason(StrEnum):
    """Why a detector stands where it stands."""

    NEEDS_NO_PAST = "needs_no_past"  # a rule, or a comparison with peers: it alerts from the first cycle
    NOTHING_SEEN = "nothing_seen"  # no entity of its class yet
    TOO_LITTLE_PAST = "too_little_past"  # it has no expectation yet
    ON_TRIAL = "on_trial"  # it has one, and has not seen a day twice yet
    OVER_BUDGET = "over_budget"  # it would alarm far more often than its budget allows
    LEARNT_DAY = "learnt_day"  # the time of day, and not two weeks yet: the day of the week is unknown or borrowed
    LEARNT = "learnt"


@dataclass(frozen=True, slots=True)
class ShadowFinding:
    """What would have alerted."""

    entity: EntityRef
    signals: tuple[str, ...]
    since: datetime


@dataclass(frozen=True, slots=True)
class AlarmRate:
    """Alarms per entity-day: what is allowed and what was counted, and the factor on the detector's limit.

    ``realised`` is a mean over the last week that forgets exponentially, None before a whole entity-day.
    """

    budget: float
    realised: float | None
    factor: float
    entity_days: float = 0.0


@dataclass(frozen=True, slots=True)
class DetectorStanding:
    """One detector of the newest cycle.

    ``learnt_seconds`` is how much past it has learnt of its class, ``needed_seconds`` how much it needs to alert;
    None where it needs none. ``silent`` counts entities without a verdict by reason; with ``everyone_silent`` the
    reason concerns them all.
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
