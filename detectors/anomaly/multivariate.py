"""Multivariate anomalies: combinations of deviations that no single signal shows.

Runs the ensemble that ``outrider detect backtest`` scores on recordings (residuals, members with an isolation forest,
decaying hold, alarm threshold). On live entities it also uses operator feedback (``feedback_suppression``), minimum
scales from the signal catalog, and signals behind a score. An entity with fewer than fifty readings is not judged. A
deviation that a quarter of the fleet or most peers share is not reported.

A reading is the five-minute mean of a gauge, rate of a counter or mean of a histogram. The constants were tuned at this
spacing. Slots start at whole multiples of five minutes. A slot is judged once, by the first cycle after it, and its
verdict holds until the next. Findings are P3 and name no fault.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta, tzinfo

import numpy as np
from numpy.typing import NDArray

from detectors.anomaly import feedback_suppression, seasonal
from detectors.base import hysteresis, sampling
from detectors.base.findings import anomaly_finding
from detectors.base.protocols import AlertFeedback
from detectors.base.state_arrays import Arrays, scalars
from detectors.learning import learning_detector, state_fingerprint
from detectors.statistics import peer_groups
from detectors.statistics.alarm_budget import AlarmCount
from detectors.statistics.alarm_threshold import HEADROOM
from detectors.statistics.baseline import Span, held
from detectors.statistics.deviation import FREE_READINGS
from detectors.statistics.ensemble import FEWEST_ROWS, Ensemble
from detectors.statistics.ensemble_members import SUREST
from detectors.statistics.residuals import KINDS
from detectors.statistics.theil_sen import means
from outrider.model import (
    CellStatus,
    DetectorState,
    EntityKind,
    EntityRef,
    Evidence,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    SignalKind,
    Statistic,
    Window,
)
from outrider.topology import Topology
from outrider.vocabulary import catalog

SLOT_SECONDS = 300.0
BLAMED = 3
NEAR = 0.75  # of the threshold; a peer above this deviates as well
MOST_PEERS = 0.5
_BLOCK = 48  # readings of history per batch, as for recordings
_COARSE = 1.5  # slots; coarser history teaches the time of day only


# Watched by default: kinds with enough signals for meaningful combinations.
WATCHED: dict[EntityKind, tuple[str, ...]] = {
    EntityKind.REPLICA: (
        "engine_generation_tokens_total",
        "engine_requests_running",
        "engine_requests_waiting",
        "engine_kv_cache_usage_ratio",
        "engine_ttft_seconds",
        "engine_tpot_seconds",
    ),
    EntityKind.GPU: seasonal.WATCHED[EntityKind.GPU],
    EntityKind.NODE: (
        "node_cpu_utilization_ratio",
        "node_memory_available_ratio",
        "node_filesystem_available_ratio",
        "node_disk_busy_ratio",
    ),
}


class MultivariateDetector(learning_detector.StatisticalDetector):
    """The ensemble over the entities of one kind."""

    family = "isolation"
    weekly = False
    state_version = 4
    window = timedelta(minutes=10)
    warm_step = timedelta(seconds=SLOT_SECONDS)
    warm_statistic = Statistic.MEAN
    passing = (
        *(*learning_detector.StatisticalDetector.passing, "score", "known", "shared", "features", "reading", "held"),
        *("before", "lasting", "unrest", "activity"),  # the first reading after a pause is not a step
    )

    def __init__(self, kind: EntityKind, signals: Sequence[str], name: str | None = None) -> None:
        """``signals`` are catalog names; the name defaults to ``isolation-<kind>``."""
        super().__init__(kind, signals, name)
        self._is_gauge = np.array([catalog.signal(signal).kind in _GAUGES for signal in signals])
        self._holidays: Sequence[Span] = ()
        self.set_budget(learning_detector.ALARMS_PER_ENTITY_DAY)

    def set_budget(self, alarms_per_entity_day: float) -> None:
        """Replaces the default budget. Call before the first cycle. The ensemble's threshold follows it.

        The budget covers all alarms, true faults included.
        """
        self._calibrator = AlarmCount(alarms_per_entity_day)
        floors, false_alarms = self._baseline.floors, alarms_per_entity_day / HEADROOM
        self._ensemble = Ensemble(len(self.signals), false_alarms, floors, FREE_READINGS)
        self._ensemble.set_holidays(self._holidays)
        self._ensemble.set_zone(self._zone)

    def set_zone(self, zone: tzinfo) -> None:
        """Sets the time zone of times of day. Call before the first cycle."""
        super().set_zone(zone)
        self._ensemble.set_zone(zone)

    def set_holidays(self, holidays: Sequence[Span]) -> None:
        """Sets the days without a usual profile. Call before the first cycle."""
        super().set_holidays(holidays)
        self._holidays = tuple(holidays)
        self._ensemble.set_holidays(self._holidays)

    def initial(self) -> DetectorState:
        """Returns the state before anything is learned, without members."""
        return DetectorState(self.state_version, (), {**self._fresh(0), **self._pool()})

    def restored(self, state: DetectorState) -> tuple[DetectorState, str]:
        """The usable part of a checkpoint and the reason if a part is dropped.

        State of other signals or of another time zone is dropped. If the rows are not those that were fitted, they are
        damaged, and the reservoir may be as well. Another library version fits other trees, so the model is refitted.
        """
        if misfit := self._misfit(state):
            return self.initial(), misfit
        fitted = state.arrays.get("fitted")
        if fitted is None or state_fingerprint.same_model(state, fitted):
            return state, ""
        same = state_fingerprint.same_rows(state, fitted)
        lost = (
            "fitted",
            "fitted_at",
            "seen_when_fitted",
            *state_fingerprint.MODEL,
            *(() if same else ("reservoir", "seen")),
        )
        reason = "another library fitted its model" if same else "its model does not match its rows"
        empty = self._pool()
        return replace(state, arrays={**state.arrays, **{name: empty[name] for name in lost}}), reason

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Learns from history, oldest first, as from live data; skips columns not newer than the state.

        History with a step above 7.5 minutes teaches the time of day only.
        """
        memory, pool = self._follow(state, window, copied=True)
        seconds = sampling.spacing(window)
        first = int(np.searchsorted(window.times, pool["last"][0], side="right"))
        step = float(np.median(seconds[first:])) if first < window.times.size else 0.0
        for start in range(first, window.times.size, _BLOCK):
            span = slice(start, min(start + _BLOCK, window.times.size))
            values = sampling.read(window, self.signals, span)
            for place in range(values.shape[1]):
                learning_detector.lived(pool, np.isfinite(values[:, place]), float(seconds[start + place]))
            if step > _COARSE * SLOT_SECONDS:
                self._ensemble.learn_season(memory, values, window.times[span], step)
            else:
                self._ensemble.evaluate(memory, pool, values, window.times[span], step)
        if step > _COARSE * SLOT_SECONDS:
            self._ensemble.begin_anew(memory)
        pool |= state_fingerprint.of_model(pool["fitted"])
        if window.times.size:
            pool["last"] = pool["judged"] = np.maximum(pool["last"], window.times[-1])
        return DetectorState(self.state_version, window.entities, {**memory, **pool})

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """Judges every complete slot once and returns the current findings."""
        if window.times.size == 0 or not window.entities:
            return state, (NoVerdict(self.name, None, NoVerdictReason.NO_VALUES),)
        pool = scalars(state, self._scalars())
        last = float(pool["last"][0])
        if now.timestamp() < last:
            return state, (NoVerdict(self.name, None, NoVerdictReason.CLOCK_STEP),)
        slots = list(_slots(window, float(pool["judged"][0])))
        memory, pool = self._follow(state, window, copied=bool(slots))
        self._live(pool, window, last)
        group = peer_groups.groups(window.entities, topology) if slots else np.zeros(0, dtype=np.intp)
        for columns, start, length in slots:
            self._judge(window.entities, group, memory, pool, self._reading(window, columns), start, length)
        pool["last"] = np.array([max(last, float(window.times[-1]))])
        result = self._findings(window.entities, memory, now)
        silent = self._no_verdicts(window.entities, memory, pool)
        return DetectorState(self.state_version, window.entities, {**memory, **pool}), (*result, *silent)

    def _live(self, pool: Arrays, window: Window, last: float) -> None:
        """Counts the time of the new columns."""
        first = int(np.searchsorted(window.times, last, side="right"))
        has_value = np.any(window.status[:, first:] <= CellStatus.BELOW_FIRST_BUCKET, axis=2)
        for place, seconds in enumerate(sampling.spacing(window)[first:]):
            learning_detector.lived(pool, has_value[:, place], float(seconds))

    def _reading(self, window: Window, columns: slice) -> Floats:
        """One reading of each entity and signal from the columns of a slot, (entities, signals)."""
        newest: Floats = sampling.read(window, self.signals, slice(columns.stop - 1, columns.stop))[:, 0]
        gauges = np.flatnonzero(self._is_gauge)
        if gauges.size and columns.stop - columns.start > 1:
            values = sampling.read(window, [self.signals[place] for place in gauges], columns)
            newest[:, gauges] = means(np.moveaxis(values, 1, 2))
        return newest

    def teach(self, state: DetectorState, judged: Sequence[AlertFeedback]) -> DetectorState:
        """Applies all verdicts of the last month; an anomaly judged not useful ends."""
        pool = feedback_suppression.held(state.arrays, self._ensemble.width)
        news = feedback_suppression.teach(pool, judged, 2.0 * SLOT_SECONDS)
        arrays = {**state.arrays, **pool}
        if news.size and arrays["held"].shape == (len(state.entities),):
            names = np.array([entity.key for entity in state.entities], dtype=np.str_)
            arrays["held"] = np.where(np.isin(names, news), 0.0, arrays["held"])
        return replace(state, arrays=arrays)

    def _judge(
        self,
        entities: tuple[EntityRef, ...],
        group: NDArray[np.intp],
        memory: Arrays,
        pool: Arrays,
        values: Floats,
        at: float,
        seconds: float,
    ) -> None:
        """Scores one reading of all entities and updates the state."""
        fitted_at, times = pool["fitted_at"][0], np.array([at])
        rows = self._ensemble.rows(memory, values[:, None], times, seconds)
        known_fine = feedback_suppression.excused(pool, rows[:, 0], entities)
        result = self._ensemble.judge(memory, pool, rows, times, seconds, known_fine[:, None])
        if pool["fitted_at"][0] != fitted_at:
            pool |= state_fingerprint.of_model(pool["fitted"])
        scores, alarms, fresh = result.scores[:, 0], result.alarms[:, 0], result.fresh[:, 0]
        known = np.isfinite(scores)
        news = alarms & (fresh >= scores)  # the others are held scores
        memory["features"][news], memory["reading"][news] = rows[news, 0], values[news]
        begun = np.where(alarms & np.isnan(memory["since"]), at, memory["since"])
        memory["since"] = np.where(known & ~alarms, np.nan, begun)
        memory["known"], memory["score"] = known, np.where(known, scores, 0.0)
        deviates = np.isfinite(memory["since"])
        memory["shared"] = deviates & (memory["shared"] | _shared(memory, deviates, group))
        feedback_suppression.put_aside(pool, rows[:, 0], entities, alarms & (fresh > result.limits[:, 0]), at)
        judged = known & np.isfinite(memory["limit"])
        self._calibrator.count(memory, pool, _own(memory), judged, seconds)
        pool["judged"] = np.array([at])

    def _findings(self, entities: tuple[EntityRef, ...], memory: Arrays, now: datetime) -> list[Finding | NoVerdict]:
        verdicts: list[Finding | NoVerdict] = []
        for row in np.flatnonzero(_own(memory)):
            entity, score, limit = entities[row], float(memory["score"][row]), float(memory["limit"][row])
            evidence_items = self._evidence(memory["features"][row], memory["reading"][row])
            since = min(datetime.fromtimestamp(float(memory["since"][row]), tz=UTC), now)
            verdicts.append(
                anomaly_finding(
                    self.name,
                    entity,
                    "odd",
                    signals=tuple(item.signal for item in evidence_items),
                    score=min(1.0, 0.5 + max(0.0, score - limit) / (2.0 * max(1e-6, SUREST - limit))),
                    observed=score,
                    expected=Interval(None, limit),
                    start=since,
                    now=now,
                    evidence_items=evidence_items,
                )
            )
        return verdicts

    def _evidence(self, features: Floats, reading: Floats) -> tuple[Evidence, ...]:
        """The signals with the largest residuals at the peak of the deviation, and the kind of residual."""
        table = features.reshape(len(KINDS), len(self.signals))
        kinds = np.abs(table).argmax(axis=0)
        far = table[kinds, np.arange(len(self.signals))]
        result = []
        for place in np.argsort(-np.abs(far), kind="stable")[:BLAMED]:
            signal, kind, scales = self.signals[place], KINDS[kinds[place]], float(far[place])
            observed = None if np.isnan(reading[place]) else float(reading[place])
            result.append(Evidence(signal, observed, None, *_text_of(signal, kind, scales)))
        return tuple(result)

    def _no_verdicts(self, entities: tuple[EntityRef, ...], memory: Arrays, pool: Arrays) -> list[NoVerdict]:
        """NoVerdicts: no members and threshold yet, a new entity, or no values."""
        if pool["fitted"].shape[0] < FEWEST_ROWS or np.isinf(memory["limit"]).all():
            return [NoVerdict(self.name, None, NoVerdictReason.WARMING_UP)]
        new = (memory["updates"].max(axis=1) < FREE_READINGS) | np.isinf(memory["limit"])
        missing = ~new & ~memory["known"]
        result = [NoVerdict(self.name, entities[row], NoVerdictReason.NO_EXPECTATION) for row in np.flatnonzero(new)]
        return result + [
            NoVerdict(self.name, entities[row], NoVerdictReason.NO_VALUES) for row in np.flatnonzero(missing)
        ]

    def _fresh(self, count: int) -> Arrays:
        return (
            self._ensemble.empty(count)
            | self._calibrator.of_entities(count)
            | {
                "since": np.full(count, np.nan),
                "score": np.zeros(count),
                "known": np.zeros(count, dtype=np.bool_),
                "shared": np.zeros(count, dtype=np.bool_),
                "features": np.zeros((count, self._ensemble.width), dtype=np.float32),
                "reading": np.full((count, len(self.signals)), np.nan),
            }
        )

    def _pool(self) -> Arrays:
        known = {**self._fingerprint(), **self._scalars()}
        pool = self._ensemble.empty_pool()
        return {
            **pool,
            **state_fingerprint.of_model(pool["fitted"]),
            **feedback_suppression.empty(self._ensemble.width),
            **known,
        }

    def _scalars(self) -> Arrays:
        never = {"last": np.array([-np.inf]), "judged": np.array([-np.inf])}
        return {**never, **learning_detector.fresh(), **self._calibrator.of_class()}

    def _follow(self, state: DetectorState, window: Window, *, copied: bool) -> tuple[Arrays, Arrays]:
        """State of the window's entities and of the class; read-only unless ``copied``."""
        if self._misfit(state):
            state = self.initial()
        memory = held(state, window.entities, self._fresh)
        if copied:
            memory = {name: item.copy() for name, item in memory.items()}
        pool = self._pool()
        for name, empty in pool.items():
            own = state.arrays.get(name)
            if own is not None and own.shape[1:] == empty.shape[1:] and (own.ndim == 2 or own.size == empty.size):
                pool[name] = own.copy() if copied else own
        kept = feedback_suppression.held(state.arrays, self._ensemble.width)
        return memory, pool | {name: array.copy() if copied else array for name, array in kept.items()}


