"""Steps name only targets on which their action can be performed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from outrider.errors import ActuationError, ConfigError
from outrider.model import TARGET_KINDS, ActionKind, EntityKind, EntityRef
from outrider.text import yaml_file
from outrider.topology import Topology
from outrider.vocabulary.faults import faults
from remediation.actuators.dry_run import DryRunActuator
from remediation.actuators.router import ActuatorRouter
from remediation.decide.context import DecisionContext
from remediation.decide.guards import CapacityBudget
from remediation.decide.history import History
from remediation.decide.limits import FleetFacts, Policy
from remediation.decide.rule_actions import TARGETS
from remediation.playbooks.files import packaged
from remediation.playbooks.model import Playbook, Step, read
from remediation.playbooks.selectors import SELECTORS, fitting, kinds_selected
from tests.remediation.conftest import T0
from tests.support.actions import claimed_action


def problem_of(fault, step):
    text = f"playbooks:\n  {fault}:\n    steps:\n    - {step}\n"
    with pytest.raises(ConfigError) as caught:
        read([yaml_file.parse(text, "mine.yaml")])
    (problem,) = caught.value.problems
    return problem


def entity(kind, name="x"):
    return EntityRef("c1", kind, None, name)


@pytest.mark.parametrize(
    ("fault", "step", "expected"),
    [
        ("gpu-lost", "{action: scale, target: node}", "scale acts on a service, .* is a node; expected services"),
        ("gpu-lost", "{action: cordon, target: services}", "cordon acts on a node, .* is a service; expected node"),
        ("gateway-fault", "{action: drain, target: self}", "drain acts on a node, .* is a service; expected node"),
        ("engine-hung", "{action: restart_pod, target: node}", "pod or replica, .* expected self or replicas or pods"),
        ("node-lost", "{action: reset_gpu, target: pods}", "gpu or node, .* pod or replica; expected self or node"),
        ("switch-down", "{action: cordon, target: node}", "names nothing; no target fits"),
        ("pods-pending", "{action: scale, target: services}", "names nothing; no target fits"),
        ("gpu-lost", "{action: shift_traffic, target: self}", "expected replicas or pods or services"),
    ],
)
def test_a_step_that_cannot_be_performed_on_its_target_is_refused(fault, step, expected):
    problem = problem_of(fault, step)
    assert (problem.file, problem.line) == ("mine.yaml", 4)
    assert problem.key == f"playbooks.{fault}.steps[0].target"
    message = problem.message
    for part in expected.split(".*"):
        assert part in message, message


@pytest.mark.parametrize(
    ("step", "key", "message"),
    [
        ("{action: drian, target: node}", "action", "unknown action 'drian'; did you mean \"drain\"?"),
        ("{action: restart-pod, target: pods}", "action", 'did you mean "restart_pod"?'),
        ("{action: cordon, target: nodes}", "target", "unknown target 'nodes'; did you mean \"node\"?"),
        ("{action: uncordon, target: node}", "action", "uncordon only undoes another action; expected one of cordon,"),
        ("{target: node}", "action", "is missing; expected one of cordon,"),
        ("{action: [drain], target: node}", "action", "unknown action"),
    ],
)
def test_a_misspelt_word_of_a_step_names_the_nearest_known_one(step, key, message):
    problem = problem_of("gpu-lost", step)
    assert problem.key.endswith(key)
    assert message in problem.message


def test_every_action_kind_has_targets():
    assert set(TARGET_KINDS) == set(ActionKind)
    assert all(TARGET_KINDS.values())


def test_every_packaged_step_can_be_performed_on_its_targets():
    for fault, playbook in packaged().items():
        for step in playbook.steps:
            if step.kind is not ActionKind.SWITCH_CLUSTER:  # its procedure finds the services of a lost cluster
                assert step.target in fitting(step.kind, faults()[fault].entity), (fault, step)


@pytest.mark.parametrize("kind", TARGETS)
def test_every_default_action_of_a_rule_can_be_performed_on_its_targets(kind):
    assert TARGETS[kind] in {selector for cause in EntityKind for selector in fitting(kind, cause)}


def whole_topology():
    """One entity of every kind of the graph, from the switch to the service."""
    chain = ("switch", "storage", "node", "gpu", "pod", "container", "replica", "service")
    kinds = [EntityKind(name) for name in chain]
    return Topology.build([(entity(low), entity(high)) for low, high in pairwise(kinds)])


@pytest.mark.parametrize("selector", SELECTORS)
@pytest.mark.parametrize("cause", EntityKind)
def test_the_decision_finds_only_the_kinds_that_the_check_knows(selector, cause):
    topology, history = whole_topology(), History(())
    facts = FleetFacts(topology=topology)
    budget = CapacityBudget(facts, history, T0, {})
    context = DecisionContext(Policy(), facts, topology, history, budget, None, {}, frozenset(), T0)
    found = {target.kind for target in context.targets(entity(cause), selector)}
    assert found <= kinds_selected(selector, cause)


def test_a_guard_refuses_an_action_on_a_component_of_a_wrong_kind(fleet, words):
    fleet.break_("engine-hung", fleet.gpus[0])  # a cause of another kind than that of the fault
    book = Playbook("engine-hung", (Step(ActionKind.SLEEP_ENGINE, "self"),))
    made = fleet.decide(playbooks={"engine-hung": book}).actions
    assert words(made) == [("sleep_engine", "GPU-0", "refused", "wrong_target")]


def test_no_actuator_receives_an_action_on_a_target_of_a_wrong_kind():
    router = ActuatorRouter(DryRunActuator(), {})
    action = claimed_action(ActionKind.SCALE, entity(EntityKind.NODE), id_="act-1", decided_at=T0, dry_run=True)
    for call in (router.perform, router.requests):
        with pytest.raises(ActuationError, match="scale cannot be performed on a node") as caught:
            call(action)
        assert not caught.value.retryable
    assert router.perform(replace(action, target=entity(EntityKind.SERVICE))).detail
