"""What a recording or a simulated fleet lived through: values by signal, and when something was found."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.recording import reader
from detectors.registry import DETECTORS
from outrider.model import SUM_BUCKET, EntityRef, Event, Finding
from outrider.ports import Collected, Detector
from outrider.topology import Topology
from outrider.vocabulary import catalog
from service.drills.simulated_source import FleetSource
from service.engine.detection import Detection
from service.ops import replay
from simulator.faults.registry import inject
from simulator.fleet import Fleet
from simulator.spec.fleets import drill_spec
from simulator.world import World

RECORDED = Path(__file__).resolve().parent.parent / "tests" / "recordings"
STEP = timedelta(seconds=15)
START = datetime(2026, 5, 4, 9, tzinfo=UTC)
Series = tuple[NDArray[np.float64], NDArray[np.float64]]  # minutes, values


@dataclass(frozen=True, slots=True)
class Planned:
    """A fault of the simulated fleet: which, when (minutes from the start) and for how long."""

    fault: str
    at: float
    minutes: float
    entity: str | None = None


@dataclass(slots=True)
class Life:
    """Values of every entity and signal by minute, events, findings, and what was true (fault -> entity, span)."""

    values: dict[tuple[EntityRef, str], list[tuple[float, float]]] = field(default_factory=dict)
    buckets: dict[tuple[EntityRef, str], list[tuple[float, NDArray[np.float64]]]] = field(default_factory=dict)
    events: list[tuple[float, Event]] = field(default_factory=list)
    found: list[tuple[float, Finding]] = field(default_factory=list)
    truths: dict[str, tuple[EntityRef, tuple[float, float]]] = field(default_factory=dict)
    topology: Topology = field(default_factory=Topology)
    step_minutes: float = 0.25

    def take(self, minute: float, collected: Collected, at: datetime) -> None:
        """Keep one round's values and events, and the increments of histograms."""
        self.events += [(minute - (at - event.at) / timedelta(minutes=1), event) for event in collected.events]
        for batch in collected.batches:
            buckets: dict[str, list[int]] = {}
            for column, key in enumerate(batch.keys):
                if key.bucket is None:
                    for entity, value in zip(batch.entities, batch.values[:, column].tolist(), strict=True):
                        self.values.setdefault((entity, key.name), []).append((minute, value))
                elif key.bucket == SUM_BUCKET:
                    for entity, value in zip(batch.entities, batch.values[:, column].tolist(), strict=True):
                        self.values.setdefault((entity, f"{key.name} sum"), []).append((minute, value))
                else:
                    buckets.setdefault(key.name, []).append(column)
            for name, columns in buckets.items():
                for entity, row in zip(batch.entities, batch.values[:, columns], strict=True):
                    self.buckets.setdefault((entity, name), []).append((minute, row))

    def series(self, signal: str, near: Iterable[EntityRef] = (), name: str = "") -> Series:
        """A signal (``name:0.9``: a quantile of the last minute) of the first entity in ``near`` that has it.

        Without any there it is that of the entity called ``name``, or of the first one known.
        """
        signal, _, quantile = signal.partition(":")
        known = [entity for entity, held in (self.buckets if quantile else self.values) if held == signal]
        chosen = [entity for entity in near if entity in known] or [one for one in known if name in ("", one.name)]
        if not chosen:
            raise SystemExit(f"nothing has {signal} {name}")
        if quantile:
            return _quantiles(self.buckets[chosen[0], signal], catalog.signal(signal).bounds, float(quantile))
        said: dict[float, float] = {}
        for minute, value in self.values[chosen[0], signal]:  # several pages may speak of it: who knows wins
            said[minute] = said[minute] if np.isfinite(said.get(minute, np.nan)) else value
        return np.array(list(said)), np.array(list(said.values()))

    def mean(self, signal: str) -> Series:
        """The mean of a histogram's events over the last minute, of the first entity that has one."""
        (entity, _), held = next(item for item in self.buckets.items() if item[0][1] == signal)
        times = np.array([minute for minute, _ in held])
        counts = np.nan_to_num(np.stack([row for _, row in held])).sum(axis=1)
        sums = np.nan_to_num(np.array([value for _, value in self.values[entity, f"{signal} sum"]]))
        inside = (times[None, :] <= times[:, None]) & (times[None, :] > times[:, None] - 1.0)
        with np.errstate(invalid="ignore", divide="ignore"):
            return times, inside @ sums / (inside @ counts)

    def spans(self, *faults: str, entity: EntityRef | None = None) -> list[tuple[float, float]]:
        """Where any of these faults (or detectors' names) was found, in minutes."""
        rounds = sorted(
            {
                minute
                for minute, one in self.found
                if (one.fault in faults or one.detector in faults) and entity in (None, one.entity)
            }
        )
        spans: list[tuple[float, float]] = []
        for minute in rounds:
            if spans and minute - spans[-1][1] <= 1.6 * self.step_minutes:
                spans[-1] = (spans[-1][0], minute + self.step_minutes)
            else:
                spans.append((minute, minute + self.step_minutes))
        return spans

    def since(self, entity: EntityRef, code: str, until: str = "") -> Series:
        """Minutes since a Kubernetes event of a pod that is not ready; NaN once it is, or after the event ``until``."""
        times, ready = self.series("pod_ready", [entity])
        told = {
            one: np.array(sorted(at for at, event in self.events if event.entity == entity and event.code == one))
            for one in (code, until)
        }
        last = {one: _last(at, times) for one, at in told.items()}
        waits = (ready == 0) & (last[code] > np.nan_to_num(last[until], nan=-np.inf))
        return times, np.where(waits, times - last[code], np.nan)

    def edge(self, *faults: str, entity: EntityRef | None = None) -> Series:
        """The most that was expected by what first speaks for these faults, or the least where that is what it says."""
        edges: dict[float, float] = {}
        for minute, one in self.found:
            if (one.fault in faults or one.detector in faults) and entity in (None, one.entity):
                expected = one.evidence[0].expected if one.evidence else None
                side = None if expected is None else expected.high if expected.high is not None else expected.low
                edges.setdefault(minute, np.nan if side is None else side)
        return np.array(list(edges)), np.array(list(edges.values()))


