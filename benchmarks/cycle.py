"""A full cycle at 1,000 GPUs and 1,000 replicas: scrape, parse, normalise, store, detect, alert, correlate, decide.

Everything is real: exposition pages over loopback HTTP from another process, SQLite on disk with one durable commit per
cycle, all detectors and all packaged rules. The result includes the time of each stage. No peer does the same work.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, quick, result
from benchmarks.fleet_pages import FleetPages, fleet, server
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from collectors.scrape.scraper import Scraper
from detectors.registry import DETECTORS
from outrider import log
from outrider.clock import ManualClock
from outrider.model import EntityKind, Floats, Plan, SampleBatch, SignalKey, Statistic, Window
from outrider.ports import Collected, MetricStore
from service.config.settings import Settings
from service.engine import decide
from service.engine.cycle import Cycle
from service.engine.detector_memory import Detection
from service.engine.window_cache import WindowCache
from service.sources.composite_source import CompositeSource
from service.wiring import platform as wiring_platform
from simulator.fleet import Fleet

TARGET_SECONDS, TARGET_BYTES = 4.0, 1.5e9
CYCLES, WARM_UP, MOST_PLANNING, MOST_INCOMPLETE = 6, 3, 100, 20
START = datetime(2026, 11, 18, 10, tzinfo=UTC)
QUICK_FLEET = (100, 5, 13)  # replicas, services, nodes
SLOTS = 42  # cycles that the longest window of a detector spans
STEP = timedelta(seconds=15)


class Stages:
    """Seconds of each stage in each cycle, measured by wrapping the stage functions."""

    def __init__(self) -> None:
        self.cycles: list[dict[str, float]] = []

    def wrap(self, owner: Any, name: str, stage: str) -> None:
        """Adds the time of every call of ``owner.name`` to a stage."""
        inner: Callable[..., Any] = getattr(owner, name)

        def timed(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return inner(*args, **kwargs)
            finally:
                elapsed = time.perf_counter() - start
                self.cycles[-1][stage] = self.cycles[-1].get(stage, 0.0) + elapsed

        setattr(owner, name, timed)

    def medians(self) -> dict[str, float]:
        """Returns the median of each stage over the warm cycles."""
        warm = self.cycles[WARM_UP:]
        names = dict.fromkeys(name for cycle in warm for name in cycle)
        return {name: round(statistics.median(cycle.get(name, 0.0) for cycle in warm), 4) for name in names}


def watched(cycle: Cycle, collector: ScrapeManager) -> Stages:
    """Starts measuring the stages of a cycle."""
    stages, parts = Stages(), cycle.parts
    stages.wrap(collector, "collect", "start")
    stages.wrap(collector, "absorb", "parse_normalise")
    stages.wrap(parts.metrics, "write", "store")
    stages.wrap(parts.detection, "observe", "detect")
    stages.wrap(parts.detection.detector_set, "detect", "detect")
    stages.wrap(decide, "_advance", "alerts")
    stages.wrap(decide, "_correlate", "correlate")
    stages.wrap(decide, "_actions", "decide")
    stages.wrap(parts.state, "commit", "commit")
    stages.wrap(cycle, "run_stages", "after_collect")
    return stages


class _LastDay:
    """A store with a day of values of the fleet: the values of one cycle with noise."""

    def __init__(self, at: datetime, batches: Sequence[SampleBatch], steps: int = 288) -> None:
        needs: dict[EntityKind, list[SignalKey]] = {}
        for make in DETECTORS.values():
            detector = make()
            needs.setdefault(detector.kind, []).extend(detector.keys)
        self._cache, self._steps = WindowCache(needs, 3), steps
        self._cache.push(at, batches)

    def read_windows(
        self,
        kind: EntityKind,
        keys: Sequence[SignalKey],
        _start: datetime,
        end: datetime,
        step: timedelta,
        *,
        statistic: Statistic = Statistic.LAST,  # noqa: ARG002 - one value per step, so all statistics agree
    ) -> Window:
        """Returns a day in steps of five minutes."""
        now = self._cache.window(kind, keys, STEP, STEP)
        noise = np.random.default_rng(1).normal(1.0, 0.05, (len(now.entities), self._steps, len(keys)))
        times = end.timestamp() - step.total_seconds() * np.arange(self._steps, 0, -1)
        status = np.repeat(now.status[:, -1:], self._steps, axis=1)
        return replace(now, times=times, values=noise * now.values[:, -1:], status=status, step=step)


def teach(detection: Detection, world: Fleet, pages: FleetPages, start: datetime) -> None:
    """Trains detection with one day: baselines, forests, and full rings of the last minutes."""
    collector = ScrapeManager(pages.targets(""))
    first = start - (SLOTS + 1) * STEP
    for at in (first, first + STEP):
        world.step(STEP)
        bodies = pages.bodies()
        collected = collector.absorb(
            [
                Scrape(target, at, bodies[target.url][0], None, 0.01, 200, 1.0, probed=target.probe)
                for target in collector.targets
            ],
            at,
        )
    detection.warm(cast("MetricStore", _LastDay(first, collected.batches)), first, timedelta(days=1))
    random = np.random.default_rng(2)
    for slot in range(1, SLOTS + 1):
        at = first + slot * STEP
        noisy = tuple(replace(batch, values=_noisy(batch.values, random)) for batch in collected.batches)
        detection.run(at, Collected(noisy), collector.topology(at))


def _noisy(values: Floats, random: np.random.Generator) -> Floats:
    """Returns values with a few percent of noise; states of 0 and 1 stay unchanged."""
    return np.where((values == 0) | (values == 1), values, values * random.normal(1.0, 0.02, values.shape))


@dataclass(slots=True)
class CycleTimings:
    """Seconds and CPU seconds of each warm cycle, the stages, and the peak memory.

    ``planning`` are the cycles during the first plan, which runs in its own thread; ``incomplete`` counts the excluded
    cycles with a missing page.
    """

    stages: Stages
    seconds: list[float] = field(default_factory=list)
    worked: list[float] = field(default_factory=list)
    planning: list[float] = field(default_factory=list)
    incomplete: int = 0
    grown: float = 0.0


def measure(folder: Path, url: str) -> CycleTimings:
    """Runs cycles of a platform on a store, which may contain history of this fleet up to ``START``."""
    return asyncio.run(_cycles(folder, url))


async def _cycles(folder: Path, url: str) -> CycleTimings:
    world = fleet(*QUICK_FLEET) if quick() else fleet()
    pages = FleetPages(world)
    settings = Settings.model_validate({"cluster": "bench", "store": {"url": url}})
    clock = ManualClock(START)
    platform = wiring_platform.platform(settings, clock)
    teach(platform.cycle.parts.detection, world, pages, START)
    with server(folder) as shown:
        collector = ScrapeManager(pages.targets(shown.base), Scraper(), deadline=STEP if quick() else STEP / 2)
        platform.collector = platform.cycle.parts.source = CompositeSource(collector)
        results = CycleTimings(watched(platform.cycle, collector))
        while len(results.seconds) < WARM_UP + CYCLES:
            world.step(STEP)
            shown.show(pages.bodies())
            clock.advance(STEP)
            results.stages.cycles.append({})
            gc.collect()
            begun, busy = time.perf_counter(), time.process_time()
            record = await platform.cycle.run_in_thread()
            elapsed, worked = time.perf_counter() - begun, time.process_time() - busy
            if platform.cycle.parts.planning.latest == Plan():
                results.stages.cycles.pop()
                results.planning.append(elapsed)
                assert len(results.planning) < MOST_PLANNING, "no plan finished"
                continue
            whole = record.targets_up == record.targets == len(collector.targets)
            if not whole and len(results.seconds) >= WARM_UP:  # a busy host; a cycle with less work does not count
                results.stages.cycles.pop()
                results.incomplete += 1
                assert results.incomplete < MOST_INCOMPLETE, "exposition pages are missing"
                continue
            results.seconds.append(elapsed)
            results.worked.append(worked)
        results.grown = _resident_bytes()
        await platform.close()
    del results.seconds[:WARM_UP], results.worked[:WARM_UP]
    return results


def _resident_bytes() -> float:
    """Peak memory of this process, the simulated fleet included."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024.0


def run() -> list[Result]:
    """Returns the seconds of a full cycle and its peak memory."""
    log.configure(level="error")
    with tempfile.TemporaryDirectory() as name:
        measured = measure(Path(name), f"sqlite:///{name}/bench.db")
    median, resident = statistics.median(measured.seconds), measured.grown
    results = measured.stages.medians()
    results["fetch"] = round(median - results["after_collect"] - results["parse_normalise"], 4)
    results.pop("start", None)
    return [
        result(
            "cycle",
            median,
            "s",
            TARGET_SECONDS,
            median <= TARGET_SECONDS,
            slowest=round(max(measured.seconds), 3),
            processor_seconds=round(statistics.median(measured.worked), 3),
            stages=results,
        ),
        result("cycle_memory", resident, "bytes", TARGET_BYTES, resident <= TARGET_BYTES),
    ]


if __name__ == "__main__":
    main(run)
