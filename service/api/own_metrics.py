"""What Outrider tells Prometheus about itself, read from the store when it is asked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from outrider.model import AlertState, Incident
from outrider.ports import StateReader

_LAST_ACTIONS = 1000


class StateCollector(Collector):
    """Gauges of the newest cycle and of what is open now."""

    def __init__(self, state: StateReader) -> None:
        """``state`` is only read."""
        self._state = state

    def describe(self) -> Iterable[Metric]:
        """Nothing: the store is not asked before the first scrape."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """The families of one scrape; those of the cycle are left out before the first one."""
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
        paused = GaugeMetricFamily("outrider_remediation_paused", "1 while remediation is paused.")
        paused.add_metric([], float(self._state.paused()))
        yield paused

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
            family = GaugeMetricFamily(f"outrider_{name}", help_text)
            family.add_metric([], float(value))
            yield family

    def _alerts(self) -> Counter[tuple[str, ...]]:
        active = self._state.alerts(states=(AlertState.PENDING, AlertState.FIRING), limit=100_000)
        return Counter((alert.priority, alert.state) for alert in active)

    def _incidents(self) -> Counter[tuple[str, ...]]:
        return Counter((incident.priority, _fault(incident)) for incident in self._state.incidents(open_only=True))


def _fault(incident: Incident) -> str:
    cause = incident.suspected_cause
    return cause.fault if cause else "unknown"


def _counted(name: str, help_text: str, labels: tuple[str, ...], counts: Counter[tuple[str, ...]]) -> Metric:
    family = GaugeMetricFamily(name, help_text, labels=labels)
    for values, count in sorted(counts.items()):
        family.add_metric([str(value) for value in values], count)
    return family
