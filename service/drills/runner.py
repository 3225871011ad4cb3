"""Runs scenarios on private platforms, each on its own, and scores them together."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from threadpoolctl import threadpool_limits

from service.drills import dataset, observation
from service.drills.private_platform import INTERVAL, PrivatePlatform, learn, open_platform
from service.drills.recording import RecordedRun, Recorder
from service.drills.simulated_source import FleetSource
from simulator import scenarios
from simulator.faults import injections_of
from simulator.fleet import Fleet
from simulator.scenarios import Scenario
from simulator.scoring.recovery import Recovery
from simulator.scoring.run import STORM_ENTITIES, Run
from simulator.spec.fleets import FleetSpec, drill_spec, standby_spec
from simulator.traffic.arrivals import with_load, within_slo
from simulator.world import World

MONDAY = datetime(2026, 11, 16, tzinfo=UTC)
FIRST_HOUR, HOURS = 8, 12  # drills begin by day, when there is load
WORKERS = 2
QUIET = timedelta(minutes=30)

Progress = Callable[[str, float], None]
# (a run, the values it recorded, those of the quiet run): the runs of other detectors on the same values, by name
Comparison = Callable[[Run, RecordedRun, RecordedRun], Mapping[str, Run]]


@dataclass(frozen=True, slots=True)
class Job:
    """One scenario to run, with the learned state of its platform."""

    scenario: Scenario
    seed: int
    learned: bytes | None = None


def start_of(seed: int) -> datetime:
    """Returns the start of the drills of a seed: a day of the week, including weekends, and an hour of the day."""
    return MONDAY + timedelta(days=seed * 3 % 7, hours=FIRST_HOUR + seed * 7 % HOURS)


def specs_of(scenario: Scenario, seed: int) -> tuple[FleetSpec, ...]:
    """Returns the fleets of a scenario with its load; the event of the load is during the scenario.

    In a negative scenario nobody waits too long: its load is one that the services serve without one of their replicas.
    """
    after, factor = scenarios.EVENTS.get(scenario.load, (timedelta(0), None))
    start = start_of(seed)
    loaded = [with_load(spec, scenario.load, (start + after).timestamp(), factor) for spec in _base_specs(scenario)]
    if not scenario.negative:
        return tuple(loaded)
    minutes = start.timestamp() + 60.0 * np.arange(scenario.minutes + 1, dtype=np.float64)
    return tuple(within_slo(spec, minutes, seed) for spec in loaded)


def _base_specs(scenario: Scenario) -> tuple[FleetSpec, ...]:
    return (drill_spec(), standby_spec()) if scenario.world == "standby" else (drill_spec(),)


def job(scenario: Scenario, seed: int) -> Job:
    """Returns a job whose platform has learned 15 days of these fleets under their usual load."""
    return Job(scenario, seed, learn(_base_specs(scenario), seed, start_of(seed)))


def run(job: Job, progress: Callable[[float], None] | None = None, recorder: Recorder | None = None) -> Run:
    """Runs a scenario. ``progress`` receives the completed ratio; ``recorder`` records the collected values."""
    start = start_of(job.seed)
    fleets = [deepcopy(_fresh(spec, job.seed)) for spec in specs_of(job.scenario, job.seed)]
    world = World(fleets)
    with _private(world, job.learned) as platform:
        scenarios.arrange(world, job.scenario, job.seed)
        observer = observation.Observer(
            [
                observation.ObservedFault(Recovery(fleet, injection))
                for fleet in fleets
                for injection in injections_of(fleet)
            ]
        )
        targets, cycles = 0, round(job.scenario.minutes * 60 / INTERVAL.total_seconds())
        for cycle in range(cycles):
            collected = platform.step()
            now = platform.clock.now()
            observer.observe(collected.topology, now)
            targets = max(targets, len(platform.source.health))
            if recorder is not None:
                recorder.add(now, collected)
            if progress is not None:
                progress((cycle + 1) / cycles)
        return _finished(job.scenario, platform, observer, start, targets)


@lru_cache(maxsize=8)
def _fresh(spec: FleetSpec, seed: int) -> Fleet:
    """Returns a fleet after its warm-up, shared by all drills. Callers copy it."""
    return Fleet(spec, seed=seed, start=start_of(seed))


@contextmanager
def _private(world: World, learned: bytes | None) -> Iterator[PrivatePlatform]:
    """Opens a platform for a world, and restores the world afterwards, also after an interrupt."""
    platform = open_platform(world, learned=learned)
    try:
        yield platform
    finally:
        world.restore()
        platform.close()


def _finished(
    scenario: Scenario, platform: PrivatePlatform, observer: observation.Observer, start: datetime, targets: int
) -> Run:
    alerts, incidents = platform.state.alerts(limit=observation.ALL), platform.state.incidents(limit=observation.ALL)
    fired = observer.fired(alerts, incidents)
    return Run(
        scenario=scenario.id,
        start=start,
        end=platform.clock.now(),
        targets=targets,
        injected=observer.injected(),
        incidents=observation.scored_incidents(platform.state),
        alerts=len(fired),
        acted=observation.performed_actions(platform.state),
        negative=scenario.negative,
        storm=len(observer.touched()) >= STORM_ENTITIES,
        fired=fired,
        lookalike=scenario.lookalike,
    )


@dataclass(frozen=True, slots=True)
class DrillRun:
    """A run, and the runs of other detectors on the same values by name."""

    run: Run
    rivals: Mapping[str, Run] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _WorkerOptions:
    """Options of a worker. ``quiet`` is the run that compared detectors learn from, None without ``compare``."""

    compare: Comparison | None = None
    quiet: RecordedRun | None = None
    folder: Path | None = None


def run_all(
    chosen: Sequence[Scenario],
    seed: int,
    progress: Progress,
    *,
    workers: int = WORKERS,
    compare: Comparison | None = None,
    folder: Path | None = None,
) -> list[DrillRun]:
    """Runs every scenario once, on several processes, and returns the runs in the order of ``chosen``.

    ``compare`` runs other detectors on the same values. With ``folder`` each scenario is written there.
    """
    learned, quiet = _prepared(chosen, seed, workers, record_quiet=compare is not None)
    jobs = [Job(scenario, seed, learned[_base_specs(scenario)]) for scenario in chosen]
    options = _WorkerOptions(compare, quiet, folder)
    progress("prepare", 1.0)
    runs: list[DrillRun] = []
    with ProcessPoolExecutor(
        workers, mp_context=get_context("fork"), initializer=_start_worker, initargs=(options,)
    ) as pool:
        try:
            for number, finished in enumerate(pool.map(_work, jobs), start=1):
                runs.append(finished)
                progress("drills", number / len(jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # after an interrupt only running jobs finish
            raise
    return runs


def _prepared(
    chosen: Sequence[Scenario], seed: int, workers: int, *, record_quiet: bool
) -> tuple[dict[tuple[FleetSpec, ...], bytes], RecordedRun | None]:
    """Learned state of the platforms of each world, and the recorded quiet run; one process each."""
    worlds = list(dict.fromkeys(_base_specs(scenario) for scenario in chosen))
    with ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_limit_threads) as pool:
        quiet = pool.submit(quiet_run, seed) if record_quiet else None
        learned = [pool.submit(learn, world, seed, start_of(seed)) for world in worlds]
        states = {world: future.result() for world, future in zip(worlds, learned, strict=True)}
        return states, quiet.result() if quiet else None


def quiet_run(seed: int) -> RecordedRun:
    """Records half an hour without faults, for detectors that learn a baseline."""
    recorder = Recorder()
    fleet = Fleet(drill_spec(), seed=seed, start=start_of(seed) - QUIET)
    source = FleetSource(World([fleet]))
    for _ in range(round(QUIET / INTERVAL)):
        fleet.step(INTERVAL)
        recorder.add(fleet.now, source.collect_now(fleet.now))
    return recorder.recorded()


def _work(job: Job) -> DrillRun:
    (options,) = _worker_options
    if options.compare is None and options.folder is None:
        return DrillRun(run(job))
    recorder = Recorder()
    finished = run(job, recorder=recorder)
    recorded = recorder.recorded()
    if options.folder is not None:
        dataset.write_scenario(options.folder, finished, recorded)
    if options.compare is None or options.quiet is None:
        return DrillRun(finished)
    return DrillRun(finished, options.compare(finished, recorded, options.quiet))


_worker_options: list[_WorkerOptions] = []  # of a worker, set once at its start


def _start_worker(options: _WorkerOptions) -> None:
    _limit_threads()
    _worker_options[:] = [options]


def _limit_threads() -> None:
    """Limits numeric libraries to one thread: the processes share the cores."""
    threadpool_limits(1)
