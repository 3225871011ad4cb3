"""The decisions of the story's newest cycle: the incident of the lost GPU, and the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from datetime import datetime, timedelta

import numpy as np

from outrider.audit import AuditEvent, AuditRecord
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    BacktestScore,
    DecisionReason,
    EntityRef,
    Evidence,
    Forecast,
    Hypothesis,
    Incident,
    Interval,
    Layer,
    Message,
    MuteReason,
    NoPlanReason,
    NoRecommendation,
    NotifyReason,
    Plan,
    PlanReason,
    Priority,
    ReasonText,
    Recommendation,
    RejectedHypothesis,
    RemediationSession,
    TimelineEntry,
    Verdict,
)
from outrider.testing import names

INCIDENT, SESSION = "inc-20260504-0001", "session-1"


@dataclass(frozen=True, slots=True)
class StoryParts:
    """The parts of a commit caused by the fault."""

    alerts: tuple[Alert, ...] = ()
    incidents: tuple[Incident, ...] = ()
    actions: tuple[Action, ...] = ()
    sessions: tuple[RemediationSession, ...] = ()
    messages: tuple[Message, ...] = ()
    audit: tuple[AuditRecord, ...] = ()


def quiet(_now: datetime) -> StoryParts:
    """No fault."""
    return StoryParts()


def lost_gpu(now: datetime, lost_at: datetime) -> StoryParts:
    """The GPU has been lost since ``lost_at``; detected one minute later."""
    opened = lost_at + timedelta(minutes=1)
    muted = MuteReason.FOLDED
    alerts = (
        _alert("gpu-lost", Priority.P0, names.LOST_GPU, "gpu-lost", None, opened, now),
        _alert("engine-dead", Priority.P1, names.LOST_REPLICA, "engine-dead", muted, opened, now),
        _alert("availability-low", Priority.P0, names.SERVICE["chat"], None, muted, opened, now),
    )
    return StoryParts(
        alerts=alerts,
        incidents=(incident(opened, now, tuple(alert.fingerprint for alert in alerts)),),
        actions=actions(opened, now),
        sessions=(RemediationSession(SESSION, INCIDENT, opened),),
        messages=(_message(opened),),
        audit=(AuditRecord(opened, AuditEvent.INCIDENT_OPENED, INCIDENT, "condition_seen"),),
    )


def incident(opened: datetime, now: datetime, alerts: tuple[str, ...]) -> Incident:
    """One incident with one cause, one runner-up and two rejected candidates."""
    seen = Evidence("hw_accel_present", 7.0, Interval(8.0, 8.0))
    code = Evidence("hw_accel_fault_code", 79.0, Interval(0.0, 0.0))
    return Incident(
        id=INCIDENT,
        layer=Layer.HARDWARE,
        priority=Priority.P0,
        opened_at=opened,
        hypotheses=(
            Hypothesis(names.LOST_GPU, "gpu-lost", 0.94, (seen, code)),
            Hypothesis(names.LOST_REPLICA, "engine-dead", 0.04),
        ),
        rejected=(
            RejectedHypothesis(names.LOST_NODE, "node-lost", "other targets of the node answer"),
            RejectedHypothesis(
                names.LOST_NODE, "exporter-down", "the exporter answers; only one GPU is missing from its page"
            ),
        ),
        alerts=alerts,
        timeline=(
            TimelineEntry(opened, "GPU lost: XID 79 on node-3"),
            TimelineEntry(opened + timedelta(seconds=15), "replica chat-3 refuses connections"),
            TimelineEntry(opened + timedelta(seconds=30), "availability of chat below 99 %"),
            TimelineEntry(opened + timedelta(seconds=45), "traffic taken off chat-3"),
        ),
        updated_at=now,
        services=(names.SERVICE["chat"].key,),
        pages=1,
    )


def actions(opened: datetime, now: datetime) -> tuple[Action, ...]:
    """One done, one dry run, one refused, one waiting for approval."""
    shift = _action(
        "shift", ActionKind.SHIFT_TRAFFIC, names.LOST_REPLICA, Verdict.ALLOWED, DecisionReason.WITHIN_LIMITS
    )
    cordon = _action("cordon", ActionKind.CORDON, names.LOST_NODE, Verdict.ALLOWED, DecisionReason.WITHIN_LIMITS)
    drain = _action("drain", ActionKind.DRAIN, names.LOST_NODE, Verdict.ASK, DecisionReason.NEEDS_APPROVAL)
    restart = _action("restart", ActionKind.RESTART_POD, names.POD[6], Verdict.REFUSED, DecisionReason.COOLDOWN)
    at = opened + timedelta(seconds=30)
    return (
        _at(shift, at, ActionStatus.DONE, at + timedelta(seconds=12), "was 1/8 of the traffic of chat"),
        _at(cordon, at, ActionStatus.DRY_RUN, at + timedelta(seconds=2), ""),
        _at(drain, at + timedelta(seconds=15), ActionStatus.WAITING_APPROVAL, None, ""),
        _at(restart, now - timedelta(minutes=2), ActionStatus.REFUSED, None, ""),
    )


def plan(now: datetime) -> Plan:
    """A plan for chat that needs more replicas by the afternoon peak; code has no calibration yet."""
    step = timedelta(minutes=10)
    start = now.timestamp()
    times = start + step.total_seconds() * np.arange(1.0, 145.0)
    middle = np.array([names.load(now + step * index)[0] for index in range(1, 145)])
    spread = 0.06 + 0.10 * np.linspace(0, 1, 144)
    forecast = Forecast(
        signal="svc_requests_per_second",
        entity=names.SERVICE["chat"],
        made_at=now - timedelta(minutes=4),
        step=step,
        times=times.astype(np.float64),
        quantiles={0.05: middle * (1 - spread), 0.5: middle, 0.95: middle * (1 + spread)},
        model="prophet",
        score=BacktestScore(0.108, 0.31, 0.91, 24),
        why=(
            ReasonText("plan.why_mix", {"members": "prophet 41%, regression 22%, median-day 9%"}),
            ReasonText("plan.why_helps", {"name": "Prophet", "joined": "0.108", "error": "0.131", "own": "0.142"}),
        ),
    )
    recommendation = Recommendation(
        service=names.SERVICE["chat"],
        gpu_type="H100",
        current_replicas=8,
        target_replicas=11,
        gpus=44,
        floor=2,
        ceiling=24,
        binding="forecast",
        need_at=now + timedelta(minutes=70),
        needed_by=now + timedelta(minutes=64),
        lead_time=timedelta(minutes=6),
        cost_per_hour=118.8,
        currency="USD",
        derivation={
            "formula": "replicas = qps x tokens / (batch x tokens_per_second) x (1 + buffer)",
            "inputs": {
                "qps": {"value": 66.4, "unit": "request/second"},
                "tokens": {"value": 240.0, "unit": "token/request"},
                "batch": {"value": 32.0, "unit": "sequence/replica"},
                "tokens_per_second": {"value": 57.0, "unit": "token/second*sequence"},
                "buffer": {"value": 0.25, "unit": "ratio"},
                "tp": {"value": 4.0, "unit": "gpu"},
                "pp": {"value": 1.0, "unit": "gpu"},
            },
            "token_rate": 15936.0,
            "sequences": 279.58,
            "units_without_buffer": 8.737,
            "units_raw": 10.921,
            "unit": "replica",
            "gpus_per_replica": 4,
            "replicas": 11,
            "gpus": 44,
            "warnings": [],
            "capacity_now": 48.64,
            "load_now": 54.6,
            "need_now": 8,
            "need_survivors": 9,
            "next_24h": {"peak": 66.4, "at": "2026-05-04T16:00:00Z", "replicas": 11, "gpus": 44},
            "calibration": {"origin": "measured", "samples": 818, "startup_seconds": 360.0},
            "lines": [
                "66.4 requests/s x 240 tokens/request = 15,936 tokens/s",
                "15,936 tokens/s / 57 tokens/s per sequence = 279.6 sequences running at once",
                "279.6 sequences / 32 sequences at once = 8.74 replicas",
                "8.74 x (1 + 0.25) = 10.92 replicas",
                "rounded up to 11 replicas of 4 x 1 = 4 GPUs: 44 GPUs",
            ],
        },
        reason=PlanReason.FORECAST_PEAK,
        made_at=now - timedelta(minutes=4),
    )
    without = NoRecommendation(names.SERVICE["code"], NoPlanReason.NO_CALIBRATION, now - timedelta(minutes=4))
    return Plan((forecast,), (recommendation, without))


def _alert(
    rule: str,
    priority: Priority,
    entity: EntityRef,
    fault: str | None,
    muted: MuteReason | None,
    opened: datetime,
    now: datetime,
) -> Alert:
    return Alert(
        fingerprint=f"{rule}/{entity.key}",
        rule=rule,
        priority=priority,
        entity=entity,
        state=AlertState.FIRING,
        reason=AlertReason.STILL_TRUE,
        starts_at=opened,
        seen_at=now,
        fault=fault,
        muted_by=muted,
        incident=INCIDENT,
    )


def _action(name: str, kind: ActionKind, target: EntityRef, decision: Verdict, reason: DecisionReason) -> Action:
    return Action(
        id=f"{SESSION}:{name}",
        session=SESSION,
        kind=kind,
        target=target,
        params={},
        because=INCIDENT,
        dry_run=False,
        decision=decision,
        reason=reason,
        status=ActionStatus.PROPOSED,
        decided_at=names.NOW,
    )


def _at(action: Action, decided: datetime, status: ActionStatus, ended: datetime | None, detail: str) -> Action:
    return replace(
        action,
        dry_run=status is ActionStatus.DRY_RUN,
        status=status,
        decided_at=decided,
        started_at=decided if ended else None,
        ended_at=ended,
        detail=detail,
    )


def _message(opened: datetime) -> Message:
    return Message(
        id="message-1",
        channel="oncall",
        reason=NotifyReason.OPENED,
        priority=Priority.P0,
        incident=INCIDENT,
        title="[P0] GPU lost",
        body="GPU lost on node-3",
        created_at=opened,
        is_page=True,
    )
