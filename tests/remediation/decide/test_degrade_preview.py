"""The preview of a degrade ladder: the present level, the next one, its thresholds, and what keeps it away."""

from __future__ import annotations

from dataclasses import replace

import pytest

from outrider.model import ActionKind, ActionStatus
from remediation.decide.degrade import EntryObstacle
from remediation.decide.policy import preview_levels
from tests.remediation.decide.test_degrade import Surge, opened


@pytest.fixture
def surge(fleet):
    return Surge(fleet)


def shown(surge, incident):
    fleet = surge.fleet
    (row,) = preview_levels(
        fleet.policy, fleet.incidents[incident], list(fleet.alerts.values()), fleet.plan,
        list(fleet.actions.values()), fleet.topology, fleet.facts_now(), fleet.now, surge.procedures,
    )  # fmt: skip
    return row


def test_before_a_surge_the_thresholds_of_the_first_level_are_not_reached(surge):
    incident = opened(surge)
    action, row = shown(surge, incident)
    assert (action.kind, action.status) == (ActionKind.DEGRADE_SERVICE, ActionStatus.PROPOSED)
    assert (row.current.level, row.level.name) == (0, "pause_offline")
    assert action.params["reject"] == ["offline"]
    (wait,) = row.thresholds
    assert (wait.indicator, wait.limit, wait.value, wait.reached) == ("wait_ratio", 1.0, 0.0, False)
    assert set(row.obstacles) == {EntryObstacle.THRESHOLDS, EntryObstacle.COVERED}
    assert not surge.changes(), "nothing is decided"


def test_a_level_without_obstacles_is_the_one_that_is_decided_next(surge):
    incident = opened(surge)
    decided = 0
    for _ in range(40):
        action, row = shown(surge, incident)
        before = len(surge.changes())
        surge.cycle(110.0)
        new = [change for change in surge.changes()[before:] if change.kind is ActionKind.DEGRADE_SERVICE]
        for change in new:
            assert change.params["level"] == row.level.number
            decided += 1
    assert decided > 1
    assert action.params["capacity_per_replica"] == 10.0


def test_a_deeper_level_shows_the_values_of_all_its_thresholds(surge):
    incident = opened(surge)
    surge.obeys = False
    while surge.level() < 4:
        surge.cycle(110.0)
    _, row = shown(surge, incident)
    assert (row.current.level, row.level.name) == (4, "smaller_model")
    values = {threshold.indicator: threshold for threshold in row.thresholds}
    assert values["wait_ratio"].reached
    assert values["overload_ratio"].value > 1.0
    assert EntryObstacle.DWELL in row.obstacles
    while surge.level() < 6:
        surge.cycle(110.0)
    action, row = shown(surge, incident)
    assert (action, row.level, row.current.level) == (None, None, 6)


def test_without_values_nothing_is_reached(surge):
    incident = opened(surge)
    surge.fleet.facts = replace(surge.fleet.facts, load={})
    _, row = shown(surge, incident)
    assert row.obstacles == (EntryObstacle.NO_VALUES,)
    assert [threshold.value for threshold in row.thresholds] == [None]


def test_another_fault_has_no_ladder(surge):
    fleet = surge.fleet
    incident = opened(surge, "engine-hung")
    rows = preview_levels(
        fleet.policy, fleet.incidents[incident], [], fleet.plan, [], fleet.topology, fleet.facts_now(), fleet.now,
        surge.procedures,
    )  # fmt: skip
    assert rows == ()