_GAUGES = (SignalKind.GAUGE, SignalKind.STATE)


def _slots(window: Window, judged: float) -> Iterator[tuple[slice, float, float]]:
    """Complete slots that are not judged yet, oldest first: columns, start, and length in seconds.

    A slot has the columns after its start up to its end, and ends with the column that reaches it. ``judged`` is the
    start of the last judged slot. Slots without columns are skipped.
    """
    times, length = window.times, max(SLOT_SECONDS, window.step.total_seconds())
    final = np.floor(times[-1] / length) * length
    count = int(min((final - times[0]) // length + 1, times.size))
    for number in range(count, -1, -1):
        end = final - number * length
        first, stop = np.searchsorted(times, (end - length, end), side="right")
        if first < stop and end - length > judged:
            yield slice(int(first), int(stop)), float(end - length), length


def _own(memory: Arrays) -> NDArray[np.bool_]:
    """True for entities with a deviation of their own; False if nothing is known at the moment."""
    mine: NDArray[np.bool_] = np.isfinite(memory["since"]) & memory["known"] & ~memory["shared"]
    return mine


def _shared(memory: Arrays, deviates: NDArray[np.bool_], group: NDArray[np.intp]) -> NDArray[np.bool_]:
    """True for deviations that a quarter of the fleet or most peers share, such as load.

    Peers approach their thresholds at slightly different times, so three quarters of the threshold counts.
    """
    everybody = deviates & ~hysteresis.own(deviates)
    grouped, numbers = group >= 0, np.maximum(group, 0)
    judged = grouped & memory["known"]
    near = judged & (memory["score"] >= NEAR * memory["limit"])
    size = int(numbers.max(initial=0)) + 1
    of, at_once = np.bincount(numbers[judged], minlength=size), np.bincount(numbers[near], minlength=size)
    result: NDArray[np.bool_] = everybody | (deviates & grouped & (at_once > MOST_PEERS * of)[numbers])
    return result


def _text_of(signal: str, kind: str, far: float) -> tuple[str, dict[str, str]]:
    """The text key for a residual and its arguments. Activity is twice a logarithm."""
    if kind == "activity":
        which, amount = ("still", 0.0) if far < 0 else ("restless", float(np.exp(far / 2.0)))
    else:
        which, amount = {"deviation": "odd", "lasting": "lasting", "unrest": "restless", "shift": "moved"}[kind], far
    return f"incidents.evidence.{which}", {"signal": signal, "scales": f"{amount:.1f}"}
