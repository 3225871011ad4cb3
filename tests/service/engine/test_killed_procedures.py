"""An engine that is killed in the middle of a procedure: each level and each share once, in order."""

from __future__ import annotations

import pytest

from tests.service.engine.killing import killed_between_steps, undisturbed
from tests.service.engine.procedure_life import CLUSTER_LOST, HOME, LADDER, LEVELS, STANDBY
from tests.service.engine.remediation_life import Journal


def levels(folder, target) -> list[int]:
    """The levels of a service in the order in which they took effect."""
    return [line["level"] for line in Journal(folder).lines() if line["target"] == target.key and "level" in line]


@pytest.mark.slow
def test_a_kill_between_any_two_changes_of_level_skips_and_repeats_none(tmp_path):
    effects, lives = killed_between_steps(tmp_path, LADDER)
    performed = [line["level"] for line in Journal(tmp_path).lines()]
    assert performed == [*LEVELS, *reversed(LEVELS[:-1]), 0]
    assert effects == undisturbed(LADDER)
    assert lives > 3 * sum(effects.values()), "each change is killed as decided, claimed, performed and recorded"


@pytest.mark.slow
def test_a_kill_during_a_switch_and_its_return_changes_nothing(tmp_path):
    effects, lives = killed_between_steps(tmp_path, CLUSTER_LOST)
    lines = Journal(tmp_path).lines()
    shares = [(line["cluster"], line["share"]) for line in lines if line["target"] == HOME.key]
    assert shares == [("standby", 1.0), ("home", 0.01), ("home", 0.1), ("home", 0.5), ("home", 1.0)]
    assert levels(tmp_path, STANDBY) == [*reversed(LEVELS[:3]), 0], (
        "the short standby is degraded at once, and relieved in steps"
    )
    assert effects == undisturbed(CLUSTER_LOST)
    assert lives > 3 * sum(effects.values()) - len(effects)