def _last(told: NDArray[np.float64], times: NDArray[np.float64]) -> NDArray[np.float64]:
    """The last of some instants before each of others; NaN before the first."""
    return np.concatenate(([np.nan], told))[np.searchsorted(told, times, side="right")]


def _quantiles(held: Sequence[tuple[float, NDArray[np.float64]]], bounds: Sequence[float], share: float) -> Series:
    """The upper bound of the bucket in which a quantile of the last minute lies; NaN where nothing was counted."""
    times = np.array([minute for minute, _ in held])
    rows = np.nan_to_num(np.stack([row for _, row in held]))
    upper = np.array([*bounds, np.nan])
    found = np.full(times.size, np.nan)
    for place, minute in enumerate(times):
        counts = rows[(times > minute - 1.0) & (times <= minute)].sum(axis=0)
        if counts.sum() >= 1:
            found[place] = upper[: counts.size][int(np.searchsorted(np.cumsum(counts), share * counts.sum()))]
    return times, found


@cache
def recorded(name: str) -> Life:
    """A recording of tests/recordings, watched by every detector."""
    return of_recording(RECORDED / name)


def of_recording(path: Path, detectors: Sequence[Detector] | None = None, adapter: str = "vllm") -> Life:
    """A recording of one target, or of a fleet, at its own times."""
    recorded = replay.load(path, adapter)
    collector = ScrapeManager([track.target for track in recorded.tracks])
    watchers = tuple(make() for make in DETECTORS.values()) if detectors is None else tuple(detectors)
    detection, life = Detection(watchers, recorded.step), Life(step_minutes=recorded.step / timedelta(minutes=1))
    first: datetime | None = None
    for group in replay.rounds(reader.merged(recorded.tracks), recorded.step):
        at = group[-1].at
        first = first or at
        collected = collector.absorb(group, at)
        life.topology = collector.topology(at)
        _look(life, detection, collected, at, (at - first) / timedelta(minutes=1))
    return life


def of_fleet(plan: Sequence[Planned], minutes: float, names: Sequence[str], seed: int = 3) -> Life:
    """A simulated fleet with these faults, watched by the named detectors."""
    fleet = Fleet(drill_spec(), seed=seed, start=START)
    source, life = FleetSource(World([fleet])), Life()
    detection = Detection([DETECTORS[name]() for name in names], STEP)
    waiting = list(plan)
    for number in range(round(minutes * 4)):
        minute = number / 4
        for one in [one for one in waiting if one.at <= minute]:
            waiting.remove(one)
            truth = inject(fleet, one.fault, one.entity, duration=timedelta(minutes=one.minutes), seed=seed)
            life.truths[one.fault] = (truth.entity, (minute, minute + one.minutes))
        fleet.step(STEP)
        collected = source.look(fleet.now)
        life.topology = source.topology(fleet.now)
        _look(life, detection, collected, fleet.now, minute + 0.25)
    return life


def _look(life: Life, detection: Detection, collected: Collected, at: datetime, minute: float) -> None:
    life.take(minute, collected, at)
    life.found += [(minute, one) for one in detection.look(at, collected, life.topology).findings]


def near(life: Life, entity: EntityRef) -> list[EntityRef]:
    """An entity, what rests on it and what it rests on, nearest first."""
    reach = [entity, *life.topology.holds_up(entity), *life.topology.rests_on(entity)]
    return [*dict.fromkeys([*reach, *life.topology.affected_by(entity)])]
