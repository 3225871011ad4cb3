from __future__ import annotations

import numpy as np
import pytest

from outrider.errors import UsageError
from outrider.model import ActionKind, EntityKind, EventKind, OutcomeStatus
from simulator.faults import inject
from simulator.fleet import Fleet
from simulator.journal import JournalSource
from simulator.servers.control import Control
from tests.simulator.small import Bent, coarse_fleet, step

SERVICE = "code-14b"


@pytest.fixture
def fleet() -> Fleet:
    return coarse_fleet()


def revisions(fleet: Fleet) -> list[str]:
    return [pod.revision for pod in fleet.pods.pods if pod.exists]


@pytest.mark.slow
def test_pods_are_replaced_one_by_one(fleet: Fleet) -> None:
    fleet.rollout(SERVICE, "v2", text="image 2")
    least = 4
    for _ in range(120):
        step(fleet, 10)
        least = min(least, int(fleet.pods.ready.sum()))
        if not fleet.rollouts.moving(SERVICE):
            break
    assert least == 3
    assert revisions(fleet) == ["v2"] * 4
    assert {pod.generation for pod in fleet.pods.pods if pod.exists} == {2}
    (line,) = [line for line in fleet.journal.after() if line.source is JournalSource.CHANGE]
    assert (line.code, line.text, line.entity.name) == ("rollout", "image 2", SERVICE)
    assert line.attributes == {"from": "v1", "to": "v2"}
    assert line.event.kind is EventKind.CHANGE


@pytest.mark.slow
def test_a_failing_revision_stops_the_rollout_and_a_rollback_fixes_it(fleet: Fleet) -> None:
    bent = Bent(fleet, ("slots", "load_fails", 0, 1.0))
    fleet.rollout(SERVICE, "v2")
    step(fleet, 600)
    assert revisions(fleet) == ["v2", "v1", "v1", "v1"]
    bent.stop(fleet)
    assert fleet.rollback(SERVICE) == "v1"
    step(fleet, 5)
    assert revisions(fleet) == ["v1"] * 4
    step(fleet, 260)
    assert fleet.pods.ready[:4].all()
    assert not fleet.rollouts.moving(SERVICE)
    assert [line.code for line in fleet.journal.after() if line.source is JournalSource.CHANGE] == [
        "rollout",
        "rollback",
    ]


def test_a_flag_and_its_rollback_reach_running_processes_at_once(fleet: Fleet) -> None:
    fleet.rollout(SERVICE, "v2", instantly=True)
    assert revisions(fleet) == ["v2"] * 4
    step(fleet, 10)
    assert fleet.pods.process[:4].tolist() == [1] * 4
    fleet.rollback(SERVICE)
    assert revisions(fleet) == ["v1"] * 4


def test_new_pods_have_the_newest_revision(fleet: Fleet) -> None:
    fleet.rollout(SERVICE, "v2", instantly=True)
    fleet.scale(SERVICE, 5)
    assert fleet.pods.pods[4].revision == "v2"


def test_rollback_is_an_action(fleet: Fleet) -> None:
    control, service = Control(fleet), fleet.entity(EntityKind.SERVICE, SERVICE, "serving")
    assert control.act("a", ActionKind.ROLLBACK, service).status is OutcomeStatus.FAILED
    fleet.rollout(SERVICE, "v2", instantly=True)
    assert control.act("b", "rollback", service).status is OutcomeStatus.DONE
    assert revisions(fleet) == ["v1"] * 4


def test_invalid_requests_are_refused(fleet: Fleet) -> None:
    with pytest.raises(UsageError, match="no service"):
        fleet.rollout("chat", "v2")
    with pytest.raises(UsageError, match="already at revision v1"):
        fleet.rollout(SERVICE, "v1")
    with pytest.raises(UsageError, match="ceiling of 7"):
        fleet.scale(SERVICE, 8)


@pytest.mark.slow
def test_restore_undoes_faults_and_operator_changes(fleet: Fleet) -> None:
    inject(fleet, "gpu-lost", fleet.gpu_uuid(0))
    Bent(fleet, ("slots", "hung", 2, 1.0), ("nodes", "disk_factor", 0, 9.0))
    fleet.rollout(SERVICE, "v2", instantly=True)
    fleet.router.weights[1] = 0.0
    fleet.pods.cordoned[2] = True
    fleet.scale(SERVICE, 6)
    fleet.exporters_down.add("dcgm-node-0")
    step(fleet, 30)
    assert not fleet.gpus.healthy.all()
    fleet.restore()
    step(fleet, 400)
    assert fleet.injections == []
    assert fleet.gpus.healthy.all()
    assert fleet.gpus.visible.all()
    assert not fleet.stalled.any()
    assert (fleet.router.weights == 1.0).all()
    assert not fleet.pods.cordoned.any()
    assert not fleet.exporters_down
    assert revisions(fleet) == ["v1"] * 4
    assert int(fleet.pods.ready.sum()) == 4
    assert all((values == 1.0).all() or (values == 0.0).all() for values in vars(fleet.effects.nodes).values())


def test_the_autoscaler_reports_desired_replicas_and_its_limits(fleet: Fleet) -> None:
    autoscaler = fleet.autoscaler
    step(fleet, 5)
    assert (autoscaler.desired, autoscaler.maximum) == (np.array([4.0]), np.array([7.0]))
    bent = Bent(fleet, ("services", "desired_extra", 0, 2.0))
    step(fleet, 5)
    assert autoscaler.desired.tolist() == [6.0]
    bent.stop(fleet)
    bent = Bent(fleet, ("services", "autoscaler_stuck", 0, 1.0), ("services", "desired_extra", 0, 2.0))
    step(fleet, 5)
    assert (autoscaler.desired[0], autoscaler.wanted[0], bool(autoscaler.at_maximum[0])) == (4.0, 6.0, True)
    bent.stop(fleet)
    Bent(fleet, ("services", "autoscaler_stuck", 0, 2.0))
    step(fleet, 60)
    assert bool(autoscaler.blind[0])
    assert autoscaler.errors[0] == pytest.approx(4.0)
