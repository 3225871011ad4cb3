"""Alerts as series for Prometheus, like its own ``ALERTS``: for Grafana, and for rules that join them.

The number of series is bounded. The most urgent alerts have one, the rest is counted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from prometheus_client.core import GaugeMetricFamily, Metric

from alerts.state.alert_labels import SEVERITIES
from outrider.model import Alert, AlertState
from outrider.wire.alertmanager import ORIGIN_LABEL

MOST_SERIES = 1_000
LABELS = (
    "alertname", "alertstate", "severity", "priority", "cluster", "kind", "namespace", "entity", "fault", ORIGIN_LABEL,
)  # fmt: skip
_STATES = {AlertState.PENDING: "pending", AlertState.FIRING: "firing"}


def families(active: Sequence[Alert], origin: str) -> Iterable[Metric]:
    """The series of our own active alerts, and the number of those without a series.

    Received alerts are left out: their source has a series of its own.
    """
    own = [alert for alert in active if not alert.is_received and alert.state in _STATES]
    own.sort(key=lambda alert: (alert.state is not AlertState.FIRING, alert.priority.rank, alert.starts_at))
    series = GaugeMetricFamily("ALERTS", "1 for each alert that is pending or firing.", labels=LABELS)
    written = dict.fromkeys(_labels(alert, origin) for alert in own[:MOST_SERIES])
    for labels in written:
        series.add_metric(labels, 1.0)
    yield series
    left = len(own) - min(len(own), MOST_SERIES)
    yield GaugeMetricFamily("outrider_alerts_without_series", "Active alerts beyond the limit of ALERTS.", value=left)


def _labels(alert: Alert, origin: str) -> tuple[str, ...]:
    entity = alert.entity
    return (
        alert.rule,
        _STATES[alert.state],
        SEVERITIES[alert.priority],
        alert.priority.value,
        entity.cluster,
        entity.kind.value,
        entity.namespace or "",
        entity.name,
        alert.fault or "",
        origin,
    )
