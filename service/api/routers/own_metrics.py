"""Outrider's own metrics for Prometheus, read from the store on request."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider.errors import StoreError
from outrider.model import Incident, Recommendation
from outrider.ports import StateReader
from service.api.routers import alert_series
from service.api.routers.plan import is_fresh, replicas_wanted
from service.engine import fleet_state
from store.tsdb.metric_store import SqlMetricStore
from store.write_buffer.segments import CycleFiles

_LAST_ACTIONS = 1000
_LAST_LETTERS = 1000


class StateCollector(Collector):
    """Gauges of the newest cycle and of open incidents and alerts."""

    def __init__(self, state: StateReader, origin: str = "") -> None:
        """``state`` is read only. ``origin`` marks the series of alerts, as the emitted alerts."""
        self._state, self._origin = state, origin

    def describe(self) -> Iterable[Metric]:
        """Returns nothing: the store is not read before the first scrape."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Metric families of one scrape. Only store metrics while the store is unavailable."""
        try:
            known, up = tuple(self._known()), 1.0
        except StoreError:
            known, up = (), 0.0
        yield _gauge("store_up", "1 while decisions can be read from the store.", up)
        yield from known

    def _known(self) -> Iterable[Metric]:
        yield from self._cycle()
        active = fleet_state.active_alerts(self._state)
        counts = Counter[tuple[str, ...]]((alert.priority, alert.state) for alert in active)
        yield _counted("outrider_alerts", "Alerts by priority and state.", ("priority", "state"), counts)
        yield from alert_series.families(active, self._origin)
        yield from self._heartbeats()
        yield _counted(
            "outrider_incidents_open", "Open incidents by priority and fault.", ("priority", "fault"), self._incidents()
        )
        yield _counted(
            "outrider_actions",
            f"The newest {_LAST_ACTIONS} actions by kind, decision, reason and status.",
            ("kind", "decision", "reason", "status"),
            Counter((a.kind, a.decision, a.reason, a.status) for a in self._state.actions(limit=_LAST_ACTIONS)),
        )
        yield from self._detectors()
        yield from self._plan(newest[0].at if (newest := self._state.cycles(limit=1)) else None)
        letters = float(len(self._state.dead_letters(limit=_LAST_LETTERS)))
        yield _gauge("dead_letters", f"Messages that could not be delivered, at most {_LAST_LETTERS}.", letters)
        is_open = float(self._state.breaker().is_open)
        yield _gauge("remediation_breaker_open", "1 while the breaker of remediation is open.", is_open)
        yield _gauge("remediation_paused", "1 while remediation is paused.", float(self._state.paused()))

    def _cycle(self) -> Iterable[Metric]:
        newest = self._state.cycles(limit=1)
        if not newest:
            return
        cycle = newest[0]
        for name, help_text, value in (
            ("cycle_timestamp_seconds", "Time of the newest cycle.", cycle.at.timestamp()),
            ("cycle_duration_seconds", "Duration of the newest cycle.", cycle.duration_seconds),
            ("targets", "Scrape targets.", cycle.targets),
            ("targets_up", "Targets whose last scrape succeeded.", cycle.targets_up),
            ("signals_written", "Values written by the newest cycle.", cycle.signals_written),
            ("findings", "Findings of the newest cycle.", cycle.findings),
        ):
            yield _gauge(name, help_text, float(value))

    def _detectors(self) -> Iterable[Metric]:
        detector_statuses = self._state.detector_statuses()
        stages = Counter[tuple[str, ...]](
            (status.detector, status.kind, status.stage, status.reason) for status in detector_statuses
        )
        labels = ("detector", "kind", "stage", "reason")
        yield _counted("outrider_detector_stage", "1 for the current stage of each detector.", labels, stages)
        allowed = [(status, status.rate.budget) for status in detector_statuses if status.rate]
        counted = [
            (status, status.rate.realised)
            for status in detector_statuses
            if status.rate and status.rate.realised is not None
        ]
        for name, help_text, values in (
            ("budgeted", "Alarm budget: allowed alarms per entity-day.", allowed),
            ("realised", "Alarms per entity-day over the last week.", counted),
        ):
            family = GaugeMetricFamily(
                f"outrider_detector_{name}_alarms_per_entity_day", help_text, labels=["detector", "kind"]
            )
            for status, value in values:
                family.add_metric([status.detector, status.kind.value], value)
            yield family

    def _plan(self, now: datetime | None) -> Iterable[Metric]:
        """Values for HPA or KEDA. A stale plan is not exposed, so that the autoscaler holds."""
        names = ("service", "namespace", "gpu_type")
        families = {
            name: GaugeMetricFamily(f"outrider_{name}", text, labels=names)
            for name, text in (
                ("plan_replicas", "Replicas needed now by the newest plan: the target once its start is due."),
                ("plan_target_replicas", "Target replicas of the newest plan."),
                ("plan_current_replicas", "Replicas that existed at the time of the plan."),
                ("plan_timestamp_seconds", "Time of the plan."),
                ("plan_lead_time_seconds", "Time from ordering a replica until it serves."),
            )
        }
        for item in self._state.plan().recommendations if now is not None else ():
            if now is None or not isinstance(item, Recommendation) or not is_fresh(item, now):
                continue
            values = (
                replicas_wanted(item, now),
                item.target_replicas,
                item.current_replicas,
                item.made_at.timestamp(),
                item.lead_time.total_seconds(),
            )
            labels = [item.service.name, item.service.namespace or "", item.gpu_type]
            for family, value in zip(families.values(), values, strict=True):
                family.add_metric(labels, float(value))
        yield from families.values()

    def _heartbeats(self) -> Iterable[Metric]:
        """Times of the last proofs of life: of watchdogs, and of deliveries to Alertmanagers."""
        for kind, name, text in (
            ("watchdog", "watchdog_heartbeat", "Last heartbeat of an external watchdog."),
            ("alertmanager", "alertmanager_delivery", "Last delivery of alerts to an Alertmanager."),
        ):
            family = GaugeMetricFamily(f"outrider_{name}_timestamp_seconds", text, labels=["name"])
            for key, at in sorted(self._state.heartbeats().items()):
                if key.startswith(f"{kind}/"):
                    family.add_metric([key.removeprefix(f"{kind}/")], at.timestamp())
            yield family

    def _incidents(self) -> Counter[tuple[str, ...]]:
        return Counter((incident.priority, _fault(incident)) for incident in fleet_state.open_incidents(self._state))


