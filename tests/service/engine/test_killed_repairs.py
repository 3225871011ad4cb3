"""An engine that is killed while it repairs: no action twice, none forgotten. ``make soak`` kills it more often."""

from __future__ import annotations

from collections import Counter

import pytest

from remediation.playbooks.files import packaged
from tests.service.engine.killing import distinct_playbooks, kill_at_random, killed_between_steps, undisturbed


@pytest.mark.slow
@pytest.mark.parametrize("fault", distinct_playbooks())
def test_a_kill_between_any_two_steps_changes_nothing(fault, tmp_path):
    effects, lives = killed_between_steps(tmp_path, fault)
    conditional = all(step.require for step in packaged()[fault].steps)
    assert undisturbed(fault) or conditional, "this playbook does nothing in this fleet"
    assert effects == undisturbed(fault)
    assert lives > sum(effects.values()), "some step was without a kill"


@pytest.mark.slow
@pytest.mark.parametrize("fault", ["engine-hung", "gpu-lost", "pcie-degraded"])
def test_a_repair_whose_pods_and_nodes_are_replaced_ends_in_spite_of_every_kill(fault, tmp_path):
    expected = undisturbed(fault, renames=True)
    effects, lives = killed_between_steps(tmp_path, fault, renames=True)
    assert effects == expected
    assert lives > sum(effects.values())
    done = Counter(kind for kind, _ in effects)
    assert done["restore_traffic"] == done["shift_traffic"]
    assert done["uncordon"] == done["cordon"]


def test_a_diverted_replica_returns_step_by_step(tmp_path):
    done = [kind for kind, _ in undisturbed("kv-transfer-fail") if kind.startswith(("shift", "restore"))]
    assert sorted(done) == ["restore_traffic", "shift_traffic", "shift_traffic to 0.01", "shift_traffic to 0.1"]


@pytest.mark.slow
def test_ten_kills_at_random_times_change_nothing():
    repairs, kills = kill_at_random(10, seed=5)
    assert repairs >= 1
    assert kills >= 10
