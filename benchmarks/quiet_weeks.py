"""False pages in weeks without any fault: launches, holidays, bursts, mix shifts, rollouts, restarts.

Two fleets of about 120 targets each run for a week at a scrape and cycle interval of one minute. All detectors,
packaged rules, alerts, correlation, guard rails and messages are active; the planner never pages and is left out.
Signals come directly from the fleets' arrays (``benchmarks.fleet.batches``) and equal those of collected pages. The
detectors have learnt from 15 days of history, like an installed platform.

A false page is the first message of a P0 or P1 incident. The bound is the exact Poisson bound; without any page it is
3 / target-days (rule of three). No peer publishes this figure.

``OUTRIDER_QUICK=1`` runs a small fleet for a few hours; ``OUTRIDER_TARGET_DAYS=100`` sets the target-days.
"""

from __future__ import annotations

import os

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes on two cores

import itertools
import multiprocessing
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, result
from benchmarks.quiet_fleet import QuietSource, RecentEvents, quiet
from outrider import log
from outrider.clock import ManualClock
from outrider.model import Incident, Message
from service.config.settings import Settings
from service.engine.cycle import Cycle
from service.wiring import platform
from simulator.backfill import fleet_history
from simulator.fleet import Fleet
from simulator.maintenance import MaintenanceRunner
from simulator.scoring.score import poisson_upper95
from simulator.spec.fleets import FleetSpec
from store import factory, migrate

TARGET = 0.002
WHOLE_DAYS = 7.0
STEP = timedelta(seconds=60)
LEARNT = timedelta(days=15)
LEARNT_STEP = timedelta(minutes=5)
# Two full weeks with different seeds: one in November, one with the year-end holidays.
WEEKS = ((17, datetime(2026, 11, 16, tzinfo=UTC)), (29, datetime(2026, 12, 21, tzinfo=UTC)))
QUICK_DAYS, QUICK_REPLICAS, REPLICAS = 0.1, 2, 9
SETTLE = timedelta(minutes=15)  # after the start: counted neither as target-days nor as pages


@dataclass(frozen=True, slots=True)
class Week:
    """One week of a fleet and its alerts. ``paged`` are (rule, fault, priority) of pages."""

    target_days: float
    cycles: int
    seconds: Mapping[str, float]
    paged: tuple[tuple[str, str, str], ...]
    opened: Mapping[str, int]
    tasks: int


def live(seed: int, start: datetime, days: float, replicas: int) -> Week:
    """Runs one fleet without faults."""
    log.configure(level="error")
    spec = quiet(f"quiet-{seed}", replicas).spec
    fleet = Fleet(spec, seed=seed, start=start)
    source, maintenance, clock = QuietSource(fleet), MaintenanceRunner(fleet, seed), ManualClock(start)
    settings = Settings.model_validate(
        {"cluster": spec.cluster, "collect": {"interval": f"{STEP.total_seconds():.0f}s"}}
    )
    cycle = platform.cycle_in_memory(settings, source, clock, interval=STEP)
    cycle.parts.metrics = RecentEvents()
    begun = time.process_time()
    _learn(cycle, spec, seed, start)
    seconds = {"learn": time.process_time() - begun, "fleet": 0.0, "sample": 0.0, "cycle": 0.0}
    cycles, targets = round(timedelta(days=days) / STEP), 0
    for _ in range(cycles + round(SETTLE / STEP)):
        marks = [time.process_time()]
        fleet.step(STEP)
        maintenance.advance()
        marks.append(time.process_time())
        clock.set(fleet.now)
        collected = source.collect_now(fleet.now)
        marks.append(time.process_time())
        record = cycle.run_stages(fleet.now, collected)
        marks.append(time.process_time())
        targets += record.targets if fleet.now - start > SETTLE else 0
        for name, (before, after) in zip(("fleet", "sample", "cycle"), itertools.pairwise(marks), strict=True):
            seconds[name] += after - before
    paged, opened = _pages_and_incidents(cycle, start + SETTLE)
    return Week(targets * (STEP / timedelta(days=1)), cycles, seconds, paged, opened, len(maintenance.done))


