"""Replicas that a surge orders without a plan: for the measured load, and within the ceiling."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from remediation.decide.service_load import LoadSample, ServiceLoad


@pytest.mark.parametrize(
    ("served", "lost", "waiting", "replicas"),
    [
        (4.0, 0.0, 40.0, 11),  # 8 replicas serve 4/s: no client is lost, and the queue takes a third of a replica
        (4.0, 2.0, 40.0, 16),  # 6/s arrive: 12 replicas, a quarter more, and the queue
        (4.0, 20.0, 400.0, 16),  # one step doubles at most
        (0.0, 4.0, 40.0, 10),  # nothing is served, so nothing is known: a quarter more
    ],
)
def test_a_surge_without_a_plan_orders_replicas_for_the_measured_load(fleet, served, lost, waiting, replicas):
    fleet.break_("traffic-surge", fleet.service)
    times = (fleet.now - timedelta(seconds=15 * step) for step in range(6, -1, -1))
    load = ServiceLoad(tuple(LoadSample(at, waiting, served, lost) for at in times))
    fleet.facts = replace(fleet.facts, load={fleet.service: load})
    assert fleet.cycle()[0].params["replicas"] == replicas


def test_a_surge_is_measured_over_the_cycles_that_have_a_queue(fleet):
    """Two cycles without a queue served 3/s, which is neither the capacity nor the load."""
    fleet.break_("traffic-surge", fleet.service)
    waiting = [0.0, 0.0, 15.0, 45.0, 75.0]  # grows by 2/s
    served = [3.0, 3.0, 4.0, 4.0, 4.0]
    at = [fleet.now - timedelta(seconds=15 * step) for step in range(4, -1, -1)]
    load = ServiceLoad(tuple(map(LoadSample, at, waiting, served)))
    fleet.facts = replace(fleet.facts, load={fleet.service: load})
    # 6/s arrive at 8 replicas that serve 4/s: 12, a quarter more, and 75 waiting within 5 minutes
    assert fleet.cycle()[0].params["replicas"] == 16
    assert load.queued.samples == load.samples[2:]
    assert replace(load, samples=load.samples[:3]).queued.samples == load.samples[:3], "one cycle is no measurement"


def test_a_scale_out_without_a_plan_stays_below_the_configured_ceiling(fleet):
    fleet.break_("traffic-surge", fleet.service)
    fleet.policy = replace(fleet.policy, ceilings={fleet.service.name: 9})
    assert fleet.cycle()[0].params["replicas"] == 9
    other = type(fleet)()
    other.break_("traffic-surge", other.service)
    other.policy = replace(other.policy, ceilings={other.service.name: 8})
    assert other.cycle() == ()
