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
from service.api.routers.plan import is_fresh, replicas_wanted
from service.engine import fleet_state
from store.tsdb.metric_store import SqlMetricStore
from store.write_buffer.segments import CycleFiles

_LAST_ACTIONS = 1000


class StateCollector(Collector):
    """Gauges of the newest cycle and of open incidents and alerts."""

    def __init__(self, state: StateReader) -> None:
        """``state`` is read only."""
        self._state = state

    def describe(self) -> Iterable[Metric]:
        """Returns nothing: the store is not read before the first scrape."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Metric families of one scrape. Only store metrics while the store is unavailable."""
        try:
            known, up = tuple(self._known()), 1.0
        except StoreError:
            known, up = (), 0.0
        yield _gauge("store_up", "1 when decisions can be read from the store.", up)
        yield from known

    def _known(self) -> Iterable[Metric]:
        yield from self._cycle()
        yield _counted("outrider_alerts", "Alerts by priority and state.", ("priority", "state"), self._alerts())
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
        yield _gauge("remediation_paused", "1 while remediation is paused.", float(self._state.paused()))

    def _cycle(self) -> Iterable[Metric]:
        newest = self._state.cycles(limit=1)
        if not newest:
            return
        cycle = newest[0]
        for name, help_text, value in (
            ("cycle_timestamp_seconds", "Instant of the newest cycle.", cycle.at.timestamp()),
            ("cycle_duration_seconds", "How long it took.", cycle.duration_seconds),
            ("targets", "Targets watched.", cycle.targets),
            ("targets_up", "Targets that answered.", cycle.targets_up),
            ("signals_written", "Values the newest cycle wrote.", cycle.signals_written),
            ("findings", "Findings of the newest cycle.", cycle.findings),
        ):
            yield _gauge(name, help_text, float(value))

    def _detectors(self) -> Iterable[Metric]:
        standings = self._state.standings()
        stages = Counter[tuple[str, ...]]((one.detector, one.kind, one.stage, one.reason) for one in standings)
        labels = ("detector", "kind", "stage", "reason")
        yield _counted("outrider_detector_stage", "1 for the stage that each detector is in.", labels, stages)
        allowed = [(one, one.rate.budget) for one in standings if one.rate]
        counted = [(one, one.rate.realised) for one in standings if one.rate and one.rate.realised is not None]
        for name, help_text, values in (
            ("budgeted", "Alarms per entity-day that are allowed.", allowed),
            ("realised", "Alarms per entity-day of the last week.", counted),
        ):
            family = GaugeMetricFamily(
                f"outrider_detector_{name}_alarms_per_entity_day", help_text, labels=["detector", "kind"]
            )
            for one, value in values:
                family.add_metric([one.detector, one.kind.value], value)
            yield family

    def _plan(self, now: datetime | None) -> Iterable[Metric]:
        """Values for HPA or KEDA. A stale plan is not exposed, so that the autoscaler holds."""
        names = ("service", "namespace", "gpu_type")
        told = {
            name: GaugeMetricFamily(f"outrider_{name}", text, labels=names)
            for name, text in (
                ("plan_replicas", "Replicas that the newest plan wants now: the target once its start is due."),
                ("plan_target_replicas", "Replicas that the newest plan aims at."),
                ("plan_current_replicas", "Replicas that there were when it was made."),
                ("plan_timestamp_seconds", "When it was made."),
                ("plan_lead_time_seconds", "From the order of a replica until it serves."),
            )
        }
        for one in self._state.plan().recommendations if now is not None else ():
            if now is None or not isinstance(one, Recommendation) or not is_fresh(one, now):
                continue
            values = (
                replicas_wanted(one, now),
                one.target_replicas,
                one.current_replicas,
                one.made_at.timestamp(),
                one.lead_time.total_seconds(),
            )
            labels = [one.service.name, one.service.namespace or "", one.gpu_type]
            for family, value in zip(told.values(), values, strict=True):
                family.add_metric(labels, float(value))
        yield from told.values()

    def _alerts(self) -> Counter[tuple[str, ...]]:
        active = fleet_state.active_alerts(self._state)
        return Counter((alert.priority, alert.state) for alert in active)

    def _incidents(self) -> Counter[tuple[str, ...]]:
        return Counter((incident.priority, _fault(incident)) for incident in fleet_state.open_incidents(self._state))


class StoreSpoolCollector(Collector):
    """Cycles buffered on disk for an unavailable store, and dropped ones."""

    def __init__(self, files: CycleFiles) -> None:
        """``files`` are read only; the engine writes them."""
        self._files = files

    def collect(self) -> Iterable[Metric]:
        """Metric families of one scrape."""
        found = self._files.status()
        oldest = 0.0 if found.oldest_at is None else found.oldest_at.timestamp()
        yield _gauge("store_spool_cycles", "Cycles that wait for the store.", float(found.cycles))
        yield _gauge("store_spool_bytes", "Bytes they take on disk.", float(found.bytes))
        yield _gauge("spool_limit_bytes", "Bytes they may take: beyond it the oldest go.", float(found.limit_bytes))
        yield _gauge("store_spool_oldest_timestamp_seconds", "Instant of the oldest that waits, 0 without any.", oldest)
        for name, help_text, value in (
            ("dropped", "Cycles given up for want of room.", found.dropped_cycles),
            ("failed", "Cycles lost because the spool itself could not be written.", found.failed_cycles),
            ("refused", "Cycles that the store refused and that were set aside.", found.refused_cycles),
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
            found = self._store.condition()
        except StoreError:
            return
        yield _gauge("store_used_bytes", "Bytes of values that the metrics database holds.", float(found.space.used))
        yield _gauge("store_free_bytes", "Bytes of its file that are free to be used again.", float(found.space.free))
        yield _gauge(
            "store_longest_maintenance_seconds",
            "How long upkeep in this process held up writers at most.",
            self._store.longest_maintenance_seconds,
        )
        yield _counted(
            "outrider_store_upkeep_waiting",
            "Spans that wait for upkeep, by work; the hour at hand is among them.",
            ("work",),
            Counter({(work,): many for work, many in found.waiting.items()}),
        )
        kept = GaugeMetricFamily(
            "outrider_store_kept_from_timestamp_seconds",
            "Retention left a tier's values from here on.",
            labels=["tier"],
        )
        for tier, at in sorted(found.kept_from.items()):
            kept.add_metric([tier], at)
        yield kept
        refused = CounterMetricFamily(
            "outrider_store_refused_values",
            "Values that were not kept, by reason: late, or not wanted by the server of the values.",
            labels=["reason"],
        )
        for reason, cells in sorted(found.refused.items()):
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
