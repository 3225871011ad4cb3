"""A week of a small fleet in memory, behind the read ports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import numpy as np
import pytest

from outrider.audit import AuditRecord
from outrider.model import (
    Action,
    ActionKind,
    ActionStatus,
    Alert,
    AlertReason,
    AlertState,
    BacktestScore,
    CellStatus,
    DecisionReason,
    EntityKind,
    EntityRef,
    Forecast,
    Hypothesis,
    Incident,
    Layer,
    Message,
    NoPlanReason,
    NoRecommendation,
    NotifyReason,
    Plan,
    PlanReason,
    Priority,
    Recommendation,
    SignalKey,
    SignalKind,
    TimelineEntry,
    Verdict,
    Window,
)
from outrider.records.feedback import Feedback, Usefulness, judged
from outrider.topology import Topology
from outrider.vocabulary import catalog

MONDAY = datetime(2026, 5, 4, tzinfo=UTC)
NOW = datetime(2026, 5, 11, 6, 0, tzinfo=UTC)
WEEK = "2026-W19"


def ref(kind: EntityKind, name: str, namespace: str | None = None) -> EntityRef:
    return EntityRef("lab", kind, namespace, name)


CHAT = ref(EntityKind.SERVICE, "chat-70b", "prod")
EMBED = ref(EntityKind.SERVICE, "embed", "prod")


@dataclass
class Metrics:
    """Values by kind, entity and key as (times, values), read as the port specifies."""

    values: dict[EntityKind, dict[EntityRef, dict[SignalKey, tuple[np.ndarray, np.ndarray]]]] = field(
        default_factory=dict
    )
    happened: tuple = ()

    def put(self, entity: EntityRef, name: str | SignalKey, times: np.ndarray, values: np.ndarray) -> None:
        key = SignalKey(name) if isinstance(name, str) else name
        self.values.setdefault(entity.kind, {}).setdefault(entity, {})[key] = (times, np.asarray(values, float))

    def entities(self, kind):
        return tuple(sorted(self.values.get(kind, {}), key=lambda entity: entity.key))

    def events(self, start, end, entity=None):
        return tuple(event for event in self.happened if start <= event.at < end)

    def read_windows(self, kind, keys: Sequence[SignalKey], start, end, step: timedelta, entities=None) -> Window:
        result = self.entities(kind)
        seconds = step.total_seconds()
        count = int(np.ceil((end - start).total_seconds() / seconds))
        times = start.timestamp() + seconds * np.arange(count)
        cube = np.full((len(result), count, len(keys)), np.nan)
        for row, entity in enumerate(result):
            for column, key in enumerate(keys):
                if key in self.values[kind][entity]:
                    cube[row, :, column] = self._binned(key, *self.values[kind][entity][key], times, seconds)
        status = np.where(np.isnan(cube), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        return Window(kind, result, times, tuple(keys), cube, status, step)

    @staticmethod
    def _binned(key, moments, values, times, seconds) -> np.ndarray:
        index = np.floor((moments - times[0]) / seconds).astype(int)
        good = (index >= 0) & (index < times.size) & ~np.isnan(values)
        out = np.full(times.size, np.nan)
        if catalog.signal(key.name).kind in (SignalKind.DELTA, SignalKind.HISTOGRAM):
            sums, counts = np.zeros(times.size), np.zeros(times.size)
            np.add.at(sums, index[good], values[good])
            np.add.at(counts, index[good], 1)
            return np.where(counts > 0, sums, np.nan)
        out[index[good]] = values[good]
        return out


@dataclass
class State:
    """The read side of decisions, as lists."""

    all_incidents: tuple[Incident, ...] = ()
    all_alerts: tuple[Alert, ...] = ()
    all_actions: tuple[Action, ...] = ()
    sent: tuple[Message, ...] = ()
    newest_plan: Plan = field(default_factory=Plan)
    graph: Topology = field(default_factory=Topology)
    trail: tuple[AuditRecord, ...] = ()
    ratings: tuple[Feedback, ...] = ()

    def feedback(self, *, since=None, limit=1000):
        return self.ratings

    def incidents(self, *, open_only=False, since=None, limit=1000):
        return self.all_incidents

    def alerts(self, *, states=None, since=None, limit=1000):
        return self.all_alerts

    def actions(self, *, incident=None, since=None, limit=1000):
        return self.all_actions

    def messages(self, *, incident=None, limit=1000):
        return tuple(message for message in self.sent if message.incident == incident)

    def plan(self):
        return self.newest_plan

    def topology(self):
        return self.graph

    def audit(self, limit=1000, after=None):
        newest_first = sorted(self.trail, key=lambda one: (one.at, one.id), reverse=True)
        rest = [one for one in newest_first if after is None or (one.at, str(one.id)) < (after.at, after.id)]
        return tuple(rest[:limit])


def _spread(total: np.ndarray, shares: Mapping[int, float], buckets: int) -> list[np.ndarray]:
    return [total * shares.get(bucket, 0.0) for bucket in range(buckets)]


def _services(metrics: Metrics) -> None:
    minutes = MONDAY.timestamp() + 60.0 * np.arange(7 * 1440)
    hour = (np.arange(minutes.size) % 1440) / 60.0
    for service, level, failing in ((CHAT, 20.0, slice(4000, 4030)), (EMBED, 6.0, slice(0, 0))):
        rate = level * (1.0 + 0.8 * np.sin((hour - 8) / 24 * 2 * np.pi))
        requests = np.round(rate * 60)
        failed = np.zeros_like(requests)
        failed[failing] = np.round(requests[failing] * 0.2)
        if service is EMBED:
            requests[2000:2600] = np.nan
            failed[2000:2600] = np.nan
        metrics.put(service, "svc_requests_total", minutes, requests)
        metrics.put(service, "svc_failed_total", minutes, failed)
        metrics.put(service, "svc_generation_tokens_total", minutes, requests * 250)
        hours = minutes[::60]
        hourly = np.nan_to_num(requests).reshape(-1, 60).sum(axis=1)
        for name, shares in (
            ("svc_ttft_seconds", {0.08: 0.9, 0.2: 0.08, 0.8: 0.02}),
            ("svc_tpot_seconds", {0.03: 0.95, 0.2: 0.05}),
            ("svc_latency_seconds", {4.0: 0.9, 14.0: 0.1}),
        ):
            bounds = catalog.signal(name).bounds
            parts = np.zeros((len(bounds) + 1, hours.size))
            for value, share in shares.items():
                parts[int(np.searchsorted(bounds, value))] += hourly * share
            for bucket in range(len(bounds) + 1):
                metrics.put(service, SignalKey(name, bucket=bucket), hours, parts[bucket])


def _hardware(metrics: Metrics) -> Topology:
    ten = MONDAY.timestamp() + 600.0 * np.arange(7 * 144)
    edges = []
    for index, service in enumerate((CHAT, CHAT, EMBED)):
        node, replica = ref(EntityKind.NODE, f"node-{index}"), ref(EntityKind.REPLICA, f"r{index}", "prod")
        edges.append((replica, service))
        metrics.put(replica, "engine_requests_running", ten, np.where(np.arange(ten.size) % 10 == 0, 0.0, 6.0))
        metrics.put(replica, "engine_prefix_cache_hit_ratio", ten, np.full(ten.size, 0.31))
        metrics.put(replica, "engine_prompt_tokens_total", ten, np.full(ten.size, 1000.0))
        metrics.put(node, "node_unschedulable", ten, (np.arange(ten.size) < 12) * float(index == 0))
        metrics.put(node, "hw_accel_present", ten, np.full(ten.size, 2.0))
        metrics.put(node, "node_accel_capacity", ten, np.full(ten.size, 2.0))
        for slot in range(2):
            gpu = ref(EntityKind.GPU, f"GPU-{index}{slot}")
            edges += [(node, gpu), (gpu, replica)]
            metrics.put(gpu, "hw_accel_utilization_ratio", ten, np.full(ten.size, 0.66))
            metrics.put(gpu, "hw_accel_power_watts", ten, np.full(ten.size, 400.0))
    return Topology.build(edges)


def _plan() -> Plan:
    times = NOW.timestamp() + 600.0 * np.arange(144)
    middle = 20.0 * (1.0 + 0.8 * np.sin(((times / 3600.0) % 24 - 8) / 24 * 2 * np.pi))
    text = Forecast(
        signal="svc_requests_per_second",
        entity=CHAT,
        made_at=NOW,
        step=timedelta(minutes=10),
        times=times,
        quantiles={0.5: middle, 0.95: middle * 1.2},
        model="prophet",
        score=BacktestScore(0.11, 0.14, 0.9, 36),
    )
    wanted = Recommendation(
        service=CHAT,
        gpu_type="H100",
        current_replicas=2,
        target_replicas=3,
        gpus=6,
        floor=2,
        ceiling=8,
        binding="forecast",
        need_at=NOW + timedelta(hours=3),
        needed_by=NOW + timedelta(hours=2, minutes=52),
        lead_time=timedelta(minutes=8),
        cost_per_hour=15.0,
        currency="EUR",
        derivation={"weekly_growth_ratio": 0.23},
        reason=PlanReason.FORECAST_PEAK,
        made_at=NOW,
    )
    return Plan((text,), (wanted, NoRecommendation(EMBED, NoPlanReason.NO_CALIBRATION, NOW)))


def _decisions() -> dict[str, tuple]:
    opened = MONDAY + timedelta(days=2, hours=18, minutes=41)
    gpu = ref(EntityKind.GPU, "GPU-00")
    alert = Alert(
        "f1",
        "gpu-lost",
        Priority.P0,
        gpu,
        AlertState.RESOLVED,
        AlertReason.CONDITION_GONE,
        opened - timedelta(seconds=30),
        opened,
        opened + timedelta(minutes=4),
        incident="i1",
    )
    incident = Incident(
        id="i1",
        layer=Layer.HARDWARE,
        priority=Priority.P0,
        opened_at=opened,
        hypotheses=(Hypothesis(gpu, "gpu-lost", 0.9),),
        rejected=(),
        alerts=("f1",),
        timeline=(TimelineEntry(opened - timedelta(seconds=30), "seen"),),
        updated_at=opened,
        resolved_at=opened + timedelta(minutes=4),
        acknowledged_at=opened + timedelta(minutes=2),
        acknowledged_by="ann",
        pages=1,
    )
    unknown = Incident(
        "i2", Layer.TRAFFIC, Priority.P2, opened + timedelta(days=1), (), (), (), (), opened + timedelta(days=1)
    )
    page = Message(
        "m1", "phone", NotifyReason.OPENED, Priority.P0, "i1", "t", "b", opened + timedelta(seconds=10), is_page=True
    )
    actions = tuple(
        Action(
            f"a{number}",
            "s1",
            kind,
            target,
            {},
            "i1",
            False,
            verdict,
            reason,
            status,
            opened + timedelta(seconds=20 * number),
            approved_by=by,
        )
        for number, (kind, target, verdict, reason, status, by) in enumerate(
            (
                (
                    ActionKind.SHIFT_TRAFFIC,
                    ref(EntityKind.REPLICA, "r0", "prod"),
                    Verdict.ALLOWED,
                    DecisionReason.WITHIN_LIMITS,
                    ActionStatus.DONE,
                    None,
                ),
                (
                    ActionKind.CORDON,
                    ref(EntityKind.NODE, "node-0"),
                    Verdict.ASK,
                    DecisionReason.APPROVED,
                    ActionStatus.DONE,
                    "ann",
                ),
                (
                    ActionKind.DRAIN,
                    ref(EntityKind.NODE, "node-0"),
                    Verdict.REFUSED,
                    DecisionReason.NO_HEADROOM,
                    ActionStatus.REFUSED,
                    None,
                ),
            )
        )
    )
    return {
        "all_incidents": (unknown, incident),
        "all_alerts": (alert,),
        "all_actions": tuple(reversed(actions)),
        "sent": (page,),
        "ratings": (
            judged(alert, Usefulness.WRONG_CAUSE, by="ann", at=opened + timedelta(hours=1)),
            judged(replace(alert, starts_at=opened - timedelta(days=9)), Usefulness.NOT_USEFUL, by="ann", at=opened),
        ),
    }


@pytest.fixture(scope="session")
def fleet() -> SimpleNamespace:
    """A week with one outage of ``chat-70b``, one resolved and one open incident."""
    metrics = Metrics()
    _services(metrics)
    graph = _hardware(metrics)
    state = State(newest_plan=_plan(), graph=graph, **_decisions())
    return SimpleNamespace(state=state, metrics=metrics, week=WEEK, now=NOW, chat=CHAT, embed=EMBED)


@pytest.fixture
def nothing() -> SimpleNamespace:
    """An empty store."""
    return SimpleNamespace(state=State(), metrics=Metrics(), week=WEEK, now=NOW)
