"""Duration of the plan of one service: two weeks of history, all forecast members; Prophet is fitted nightly.

The plan includes the SLO bound and the Pareto front of cost and latency over all known GPU types, group sizes and MIG
slices. The peer is AIConfigurator's published time for one plan; it is not run here. Also measured: processor time of
revising the plans of 100 services in a surge, with kept forecasts.
"""

from __future__ import annotations

import statistics
import sys
import time
from datetime import UTC, datetime
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np

from benchmarks.common import Result, main, result
from outrider.model import Calibration, EntityKind, EntityRef, FleetService, Floats, Recommendation, Window
from planner.capacity.plan import KEYS, PlanSettings, plan, plan_with_basis, replan
from planner.capacity.present import PresentLoad
from planner.cost import optimizer
from planner.forecast.forecaster import STEP
from planner.performance.gpu_catalog import gpus
from planner.performance.memory_fit import Setup
from planner.performance.model_specs import model
from planner.performance.queueing import Slo, Work
from planner.performance.service_facts import Objective, ServiceFacts

TARGET, PUBLISHED = 2.0, 30.0
SERVICES, MOST_REVISION = 100, 0.3
TIMES, POINTS = 5, 2016
NOW = datetime(2026, 3, 15, tzinfo=UTC)
FACTS = ServiceFacts((Objective("ttft", 1.0), Objective("tpot", 0.06)), shape=model("Llama-3.1-8B"), prompt=900.0)
CUTS = optimizer.cuts_of(mig=True, mps=False)


def history(seed: int) -> tuple[Floats, Floats]:
    """Returns two weeks of a service's load in steps of ten minutes: (times, requests/s)."""
    random = np.random.default_rng(seed)
    times = NOW.timestamp() - STEP.total_seconds() * np.arange(POINTS, 0, -1)
    day = 2 * np.pi * times / 86400.0
    shape = 1.0 + 0.6 * np.sin(day + random.uniform(0, 6)) + 0.15 * np.sin(2 * day) + 0.1 * np.sin(day / 7)
    walk = np.cumsum(random.normal(0, 0.01, POINTS))
    values: Floats = random.uniform(5, 500) * np.maximum(0.05, shape + walk * 0.2 + random.normal(0, 0.05, POINTS))
    return times, values


def run() -> Result:
    """Returns the seconds from history to a recommendation and the Pareto front over GPU types."""
    seconds, fronts = [], []
    for seed in range(TIMES + 1):
        service = EntityRef("bench", EntityKind.SERVICE, "serving", f"service-{seed}")
        times, load = history(seed)
        values = np.stack([load, load * 2.0, load * 0.0], axis=1)[None]
        status = np.zeros(values.shape, dtype=np.uint8)
        window = Window(EntityKind.SERVICE, (service,), times, KEYS, values, status, STEP)
        calibration = Calibration(service, "H100", 250.0, 64.0, 20.0, 1, 1, 210.0, 100, "measured")
        fleet = FleetService(service, "H100", 20, 20, 1, 400, 2.5, "USD")
        begun = time.perf_counter()
        settings = PlanSettings(service_facts={service: FACTS})
        capacity_plan = plan(window, {service: calibration}, (fleet,), NOW, settings=settings)
        between = time.perf_counter()
        recommended = capacity_plan.recommendations[0]
        answer = _front(float(recommended.derivation["next_24h"]["peak"]))
        fronts.append(time.perf_counter() - between)
        seconds.append(time.perf_counter() - begun)
        assert isinstance(recommended, Recommendation), capacity_plan.recommendations
        assert recommended.derivation["slo"]["refines"], recommended.derivation["slo"]
        assert answer.front, answer.nothing
    revision = revision_of(SERVICES)
    median = statistics.median(seconds[1:])  # the first plan includes lazy imports
    return result(
        "plan_answer",
        median,
        "s",
        TARGET,
        median <= TARGET,
        "AIConfigurator, as published",
        PUBLISHED,
        PUBLISHED / median,
        first_seconds=round(seconds[0], 2),
        front_seconds=round(statistics.median(fronts[1:]), 3),
        gpu_types=len(gpus()),
        services_revised=SERVICES,
        revision_cpu_seconds=round(revision, 3),
        revision_holds=revision <= MOST_REVISION,
    )


def revision_of(count: int) -> float:
    """Returns the processor seconds of revising the plans of ``count`` services at once, in a surge."""
    services = tuple(EntityRef("bench", EntityKind.SERVICE, "serving", f"service-{seed}") for seed in range(count))
    histories = [history(seed) for seed in range(count)]
    values = np.stack([np.stack([load, load * 2.0, load * 0.0], axis=1) for _, load in histories])
    status = np.zeros(values.shape, dtype=np.uint8)
    window = Window(EntityKind.SERVICE, services, histories[0][0], KEYS, values, status, STEP)
    shape = ("H100", 250.0, 64.0, 20.0, 1, 1, 210.0, 100)
    calibrations = {service: Calibration(service, *shape, "measured") for service in services}
    fleet = [FleetService(service, "H100", 20, 20, 1, 400, 2.5, "USD") for service in services]
    _, basis = plan_with_basis(window, calibrations, fleet, NOW, PlanSettings())
    surge = {
        service: PresentLoad(load[-1] * 1.5, load[-1] * 1.8, load[-1], 1280.0, 900.0, 18.0, 1.0)
        for service, (_, load) in zip(services, histories, strict=True)
    }
    reasons = dict.fromkeys(services, ("load_above_plan", "queue"))
    seconds = []
    for _ in range(TIMES):
        begun = time.process_time()
        revised = replan(basis, fleet, reasons, surge, NOW)
        seconds.append(time.process_time() - begun)
        assert all(isinstance(item, Recommendation) and item.derivation["need_by_queue"] for item in revised)
    return statistics.median(seconds)


def _front(peak: float) -> optimizer.CostComparison:
    request = optimizer.CostRequest(
        model("Llama-3.1-70B"), Work(900, 250), peak, Slo(2.0, 0.06), setup=Setup(bits=8), cuts=CUTS
    )
    return optimizer.compare(request, optimizer.default_offers(gpus()))


if __name__ == "__main__":
    main(run)
