"""Blackbox probes and SDK counters of services as canonical signals, as from their exposition pages."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import datetime

import numpy as np

from benchmarks.fleet.sheets import LastCounters, Reading, Sheet, batches_of, ratio, refs
from outrider.model import EntityKind, EntityRef, Floats, SampleBatch
from simulator.exporters.blackbox import IngressProbe, SdkCounters
from simulator.fleet import Fleet


class BlackboxSheets:
    """Reads the exporters outside the clusters, one cycle per call."""

    def __init__(self, fleet: Fleet) -> None:
        self._probe, self._count = IngressProbe(fleet), SdkCounters(fleet)
        size = len(fleet.spec.services)
        self._probes, self._counts = LastCounters(size), LastCounters(size)
        self._everyone = np.ones(size, dtype=bool)
        self._entities = refs(
            [
                EntityRef(fleet.spec.cluster, EntityKind.SERVICE, service.namespace, service.name)
                for service in fleet.spec.services
            ]
        )

    def probed(self, up: np.ndarray, about: Mapping[str, Floats], at: datetime) -> Iterator[SampleBatch]:
        """Yields probe results; ``up`` (services,) is True if the page could be read."""
        result = self._probe.probe()
        gauges = {
            "probe_success": result.success,
            "probe_http_status_code": result.status,
            "probe_ttft_seconds": result.ttft,
            "probe_itl_seconds": result.itl,
            "probe_e2e_seconds": result.e2e,
            "probe_cert_expiry_seconds": result.expiry_seconds,
            **about,
        }
        grown = self._probes.compare(at.timestamp(), up, np.zeros((up.size, 1)))
        reading = Reading(self._entities, self._everyone, up, grown.seconds, grown.status)
        yield from batches_of(Sheet(EntityKind.SERVICE, "probes", gauges, {}), reading, at, tuple(about))

    def counted(self, up: np.ndarray, about: Mapping[str, Floats], at: datetime) -> Iterator[SampleBatch]:
        """Yields SDK counters; ``up`` (services,) is True if the page could be read."""
        self._count.update()
        counters = [self._count.answers[:, None], self._count.invalid_by_reason, self._count.votes]
        grown = self._counts.compare(at.timestamp(), up, np.concatenate(counters, axis=1))
        more, seconds = grown.increases, grown.seconds
        columns = {
            "svc_output_invalid_ratio": ratio(more[:, 1:-2].sum(axis=1), more[:, 0]),
            "svc_answers_total": more[:, 0],
            "svc_invalid_answers_total": more[:, 1:-2].sum(axis=1),
            "svc_feedback_up_total": more[:, -2],
            "svc_feedback_down_total": more[:, -1],
            "svc_feedback_up_per_second": more[:, -2] / seconds,
            "svc_feedback_down_per_second": more[:, -1] / seconds,
        }
        gauges = {"svc_kpi_value": self._count.kpi, **about}
        reading = Reading(self._entities, self._everyone, up, seconds, grown.status)
        yield from batches_of(Sheet(EntityKind.SERVICE, "owners", gauges, columns), reading, at, tuple(about))
