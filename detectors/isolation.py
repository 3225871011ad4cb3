"""Isolation forest on residuals: odd combinations of deviations that no single signal shows.

The forest sees no raw values, which differ by entity and hour, but three residuals of each signal:
from its own baseline, against five minutes ago, and from its peers (raw values gave F1 0.20, residuals
0.42 on the same servers). One forest a kind of entity. It is fitted every six hours from a reservoir
that spans two weeks, not the last hour, and is a function of that reservoir and a fixed seed alone, so
that a restart scores as before. A score is odd beyond the quantile of the training scores that gives
the alarm budget; a finding takes six odd readings of the last eight. It is P3 and names no fault.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from detectors import learnt, pasts, peers, readings, reservoir, streaks
from detectors.baseline import Baseline, Span, follow
from detectors.calibrator import Calibrator
from detectors.forest import Forest
from detectors.memory import Arrays
from detectors.reservoir import SEED
from detectors.verdicts import fingerprint
from outrider.model import (
    AlarmRate,
    DetectorState,
    EntityKind,
    EntityRef,
    Evidence,
    Finding,
    Floats,
    Interval,
    NoVerdict,
    NoVerdictReason,
    Priority,
    TimeRange,
    Window,
)
from outrider.topology import Topology

FEWEST_ROWS = 512  # two subsamples of the forest
REFIT_SECONDS = 6 * 3600.0
TREES, SUBSAMPLE = 100, 256  # the sizes of the method's authors (Liu, Ting, Zhou 2008)
SHARE_POWER = 3.0  # of the calibrator's factor: at its highest, 3, a twenty-seventh of the budget's share of rows
DEVIATION_SECONDS = 1800.0  # a deviation lasts about so long: the budget is a share of all readings
EXTREME = 10.0  # residuals beyond so many scales are all the same oddity
BLAMED = 3
_BLOCK = 256


# Watched by default: the kinds with enough signals of their own for combinations to say something.
WATCHED: dict[EntityKind, tuple[str, ...]] = {
    EntityKind.REPLICA: (
        "engine_generation_tokens_total",
        "engine_requests_running",
        "engine_requests_waiting",
        "engine_kv_cache_usage_ratio",
        "engine_ttft_seconds",
        "engine_tpot_seconds",
    ),
    EntityKind.GPU: (
        "hw_accel_utilization_ratio",
        "hw_accel_memory_used_bytes",
        "hw_accel_temperature_celsius",
        "hw_accel_power_watts",
        "hw_accel_core_clock_hertz",
    ),
    EntityKind.NODE: (
        "node_cpu_utilization_ratio",
        "node_memory_available_ratio",
        "node_filesystem_available_ratio",
        "node_disk_busy_ratio",
    ),
}


class IsolationDetector:
    """Pooled isolation forest over the entities of one kind."""

    state_version = 2
    window = timedelta(minutes=10)

    def __init__(self, kind: EntityKind, signals: Sequence[str], name: str | None = None) -> None:
        """``signals`` are names of the catalogue; the name defaults to ``isolation-<kind>``."""
        self.kind = kind
        self.name = name or f"isolation-{kind.value}"
        self.signals = tuple(signals)
        self.keys = readings.keys_of(signals)
        self._baseline = Baseline(signals)
        self._calibrator = Calibrator(pasts.ALARMS_PER_ENTITY_DAY)
        self._width = 3 * len(self.signals)

    def initial(self) -> DetectorState:
        """Nothing learnt, no forest."""
        return DetectorState(self.state_version, (), {**self._fresh(0), **self._pool()})

    def restored(self, state: DetectorState) -> tuple[DetectorState, str]:
        """A check-point as far as it can be used, and why the rest cannot.

        Levels of other signals are not ours. Rows that are not those that were fitted are damaged, and so may be
        the others. Another version of the library draws other trees from the same rows: they are fitted anew.
        """
        if not learnt.same_signals(state, self.signals):
            return self.initial(), "it was learnt of other signals"
        fitted = state.arrays.get("fitted")
        if fitted is None or learnt.same_model(state, fitted):
            return state, ""
        same = learnt.same_rows(state, fitted)
        lost = ("fitted", "fitted_at", *learnt.MODEL, *(() if same else ("reservoir", "seen")))
        because = "its model was fitted by another library" if same else "its model is not of the rows beside it"
        empty = self._pool()
        return replace(state, arrays={**state.arrays, **{name: empty[name] for name in lost}}), because

    def set_budget(self, alarms_per_entity_day: float) -> None:
        """Replace the default budget; before the first cycle."""
        self._calibrator = Calibrator(alarms_per_entity_day)

    def set_holidays(self, holidays: Sequence[Span]) -> None:
        """Days that are like no other; before the first cycle."""
        self._baseline.set_holidays(holidays)

    def learnt(self, state: DetectorState) -> timedelta:
        """How much past of the class was learnt, gaps left out."""
        return pasts.learnt(state)

    def alarm_rate(self, state: DetectorState) -> AlarmRate:
        """Entities that began to deviate per entity-day against the budget."""
        return self._calibrator.rate(pasts.scalars(state, self._scalars()))

    def warm(self, state: DetectorState, window: Window) -> DetectorState:
        """Learn baselines and fill the reservoir from history, oldest first.

        History comes without topology, so there all entities are each other's peers; residuals are in
        scales of their own group, which keeps them comparable.
        """
        everyone = peers.groups(window.entities, Topology.build(()))
        memory, pool = self._follow(state, window)
        seconds = readings.spacing(window)
        first = int(np.searchsorted(window.times, pool["last"][0], side="right"))
        for start in range(first, window.times.size, _BLOCK):
            values = readings.read(window, self.signals, slice(start, start + _BLOCK))
            for place in range(values.shape[1]):
                at, long = float(window.times[start + place]), float(seconds[start + place])
                before = values[:, place - 1] if place else np.full_like(values[:, place], np.nan)
                rows = self._rows(memory, values[:, place], before, everyone, at)
                reservoir.keep(pool, rows, len(window.entities), long)
                pasts.lived(pool, np.isfinite(values[:, place]), long)
                self._baseline.learn(memory, values[:, place], at, long)
        return self._state(window, memory, pool)

    def detect(
        self, state: DetectorState, window: Window, topology: Topology, now: datetime
    ) -> tuple[DetectorState, tuple[Finding | NoVerdict, ...]]:
        """Score every entity once; columns that were missed are learnt but not scored."""
        if window.times.size == 0 or not window.entities:
            return state, (NoVerdict(self.name, None, NoVerdictReason.NO_VALUES),)
        memory, pool = self._follow(state, window)
        last = float(pool["last"][0])
        if now.timestamp() < last:
            return state, (NoVerdict(self.name, None, NoVerdictReason.CLOCK_STEP),)
        first = int(np.searchsorted(window.times, last, side="right"))
        if first >= window.times.size:
            return state, tuple(self._findings(window, memory, now))
        newest = window.times.size - 1
        values = readings.read(window, self.signals, slice(first, newest + 1))
        seconds = readings.spacing(window)
        for place in range(values.shape[1] - 1):
            at, long = float(window.times[first + place]), float(seconds[first + place])
            self._baseline.learn(memory, values[:, place], at, long)
            pasts.lived(pool, np.isfinite(values[:, place]), long)
        at, long, latest = float(window.times[newest]), float(seconds[newest]), values[:, -1]
        then = int(np.searchsorted(window.times, at - readings.TRAILING_SECONDS, side="left"))
        before = readings.read(window, self.signals, slice(then, then + 1))[:, 0]
        group = peers.groups(window.entities, topology)
        rows = self._rows(memory, latest, before if then < newest else np.full_like(latest, np.nan), group, at)
        _refit(pool, now.timestamp())
        odd = self._judge(memory, pool, rows, at, long)
        reservoir.keep(pool, rows[~odd], len(window.entities), long)
        self._baseline.learn(memory, latest, at, long, np.repeat(odd[:, None], len(self.signals), axis=1))
        pasts.lived(pool, np.isfinite(latest), long)
        judged = ~np.isnan(rows[:, 0]) & (pool["fitted"].shape[0] >= FEWEST_ROWS)
        alarmed = streaks.own(np.isfinite(memory["since"]))
        self._calibrator.count(memory, pool, alarmed, judged, float(seconds[first:].sum()))
        silent = self._silences(pool, window.entities, rows)
        return self._state(window, memory, pool), (*self._findings(window, memory, now), *silent)

    def _rows(self, memory: Arrays, values: Floats, before: Floats, group: NDArray[np.intp], at: float) -> Floats:
        """Feature rows (entities, 3 x signals); all NaN for an entity without any expectation.

        A residual that is not known counts as 0: nothing odd about it.
        """
        usual = self._baseline.usual(memory, at)
        own = usual.deviation(values)
        changed = np.where(usual.known, (values - before) / usual.scale, np.nan)
        beside = peers.apart(values, group, usual.scale)
        rows: Floats = np.concatenate((own, changed, np.where(usual.known, beside, np.nan)), axis=1)
        unknown = np.isnan(own).all(axis=1)
        rows = np.clip(np.nan_to_num(rows, nan=0.0), -EXTREME, EXTREME)
        rows[unknown] = np.nan
        return rows

    def _judge(self, memory: Arrays, pool: Arrays, rows: Floats, at: float, seconds: float) -> NDArray[np.bool_]:
        """Score the rows, move the marks of every entity, and say which rows are odd."""
        odd = np.zeros(rows.shape[0], dtype=bool)
        known = ~np.isnan(rows[:, 0])
        if pool["fitted"].shape[0] >= FEWEST_ROWS and known.any():
            forest, trained = _forest(pool["fitted"].tobytes(), self._width)
            threshold = self._threshold(trained, self._calibrator.factor(pool))
            scores = forest.score(rows[known].astype(np.float32))
            odd[known] = scores > threshold
            memory["score"][known] = scores
            memory["threshold"][:] = threshold
            memory["features"][known] = rows[known]
        memory["hits"], memory["since"] = streaks.advance(memory["hits"], memory["since"], odd, known, at, seconds)
        return odd

    def _threshold(self, trained: Floats, factor: float) -> float:
        """The training score that buys the budget; a higher factor takes a smaller share of them."""
        share = self._calibrator.budget * DEVIATION_SECONDS / 86400.0 * factor**-SHARE_POWER
        return float(np.quantile(trained, 1.0 - min(share, 0.5)))

    def _findings(self, window: Window, memory: Arrays, now: datetime) -> list[Finding | NoVerdict]:
        found: list[Finding | NoVerdict] = []
        for row in np.flatnonzero(streaks.own(np.isfinite(memory["since"]))):
            entity, score, limit = window.entities[row], float(memory["score"][row]), float(memory["threshold"][row])
            blamed = self._blamed(memory["features"][row])
            since = min(datetime.fromtimestamp(float(memory["since"][row]), tz=UTC), now)
            expected = Interval(None, limit)
            because = tuple(
                Evidence(signal, None, None, "incidents.evidence.odd", {"signal": signal, "scales": f"{far:.1f}"})
                for signal, far in blamed
            )
            found.append(
                Finding(
                    detector=self.name,
                    entity=entity,
                    signals=tuple(signal for signal, _ in blamed),
                    severity=Priority.P3,
                    score=min(1.0, 0.5 + max(0.0, score - limit) / (2.0 * max(1e-6, 1.0 - limit))),
                    observed=score,
                    expected=expected,
                    window=TimeRange(since, now),
                    evidence=because,
                    fingerprint=fingerprint(self.name, entity, "odd"),
                )
            )
        return found

    def _blamed(self, features: Floats) -> list[tuple[str, float]]:
        """The signals whose residuals are largest, with how many scales they are off."""
        table = features.reshape(3, len(self.signals))
        strongest = np.abs(table).argmax(axis=0)
        far = table[strongest, np.arange(len(self.signals))]
        order = np.argsort(-np.abs(far), kind="stable")[:BLAMED]
        return [(self.signals[place], float(far[place])) for place in order]

    def _silences(self, pool: Arrays, entities: tuple[EntityRef, ...], rows: Floats) -> list[NoVerdict]:
        unknown = np.isnan(rows[:, 0])
        if pool["fitted"].shape[0] < FEWEST_ROWS or unknown.all():
            return [NoVerdict(self.name, None, NoVerdictReason.WARMING_UP)]
        return [NoVerdict(self.name, entities[row], NoVerdictReason.NO_EXPECTATION) for row in np.flatnonzero(unknown)]

    def _fresh(self, count: int) -> Arrays:
        marks = streaks.fresh((count,))
        return (
            self._baseline.empty(count)
            | marks
            | self._calibrator.of_entities(count)
            | {
                "score": np.zeros(count),
                "threshold": np.ones(count),
                "features": np.zeros((count, self._width)),
            }
        )

    def _pool(self) -> Arrays:
        nothing = np.zeros((0, self._width), dtype=np.float32)
        return {
            **reservoir.empty(self._width),
            **learnt.of_signals(self.signals),
            **learnt.of_model(nothing),
            "fitted": nothing,
            **self._scalars(),
        }

    def _scalars(self) -> Arrays:
        never = {"fitted_at": np.array([-np.inf]), "last": np.array([-np.inf])}
        return {**never, **pasts.fresh(), **self._calibrator.of_class()}

    def _follow(self, state: DetectorState, window: Window) -> tuple[Arrays, Arrays]:
        if not learnt.same_signals(state, self.signals):
            state = self.initial()
        fresh = self._fresh(len(window.entities))
        memory = follow(dict(state.arrays), state.entities, window.entities, fresh)
        pool = self._pool()
        for name, empty in pool.items():
            held = state.arrays.get(name)
            if held is not None and held.shape[1:] == empty.shape[1:] and (held.ndim == 2 or held.size == empty.size):
                pool[name] = held.copy()
        return memory, pool

    def _state(self, window: Window, memory: Arrays, pool: Arrays) -> DetectorState:
        if window.times.size:
            pool["last"] = np.maximum(pool["last"], window.times[-1])
        return DetectorState(self.state_version, window.entities, {**memory, **pool})


def _refit(pool: Arrays, now: float) -> None:
    """Every six hours of ``now`` the reservoir as it is becomes what the forest is fitted to."""
    enough = pool["reservoir"].shape[0] >= FEWEST_ROWS
    if enough and np.floor(now / REFIT_SECONDS) > np.floor(pool["fitted_at"][0] / REFIT_SECONDS):
        pool["fitted"] = pool["reservoir"].copy()
        pool |= learnt.of_model(pool["fitted"])
        pool["fitted_at"] = np.array([now])


@lru_cache(maxsize=8)
def _forest(content: bytes, width: int) -> tuple[Forest, Floats]:
    """The forest of these rows and their own scores, sorted; a function of its arguments alone."""
    # scikit-learn takes seconds to import, and only a process that learns needs it
    from sklearn.ensemble import IsolationForest  # noqa: PLC0415

    rows = np.frombuffer(content, dtype=np.float32).reshape(-1, width)
    forest = IsolationForest(n_estimators=TREES, max_samples=min(SUBSAMPLE, rows.shape[0]), random_state=SEED)
    forest.fit(rows)
    return Forest(forest), np.sort(-forest.score_samples(rows))
