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

from threadpoolctl import threadpool_limits

from service.drills import dataset, observation
from service.drills.private_platform import INTERVAL, PrivatePlatform, learn, open_platform
from service.drills.recording import Recorded, Recorder
from service.drills.simulated_source import FleetSource
from simulator import scenarios
from simulator.fleet import Fleet
from simulator.scenarios import Scenario
from simulator.scoring.recovery import Recovery
from simulator.scoring.score import STORM_ENTITIES, Run
from simulator.spec.fleets import FleetSpec, drill_spec, standby_spec
from simulator.traffic.arrivals import with_load
from simulator.world import World

MONDAY = datetime(2026, 11, 16, tzinfo=UTC)
FIRST_HOUR, HOURS = 8, 12  # drills begin by day, where there is load to lose
WORKERS = 2
QUIET = timedelta(minutes=30)

Progress = Callable[[str, float], None]
# (a run, the values it recorded, those of the quiet run): the runs of other detectors on the same values, by name
Comparison = Callable[[Run, Recorded, Recorded], Mapping[str, Run]]


@dataclass(frozen=True, slots=True)
class Job:
    """One scenario to run, with what its platform has learned before."""

    scenario: Scenario
    seed: int
    learned: bytes | None = None


def begins(seed: int) -> datetime:
    """When the drills of a seed begin: a day of the week, the weekend among them, and an hour of its day."""
    return MONDAY + timedelta(days=seed * 3 % 7, hours=FIRST_HOUR + seed * 7 % HOURS)


def specs_of(scenario: Scenario, seed: int) -> tuple[FleetSpec, ...]:
    """The fleets of a scenario under its load, whose event falls into the scenario."""
    after, factor = scenarios.EVENTS.get(scenario.load, (timedelta(0), None))
    event_at = (begins(seed) + after).timestamp()
    return tuple(with_load(spec, scenario.load, event_at, factor) for spec in _usual(scenario))


def _usual(scenario: Scenario) -> tuple[FleetSpec, ...]:
    return (drill_spec(), standby_spec()) if scenario.world == "standby" else (drill_spec(),)


def job(scenario: Scenario, seed: int) -> Job:
    """A scenario with a platform that has seen 15 days of these fleets under their usual load."""
    return Job(scenario, seed, learn(_usual(scenario), seed, begins(seed)))


def run(one: Job, told: Callable[[float], None] | None = None, recorder: Recorder | None = None) -> Run:
    """Run a scenario to its end. ``told`` hears the share done; ``recorder`` keeps what was collected."""
    start = begins(one.seed)
    fleets = [deepcopy(_fresh(spec, one.seed)) for spec in specs_of(one.scenario, one.seed)]
    world = World(fleets)
    with _private(world, one.learned) as platform:
        scenarios.arrange(world, one.scenario, one.seed)
        watch = observation.Watch(
            [observation.Watched(Recovery(fleet, injection)) for fleet in fleets for injection in fleet.injections]
        )
        targets, cycles = 0, round(one.scenario.minutes * 60 / INTERVAL.total_seconds())
        for cycle in range(cycles):
            collected = platform.step()
            now = platform.clock.now()
            watch.look(collected.topology, now)
            targets = max(targets, len(platform.source.health))
            if recorder is not None:
                recorder.take(now, collected)
            if told is not None:
                told((cycle + 1) / cycles)
        return _seen(one.scenario, platform, watch, start, targets)


@lru_cache(maxsize=8)
def _fresh(spec: FleetSpec, seed: int) -> Fleet:
    """A fleet as its drills find it; its hours of running in are the same for all of them. To be copied."""
    return Fleet(spec, seed=seed, start=begins(seed))


@contextmanager
def _private(world: World, learned: bytes | None) -> Iterator[PrivatePlatform]:
    """A platform for a world, which is whole again afterwards, whatever interrupted it."""
    platform = open_platform(world, learned=learned)
    try:
        yield platform
    finally:
        world.restore()
        platform.close()


