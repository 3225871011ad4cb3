"""Load of the present half minute, and the revised plan that follows from it."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest

from outrider.model import CellStatus, EntityKind, EntityRef, PlanReason, Window
from planner.capacity import present
from planner.capacity.plan import PlanSettings, plan_with_basis, replan
from planner.capacity.prescale import DRAIN, ScaleLimits, most_replicas
from planner.capacity.present import PresentLoad, replicas_for_queue

STEP = timedelta(seconds=15)
ENGINES = tuple(EntityRef("lab", EntityKind.REPLICA, "prod", f"chat-{number}") for number in range(4))
LEAD = timedelta(seconds=210)


def window(build, kind, entities, keys, columns, status=CellStatus.PRESENT):
    values = np.array(columns, dtype=float).transpose(1, 2, 0)
    times = build.now.timestamp() - 15.0 * np.arange(values.shape[1] - 1, -1, -1)
    cells = np.where(np.isnan(values), CellStatus.ABSENT, status).astype(np.uint8)
    return Window(kind, entities, times, keys, values, cells, STEP)


def loads(build, rates, queues, *, waiting=(0.0,) * 4, status=CellStatus.PRESENT):
    services = window(build, EntityKind.SERVICE, (build.service,), present.SERVICE_KEYS, [[rates], [queues]], status)
    constant = [[[value] for value in column] for column in ((60.0,) * 4, waiting, (0.5,) * 4)]
    engines = window(build, EntityKind.REPLICA, ENGINES, present.ENGINE_KEYS, constant)
    return present.present_loads(services, engines, {build.service: ENGINES}, build.now)[build.service]


def test_a_saturated_service_receives_what_it_completes_and_what_its_queue_grows_by(build):
    known = loads(build, [80.0] * 8, [0, 0, 0, 0, 0, 0, 300, 600], waiting=(150.0,) * 4)
    assert (known.rate, known.arrivals, known.queued, known.spread) == (80.0, 100.0, 600.0, 1.0)
    assert (known.running, known.kv_replicas) == (240.0, 2.0)


def test_one_jump_of_a_queue_is_no_growth(build):
    assert loads(build, [80.0] * 8, [0] * 7 + [900], waiting=(225.0,) * 4).growth == 0.0


def test_a_queue_on_one_engine_is_not_served_by_more(build):
    assert loads(build, [80.0] * 8, [600] * 8, waiting=(600.0, 0.0, 0.0, 0.0)).queued == 0.0


@pytest.mark.parametrize("status", [CellStatus.STALE, CellStatus.UNTRUSTED, CellStatus.RESET])
def test_values_that_are_not_trusted_give_no_load(build, status):
    known = loads(build, [80.0] * 8, [900] * 8, status=status)
    assert (known.rate, known.arrivals) == (None, None)
    assert loads(build, [80.0] * 2 + [np.nan] * 6, [0] * 8).rate is None, "older than a minute"


def surge(**changes):
    return replace(
        PresentLoad(rate=80.0, arrivals=100.0, calm=70.0, running=600.0, waiting=600.0, spread=1.0), **changes
    )


def test_replicas_for_a_queue_serve_the_arrivals_and_drain_it(build):
    del build
    steady = surge(arrivals=80.0)
    assert replicas_for_queue(steady, 8.0, 10, LEAD, DRAIN, 0.0) == 12, "80 / 8, and 600 / (8 x 60)"
    assert replicas_for_queue(steady, 8.0, 10, LEAD, DRAIN, 0.25) == 14
    # the queue grows by 20/s until replicas serve, to at most the half minute that clients wait
    assert replicas_for_queue(surge(), 8.0, 10, LEAD, DRAIN, 0.0) == 18, "100 / 8, and 2400 / (8 x 60)"
    assert replicas_for_queue(surge(), 8.0, 10, LEAD, 10 * DRAIN, 0.0) == 13
    assert replicas_for_queue(surge(waiting=0.0), 8.0, 10, LEAD, DRAIN, 0.0) is None


def test_slower_requests_lower_the_rate_of_a_replica_to_a_quarter_at_most():
    slow = surge(rate=40.0, arrivals=40.0)
    assert replicas_for_queue(slow, 8.0, 10, LEAD, DRAIN, 0.0) == 13, "40 / 4, and 600 / (4 x 60)"
    hung = surge(rate=1.0, arrivals=1.0)
    assert replicas_for_queue(hung, 8.0, 10, LEAD, DRAIN, 0.0) == 6, "1 / 2, and 600 / (2 x 60)"


def revised(build, state, level=20.0, reasons=("queue",), **fleet):
    """A plan at a constant level of 20/s (2.67/s a replica), then one for the present."""
    before = build.fleet(**fleet)
    values = np.full(5 * 144, level)
    first, basis = plan_with_basis(
        build.history(values), {build.service: build.calibration()}, [before], build.now, PlanSettings()
    )
    later = build.now + timedelta(minutes=4)
    (result,) = replan(basis, [before], {build.service: reasons}, {build.service: state}, later)
    return first.recommendations[0], result


def test_a_surge_is_planned_without_a_new_forecast(build):
    first, result = revised(build, PresentLoad(26.0, 40.0, 22.0, 320.0, 400.0, 3.0, 1.0))
    assert first.target_replicas == 10
    assert result.derivation["replanned"] == ["queue"]
    assert result.derivation["queue"]["arrivals"] == 40.0
    # 40/s with the buffer, and the 780 requests that 26/s and 30 s of patience leave, in a minute
    assert result.derivation["need_by_queue"] == 25
    assert (result.target_replicas, result.reason) == (20, PlanReason.STEP_LIMIT)
    assert result.need_at == result.made_at == build.now + timedelta(minutes=4)


def test_a_present_load_within_the_forecast_changes_nothing(build):
    first, result = revised(build, PresentLoad(21.0, 21.0, 20.5, 240.0, 0.0, 2.0, 0.0))
    assert (result.target_replicas, result.derivation["need_now"]) == (
        first.target_replicas,
        first.derivation["need_now"],
    )


def test_replicas_that_start_are_not_ordered_again(build):
    state = PresentLoad(26.0, 30.0, 26.0, 320.0, 400.0, 3.0, 1.0)
    _, ordered = revised(build, state, ceiling=60)
    _, starting = revised(
        build, state, ceiling=60, current_replicas=ordered.target_replicas, ready_replicas=10,
        recent=((build.now, 10),),
    )  # fmt: skip
    assert starting.target_replicas == ordered.target_replicas > 10
    assert starting.reason is PlanReason.NOT_READY_YET


def test_an_infeasible_queue_is_reported_at_the_ceiling(build):
    _, result = revised(build, PresentLoad(26.0, 55.0, 26.0, 320.0, 4000.0, 3.0, 1.0), ceiling=12)
    assert (result.target_replicas, result.reason) == (12, PlanReason.AT_CEILING)


def test_plans_of_one_surge_share_one_step(build):
    limits = ScaleLimits()
    ago = [(build.now - timedelta(minutes=minutes), 10) for minutes in (12, 4)]
    assert most_replicas(10, (), build.now, limits) == 20
    assert most_replicas(18, ago, build.now, limits) == 20
    assert most_replicas(18, ago[:1], build.now, limits) == 36


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("level", [1.0, 20.0, 200.0])
def test_constant_load_is_not_above_its_forecast(seed, level):
    random = np.random.default_rng(seed)
    half_minutes = random.poisson(level * 30.0, 4 * 120) / 30.0
    above = [load for load in half_minutes if present.exceeds(load, 1.03 * level)]
    assert len(above) <= 1, "about one half minute in four hours"
