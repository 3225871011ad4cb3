"""Drills on a namespace of a real control plane: consent, each injection and its exact restoration, kills, refusals."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest

from outrider.audit import AuditEvent
from outrider.clock import SystemClock
from outrider.errors import UnavailableError, UsageError
from outrider.model import CycleRecord
from outrider.ports import CycleCommit
from outrider.wire.http_auth import Access, Tls
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.config.api_settings import ApiSettings
from service.drills import remote_drill
from service.drills.cluster.changes import DRILL, TARGET
from service.drills.cluster.drill import JOURNAL, ClusterDrill, Order
from service.drills.cluster.injections import BAD_TAG, CONSENT, INJECTIONS, LOW_CPU
from store.memory import MemoryMetricStore, MemoryStateStore
from tests.support.kube import DRILLED, DRILLER, Cluster
from tests.support.kube_scene import run
from tests.support.waiting import until

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]
ROOT = Path(__file__).parents[4]
CORE, APPS = f"/api/v1/namespaces/{DRILLED}", f"/apis/apps/v1/namespaces/{DRILLED}"
POLICIES = f"/apis/networking.k8s.io/v1/namespaces/{DRILLED}/networkpolicies"
BUDGETS = f"/apis/policy/v1/namespaces/{DRILLED}/poddisruptionbudgets"
NODES = ("drill-a", "drill-b")
OF_NAMESPACE = sorted(set(INJECTIONS) - {"node-lost"})
TOKEN = "secret-of-the-test"


class Platform(remote_drill.Api):
    """The real API over a store in memory, without a network."""

    def __init__(self) -> None:
        super().__init__("http://127.0.0.1", TOKEN)
        self.state = MemoryStateStore()
        cycle = CycleRecord("c-1", SystemClock().now(), 0.0, 0, 0, 0, 0, 0, 0)
        self.state.commit(CycleCommit(cycle=cycle))
        app = create_app(self.state, MemoryMetricStore(), ApiSettings(token=TOKEN), ApiExtras())
        self._transport = httpx.ASGITransport(app, client=("testclient", 1))

    def _request(self, method: str, path: str, **more: Any) -> Any:
        headers = {"Authorization": f"Bearer {TOKEN}", "X-Outrider-User": "drill"}

        async def answered() -> httpx.Response:
            async with httpx.AsyncClient(transport=self._transport, base_url="http://127.0.0.1") as client:
                return await client.request(method, f"/api/v1{path}", headers=headers, **more)

        answer = asyncio.run(answered())
        if answer.is_success:
            return answer.json()
        raise UsageError(answer.json()["error"]["message"])


def labels(name: str) -> dict[str, str]:
    return {"app": name}


@pytest.fixture
def namespace(control_plane: Cluster) -> Iterator[Cluster]:
    """A consenting namespace with a Deployment of two ready pods, each on a node of its own."""
    for name in NODES:
        control_plane.node(name, gpus=1, drill="yes")
    meta = {"name": DRILLED, "labels": {CONSENT: "true"}}
    if control_plane.http.get(f"/api/v1/namespaces/{DRILLED}").status_code == 404:
        control_plane.create("/api/v1/namespaces", {"metadata": meta})
    control_plane.patch(f"/api/v1/namespaces/{DRILLED}", {"metadata": meta})
    role = (ROOT / "deploy" / "rbac-drill.yaml").read_text(encoding="utf-8").replace("llm-staging", DRILLED)
    control_plane.apply(role)
    container = {
        "name": "vllm",
        "image": "registry:5000/vllm/vllm-openai:v0.11.0",
        "resources": {"limits": {"nvidia.com/gpu": "1", "cpu": "8"}},
    }
    template = {
        "metadata": {"labels": labels("chat")},
        "spec": {"containers": [container], "nodeSelector": {"drill": "yes"}},
    }
    spec = {"replicas": 2, "selector": {"matchLabels": labels("chat")}, "template": template}
    control_plane.create(f"{APPS}/deployments", {"metadata": {"name": "chat"}, "spec": spec})
    for pod in control_plane.scheduled(DRILLED, 2):
        run(control_plane, pod)
        resources = pod["spec"]["containers"][0]["resources"]  # a kubelet that resizes in place reports them
        (status,) = control_plane.get(f"{CORE}/pods/{pod['metadata']['name']}")["status"]["containerStatuses"]
        control_plane.pod_status(pod, containerStatuses=[{**status, "resources": resources}])
    yield control_plane
    control_plane.delete(f"{APPS}/deployments/chat", params={"propagationPolicy": "Background"})
    control_plane.delete(f"{APPS}/replicasets", params={"propagationPolicy": "Background"})
    for path in (f"{CORE}/configmaps/{JOURNAL}", POLICIES, BUDGETS):
        control_plane.delete(path)
    for name in NODES:
        control_plane.delete(f"/api/v1/nodes/{name}")
    until(lambda: control_plane.without_pods(DRILLED), "all pods are gone")


def drill_of(cluster: Cluster, token: str = "driller", *, guarded: bool = False) -> ClusterDrill:
    access = Access(bearer_token_file=cluster.token_file(token), tls=Tls(insecure_skip_verify=True))
    return ClusterDrill(cluster.url, access, longest=timedelta(minutes=5), guarded=guarded)


def order(fault: str, seconds: float = 2.0, **more: Any) -> Order:
    return Order(fault, **{"namespace": DRILLED, "lasts": timedelta(seconds=seconds), "seed": 3, **more})


def contents(cluster: Cluster) -> dict[str, Any]:
    """Returns everything of the namespace and its nodes that a drill may change, without versions and times."""
    paths = (f"{APPS}/deployments", f"{CORE}/pods", POLICIES, f"{CORE}/configmaps", "/api/v1/nodes")
    found = {}
    for path in paths:
        for item in cluster.get(path)["items"]:
            meta = item["metadata"]
            notes = {key: value for key, value in (meta.get("annotations") or {}).items() if "deployment." not in key}
            conditions = [
                (c["type"], c["status"], c.get("reason")) for c in item.get("status", {}).get("conditions") or ()
            ]
            kept = {"labels": meta.get("labels"), "annotations": notes, "spec": item.get("spec")}
            found[path, meta["name"]] = {**kept, "conditions": conditions if path.endswith("nodes") else None}
    return found


def images(cluster: Cluster) -> list[str]:
    return [str(pod["spec"]["containers"][0]["image"]) for pod in cluster.pods(DRILLED)]


def expected(cluster: Cluster, fault: str) -> Callable[[], object]:
    """Returns a condition that is true while the fault is injected."""

    def limits() -> list[str]:
        return [str(pod["spec"]["containers"][0]["resources"]["limits"]["cpu"]) for pod in cluster.pods(DRILLED)]

    def template() -> str:
        spec = cluster.get(f"{APPS}/deployments/chat")["spec"]["template"]["spec"]
        return str(spec["containers"][0]["image"])

    def ready() -> list[str]:
        nodes = [cluster.get(f"/api/v1/nodes/{name}") for name in NODES]
        return [c["status"] for node in nodes for c in node["status"]["conditions"] if c["type"] == "Ready"]

    def isolated() -> bool:
        (policy,) = cluster.get(POLICIES)["items"]
        marked = [pod for pod in cluster.pods(DRILLED) if TARGET in pod["metadata"]["labels"]]
        return [policy["spec"]["podSelector"]["matchLabels"][TARGET]] == [
            pod["metadata"]["labels"][TARGET] for pod in marked
        ]

    bad = f"registry:5000/vllm/vllm-openai:{BAD_TAG}"
    return {
        "engine-dead": lambda: sorted(images(cluster)).count(bad) == 1,
        "crash-loop": lambda: images(cluster).count(bad) == 1,
        "engine-starting": lambda: any(pod["status"]["phase"] == "Pending" for pod in cluster.pods(DRILLED)),
        "bad-rollout": lambda: template() == bad,
        "network-loss": isolated,
        "cpu-throttled": lambda: limits().count(LOW_CPU) == 1,
        "node-lost": lambda: sorted(ready()) == ["False", "True"],
    }[fault]


def run_and_look(cluster: Cluster, platform: Platform, wanted: Order, token: str = "driller") -> dict[str, Any]:
    """Runs a drill and asserts that its fault is injected while it lasts."""
    seen = []
    look = expected(cluster, wanted.fault)

    def sleep(seconds: float) -> None:
        del seconds
        until(look, f"{wanted.fault} is injected")
        seen.append(True)

    drill = drill_of(cluster, token)
    result = drill.run(wanted, api=platform, cluster="c", progress=lambda *_: None, sleep=sleep)
    assert seen, "the drill lasted"
    return result


@pytest.mark.parametrize("fault", [fault for fault in OF_NAMESPACE if fault != "engine-starting"])
def test_a_fault_is_injected_with_the_role_of_the_manifest_and_restored_exactly(namespace: Cluster, fault: str) -> None:
    before, platform = contents(namespace), Platform()
    result = run_and_look(namespace, platform, order(fault))
    after = contents(namespace)
    if fault == "bad-rollout":  # its ReplicaSet ends after the drill
        until(lambda: len(namespace.pods(DRILLED)) == 2, "the pods of the bad revision are gone")
        after = contents(namespace)
    assert after == before
    assert result["restored"], "the restored paths are named"
    assert (result["fault"], result["detected"], result["passed"]) == (fault, False, False)
    (stored,) = platform.state.drills()
    assert stored.id.startswith(f"k8s-{fault}-")
    assert [record.event for record in platform.state.audit(limit=10)] == [AuditEvent.DRILL_STARTED]


def test_a_killed_pod_is_replaced_and_nothing_is_left(namespace: Cluster) -> None:
    names = {pod["metadata"]["name"] for pod in namespace.pods(DRILLED)}
    result = run_and_look(namespace, Platform(), order("engine-starting"))
    assert (result["negative"], result["passed"], result["restored"]) == (True, True, [])
    until(lambda: len(namespace.scheduled(DRILLED, 2)) == 2, "the replacement is scheduled")
    assert len(names & {pod["metadata"]["name"] for pod in namespace.pods(DRILLED)}) == 1
    assert namespace.http.get(f"{CORE}/configmaps/{JOURNAL}").status_code == 404


def test_a_node_is_reported_as_lost_until_the_end_whatever_its_kubelet_reports(namespace: Cluster) -> None:
    for name in NODES:
        namespace.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {CONSENT: "true"}}})
    before = contents(namespace)

    def drop(found: dict[str, Any]) -> dict[str, Any]:
        """Without the taints of the node lifecycle controller, which follow the condition."""
        for (path, _), document in found.items():
            if path == "/api/v1/nodes":
                taints = document["spec"].get("taints") or []
                kept = [taint for taint in taints if not taint["key"].startswith("node.kubernetes.io/")]
                document["spec"] = {**document["spec"], "taints": kept}
        return found

    reported = []
    look = expected(namespace, "node-lost")

    def sleep(seconds: float) -> None:
        del seconds
        until(look, "the node is lost")
        for name in NODES:
            node = namespace.get(f"/api/v1/nodes/{name}")
            if not reported and node["status"]["conditions"][0]["status"] == "False":
                ready = {"type": "Ready", "status": "True", "reason": "KubeletReady"}
                namespace.patch(f"/api/v1/nodes/{name}/status", {"status": {"conditions": [ready]}}, by="kubelet")
                reported.append(name)

    drill = drill_of(namespace, "admin")
    drill.run(order("node-lost", 4), api=Platform(), cluster="c", progress=lambda *_: None, sleep=sleep)
    assert reported, "the kubelet reported in between"
    assert drop(contents(namespace)) == drop(before)


def test_a_node_without_consent_of_its_own_is_refused(namespace: Cluster) -> None:
    with pytest.raises(UsageError, match=r"the node drill-. has not consented"):
        drill_of(namespace, "admin").plan(order("node-lost"))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("kube-system", "no drill ever runs in the namespace kube-system"),
        ("default", "no drill ever runs in the namespace default"),
        ("kube-flannel", "no drill ever runs"),
        ("nowhere", "no namespace is named 'nowhere'"),
    ],
)
def test_some_namespaces_are_never_broken(namespace: Cluster, name: str, message: str) -> None:
    if name == "kube-system":
        namespace.patch("/api/v1/namespaces/kube-system", {"metadata": {"labels": {CONSENT: "true"}}})
    with pytest.raises(UsageError, match=message):
        drill_of(namespace, "admin").plan(order("engine-dead", namespace=name))


def test_without_the_consent_label_nothing_is_changed(namespace: Cluster) -> None:
    namespace.patch(f"/api/v1/namespaces/{DRILLED}", {"metadata": {"labels": {CONSENT: None}}})
    before, platform = contents(namespace), Platform()
    with pytest.raises(UsageError, match="has not consented to drills") as refused:
        drill_of(namespace).run(order("engine-dead"), api=platform, cluster="c", progress=lambda *_: None)
    assert CONSENT in refused.value.hint
    assert (contents(namespace), platform.state.drills()) == (before, ())


def test_a_plan_shows_the_exact_requests_and_changes_nothing(namespace: Cluster) -> None:
    before = contents(namespace)
    for fault in OF_NAMESPACE:
        shown = drill_of(namespace).plan(order(fault))
        assert shown["dry_run"] is True
        assert shown["requests"][0]["method"] == "POST", "the journal comes first"
        assert len(shown["requests"]) >= 2
        json.dumps(shown)
    assert contents(namespace) == before


def test_a_disruption_budget_forbids_a_drill(namespace: Cluster) -> None:
    budget = {"minAvailable": 2, "selector": {"matchLabels": labels("chat")}}
    namespace.create(BUDGETS, {"metadata": {"name": "chat"}, "spec": budget})
    until(lambda: namespace.get(f"{BUDGETS}/chat")["status"].get("currentHealthy") == 2, "the budget counts its pods")
    with pytest.raises(UsageError, match="PodDisruptionBudget chat allows 0 disruptions"):
        drill_of(namespace).plan(order("engine-dead"))


def test_a_service_with_one_ready_pod_is_not_broken(namespace: Cluster) -> None:
    pod = namespace.pods(DRILLED)[0]
    namespace.pod_status(pod, conditions=[{"type": "Ready", "status": "False"}])
    with pytest.raises(UsageError, match="has 1 ready pod; a drill needs 2"):
        drill_of(namespace).plan(order("engine-dead"))


def test_a_drill_is_bounded_and_of_a_known_fault(namespace: Cluster) -> None:
    with pytest.raises(UsageError, match="at most 300 s"):
        drill_of(namespace).plan(order("engine-dead", 301))
    with pytest.raises(UsageError, match="gpu-lost cannot be produced") as refused:
        drill_of(namespace).plan(order("gpu-lost"))
    assert all(fault in refused.value.hint for fault in INJECTIONS)


def test_an_interrupt_restores_everything_and_ends_the_drill(namespace: Cluster) -> None:
    before, platform = contents(namespace), Platform()

    def interrupted(seconds: float) -> None:
        del seconds
        assert expected(namespace, "network-loss")()
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt, match="all is restored"):
        drill_of(namespace).run(
            order("network-loss", 60), api=platform, cluster="c", progress=lambda *_: None, sleep=interrupted
        )
    assert contents(namespace) == before
    (drill,) = platform.state.drills()
    assert drill.stopped_at is not None


@pytest.mark.parametrize("fault", ["engine-dead", "network-loss", "cpu-throttled", "bad-rollout"])
def test_a_killed_drill_is_restored_by_another_process(namespace: Cluster, fault: str) -> None:
    before = contents(namespace)
    killed(namespace, order(fault, 60))
    assert expected(namespace, fault)()
    noted = [document for document in contents(namespace).values() if DRILL in document["annotations"]]
    assert noted, "the changed objects name the drill"
    with pytest.raises(UsageError, match="a drill runs in drilled, or was interrupted") as busy:
        drill_of(namespace).plan(order(fault))
    assert "--restore" in busy.value.hint
    assert drill_of(namespace).restore(DRILLED)["restored"]
    until(lambda: len(namespace.pods(DRILLED)) == 2, "only the pods of the good revision are left")
    assert contents(namespace) == before
    assert drill_of(namespace).restore(DRILLED) == {"namespace": DRILLED, "restored": []}, "nothing is done twice"


def test_the_guard_of_a_killed_drill_restores_at_once(namespace: Cluster) -> None:
    before = contents(namespace)
    killed(namespace, order("network-loss", 60), guarded=True)
    until(lambda: contents(namespace) == before, "the guard restores without a command", seconds=60)
    assert drill_of(namespace).restore(DRILLED)["restored"] == [], "the journal is gone"


def killed(cluster: Cluster, wanted: Order, *, guarded: bool = False) -> None:
    """Runs a drill in a child that dies in the middle without a chance to clean up."""
    child = os.fork()
    if child == 0:
        try:
            drill = drill_of(cluster, guarded=guarded)
            drill.run(wanted, api=Platform(), cluster="c", progress=lambda *_: None, sleep=lambda _: os._exit(9))
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.waitstatus_to_exitcode(status) == 9


def test_a_value_that_someone_changed_meanwhile_stays_theirs(namespace: Cluster) -> None:
    killed(namespace, order("bad-rollout", 60))
    theirs = [{"op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "vllm:v0.12"}]
    answer = namespace.http.patch(
        f"{APPS}/deployments/chat", json=theirs, headers={"Content-Type": "application/json-patch+json"}
    )
    assert answer.is_success
    drill_of(namespace).restore(DRILLED)
    workload = namespace.get(f"{APPS}/deployments/chat")
    assert workload["spec"]["template"]["spec"]["containers"][0]["image"] == "vllm:v0.12"
    assert DRILL not in workload["metadata"]["annotations"]


def test_an_account_without_rights_gets_the_name_of_the_manifest_that_grants_them(namespace: Cluster) -> None:
    before = contents(namespace)
    with pytest.raises(UsageError, match="403") as refused:
        drill_of(namespace, "stranger").plan(order("engine-dead"))
    assert "deploy/rbac-drill.yaml" in refused.value.hint
    assert contents(namespace) == before


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", f"{CORE}/secrets"),
        ("GET", "/api/v1/namespaces/default/pods"),
        ("DELETE", f"{APPS}/deployments/chat"),
        ("GET", f"{CORE}/configmaps/kube-root-ca.crt"),
        ("PATCH", "/api/v1/nodes/drill-a"),
    ],
)
def test_the_role_grants_nothing_else(namespace: Cluster, method: str, path: str) -> None:
    headers = {"Authorization": f"Bearer {DRILLER}", "Content-Type": "application/merge-patch+json"}
    answer = httpx.request(method, namespace.url + path, headers=headers, json={}, verify=False, timeout=30)
    assert answer.status_code == 403


def test_a_platform_that_is_away_stops_a_drill_before_it_begins(namespace: Cluster) -> None:
    before = contents(namespace)
    nobody = remote_drill.Api("http://127.0.0.1:9", "t")
    with pytest.raises(UnavailableError):
        drill_of(namespace).run(order("engine-dead"), api=nobody, cluster="c", progress=lambda *_: None)
    assert contents(namespace) == before


def test_an_api_server_that_is_away_at_the_end_leaves_the_journal_and_says_how_to_restore(namespace: Cluster) -> None:
    before = contents(namespace)
    waits: list[float] = []

    def sleep(seconds: float) -> None:
        if not waits:
            namespace.stop_api()
        waits.append(seconds)

    try:
        with pytest.raises(UnavailableError, match="could not be undone") as failed:
            drill_of(namespace).run(
                order("cpu-throttled", 1), api=Platform(), cluster="c", progress=lambda *_: None, sleep=sleep
            )
    finally:
        namespace.start_api()
    assert "--restore" in failed.value.hint
    assert drill_of(namespace).restore(DRILLED)["restored"]
    assert contents(namespace) == before