def _seen(
    scenario: Scenario, platform: PrivatePlatform, watch: observation.Watch, start: datetime, targets: int
) -> Run:
    alerts, incidents = platform.state.alerts(limit=observation.ALL), platform.state.incidents(limit=observation.ALL)
    seen = watch.fired(alerts, incidents)
    return Run(
        scenario=scenario.id,
        start=start,
        end=platform.clock.now(),
        targets=targets,
        injected=watch.injected(),
        incidents=observation.opened(platform.state),
        alerts=len(seen),
        acted=observation.acted(platform.state),
        negative=scenario.negative,
        storm=len(watch.touched()) >= STORM_ENTITIES,
        fired=seen,
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """A run, and the runs of other detectors on the same values by name."""

    run: Run
    rivals: Mapping[str, Run] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Options of a worker. ``quiet`` is the run that compared detectors learn from, None without ``compare``."""

    compare: Comparison | None = None
    quiet: Recorded | None = None
    folder: Path | None = None


def run_all(
    chosen: Sequence[Scenario],
    seed: int,
    progress: Progress,
    *,
    workers: int = WORKERS,
    compare: Comparison | None = None,
    folder: Path | None = None,
) -> list[Seen]:
    """Runs every scenario once, on several processes, and returns the runs in the order of ``chosen``.

    ``compare`` runs other detectors on the same values. With ``folder`` each scenario is written there.
    """
    learned, quiet = _prepared(chosen, seed, workers, record_quiet=compare is not None)
    jobs = [Job(scenario, seed, learned[_usual(scenario)]) for scenario in chosen]
    wanted = _Wanted(compare, quiet, folder)
    progress("prepare", 1.0)
    found: list[Seen] = []
    with ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_begin, initargs=(wanted,)) as pool:
        try:
            for number, seen in enumerate(pool.map(_work, jobs), start=1):
                found.append(seen)
                progress("drills", number / len(jobs))
        except BaseException:
            pool.shutdown(cancel_futures=True)  # whoever interrupts waits for what runs, and not for the rest
            raise
    return found


def _prepared(
    chosen: Sequence[Scenario], seed: int, workers: int, *, record_quiet: bool
) -> tuple[dict[tuple[FleetSpec, ...], bytes], Recorded | None]:
    """Learned state of the platforms of each world, and the recorded quiet run; one process each."""
    worlds = list(dict.fromkeys(_usual(scenario) for scenario in chosen))
    with ProcessPoolExecutor(workers, mp_context=get_context("fork"), initializer=_alone) as pool:
        quiet = pool.submit(quiet_run, seed) if record_quiet else None
        learned = [pool.submit(learn, world, seed, begins(seed)) for world in worlds]
        known = {world: found.result() for world, found in zip(worlds, learned, strict=True)}
        return known, quiet.result() if quiet else None


def quiet_run(seed: int) -> Recorded:
    """Records half an hour without faults, for detectors that learn a baseline."""
    recorder = Recorder()
    fleet = Fleet(drill_spec(), seed=seed, start=begins(seed) - QUIET)
    source = FleetSource(World([fleet]))
    for _ in range(round(QUIET / INTERVAL)):
        fleet.step(INTERVAL)
        recorder.take(fleet.now, source.look(fleet.now))
    return recorder.recorded()


def _work(one: Job) -> Seen:
    (wanted,) = _asked
    if wanted.compare is None and wanted.folder is None:
        return Seen(run(one))
    recorder = Recorder()
    seen = run(one, recorder=recorder)
    recorded = recorder.recorded()
    if wanted.folder is not None:
        dataset.write_scenario(wanted.folder, seen, recorded)
    if wanted.compare is None or wanted.quiet is None:
        return Seen(seen)
    return Seen(seen, wanted.compare(seen, recorded, wanted.quiet))


_asked: list[_Wanted] = []  # of a worker, handed over once at its start and not with every job


def _begin(wanted: _Wanted) -> None:
    _alone()
    _asked[:] = [wanted]


def _alone() -> None:
    """The processes share the cores among them: numeric libraries need no threads of their own."""
    threadpool_limits(1)
