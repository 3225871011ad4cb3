"""Preconditions, checks, timeouts and escalation of playbook steps."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, time, timedelta

import pytest

from outrider.model import ActionKind, ActionStatus, DecisionReason, HoldReason, StepState
from outrider.text import yaml_file
from outrider.topology import Topology
from outrider.vocabulary.time_spans import WeeklySpan
from remediation.decide.history import NOT_PERFORMED, STOPPED
from remediation.decide.time_windows import TimeWindow
from remediation.playbooks.model import read
from store.state import state_rows


def book(steps, fault="engine-hung"):
    """A playbook of steps for one fault."""
    listed = "".join(f"      - {step}\n" for step in steps)
    return read([yaml_file.parse(f"playbooks:\n  {fault}:\n    serving: false\n    steps:\n{listed}", "own.yaml")])


class Run:
    """Rounds of one fault with its own playbook."""

    def __init__(self, fleet, steps, fault="engine-hung", entity=None) -> None:
        self.fleet, self.playbooks = fleet, book(steps, fault)
        self.incident = fleet.break_(fault, entity or fleet.replicas[0])

    def round(self, status=ActionStatus.DONE):
        """Decides, records and performs; returns the decisions."""
        decided = self.fleet.decide(playbooks=self.playbooks)
        self.fleet.actions |= {action.id: action for action in decided.actions}
        self.fleet.sessions |= {session.id: session for session in decided.sessions}
        self.fleet.perform(status=status)
        self.fleet.now += timedelta(seconds=15)
        return decided

    def kinds(self, rounds=1):
        """Kinds of the actions of some rounds."""
        return [action.kind for _ in range(rounds) for action in self.round().actions]

    def states(self):
        """States of the steps of one round."""
        return [step.state for step in self.round().steps]


RESTART = "{action: restart_pod, target: pods, verify: serving, timeout: 2m}"
SCALE = "{action: scale, target: services, after: done}"


def test_a_step_waits_for_its_precondition(fleet):
    run = Run(fleet, ["{action: restart_pod, target: pods, require: [node_not_ready]}"])
    decided = run.round()
    assert decided.actions == ()
    assert [(step.state, step.check) for step in decided.steps] == [(StepState.PRECONDITION_NOT_MET, "node_not_ready")]
    assert decided.holds[0].reason is HoldReason.PRECONDITION_NOT_MET
    fleet.facts = replace(fleet.facts, not_ready=frozenset(fleet.nodes[:1]))
    assert run.kinds() == [ActionKind.RESTART_POD]


def test_a_request_is_withdrawn_when_its_precondition_no_longer_holds(fleet):
    run = Run(fleet, ["{action: restart_pod, target: pods, ask: true, require: [node_not_ready]}"])
    fleet.facts = replace(fleet.facts, not_ready=frozenset(fleet.nodes[:1]))
    assert [action.status for action in run.round().actions] == [ActionStatus.WAITING_APPROVAL]
    fleet.facts = replace(fleet.facts, not_ready=frozenset())
    (withdrawn,) = run.round().actions
    assert (withdrawn.status, withdrawn.reason) == (ActionStatus.CANCELLED, DecisionReason.PRECONDITION_NOT_MET)
    assert withdrawn.detail == "node_not_ready"


def test_the_next_step_waits_for_the_check(fleet):
    run = Run(fleet, [RESTART, SCALE])
    assert run.kinds() == [ActionKind.RESTART_POD]
    decided = run.round()
    assert (decided.actions, decided.holds[0].reason) == ((), HoldReason.VERIFYING)


def test_a_check_that_holds_lets_the_next_step_go(fleet):
    fleet.sick.add(fleet.replicas[0])
    run = Run(fleet, [RESTART, SCALE], "gpu-lost", fleet.gpus[0])
    assert run.kinds(2) == [ActionKind.RESTART_POD]
    fleet.sick.discard(fleet.replicas[0])
    decided = run.round()
    assert [step.state for step in decided.steps][:1] == [StepState.VERIFIED]
    assert [action.kind for action in decided.actions] == [ActionKind.SCALE]


def test_a_failed_check_goes_on_by_default(fleet):
    run = Run(fleet, [RESTART, SCALE])
    run.round()
    fleet.now += timedelta(minutes=2)
    decided = run.round()
    assert [action.kind for action in decided.actions] == [ActionKind.SCALE]
    assert decided.steps[0].state is StepState.FAILED


def test_a_failed_check_can_ask_for_the_rest(fleet):
    run = Run(fleet, [RESTART.replace("2m", "2m, escalate: ask"), SCALE])
    run.round()
    fleet.now += timedelta(minutes=2)
    assert [action.status for action in run.round().actions] == [ActionStatus.WAITING_APPROVAL]


def test_a_failed_check_can_page_and_stops_the_rest(fleet):
    run = Run(fleet, [RESTART.replace("2m", "2m, escalate: {page: Call us.}"), SCALE])
    run.round()
    fleet.now += timedelta(minutes=2)
    decided = run.round()
    assert decided.actions == ()
    assert [(step.state, step.page) for step in decided.steps] == [(StepState.FAILED, "Call us.")]
    assert decided.holds[0].reason is HoldReason.STEP_FAILED


def test_a_pod_that_took_the_place_of_a_restarted_one_is_not_restarted_without_end(fleet):
    run = Run(fleet, [RESTART.replace("2m", "2m, escalate: {page: Call us.}")], "gpu-lost", fleet.gpus[0])
    assert run.kinds() == [ActionKind.RESTART_POD]
    fleet.replace_pod(0, ready=False)
    assert run.kinds(3) == [], "its attempt is spent"
    assert run.states() == [StepState.VERIFYING], "it still starts"
    fleet.now += timedelta(minutes=12)
    decided = run.round()
    assert decided.actions == ()
    assert [(step.state, step.page) for step in decided.steps] == [(StepState.FAILED, "Call us.")]


def test_an_older_pod_that_fails_later_has_its_own_attempts(fleet):
    fleet.replace_pod(1, to=0)
    fleet.now += timedelta(minutes=1)
    steps = ["{action: restart_pod, target: pods, require: [not_serving], verify: pod_ready, timeout: 15m}"]
    run = Run(fleet, steps, "disk-slow", fleet.nodes[0])
    fleet.sick.add(fleet.replicas[0])
    assert [action.target for action in run.round().actions] == [fleet.pods[0]]
    fleet.replace_pod(0, to=2)
    fleet.now += timedelta(minutes=8)
    fleet.sick.add(fleet.replicas[1])
    assert [action.target for action in run.round().actions] == [fleet.pods[1]]


@pytest.mark.parametrize(("back", "state"), [(True, StepState.VERIFIED), (False, StepState.FAILED)])
def test_a_reboot_that_was_stopped_after_it_began_is_not_repeated(fleet, back, state):
    node = fleet.nodes[0]
    run = Run(
        fleet, ["{action: reboot_node, target: node, verify: node_ready, timeout: 5m}"], "gpu-lost", fleet.gpus[0]
    )
    (reboot,) = run.round(status=ActionStatus.FAILED).actions
    fleet.actions[reboot.id] = replace(fleet.actions[reboot.id], detail=f"{STOPPED}: monitor_blind")
    fleet.facts = replace(fleet.facts, not_ready=frozenset() if back else frozenset({node}))
    fleet.now += timedelta(minutes=6)
    assert run.kinds(60) == []
    assert run.states() == [state]


def test_a_failed_action_is_a_failed_step(fleet):
    run = Run(fleet, [RESTART.replace("2m", "2m, escalate: {page: Call us.}"), SCALE])
    run.round(status=ActionStatus.FAILED)
    assert run.states() == [StepState.FAILED]


def test_a_retry_follows_a_failed_check_only(fleet):
    run = Run(fleet, [RESTART.replace("target", "attempts: 2, target").replace("2m", "15m")])
    run.round()
    fleet.now += timedelta(minutes=12)
    assert run.kinds(3) == [], "the cooldown is over, but the model may still load"
    fleet.now += timedelta(minutes=4)
    assert run.kinds() == [ActionKind.RESTART_POD]


@pytest.mark.parametrize(("minutes", "kinds"), [(10, [ActionKind.ROLLBACK]), (40, [])])
def test_a_rollback_needs_a_recent_change(fleet, minutes, kinds):
    step = "{action: rollback, target: services, require: [{rollout_preceded: 30m}]}"
    fleet.facts = replace(fleet.facts, changed_at={fleet.service: fleet.now - timedelta(minutes=minutes)})
    assert Run(fleet, [step], "crash-loop", fleet.pods[0]).kinds() == kinds


def test_a_repeated_fault_on_the_node_is_recognized(fleet):
    steps = ["{action: restart_pod, target: pods}", "{action: cordon, target: node, require: [{repeated: 24h}]}"]
    run = Run(fleet, steps, "gpu-xid-application", fleet.pods[0])
    assert run.kinds(3) == [ActionKind.RESTART_POD]
    fleet.mend(fleet.pods[0], resolve=run.incident)
    again = Run(fleet, steps, "gpu-xid-application", fleet.pods[1])
    assert ActionKind.CORDON not in again.kinds(2), "another node"
    first = next(action for action in fleet.actions.values() if action.target == fleet.pods[0])
    fleet.actions[first.id] = replace(first, params={**first.params, "host": "node-1"})
    assert ActionKind.CORDON in again.kinds(2)


def test_a_step_without_undo_leaves_nothing_to_undo(fleet):
    run = Run(fleet, ["{action: pause_rollout, target: services, undo: none}"])
    run.round()
    fleet.mend(fleet.replicas[0], resolve=run.incident)
    assert run.kinds(2) == []


def test_a_paused_rollout_is_resumed_after_the_recovery(fleet):
    run = Run(fleet, ["{action: pause_rollout, target: services}"])
    run.round()
    fleet.mend(fleet.replicas[0], resolve=run.incident)
    assert run.kinds(2) == [ActionKind.RESUME_ROLLOUT]


def approve(fleet, minutes):
    """Approves the waiting request some minutes after it was made."""
    (request,) = [action for action in fleet.actions.values() if action.status is ActionStatus.WAITING_APPROVAL]
    fleet.now = request.decided_at + timedelta(minutes=minutes)
    fleet.actions[request.id] = state_rows.decided(request, "ann", fleet.now, approve=True)
    return request.id


RESET = "{action: reset_gpu, target: self, ask: true, verify: no_alert, timeout: 10m, escalate: {page: Call us.}}"


def test_the_time_of_a_step_counts_from_its_approval(fleet):
    run = Run(fleet, [RESET], "gpu-xid-hardware", fleet.gpus[0])
    run.round()
    reset = approve(fleet, minutes=25)
    fleet.now += timedelta(minutes=1)
    assert [step.state for step in fleet.decide(playbooks=run.playbooks).steps] == [], "it waits for the dispatcher"
    fleet.actions[reset] = replace(fleet.actions[reset], status=ActionStatus.CLAIMED, started_at=fleet.now)
    fleet.now += timedelta(minutes=9)
    assert [step.state for step in fleet.decide(playbooks=run.playbooks).steps] == [], "it is in progress"
    fleet.now += timedelta(minutes=2)
    (failed,) = fleet.decide(playbooks=run.playbooks).steps
    assert (failed.state, failed.page) == (StepState.FAILED, "Call us.")


def test_a_step_lasts_as_long_as_the_hook_that_performs_it(make_fleet):
    fleet = make_fleet(time_limits={ActionKind.RESET_GPU: timedelta(minutes=40)})
    run = Run(fleet, [RESET], "gpu-xid-hardware", fleet.gpus[0])
    run.round()
    reset = approve(fleet, minutes=1)
    fleet.actions[reset] = replace(fleet.actions[reset], status=ActionStatus.CLAIMED, started_at=fleet.now)
    fleet.now += timedelta(minutes=39)
    assert [step.state for step in fleet.decide(playbooks=run.playbooks).steps] == []
    fleet.now += timedelta(minutes=2)
    assert [step.state for step in fleet.decide(playbooks=run.playbooks).steps] == [StepState.FAILED]


def stop(fleet, reason, detail=NOT_PERFORMED):
    """A guard stops the newest action at the last moment, as the dispatcher records it."""
    action = max(fleet.actions.values(), key=lambda action: action.decided_at)
    ended = {"status": ActionStatus.FAILED, "detail": f"{detail}: {reason}", "ended_at": fleet.now}
    fleet.actions[action.id] = replace(action, **ended)
    return action.id


@pytest.mark.parametrize("approved", [False, True])
def test_a_step_that_a_guard_stopped_is_decided_again(fleet, approved):
    step = (
        f"{{action: cordon, target: node, ask: {str(approved).lower()}, verify: cordoned, escalate: {{page: Call.}}}}"
    )
    run = Run(fleet, [step, SCALE], "gpu-lost", fleet.gpus[0])
    run.round(status=ActionStatus.CLAIMED)
    if approved:
        approve(fleet, minutes=1)
    first = stop(fleet, DecisionReason.VALUES_NOT_TRUSTED)
    fleet.now += timedelta(seconds=15)
    (again,) = run.round(status=ActionStatus.CLAIMED).actions
    assert (again.kind, again.id == first) == (ActionKind.CORDON, False), "the attempt is not spent, nor the cooldown"
    assert again.status is (ActionStatus.WAITING_APPROVAL if approved else ActionStatus.INTENDED)


def test_a_step_stopped_by_its_maintenance_window_waits_for_the_next_one(make_fleet):
    nightly = TimeWindow("nightly", UTC, WeeklySpan(time(2), time(4)))
    fleet = make_fleet(maintenance_windows=(nightly,))
    fleet.now = fleet.now.replace(hour=3, minute=59)
    run = Run(fleet, ["{action: restart_pod, target: pods, escalate: {page: Call us.}}", SCALE])
    run.round(status=ActionStatus.CLAIMED)
    stop(fleet, DecisionReason.NOT_IN_MAINTENANCE_WINDOW)
    fleet.now = fleet.now.replace(hour=4, minute=1)
    (refused,) = run.round().actions
    assert refused.reason is DecisionReason.NOT_IN_MAINTENANCE_WINDOW
    held = run.round()
    assert [step.state for step in held.steps] == [StepState.HELD_BY_GUARD]
    assert (held.holds[0].reason, held.holds[0].objection.detail) == (HoldReason.HELD_BY_GUARD, "nightly")
    fleet.now += timedelta(hours=5)
    assert run.states() == [StepState.HELD_BY_GUARD], "a window opens again: nobody is paged"
    fleet.now = fleet.now.replace(hour=2, minute=0) + timedelta(days=1)
    assert run.kinds() == [ActionKind.RESTART_POD]


def test_a_guard_that_stops_a_step_again_and_again_is_tried_less_and_less_often(fleet):
    run = Run(fleet, ["{action: shift_traffic, target: self}"])
    decided = 0
    for _ in range(60):  # a quarter of an hour
        if run.round(status=ActionStatus.CLAIMED).actions:
            decided += 1
            stop(fleet, DecisionReason.TOO_MANY_NODES)
    assert decided == 6


def test_a_step_stopped_after_it_began_waits_for_the_cooldown(fleet):
    run = Run(fleet, ["{action: restart_pod, target: pods, timeout: 30m, verify: serving}", SCALE])
    run.round(status=ActionStatus.CLAIMED)
    stop(fleet, DecisionReason.MONITOR_BLIND, STOPPED)
    assert run.kinds(20) == [], "neither the step again nor the next one"
    fleet.now += fleet.policy.cooldown
    assert run.kinds() == [ActionKind.RESTART_POD]


ROLLBACK = "{action: rollback, target: services, verify: no_alert, timeout: 15m, escalate: {page: Call us.}}"


@pytest.mark.parametrize("alerted", ["the cause", "its replica", "a replacement"])
def test_a_rollback_is_verified_only_once_no_pod_of_the_service_has_the_fault(fleet, alerted):
    run = Run(fleet, [ROLLBACK], "crash-loop", fleet.pods[0])
    run.round()
    if alerted != "the cause":
        fleet.mend(fleet.pods[0])
        still = fleet.replicas[0] if alerted == "its replica" else fleet.pods[3]
        fleet.raise_alert("crash-loop", still)
        fleet.sick.add(fleet.pods[0])  # the incident itself is still open
    assert run.states() == [StepState.VERIFYING]
    fleet.now += timedelta(minutes=15)
    (failed,) = run.round().steps
    assert (failed.state, failed.page) == (StepState.FAILED, "Call us.")
    for entity in list(fleet.alerts):
        fleet.mend(entity)
    fleet.sick.add(fleet.pods[0])
    assert run.states() == [StepState.VERIFIED]


def test_an_alert_of_another_fault_on_a_pod_does_not_fail_the_rollback(fleet):
    run = Run(fleet, [ROLLBACK], "crash-loop", fleet.pods[0])
    run.round()
    fleet.mend(fleet.pods[0])
    fleet.sick.add(fleet.pods[0])
    fleet.raise_alert("kv-pressure", fleet.replicas[5])
    assert run.states() == [StepState.VERIFIED]


def test_no_alert_as_a_precondition_concerns_the_target_only(fleet):
    step = "{action: cordon, target: node, require: [no_alert]}"
    assert Run(fleet, [step], "gpu-lost", fleet.gpus[0]).kinds() == [ActionKind.CORDON]


def test_a_replica_that_does_not_serve_is_no_loss_to_a_drain(make_fleet):
    """A cycle after its pod was replaced, the topology may still have it on the node, but without its device."""
    fleet = make_fleet(nodes=2)
    fleet.break_("gpu-lost", fleet.gpus[0])
    fleet.sick.add(fleet.replicas[0])
    fleet.run(1)
    (shift,) = (action for action in fleet.actions.values() if action.kind is ActionKind.SHIFT_TRAFFIC)
    fleet.actions[shift.id] = replace(shift, status=ActionStatus.FAILED, ended_at=fleet.now)
    fleet.run(2)
    assert [action.kind for action in fleet.actions.values()][-1] is ActionKind.RESTART_POD
    without = [edge for edge in fleet.topology.edges if edge[0] != fleet.gpus[0]]
    fleet.topology = Topology.build(without)
    fleet.facts = replace(fleet.facts, serving=frozenset(fleet.replicas[1:]), ready_replicas={fleet.service: 1})
    decided = fleet.run(2)
    assert [(action.kind, action.status) for action in decided] == [(ActionKind.DRAIN, ActionStatus.WAITING_APPROVAL)]
