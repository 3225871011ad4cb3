"""autoscaler-stuck: the autoscaler of a service cannot read its metric, so it does not scale.

Reported by the autoscaler itself: its ScalingActive condition is false, or errors of its trigger grow.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np

from detectors.base.condition_durations import Flags, measure_run, no_verdicts, unusable_reason
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import empty
from outrider.model import DetectorState, EntityKind, EntityRef, Finding, Interval, NoVerdict, SignalKey, Window
from outrider.topology import Topology

ERRORS = "autoscaler_errors_per_second"
LASTING_SECONDS = 60.0  # an autoscaler reads every 15 s; one or two reads may fail
LASTING_SCRAPES = 4


class AutoscalerDetector:
    """One finding per service whose autoscaler cannot read its metric."""

    name = "scaling"
    kind = EntityKind.WORKLOAD
    keys: tuple[SignalKey, ...] = (SignalKey(ERRORS),)
    window = timedelta(minutes=10)
    state_version = 1

    def initial(self) -> DetectorState:
        """Empty state: the window holds everything."""
        return empty(self.state_version, {})

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """A finding while the autoscaler of a workload fails to read its metric."""
        reason = unusable_reason(window, now.timestamp())
        if reason is not None or not window.entities:
            return state, (NoVerdict(self.name, None, reason),) if reason else ()
        values = window.column(ERRORS)
        seen: Flags = ~np.isnan(values)
        unknown = np.asarray(~seen.any(axis=1), dtype=np.bool_)
        run = measure_run(seen, np.nan_to_num(values) > 0, window.times)
        stuck = run.lasts(LASTING_SECONDS, LASTING_SCRAPES)
        oldest: dict[EntityRef, int] = {}  # a service may have several workloads with an autoscaler each
        for row in np.flatnonzero(stuck):
            for service in _services(window.entities[row], topology):
                oldest[service] = min(oldest.get(service, int(row)), int(row), key=lambda item: int(run.start[item]))
        result = [
            finding(
                self.name,
                service,
                "autoscaler-stuck",
                score=0.9,
                since=window.times[run.start[row]],
                now=now,
                evidence_items=(
                    evidence(ERRORS, None, "autoscaler_blind", Interval(None, 0.0), scrapes=int(run.scrapes[row])),
                ),
            )
            for service, row in oldest.items()
        ]
        return state, (*result, *no_verdicts(self.name, window.entities, window.column_status(ERRORS), unknown))


def _services(workload: EntityRef, topology: Topology) -> tuple[EntityRef, ...]:
    """Services of the workload; the service of its own name if the topology has none."""
    above = topology.above(workload, EntityKind.SERVICE)
    return tuple(above) or (EntityRef(workload.cluster, EntityKind.SERVICE, workload.namespace, workload.name),)
