"""Objections of other programs and people to actions, by name."""

from __future__ import annotations

import pytest

from outrider.model import ActionKind, DecisionReason, EntityKind, EntityRef, Verdict
from outrider.topology import Topology
from remediation.decide.owners import OPERATOR, Owners, objection, owners_of

NODE, OTHER = (EntityRef("c", EntityKind.NODE, None, name) for name in ("n-1", "n-2"))
POD, REPLICA = (EntityRef("c", kind, "s", "chat-0") for kind in (EntityKind.POD, EntityKind.REPLICA))
SERVICE = EntityRef("c", EntityKind.SERVICE, "s", "chat")
EDGES = [(NODE, POD), (POD, REPLICA), (REPLICA, SERVICE)]


def owned(labels, released=()):
    return owners_of(Topology.build(EDGES, (OTHER,), {POD: {"uid": "u"}, **labels}), released)


def verdict(kind, target, owners, *, writes_replicas=False):
    found = objection(kind, target, owners, writes_replicas=writes_replicas)
    return None if found is None else (found.verdict, found.reason, found.owner)


def refused(owner):
    return Verdict.REFUSED, DecisionReason.OWNED, owner


def test_nobody_owns_a_plain_fleet():
    assert owned({}) == {}
    assert verdict(ActionKind.DRAIN, NODE, {}) is None


@pytest.mark.parametrize("kind", [ActionKind.CORDON, ActionKind.DRAIN, ActionKind.RESET_GPU, ActionKind.REBOOT_NODE])
@pytest.mark.parametrize("label", ["removed_by", "quarantined_by"])
def test_a_node_that_another_program_handles_is_left_alone(kind, label):
    owners = owned({NODE: {label: "Karpenter"}})
    assert verdict(kind, NODE, owners) == refused("Karpenter")
    assert verdict(kind, OTHER, owners) is None


def test_a_pod_is_left_alone_while_its_node_is_removed_but_not_in_a_quarantine():
    assert verdict(ActionKind.RESTART_POD, POD, owned({NODE: {"removed_by": "Karpenter"}})) == refused("Karpenter")
    assert verdict(ActionKind.RESTART_POD, POD, owned({NODE: {"quarantined_by": "NVSentinel"}})) is None


def test_a_node_that_an_operator_put_back_is_not_isolated_again():
    owners = owned({}, [NODE])
    assert verdict(ActionKind.CORDON, NODE, owners) == refused(OPERATOR)
    assert verdict(ActionKind.DRAIN, NODE, owners) == refused(OPERATOR)
    assert verdict(ActionKind.UNCORDON, NODE, owners) is None


def test_a_protected_pod_and_its_node_need_an_approval():
    owners = owned({POD: {"uid": "u", "protected_by": "karpenter.sh/do-not-disrupt=true"}})
    approval = (Verdict.ASK, DecisionReason.PROTECTED)
    assert verdict(ActionKind.RESTART_POD, POD, owners) == (*approval, "karpenter.sh/do-not-disrupt=true")
    assert verdict(ActionKind.DRAIN, NODE, owners) == (*approval, f"karpenter.sh/do-not-disrupt=true of {POD}")
    assert verdict(ActionKind.CORDON, NODE, owners) is None, "a cordon disrupts nothing"


def test_a_template_of_git_is_neither_rolled_back_nor_paused():
    owners = owned({REPLICA: {"template_owner": "Argo CD application chat"}})
    for kind in (ActionKind.ROLLBACK, ActionKind.PAUSE_ROLLOUT):
        assert verdict(kind, SERVICE, owners) == refused("Argo CD application chat")
    assert verdict(ActionKind.SCALE, SERVICE, owners, writes_replicas=True) is None


def test_replicas_of_an_autoscaler_are_only_written_through_it():
    owners = owned({REPLICA: {"replicas_owner": "ScaledObject chat"}})
    assert verdict(ActionKind.SCALE, SERVICE, owners, writes_replicas=True) == refused("ScaledObject chat")
    assert verdict(ActionKind.SCALE, SERVICE, owners) is None
    assert owners[SERVICE] == Owners(replicas="ScaledObject chat")
