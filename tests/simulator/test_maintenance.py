from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np

from simulator.fleet import Fleet
from simulator.journal import JournalSource
from simulator.maintenance import MaintenanceRunner, planned, under_maintenance
from simulator.spec.fleets import TrafficSpec, default_spec

SPEC = default_spec()
MONDAY = datetime(2026, 11, 16, tzinfo=UTC).timestamp()
WEEK = 7 * 86400.0


def test_a_week_has_one_rollout_and_one_restart_of_every_service_in_working_hours() -> None:
    result = planned(SPEC, 3, MONDAY, MONDAY + WEEK)
    for service in SPEC.services:
        mine = [task for task in result if task.service == service.name]
        assert sorted(task.replica is None for task in mine) == [False, True]
    for task in result:
        assert (task.at - MONDAY) // 86400 < 5
        assert 9 <= task.at % 86400 / 3600 < 17
        assert task.replica is None or 0 <= task.replica < SPEC.service(task.service).replicas


def test_the_plan_is_the_same_for_any_split_of_the_time() -> None:
    whole = planned(SPEC, 3, MONDAY, MONDAY + 3 * WEEK)
    parts = [planned(SPEC, 3, MONDAY + day * 86400, MONDAY + (day + 1) * 86400) for day in range(21)]
    assert whole == tuple(task for part in parts for task in part)
    assert planned(SPEC, 4, MONDAY, MONDAY + WEEK) != planned(SPEC, 3, MONDAY, MONDAY + WEEK)


def test_replicas_are_down_one_after_another() -> None:
    rollout = next(task for task in planned(SPEC, 3, MONDAY, MONDAY + WEEK) if task.replica is None)
    times = rollout.at + np.arange(-300.0, 3600.0, 15.0)
    gone = under_maintenance(SPEC, rollout.service, (rollout,), times)
    assert gone.sum(axis=0).max() == 1
    assert gone.any(axis=1).all()
    assert not gone[:, times < rollout.at].any()


def test_a_live_fleet_is_rolled_out_and_restarted_as_planned() -> None:
    services = tuple(
        replace(service, replicas=2, ceiling=2, traffic=TrafficSpec(shape="steady", peak_ratio=0.1))
        for service in SPEC.services
    )
    spec = replace(SPEC, services=services, slice_seconds=15.0, tick_seconds=15.0)
    tasks = planned(spec, 3, MONDAY, MONDAY + WEEK)
    for task in (
        next(task for task in tasks if task.replica is None),
        next(task for task in tasks if task.replica == 0),
    ):
        fleet = Fleet(spec, seed=3, start=datetime.fromtimestamp(task.at - 30, UTC))
        runner = MaintenanceRunner(fleet, 3)
        for _ in range(6):
            fleet.step(timedelta(seconds=15))
            runner.advance()
        assert runner.done == [task]
        voices = {line.source for line in fleet.journal.after()}
        assert (JournalSource.CHANGE if task.replica is None else JournalSource.KUBERNETES) in voices
        assert sum(pod.ready for pod in fleet.pods.of_service(task.service)) == 1
