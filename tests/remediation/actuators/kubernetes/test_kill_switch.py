"""The kill switch in the middle of a drain on a real control plane."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest

from outrider.clock import ManualClock, SystemClock
from outrider.model import Action, ActionKind, ActionStatus, CycleRecord, DecisionReason
from outrider.ports import CycleCommit
from remediation.actuators.kubernetes.actuator import KubernetesActuator
from service.engine.dispatch import ACTION_RETRY, Dispatcher
from service.engine.kill_switch import KillSwitch
from store.memory import MemoryStateStore
from tests.remediation.actuators.kubernetes.test_nodes import place
from tests.support.kube import Cluster
from tests.support.kube_actions import SPACE, an_action, node_ref
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane
BUDGETS = f"/apis/policy/v1/namespaces/{SPACE}/poddisruptionbudgets"


class OpenGate:
    """No guard objects."""

    def may_act(self) -> bool:
        return True

    def recheck(self, action: Action, now: object) -> DecisionReason | None:
        del action, now
        return None


def ending(cluster: Cluster) -> int:
    """Pods that were evicted."""
    return sum("deletionTimestamp" in pod["metadata"] for pod in cluster.pods(SPACE))


def test_a_drain_that_waits_for_a_budget_evicts_nothing_while_the_switch_is_on(
    cluster: Cluster, actuator: KubernetesActuator, tmp_path: Path
) -> None:
    place(cluster, 2)
    spec = {"minAvailable": 2, "selector": {"matchLabels": {"app": "chat"}}}
    cluster.create(BUDGETS, {"metadata": {"name": "chat"}, "spec": spec})
    until(lambda: cluster.get(f"{BUDGETS}/chat")["status"].get("currentHealthy") == 2, "the budget counts its pods")
    state, clock, file = MemoryStateStore(), ManualClock(SystemClock().now() + timedelta(seconds=2)), tmp_path / "stop"
    drain = replace(an_action(ActionKind.DRAIN, node_ref("acting-a")), status=ActionStatus.INTENDED)
    state.commit(CycleCommit(CycleRecord("cycle", clock.now(), 0.1, 1, 1, 1, 0, 0, 0), actions=(drain,)))
    dispatcher = Dispatcher(state, {}, actuator, clock, OpenGate(), KillSwitch(file))
    dispatcher.run_once()
    waiting = state.actions()[0]
    assert (waiting.status, ending(cluster)) == (ActionStatus.INTENDED, 0)
    assert "disruption budget" in waiting.detail

    file.touch()
    cluster.delete(f"{BUDGETS}/chat")
    for _ in range(3):
        clock.advance(ACTION_RETRY)
        dispatcher.run_once()
    assert ending(cluster) == 0, "the switch holds the next attempt"

    file.unlink()
    clock.advance(ACTION_RETRY)
    dispatcher.run_once()
    assert ending(cluster) == 2