class WriteBufferCollector(Collector):
    """Cycles buffered on disk for an unavailable store, and dropped ones."""

    def __init__(self, files: CycleFiles) -> None:
        """``files`` are read only; the engine writes them."""
        self._files = files

    def collect(self) -> Iterable[Metric]:
        """Metric families of one scrape."""
        status = self._files.status()
        oldest = 0.0 if status.oldest_at is None else status.oldest_at.timestamp()
        yield _gauge("store_spool_cycles", "Cycles that wait for the store.", float(status.cycles))
        yield _gauge("store_spool_bytes", "Bytes of buffered cycles on disk.", float(status.bytes))
        yield _gauge(
            "spool_limit_bytes",
            "Limit of buffered bytes; beyond it the oldest cycles are dropped.",
            float(status.limit_bytes),
        )
        yield _gauge(
            "store_spool_oldest_timestamp_seconds", "Time of the oldest buffered cycle; 0 if there is none.", oldest
        )
        for name, help_text, value in (
            ("dropped", "Cycles dropped because the buffer was full.", status.dropped_cycles),
            ("failed", "Cycles lost because the buffer could not be written.", status.failed_cycles),
            ("refused", "Cycles rejected by the store and set aside.", status.refused_cycles),
        ):
            if value is not None:
                yield CounterMetricFamily(f"outrider_store_spool_{name}_cycles", help_text, value=float(value))


class StoreCollector(Collector):
    """Status of the metrics database."""

    def __init__(self, store: SqlMetricStore) -> None:
        """``store`` is read only."""
        self._store = store

    def describe(self) -> Iterable[Metric]:
        """Returns nothing: the store is not read before the first scrape."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Metric families of one scrape; none while the store is unavailable."""
        try:
            status = self._store.condition()
        except StoreError:
            return
        yield _gauge("store_used_bytes", "Bytes of values in the metrics database.", float(status.space.used))
        yield _gauge("store_free_bytes", "Reusable free bytes in the database file.", float(status.space.free))
        yield _gauge(
            "store_longest_maintenance_seconds",
            "Longest time that maintenance in this process blocked writers.",
            self._store.longest_maintenance_seconds,
        )
        yield _counted(
            "outrider_store_upkeep_waiting",
            "Time spans that wait for maintenance, by work; includes the current hour.",
            ("work",),
            Counter({(work,): many for work, many in status.waiting.items()}),
        )
        kept = GaugeMetricFamily(
            "outrider_store_kept_from_timestamp_seconds",
            "Time of the oldest values that retention keeps, by tier.",
            labels=["tier"],
        )
        for tier, at in sorted(status.kept_from.items()):
            kept.add_metric([tier], at)
        yield kept
        refused = CounterMetricFamily(
            "outrider_store_refused_values",
            "Values not stored, by reason: late, or rejected by the metrics server.",
            labels=["reason"],
        )
        for reason, cells in sorted(status.refused.items()):
            refused.add_metric([reason], float(cells))
        yield refused


def _gauge(name: str, help_text: str, value: float) -> Metric:
    return GaugeMetricFamily(f"outrider_{name}", help_text, value=value)


def _fault(incident: Incident) -> str:
    cause = incident.suspected_cause
    return cause.fault if cause else "unknown"


def _counted(name: str, help_text: str, labels: tuple[str, ...], counts: Counter[tuple[str, ...]]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric([str(value) for value in values], count)
    return family
