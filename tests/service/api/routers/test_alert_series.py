"""Our alerts as series of bounded number."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from outrider.model import RECEIVED_FROM, Alert, AlertReason, AlertState, EntityKind, EntityRef, Priority
from service.api.routers.alert_series import MOST_SERIES, families

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


def alert(number: int, priority: Priority = Priority.P2, state: AlertState = AlertState.FIRING, **fields) -> Alert:
    entity = EntityRef("prod", EntityKind.POD, "llm", f'p{number}"\n')
    at = T0 + timedelta(seconds=number)
    return Alert(f"f{number}", "slow", priority, entity, state, AlertReason.STILL_TRUE, at, at, **fields)


def test_the_most_urgent_alerts_have_a_series_and_the_rest_is_counted():
    many = [alert(number) for number in range(MOST_SERIES + 50)]
    urgent = alert(9999, Priority.P0)
    series, left = families([*many, urgent], "prod")
    assert len(series.samples) == MOST_SERIES
    assert series.samples[0].labels["priority"] == "P0"
    assert left.samples[0].value == 51


def test_received_and_resolved_alerts_have_none():
    received = alert(1, labels={RECEIVED_FROM: "alertmanager"})
    series, left = families([received, alert(2, state=AlertState.RESOLVED)], "prod")
    assert (series.samples, left.samples[0].value) == ([], 0)


def test_two_alerts_with_the_same_labels_are_one_series():
    twice = [alert(1), Alert(**{**{name: getattr(alert(1), name) for name in Alert.__slots__}, "fingerprint": "other"})]
    series, _ = families(twice, "prod")
    assert len(series.samples) == 1


class Once(Collector):
    """Returns the same families at every scrape."""

    def __init__(self, *alerts: Alert) -> None:
        self._alerts = alerts

    def collect(self):
        return families(self._alerts, "prod")


def test_a_megabyte_of_name_and_what_no_encoding_has_is_a_bounded_label():
    registry = CollectorRegistry()
    odd = [EntityRef("prod", EntityKind.POD, "llm", name) for name in ("x" * 1_000_000, "\ud800\0", '<b>"\\\n')]
    registry.register(Once(*(replace(alert(number), entity=entity) for number, entity in enumerate(odd))))
    series, _ = text_string_to_metric_families(generate_latest(registry).decode())
    names = [sample.labels["entity"] for sample in series.samples]
    assert [len(name.encode()) <= 1000 for name in names] == [True] * 3
    assert names[2] == odd[2].name