def _learn(cycle: Cycle, spec: FleetSpec, seed: int, until: datetime) -> None:
    """Trains the detectors on the 15 days before."""
    with tempfile.TemporaryDirectory(prefix="outrider-quiet-") as folder:
        url = f"sqlite:///{folder}/past.db"
        migrate.upgrade(url)
        metrics = factory.open_metrics(factory.urls_of(url)[1])
        for block in fleet_history.backfill(spec, seed, until - LEARNT, until, LEARNT_STEP, maintenance=True):
            metrics.write_block(block.kind, block.times, block.keys, block.entities, block.values, block.status)
        cycle.parts.detection.warm(metrics, until, LEARNT)
        metrics.close()


def _pages_and_incidents(cycle: Cycle, since: datetime) -> tuple[tuple[tuple[str, str, str], ...], dict[str, int]]:
    """Returns pages as (rule, fault, priority), and the number of incidents by fault and priority."""
    state = cycle.parts.state
    incidents = {incident.id: incident for incident in state.incidents(limit=1_000_000)}
    rules = {alert.fingerprint: alert.rule for alert in state.alerts(limit=1_000_000)}
    first: dict[str, Message] = {}
    for message in sorted(state.messages(limit=1_000_000), key=lambda message: message.created_at):
        if message.is_page and message.incident is not None and message.created_at > since:
            first.setdefault(message.incident, message)
    paged = []
    for number in first:
        incident = incidents[number]
        names = sorted({rules[alert] for alert in incident.alerts if alert in rules})
        paged.append((", ".join(names), _fault(incident), incident.priority.value))
    late = [incident for incident in incidents.values() if incident.opened_at > since]
    opened = Counter(f"{_fault(incident)} {incident.priority.value}" for incident in late)
    return tuple(paged), dict(opened)


def _fault(incident: Incident) -> str:
    return incident.suspected_cause.fault if incident.suspected_cause else "unknown cause"


def run() -> Result:
    """Returns pages per fault-free target-day, the 95 % bound, and the rules that paged."""
    quick = os.environ.get("OUTRIDER_QUICK", "") not in ("", "0")
    replicas = QUICK_REPLICAS if quick else REPLICAS
    wanted = os.environ.get("OUTRIDER_TARGET_DAYS")
    days = float(wanted) / len(WEEKS) / quiet("size", replicas).targets if wanted else WHOLE_DAYS
    days = QUICK_DAYS if quick else days
    begun = time.perf_counter()
    with ProcessPoolExecutor(len(WEEKS), mp_context=multiprocessing.get_context("spawn")) as pool:
        weeks = list(pool.map(live, *zip(*((seed, start, days, replicas) for seed, start in WEEKS), strict=True)))
    return _summed(weeks, time.perf_counter() - begun)


def _summed(weeks: Sequence[Week], seconds: float) -> Result:
    pages, target_days = sum(len(week.paged) for week in weeks), sum(week.target_days for week in weeks)
    bound = poisson_upper95(pages) / target_days
    cycles = sum(week.cycles for week in weeks)
    return result(
        "quiet_weeks",
        pages / target_days,
        "pages/target-day",
        TARGET,
        pages / target_days <= TARGET,
        pages=pages,
        target_days=round(target_days, 1),
        upper95=float(f"{bound:.4g}"),
        upper95_holds=bound <= TARGET,
        seconds=round(seconds, 1),
        cycle_interval_seconds=STEP.total_seconds(),
        processor_milliseconds_per_cycle={
            name: round(1000 * sum(week.seconds[name] for week in weeks) / cycles, 2)
            for name in ("fleet", "sample", "cycle")
        },
        rollouts_and_restarts=sum(week.tasks for week in weeks),
        paged_by_rule=_counted(rule for week in weeks for rule, _, _ in week.paged),
        paged_by_fault=_counted(f"{fault} {priority}" for week in weeks for _, fault, priority in week.paged),
        incidents_by_fault=dict(sum((Counter(week.opened) for week in weeks), Counter()).most_common()),
    )


def _counted(names: Iterable[str]) -> dict[str, int]:
    return dict(Counter(names).most_common())


if __name__ == "__main__":
    main(run)
