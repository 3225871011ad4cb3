"""gpu-power-throttle: a GPU whose power limit, and not only the load, holds its clock down.

A board at full load runs into its limit by design, as do its peers. It is a fault if the limit was lowered. Another
case is one GPU far below the clock of its peers at the same work.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, ClassVar

import numpy as np

from detectors.base.condition_durations import Flags, measure_run, newest, no_verdicts
from detectors.base.findings import evidence, finding
from detectors.base.state_arrays import Arrays
from detectors.base.stateful import StatefulDetector
from detectors.statistics import peer_groups
from outrider.model import (
    EntityKind,
    Evidence,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    SignalKey,
    Window,
    signal_keys,
)
from outrider.topology import Topology

THROTTLED = "hw_accel_throttle_power_ratio"
POWER, LIMIT = "hw_accel_power_watts", "hw_accel_power_limit_watts"
CLOCK, BUSY = "hw_accel_core_clock_hertz", "hw_accel_utilization_ratio"
THROTTLE_RATIO = 0.2  # a fifth of the time; brief brakes are normal
AT_LIMIT = 0.95  # share of the limit
LOWERED = 0.95  # of the highest limit seen; boards of one type differ by less
CLOCK_SHARE = 0.85  # of the median of the peers; more than boost steps explain
BUSY_RATIO = 0.3  # an idle board lowers its clock by itself
LASTING_SCRAPES = 2


class PowerCapDetector(StatefulDetector):
    """One verdict per accelerator that is slowed down by its power limit."""

    name = "power-cap"
    kind = EntityKind.GPU
    keys: tuple[SignalKey, ...] = signal_keys(THROTTLED, POWER, LIMIT, CLOCK, BUSY)
    window = timedelta(minutes=10)
    state_version = 1
    defaults: ClassVar[dict[str, Any]] = {"limit": np.nan}

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Judges the newest scrapes of every accelerator."""
        throttled, power, limit, clock, busy = (window.column(key) for key in self.keys)
        memory["limit"] = np.fmax(memory["limit"], np.nanmax(np.nan_to_num(limit), axis=1, initial=0.0))
        most = np.where(memory["limit"] > 0, memory["limit"], np.nan)
        with np.errstate(invalid="ignore"):
            works = ~(busy < BUSY_RATIO)
            full = power >= AT_LIMIT * limit
            lowered = limit < LOWERED * most[:, None]
            held = np.where(np.isnan(throttled), full, throttled > THROTTLE_RATIO)
            slower = clock < CLOCK_SHARE * self._clock_of_peers(window, clock, works, topology)[:, None]
        capped = works & held & (lowered | (slower & full))
        run = measure_run(~(np.isnan(throttled) & np.isnan(power)), capped, window.times)
        verdicts: list[Finding | NoVerdict] = []
        for row in np.flatnonzero(run.scrapes >= LASTING_SCRAPES):
            evidence_items = _evidence(window, int(row), float(most[row]))
            since = float(window.times[run.start[row]])
            score = 0.9 if throttled[row, run.start[row]] > THROTTLE_RATIO else 0.75
            entity, fault = window.entities[row], "gpu-power-throttle"
            verdicts.append(
                finding(self.name, entity, fault, score=score, since=since, now=now, evidence_items=evidence_items)
            )
        verdicts.extend(
            no_verdicts(self.name, window.entities, window.column_status(POWER), np.isnan(newest(window, power)))
        )
        return verdicts

    def _clock_of_peers(self, window: Window, clock: Floats, works: Flags, topology: Topology) -> Floats:
        """The median clock of each GPU's working peers; NaN for fewer than three."""
        result = np.full(len(window.entities), np.nan)
        present = newest(window, np.where(works, clock, np.nan))
        if np.isnan(present).all():
            return result
        # Only GPUs that differ from the fleet median need the topology walk.
        group = (
            peer_groups.groups(window.entities, topology)
            if np.nanmin(present) < CLOCK_SHARE * np.nanmax(present)
            else None
        )
        for number in np.unique(group[group >= 0]) if group is not None else ():
            inside = group == number
            known = present[inside & ~np.isnan(present)]
            if known.size >= peer_groups.FEWEST:
                result[inside] = np.median(known)
        return result


def _evidence(window: Window, row: int, most: float) -> tuple[Evidence, ...]:
    throttled, power, limit, clock = (
        float(newest(window, window.column(name)[row : row + 1])[0]) for name in (THROTTLED, POWER, LIMIT, CLOCK)
    )
    text = "power_limit_lowered" if limit < LOWERED * most else "power_limit_holds"
    item = evidence(LIMIT, limit, text, Interval(LOWERED * most, None), watts=limit, before=most, drawn=power)
    if np.isnan(throttled):
        return (item,)
    throttling = evidence(
        THROTTLED, throttled, "throttled_by_power", Interval(None, THROTTLE_RATIO), value=throttled, clock=clock / 1e9
    )
    return (item, throttling)
