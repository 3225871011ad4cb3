"""Entities of received alerts, resolved with the topology of the cycle."""

from __future__ import annotations

from collections.abc import Mapping

from alerts.state.received import Subject, SubjectOf
from collectors.receive.alert_entities import AlertEntityResolver
from outrider.model import EntityKind, EntityRef
from outrider.topology import Topology


class AlertSubjects:
    """Resolves labels of received alerts. The index is rebuilt only when the graph changes and an alert needs it."""

    def __init__(self, cluster: str) -> None:
        """``cluster`` is that of alerts without a known cluster in their labels."""
        self._cluster = cluster
        self._resolver: AlertEntityResolver | None = None

    def within(self, topology: Topology) -> SubjectOf:
        """Returns the function that resolves the labels of one alert."""

        def subject(labels: Mapping[str, str], fault: str | None) -> Subject:
            if self._resolver is None or not topology.shares_graph(self._resolver.topology):
                self._resolver = AlertEntityResolver(topology, self._cluster)
            result = self._resolver.subject(labels, fault)
            return result.entity, result.known, result.fault

        return subject


def unresolved(labels: Mapping[str, str], _fault: str | None) -> Subject:
    """Returns the subject of an alert if nothing resolves its labels."""
    return EntityRef("default", EntityKind.WORKLOAD, "received", labels.get("alertname", "unnamed")), False, None
