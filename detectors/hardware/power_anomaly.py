"""GPU power far from what its work explains: too little for a busy GPU, too much for an idle one.

Power follows utilization, tensor-core activity and memory traffic. GPUs of one class (type, model, role and services
above) learn that line together (``online_regression``). It is not extrapolated beyond observed power and work. A GPU
may be busy at least half the time and draw a quarter less than expected. It is then throttled (power brake, capped
clock), or spins in a loop that counts as work (a collective). A nearly idle GPU that draws far more does work that its
counters do not show. A deviation that more than half of the class shares is dropped.

Findings are P3 and name no fault. They support low-power faults on the GPU. If all GPUs of a replica (two or more) draw
too little, they support those on the replica too. The detector starts in shadow; its threshold follows the alarm
budget. Misleading if the exporter has only utilization and one GPU does prefill while its peers decode.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.base.condition_durations import Flags, newest
from detectors.base.findings import anomaly_finding, evidence
from detectors.base.state_arrays import Arrays
from detectors.learning.conditional_detector import (
    DEFAULTS,
    LONGEST_STEP_SECONDS,
    ConditionalDetector,
    last_seen_defaults,
    of_class,
    read_signals,
)
from detectors.statistics import peer_groups
from detectors.statistics.online_regression import DriverModel, RegressionLine
from outrider.model import (
    EntityKind,
    EntityRef,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    SignalKey,
    Window,
    signal_keys,
)
from outrider.topology import Topology

POWER, BUSY = "hw_accel_power_watts", "hw_accel_utilization_ratio"
TENSOR, TRAFFIC = "hw_accel_tensor_active_ratio", "hw_accel_memory_bandwidth_ratio"
# Of utilization, tensor activity and memory traffic. A working board draws 2 to 10 times its idle power, so
# together they make up most of it; the split depends on the model. At least 60 readings per driver.
DRAW = DriverModel("utm", (0.4, 0.2, 0.2), (0.3, 0.3, 0.3), least_noise=0.02, least_share=0.05, min_samples=180.0)
WARM_UP = timedelta(minutes=30)  # of the class; one load level does not define a line
MEMORY = timedelta(days=1)  # of the line; a day contains all loads
TRAILING_SECONDS = 120.0  # exporters average power and work over different seconds; at least two readings
LEAST_CELLS = 2  # of the trailing minutes
FAR = 0.25  # of the expectation; boards of one type differ by a tenth
SURE = 4.0  # times the scatter of single readings about the line
EXCESS = 0.15  # of the maximum of the class; idle boards differ by some ten watts
APART = 0.125  # of the expectation, from the median of the class
BUSY_FROM, IDLE_UP_TO = 0.5, 0.4  # low power is relevant on a busy GPU, high power on an idle one
LASTING = timedelta(minutes=3)  # in addition to the trailing minutes
LAG_SECONDS = 150.0  # newer values are not learned: they may be the start of a fault
FORGOTTEN_SECONDS = 600.0  # seconds without a verdict after which a new deviation starts over
SLIP = 3.0  # times the power of a GPU and its class; before a line exists, such a reading is an exporter error
CLIP = 3.0  # times the scatter; limits the effect of an outlier
FROZEN_AT_MOST = timedelta(days=1)  # after this, the distance is the new normal of a GPU without peers


@dataclass(frozen=True, slots=True)
class _Usual:
    """Learned state of each GPU's class, (entities,): its line, whether it may be used, and its extremes.

    ``least`` and ``most`` bound the observed power, ``idlest`` and ``busiest`` the utilization; all decay with the
    line.
    """

    line: RegressionLine
    learnt: Flags
    least: Floats
    most: Floats
    idlest: Floats
    busiest: Floats

    def expected(self, drivers: Sequence[Floats]) -> tuple[Floats, Floats]:
        """Watts and relative standard error, (entities, times), within the observed power of the class."""
        due, error = self.line.expected(drivers)
        return np.clip(due, self.least[:, None], self.most[:, None]), error

    @property
    def scatter(self) -> Floats:
        """Scatter of single readings about the line in watts."""
        return np.nan_to_num(self.line.noise * self.line.mean)


@dataclass(frozen=True, slots=True)
class _Snapshot:
    """Values of the trailing minutes, (entities,): mean watts and utilization.

    ``reach`` is the threshold; ``judged`` is False if no verdict is possible.
    """

    took: Floats
    due: Floats
    reach: Floats
    busy: Floats
    judged: Flags


class PowerAnomalyDetector(ConditionalDetector):
    """One verdict per accelerator."""

    name = "power-draw"
    keys: tuple[SignalKey, ...] = signal_keys(POWER, BUSY, TENSOR, TRAFFIC)
    maybe = (TENSOR, TRAFFIC)
    anomaly_arrays = ("low_since", "high_since")
    state_version = 2
    defaults: ClassVar[dict[str, Any]] = {
        **DRAW.defaults,
        **DEFAULTS,
        **last_seen_defaults((TENSOR, TRAFFIC)),
        "least": np.nan,
        "most": np.nan,
        "idlest": np.nan,
        "busiest": np.nan,
        "told_at": -np.inf,
        "low_since": np.nan,
        "high_since": np.nan,
    }

    def judge(self, window: Window, memory: Arrays, topology: Topology, now: datetime) -> Iterable[Finding | NoVerdict]:
        """Judges the trailing minutes by earlier history, then learns values that are old enough."""
        elapsed = self._live(window, memory)
        group = self._sort(window, memory, topology)
        usual, at = _usual(memory, group), float(window.times[-1])
        snapshot = _snapshot(self._read(window, memory, _trailing(window)), usual, self._calibrator.factor(memory))
        alarmed = np.zeros(len(window.entities), dtype=np.bool_)
        verdicts: list[Finding | NoVerdict] = []
        memory["told_at"] = np.where(snapshot.judged, at, memory["told_at"])
        gone = at - memory["told_at"] >= FORGOTTEN_SECONDS
        for name, far in zip(("low_since", "high_since"), _far(snapshot, usual, group), strict=True):
            since = np.where(far, np.fmin(memory[name], at), np.nan)
            memory[name] = np.where(snapshot.judged, since, np.where(gone, np.nan, memory[name]))
            lasting = far & (at - memory[name] >= LASTING.total_seconds())
            alarmed |= lasting
            verdicts += self._findings(window.entities, snapshot, memory[name], lasting, topology, now)
        self._calibrator.count(memory, memory, alarmed, snapshot.judged, elapsed)
        self._learn(window, memory, usual, group)
        blind = np.isnan(newest(window, window.column(POWER))) | np.isnan(newest(window, window.column(BUSY)))
        status = np.maximum(window.column_status(POWER), window.column_status(BUSY))
        return (*verdicts, *self._no_verdicts(window, blind, status, usual.learnt, snapshot.judged))

    def _known(self, window: Window, _memory: Arrays, columns: slice) -> Flags:
        power, busy = read_signals(window, columns, (POWER, BUSY))
        known: Flags = np.isfinite(power) & np.isfinite(busy)
        return known

    def _teach(self, window: Window, memory: Arrays, group: NDArray[np.intp]) -> None:
        self._learn(window, memory, _usual(memory, group), group)

    def _learn(self, window: Window, memory: Arrays, usual: _Usual, group: NDArray[np.intp]) -> None:
        """Learns readings that are old enough, of GPUs near their expectation."""
        times, until = window.times, float(window.times[-1]) - LAG_SECONDS
        first, stop = np.searchsorted(times, (memory["learnt_until"].min(initial=until), until), side="right")
        if first >= stop:
            return
        power, *drivers = self._read(window, memory, slice(int(first), int(stop)))
        due, wide = usual.expected(drivers)[0], CLIP * usual.scatter[:, None]
        with np.errstate(invalid="ignore"):
            inside = (drivers[0] >= usual.idlest[:, None]) & (drivers[0] <= usual.busiest[:, None])
        inside &= usual.learnt[:, None] & np.isfinite(due)
        near = np.where(inside, np.clip(power, due - wide, due + wide), power)
        odd_since = np.fmin(memory["low_since"], memory["high_since"])
        frozen: Flags = odd_since >= times[-1] - FROZEN_AT_MOST.total_seconds()
        where = (times[first:stop] > memory["learnt_until"][:, None]) & ~frozen[:, None]
        where &= np.logical_and.reduce([np.isfinite(values) for values in (power, *drivers)])
        where &= inside | ~_slips(window, power, np.asarray(~inside.all(axis=1)), group)
        elapsed = np.maximum(until - memory["learnt_until"], 0.0)
        forget = np.exp(-elapsed / MEMORY.total_seconds())
        DRAW.learn(memory, drivers, near, where, forget)
        stood_for = np.clip(elapsed, 0.0, LONGEST_STEP_SECONDS)
        memory["seconds"] = memory["seconds"] + np.where(where.any(axis=1) & np.isfinite(elapsed), stood_for, 0.0)
        for names, values, mean in (
            (("least", "most"), near, usual.line.mean),
            (("idlest", "busiest"), drivers[0], usual.line.drivers[:, 0]),
        ):
            for name, how, none in zip(names, (np.fmin, np.fmax), (np.inf, -np.inf), strict=True):
                extreme = how.reduce(np.where(where, values, none), axis=1)
                faded = np.where(np.isfinite(mean), mean + forget * (memory[name] - mean), memory[name])
                memory[name] = how(faded, np.where(np.isfinite(extreme), extreme, np.nan))
        memory["learnt_until"] = np.maximum(memory["learnt_until"], until)

    def _findings(
        self,
        entities: tuple[EntityRef, ...],
        snapshot: _Snapshot,
        since: Floats,
        far: Flags,
        topology: Topology,
        now: datetime,
    ) -> list[Finding]:
        rows = np.flatnonzero(far)
        findings = [self._finding(entities[row], snapshot, since, np.array([row]), now) for row in rows]
        low = {entities[row]: int(row) for row in rows if snapshot.took[row] < snapshot.due[row]}
        for replica in dict.fromkeys(item for card in low for item in topology.above(card, EntityKind.REPLICA)):
            cards = topology.below(replica, EntityKind.GPU)
            if len(cards) > 1 and all(card in low for card in cards):
                findings.append(self._finding(replica, snapshot, since, np.array([low[card] for card in cards]), now))
        return findings

    def _finding(
        self, entity: EntityRef, snapshot: _Snapshot, since: Floats, rows: NDArray[np.intp], now: datetime
    ) -> Finding:
        """The finding of one GPU, or of all GPUs of a replica together."""
        took, due, reach = (float(values[rows].sum()) for values in (snapshot.took, snapshot.due, snapshot.reach))
        low, whole = took < due, entity.kind is EntityKind.REPLICA
        limit = Interval(due - reach, None) if low else Interval(None, due + reach)
        text = "power_low_on_all_cards" if whole else "power_low_for_its_work" if low else "power_high_for_its_work"
        percent = 100.0 * float(snapshot.busy[rows].mean())
        figures = {"watts": took, "due": due, "percent": percent}
        item = evidence(
            POWER, took, text, limit, **figures, **({"cards": rows.size} if whole else {"card": entity.name})
        )
        strength = abs(took - due) / reach
        return anomaly_finding(
            self.name,
            entity,
            POWER,
            signals=(POWER, BUSY),
            score=strength / (strength + 1.0),
            observed=took,
            expected=limit,
            start=min(datetime.fromtimestamp(float(since[rows].min()), tz=UTC), now),
            now=now,
            evidence_items=(item,),
        )


def _usual(memory: Arrays, group: NDArray[np.intp]) -> _Usual:
    line = DRAW.fit(memory, group)
    learnt = line.known & (of_class(np.fmax, memory["seconds"], group) >= WARM_UP.total_seconds())
    least, idlest = (of_class(np.fmin, memory[name], group) for name in ("least", "idlest"))
    most, busiest = (of_class(np.fmax, memory[name], group) for name in ("most", "busiest"))
    return _Usual(line, learnt, least, most, idlest, busiest)


def _trailing(window: Window) -> slice:
    """The columns of the trailing minutes."""
    trailing = max(TRAILING_SECONDS, LEAST_CELLS * window.step.total_seconds())
    return slice(int(np.searchsorted(window.times, window.times[-1] - trailing, side="right")), None)


def _snapshot(read: Sequence[Floats], usual: _Usual, factor: float) -> _Snapshot:
    """Values of the trailing minutes, ``read`` as power and drivers.

    ``factor`` is the budget's multiplier of the threshold.
    """
    power, *drivers = read
    due, error = usual.expected(drivers)
    known = np.isfinite(power) & np.isfinite(due) & usual.learnt[:, None]
    count = known.sum(axis=1)
    took, should, unsure, busy = (
        np.where(known, values, 0.0).sum(axis=1) / np.maximum(count, 1)
        for values in (power, due, error * due, drivers[0])
    )
    reach = factor * np.maximum(FAR * should, SURE * np.hypot(usual.scatter, unsure))
    return _Snapshot(took, should, reach, busy, (count >= LEAST_CELLS) & (should > 0))


def _far(snapshot: _Snapshot, usual: _Usual, group: NDArray[np.intp]) -> tuple[Flags, Flags]:
    """True for GPUs that draw too little, and too much, on their own, (entities,).

    Beyond the observed work of the class the line is a guess. Expected power is therefore capped at the observed
    maximum for more work, and at the observed minimum for less.
    """
    off = snapshot.took - snapshot.due
    with np.errstate(invalid="ignore"):
        low = snapshot.judged & (snapshot.busy >= np.maximum(BUSY_FROM, usual.idlest)) & (off < -snapshot.reach)
        high = snapshot.judged & (snapshot.busy <= np.minimum(IDLE_UP_TO, usual.busiest))
        high &= off > np.maximum(snapshot.reach, EXCESS * usual.most)
    if not (low.any() or high.any()):
        return low, high
    over = np.divide(off, snapshot.due, out=np.full(off.shape, np.nan), where=snapshot.judged)
    middle = np.nan_to_num(peer_groups.medians(over[:, None], group)[:, 0])
    over = np.nan_to_num(over)
    return low & (over - np.minimum(middle, 0.0) < -APART), high & (over - np.maximum(middle, 0.0) > APART)


def _slips(window: Window, power: Floats, rows: Flags, group: NDArray[np.intp]) -> Flags:
    """Readings (entities, columns) of ``rows`` far beyond all others of the GPU in the window and of its class.

    A starting load does not qualify: it shows in more than one reading.
    """
    result = np.zeros(power.shape, dtype=np.bool_)
    if rows.any() and window.times.size > 1:
        whole = window.column(POWER)
        second = np.sort(np.where(np.isfinite(whole), whole, -np.inf), axis=1)[:, -2]
        own = np.where(np.isfinite(second), second, np.nan)
        usual = np.fmax(own, peer_groups.medians(own[:, None], group)[:, 0])
        with np.errstate(invalid="ignore"):
            result[rows] = (power > SLIP * usual[:, None])[rows]
    return result
