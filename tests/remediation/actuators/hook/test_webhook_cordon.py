"""A webhook stops the pods of a node only if the API server shows that it is cordoned."""

from __future__ import annotations

import pytest

from outrider.errors import ActuationError
from outrider.model import ActionKind, OutcomeStatus
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.hook.actuator import KINDS, HookActuator
from remediation.actuators.hook.node_check import CordonCheck
from remediation.actuators.hook.webhook import WebhookHook
from tests.support.json_server import JsonServer, Response
from tests.support.kube import Cluster
from tests.support.kube_actions import actuator_of, an_action, node_ref

pytestmark = pytest.mark.control_plane


def actuator(cluster: Cluster, server: JsonServer) -> HookActuator:
    access = Access(bearer_token_file=cluster.token_file("admin"), tls=Tls(insecure_skip_verify=True))
    hook = WebhookHook(f"{server.url}/hook", check=CordonCheck(cluster.url, access))
    server.responses["POST /hook"] = Response(202, headers={"Location": "/hook/1"})
    server.responses["GET /hook/1"] = Response(body={"status": "done"})
    return HookActuator(dict.fromkeys(KINDS, hook))


@pytest.mark.parametrize("kind", [ActionKind.REBOOT_NODE, ActionKind.RESET_GPU])
def test_a_node_that_takes_pods_is_left_alone(cluster: Cluster, server: JsonServer, kind: ActionKind) -> None:
    hook, action = actuator(cluster, server), an_action(kind, node_ref("hook-a"))
    with pytest.raises(ActuationError, match="node hook-a is not cordoned") as caught:
        hook.perform(action)
    assert (caught.value.retryable, server.requests) == (False, [])
    actuator_of(cluster).perform(an_action(ActionKind.CORDON, node_ref("hook-a")))
    assert hook.perform(action).status is OutcomeStatus.IN_PROGRESS
    actuator_of(cluster).perform(an_action(ActionKind.UNCORDON, node_ref("hook-a")))
    assert hook.perform(action).status is OutcomeStatus.DONE, "an action that has begun is followed to its end"


def test_a_diagnostic_and_a_dry_run_need_no_cordon(cluster: Cluster, server: JsonServer) -> None:
    hook = actuator(cluster, server)
    assert hook.perform(an_action(ActionKind.RUN_DIAGNOSTIC, node_ref("hook-a"))).status is OutcomeStatus.IN_PROGRESS
    dry = an_action(ActionKind.REBOOT_NODE, node_ref("hook-a"), dry_run=True)
    assert hook.perform(dry).status is OutcomeStatus.DRY_RUN
    with pytest.raises(ActuationError, match="node gone no longer exists"):
        hook.perform(an_action(ActionKind.REBOOT_NODE, node_ref("gone")))
