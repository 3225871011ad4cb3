"""The Kubernetes collector on a real control plane: topology, signals, changes, starts and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import timedelta
from itertools import count
from pathlib import Path

import pytest

from collectors.events.unresolved_event import EntityResolver
from collectors.kubernetes.api import ListWatch, ResourceExpiredError
from collectors.kubernetes.audit import audit
from collectors.kubernetes.event_source import KubernetesEventSource
from collectors.logs.matcher import LogMatcher, Origin
from outrider.model import ActionKind, EntityKind, EntityRef, EventKind, SampleBatch, SignalKey
from outrider.records.change_log import ActorKind, ChangeEnd, ChangeStatus, StartPhase, Startup, change_of
from outrider.topology import EVICTION_BLOCKED_BY, Topology
from remediation.decide.disruption import blocking_budgets
from tests.support.kube import Cluster
from tests.support.kube_scene import H100, deployment, event, news, now, run, run_all, source, template
from tests.support.waiting import until, until_async

pytestmark = pytest.mark.control_plane
ROOT = Path(__file__).resolve().parents[3]
NODES = ("n1", "n2", "n3", "n4")
_NUMBERS = count()
ScenarioStep = Callable[[KubernetesEventSource], Awaitable[None]]


@pytest.fixture(scope="module")
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    for name in NODES:
        control_plane.node(name, **H100)
    yield control_plane
    for name in NODES:  # tests of other files count the nodes with GPUs
        control_plane.delete(f"/api/v1/nodes/{name}")


@pytest.fixture
def space(cluster: Cluster) -> Iterator[str]:
    name = f"serving-{next(_NUMBERS)}"
    cluster.namespace(name)
    yield name
    cluster.delete(f"/apis/apps/v1/namespaces/{name}/deployments/chat")
    for pod in cluster.pods(name):  # there is no kubelet that would let them go
        cluster.delete(f"/api/v1/namespaces/{name}/pods/{pod['metadata']['name']}", params={"gracePeriodSeconds": 0})


def play(cluster: Cluster, scene: ScenarioStep, *namespaces: str, token: str = "admin") -> None:
    async def whole() -> None:
        reader = source(cluster, *namespaces, token=token)
        try:
            await scene(reader)
        finally:
            await reader.close()
            await asyncio.sleep(0.1)  # TLS connections end a moment after their session

    asyncio.run(whole())


def cell(batches: tuple[SampleBatch, ...], name: str, entity: str) -> float:
    for batch in batches:
        names = [one.name for one in batch.entities]
        if SignalKey(name) in batch.keys and entity in names:
            return float(batch.values[names.index(entity), batch.keys.index(SignalKey(name))])
    raise AssertionError(f"{name} of {entity} was not reported")


async def read_until(reader: KubernetesEventSource, reported: Callable[[], bool], awaited: str) -> list[object]:
    """Reads in cycles; a failed one, as after a server restart, is skipped."""
    events: list[object] = []

    async def seen() -> bool:
        events.extend((await reader.read(now(), []))[0])
        return reported()

    await until_async(seen, awaited)
    return events


# --- topology and signals -------------------------------------------------------------------------


def test_topology_is_built_without_exposition_pages(cluster: Cluster, space: str) -> None:
    deployment(cluster, space)
    run_all(cluster, space, 2)

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        graph = reader.graph
        topology = Topology.build(graph.edges, graph.labels, graph.labels)
        service = EntityRef("c", EntityKind.SERVICE, space, "chat-70b")
        replicas = topology.below(service, EntityKind.REPLICA)
        assert len(replicas) == 2
        for replica in replicas:
            (pod,), nodes = topology.below(replica, EntityKind.POD), topology.below(replica, EntityKind.NODE)
            assert len(nodes) == 1
            assert topology.label(replica, "tensor_parallel") == "4"
            assert topology.label(replica, "engine") == "vllm"
            assert topology.label(replica, "model") == "meta-llama/Llama-3.3-70B-Instruct"
            assert topology.label(pod, "workload") == "chat"
            assert topology.label(pod, "owner_kind") == "Deployment"
            assert topology.label(pod, "gpus") == "4"
            assert topology.label(pod, "since")
            node = nodes[0]
            assert topology.label(node, "gpu_type") == "NVIDIA-H100-80GB-HBM3"
            assert topology.label(node, "driver") == "570.124.06"
            assert topology.label(node, "cuda") == "12.8"
            assert topology.label(node, "zone") == "zone-a"
            assert topology.label(node, "nvlink_domain") == H100["nvidia.com/gpu.clique"]
        assert reader.graph is graph, "nothing changed"

    play(cluster, scene, space)


def test_a_deleted_pod_leaves_the_topology(cluster: Cluster, space: str) -> None:
    deployment(cluster, space, replicas=1)
    run_all(cluster, space, 1)

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        (replica,) = reader.replicas.replicas.values()
        path = f"/api/v1/namespaces/{space}/pods/{replica.name}"
        cluster.delete(path, params={"gracePeriodSeconds": 0})
        await read_until(reader, lambda: (space, replica.name) not in reader.replicas.replicas, "the pod has ended")
        gone = [one for one in reader.startups.drain(now()) if one.pod.name == replica.name]
        assert gone[-1].gone_at is not None

    play(cluster, scene, space)


def test_signals_equal_those_of_kube_state_metrics(cluster: Cluster, space: str) -> None:
    deployment(cluster, space)
    first, second = cluster.scheduled(space, 2)
    run(cluster, first)
    waiting = {"waiting": {"reason": "CrashLoopBackOff"}}
    ended = {"terminated": {"exitCode": 137, "reason": "OOMKilled"}}
    cluster.pod_status(
        second,
        phase="Running",
        containerStatuses=[
            {"name": "vllm", "image": "v", "imageID": "", "ready": False, "restartCount": 3, "state": waiting,
             "lastState": ended}
        ],
    )  # fmt: skip

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        reported = reader.batches(now())
        one, other = first["metadata"]["name"], second["metadata"]["name"]
        assert (cell(reported, "pod_phase", one), cell(reported, "pod_ready", one)) == (1.0, 1.0)
        assert 0 <= cell(reported, "pod_startup_seconds", one) < 60
        assert (cell(reported, "pod_waiting_reason", other), cell(reported, "pod_last_terminated_oom", other)) == (
            3.0,
            1.0,
        )
        node = first["spec"]["nodeName"]
        assert cell(reported, "node_ready", node) == 1.0
        assert cell(reported, "node_accel_capacity", node) == 8.0
        assert cell(reported, "node_accel_allocated_ratio", node) in (0.5, 1.0)
        assert cell(reported, "pod_restarts", other) != cell(reported, "pod_restarts", other)  # nobody knows since when
        cluster.pod_status(
            second,
            containerStatuses=[
                {"name": "vllm", "image": "v", "imageID": "", "ready": False, "restartCount": 5, "state": waiting}
            ],
        )
        await read_until(
            reader, lambda: cell(reader.batches(now()), "pod_restarts", other) == 2.0, "restarts are counted"
        )
        assert cell(reader.batches(now()), "workload_available_ratio", "chat") == 0.5

    play(cluster, scene, space)


def test_a_leader_worker_set_has_one_replica_per_group(cluster: Cluster, space: str) -> None:
    names = {"plural": "leaderworkersets", "singular": "leaderworkerset", "kind": "LeaderWorkerSet"}
    anything = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    group = "leaderworkerset.x-k8s.io"
    crd = {
        "metadata": {"name": f"leaderworkersets.{group}"},
        "spec": {
            "group": group,
            "names": names,
            "scope": "Namespaced",
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": anything}],
        },
    }
    cluster.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", crd)
    path = f"/apis/{group}/v1/namespaces/{space}/leaderworkersets"
    until(lambda: cluster.http.get(path).is_success, "the new resource is served")
    flags = ("--model=m", "--tensor-parallel-size=16", "--nnodes=2")
    parts = {"size": 2, "workerTemplate": template("sglang:1", 8, *flags)}
    made = cluster.create(
        path,
        {"apiVersion": f"{group}/v1", "kind": "LeaderWorkerSet", "metadata": {"name": "big"},
         "spec": {"replicas": 1, "leaderWorkerTemplate": parts}},
    )  # fmt: skip
    for worker in (0, 1):  # what its controller would make
        marks = {"name": "big", "group-index": "0", "worker-index": str(worker)}
        labels = {f"leaderworkerset.sigs.k8s.io/{name}": value for name, value in marks.items()}
        pod = template("sglang:1", 8, *flags, nodeName=f"n{worker + 3}")
        name = "big-0" if worker == 0 else "big-0-1"
        owner = {"apiVersion": f"{group}/v1", "kind": "LeaderWorkerSet", "name": "big", "uid": made["metadata"]["uid"]}
        meta = {"name": name, "labels": labels, "ownerReferences": [{**owner, "controller": True}]}
        cluster.create(f"/api/v1/namespaces/{space}/pods", {"metadata": meta, "spec": pod["spec"]})

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        replica = reader.replicas.replicas[space, "big-0"]
        assert [pod.name for pod in replica.pods] == ["big-0", "big-0-1"]
        assert (replica.gpus, replica.args.tensor_parallel, len(replica.domains)) == (16.0, 16, 1)
        graph = reader.graph
        whole = EntityRef("c", EntityKind.REPLICA, space, "big-0")
        below = [lower.name for lower, upper in graph.edges if upper == whole]
        assert sorted(below) == ["big-0", "big-0-1"]
        assert graph.labels[whole]["nvlink_domains"] == H100["nvidia.com/gpu.clique"]
        # The same group across two domains, as another rack would have it.
        cluster.patch("/api/v1/nodes/n4", {"metadata": {"labels": {"nvidia.com/gpu.clique": "other.2"}}})
        await read_until(
            reader, lambda: len(reader.replicas.replicas[space, "big-0"].domains) == 2, "both domains are known"
        )
        broken = [one for one in audit(reader.objects, reader.replicas, "c") if one.workload.name == "big"]
        assert "tp-across-nvlink" in {one.rule for one in broken}
        cluster.patch(
            "/api/v1/nodes/n4", {"metadata": {"labels": {"nvidia.com/gpu.clique": H100["nvidia.com/gpu.clique"]}}}
        )

    play(cluster, scene, space)


# --- changes --------------------------------------------------------------------------------------


def test_changes_have_their_actor_and_end(cluster: Cluster, space: str) -> None:
    path = deployment(cluster, space)
    run_all(cluster, space, 2)

    async def scene(reader: KubernetesEventSource) -> None:
        ends: list[ChangeEnd] = []
        await news(reader)
        reader.ends()
        one = {"spec": {"template": template("vllm/vllm-openai:v0.12.0")}}
        notes = {"metadata": {"annotations": {"kubernetes.io/change-cause": "new kernels"}}}
        cluster.patch(path, {**one, **notes}, by="kubectl-edit")
        events: list[object] = []

        async def ended() -> bool:
            events.extend(await news(reader))
            run_all(cluster, space, 1)
            _let_go(cluster, space)
            ends.extend(reader.ends())
            return bool(ends)

        await until_async(ended, "the rollout has ended")
        (image,) = [one for one in events if getattr(one, "kind", None) is EventKind.CHANGE]
        assert (image.code, image.attributes["from"], image.attributes["to"]) == (
            "image", "vllm/vllm-openai:v0.11.0", "vllm/vllm-openai:v0.12.0",
        )  # fmt: skip
        assert image.attributes["actor"] == "kubectl-edit"
        assert image.attributes["actor_kind"] == ActorKind.PERSON
        assert image.attributes["text"] == "new kernels"
        assert image.service == "chat-70b"
        assert [(one.change, one.ended) for one in ends] == [(image.key, ChangeStatus.SUCCEEDED)]

        scale = {"spec": {"replicas": 3}}
        cluster.patch(path, scale, by="argocd-controller")
        (scaled,) = [one for one in await news(reader) if one.kind is EventKind.CHANGE]
        assert (scaled.code, scaled.attributes["from"], scaled.attributes["to"]) == ("scale", "2", "3")
        assert scaled.attributes["actor_kind"] == ActorKind.SYSTEM

        cluster.patch(path, {"spec": {"template": template("vllm/vllm-openai:v0.11.0")}}, by="kubectl-rollout")
        back = [one for one in await news(reader) if one.kind is EventKind.CHANGE]
        assert [one.code for one in back] == ["rollback"]
        undone = {one.change: one.ended for one in reader.ends()}
        assert undone[image.key] is ChangeStatus.ROLLED_BACK

    play(cluster, scene, space)


def _let_go(cluster: Cluster, space: str) -> None:
    """Removes pods in deletion, like their kubelet."""
    for pod in cluster.pods(space):
        if pod["metadata"].get("deletionTimestamp"):
            name = pod["metadata"]["name"]
            cluster.delete(f"/api/v1/namespaces/{space}/pods/{name}", params={"gracePeriodSeconds": 0})


def test_a_rollout_without_ready_pods_has_failed(cluster: Cluster, space: str) -> None:
    path = deployment(cluster, space, replicas=1, progressDeadlineSeconds=2)
    run_all(cluster, space, 1)

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        cluster.patch(path, {"spec": {"template": template("vllm/vllm-openai:broken")}}, by="helm")
        ends: list[ChangeEnd] = []

        def reported() -> bool:
            ends.extend(reader.ends())
            return bool(ends)

        events = await read_until(reader, reported, "the rollout has ended")
        (change,) = [one for one in events if getattr(one, "kind", None) is EventKind.CHANGE]
        assert change.attributes["actor"] == "helm"
        assert "actor_kind" not in change.attributes  # helm is run by people and by pipelines
        assert [(one.change, one.ended) for one in ends] == [(change.key, ChangeStatus.FAILED)]
        assert "progress" in ends[0].because

    play(cluster, scene, space)


def test_a_new_model_is_a_separate_change(cluster: Cluster, space: str) -> None:
    path = deployment(cluster, space, replicas=1)

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        flags = ("--model=meta-llama/Llama-3.3-70B-Instruct-FP8", "--tensor-parallel-size=4")
        cluster.patch(path, {"spec": {"template": template("vllm/vllm-openai:v0.11.0", 4, *flags)}})
        (change,) = [one for one in await news(reader) if one.kind is EventKind.CHANGE]
        assert change.code == "model-revision"
        assert change.attributes["to"] == "--model=meta-llama/Llama-3.3-70B-Instruct-FP8"

    play(cluster, scene, space)


def test_a_config_map_change_is_reported_on_its_workloads_without_values(cluster: Cluster, space: str) -> None:
    maps = f"/api/v1/namespaces/{space}/configmaps"
    cluster.create(maps, {"metadata": {"name": "prompts"}, "data": {"system": "You are kind.", "other": "same"}})
    cluster.create(maps, {"metadata": {"name": "unread"}, "data": {"x": "1"}})
    volumes = [{"name": "p", "configMap": {"name": "prompts"}}]
    deployment(cluster, space, template=template("v:1", 1, volumes=volumes))

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        cluster.patch(f"{maps}/unread", {"data": {"x": "2"}})
        cluster.patch(f"{maps}/prompts", {"data": {"system": "You are a pirate."}}, by="k9s")
        changes = [one for one in await news(reader) if one.kind is EventKind.CHANGE]
        assert [(one.code, one.entity.name, one.service) for one in changes] == [("configmap", "chat", "chat-70b")]
        expected = changes[0].attributes
        assert expected["actor"] == "k9s"
        assert expected["from"].startswith("prompts: system@")
        assert expected["to"].startswith("prompts: system@")
        assert expected["from"] != expected["to"]
        assert "pirate" not in str(changes)
        assert "pirate" not in str(reader.objects.by_resource["configmaps"].objects)

    play(cluster, scene, space)


def test_a_new_driver_is_a_change_of_its_node(cluster: Cluster, space: str) -> None:
    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        labels = {"nvidia.com/cuda.driver-version.full": "580.65.06", "nvidia.com/cuda.runtime-version.full": "13.0"}
        cluster.patch("/api/v1/nodes/n2", {"metadata": {"labels": labels}}, by="nfd-master")
        changes = {one.code: one for one in await news(reader) if one.kind is EventKind.CHANGE}
        assert set(changes) == {"driver", "cuda"}
        driver = changes["driver"]
        assert driver.entity == EntityRef("c", EntityKind.NODE, None, "n2")
        assert (driver.attributes["from"], driver.attributes["to"]) == ("570.124.06", "580.65.06")
        assert driver.attributes["actor_kind"] == ActorKind.SYSTEM

    play(cluster, scene, space)


# --- starts ---------------------------------------------------------------------------------------


def test_every_phase_of_a_start_is_reported_with_its_source(cluster: Cluster, space: str) -> None:
    deployment(cluster, space, replicas=1)
    (pod,) = cluster.scheduled(space, 1)

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        created = now()
        event(cluster, pod, "Pulling", 'Pulling image "vllm"', created)
        took = 'Successfully pulled image "vllm" in 1m12.5s (1m12.5s including waiting). Image size: 9876543210 bytes.'
        event(cluster, pod, "Pulled", took, created + timedelta(seconds=72.5))
        run(cluster, pod, started=created)
        await read_until(reader, lambda: bool(list(reader.startups.waiting())), "a pod is ready")
        lines = LogMatcher("engine_log")
        origin = Origin(EntityRef("c", EntityKind.POD, space, pod["metadata"]["name"]), pod["metadata"]["uid"])
        for expected in (
            "INFO 11-18 12:00:20 [default_loader.py:272] Loading weights took 31.27 seconds",
            "INFO 11-18 12:00:21 [gpu_model_runner.py:1801] Model loading took 35.2488 GiB and 34.173644 seconds",
            "INFO 11-18 12:00:41 [monitor.py:34] torch.compile takes 21.63 s in total",
            "INFO 11-18 12:01:02 [gpu_model_runner.py:3480] Graph capturing finished in 8 secs, took 0.31 GiB",
            "INFO 11-18 12:01:03 [core.py:240] init engine (profile, create kv cache, warmup model) took 46.22 seconds",
        ):
            assert list(lines.take(origin, now(), expected, now())) == []
        for namespace, name, mark in lines.drain_marks():
            reader.startups.mark(namespace, name, mark)
        (ready,) = reader.startups.waiting()
        reader.startups.served(ready.id, now() + timedelta(seconds=3))
        (reported,) = reader.startups.drain(now())
        phases = {one.phase: one for one in reported.phases}
        assert phases[StartPhase.PULL].seconds == 72.5
        assert phases[StartPhase.PULL].read_from == "event Pulled"
        assert phases[StartPhase.WEIGHT_LOAD].seconds == pytest.approx(34.173644)
        assert phases[StartPhase.COMPILE].seconds == 21.63
        assert phases[StartPhase.GRAPH_CAPTURE].seconds == 8.0
        assert phases[StartPhase.WARM_UP].seconds == pytest.approx(46.22 - 21.63 - 8.0)
        assert phases[StartPhase.SCHEDULE].read_from == "condition PodScheduled"
        assert phases[StartPhase.FIRST_REQUEST].seconds >= 3.0
        assert reported.service == "chat-70b"
        assert (reported.node, reported.gpus, reported.gpu_type) == (
            pod["spec"]["nodeName"],
            4.0,
            "NVIDIA-H100-80GB-HBM3",
        )
        assert reported.lead_time is not None

    play(cluster, scene, space)


def test_a_container_restart_is_a_separate_start(cluster: Cluster, space: str) -> None:
    deployment(cluster, space, replicas=1)
    (pod,) = cluster.scheduled(space, 1)
    run(cluster, pod)

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        (first,) = reader.startups.drain(now())
        begun = int(now().timestamp())

        async def a_second_later() -> bool:
            return now().timestamp() > begun + 1

        await until_async(a_second_later, "the next second has begun")  # conditions count whole seconds
        run(cluster, pod, restarts=1)
        events: list[Startup] = []

        def reported() -> bool:
            events.extend(reader.startups.drain(now()))
            return any(one.id != first.id for one in events)

        await read_until(reader, reported, "the second start is reported")
        second = next(one for one in events if one.id != first.id)
        assert first.id.endswith("/0")
        assert second.id.endswith("/1")
        assert {StartPhase.SCHEDULE, StartPhase.PULL} & {one.phase for one in second.phases} == set()

    play(cluster, scene, space)


# --- what breaks ----------------------------------------------------------------------------------


@pytest.mark.slow
def test_an_api_server_restart_loses_nothing(cluster: Cluster, space: str) -> None:
    path = deployment(cluster, space, replicas=1)

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        cluster.stop_api()
        events, errors = await reader.read(now(), [])
        assert events == []
        assert errors
        assert all("kubernetes" in error.message for error in errors)
        cluster.start_api()
        cluster.patch(path, {"spec": {"replicas": 2}})
        changes: list[object] = []

        async def read_again() -> bool:
            events, errors = await reader.read(now(), [])
            changes.extend(one for one in events if one.kind is EventKind.CHANGE)
            return bool(changes) and not errors

        await until_async(read_again, "the change was read without an error")
        assert [getattr(one, "code", "") for one in changes] == ["scale"]

    play(cluster, scene, space)


@pytest.mark.slow
def test_an_expired_resource_version_is_relisted_without_loss(cluster: Cluster, space: str) -> None:
    path = deployment(cluster, space, replicas=1)

    cluster.scheduled(space, 1)

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        api = reader.api
        feed = ListWatch(api, f"/api/v1/namespaces/{space}/pods")
        await feed.read()
        old = feed._version
        for number in range(3):
            cluster.patch(path, {"metadata": {"annotations": {"n": str(number)}}})
        cluster.patch(path, {"spec": {"replicas": 0}})
        until(lambda: all(pod["metadata"].get("deletionTimestamp") for pod in cluster.pods(space)), "no pod stays")
        _let_go(cluster, space)
        # The watch cache of an API server remembers beyond etcd; a new one does not.
        cluster.compact()
        cluster.stop_api()
        cluster.start_api()
        with pytest.raises(ResourceExpiredError):
            await api.changes(feed.path, "1", {})
        feed._version = "1"
        assert await feed.read() == []
        assert feed.listed
        assert feed._version != old
        await read_until(reader, lambda: not reader.replicas.replicas, "the pods are gone")

    play(cluster, scene, space)


def test_the_manifest_grants_all_reads_and_other_accounts_get_an_error(cluster: Cluster, space: str) -> None:
    deployment(cluster, space, replicas=1)
    cluster.create(f"/api/v1/namespaces/{space}/configmaps", {"metadata": {"name": "prompts"}, "data": {"a": "b"}})
    cluster.apply((ROOT / "deploy" / "rbac.yaml").read_text(encoding="utf-8"))
    pod = cluster.scheduled(space, 1)[0]["metadata"]["name"]

    async def allowed(reader: KubernetesEventSource) -> None:
        await news(reader)
        await news(reader)
        assert len(reader.replicas.replicas) == 1
        assert reader.objects.by_resource["configmaps"].objects
        answer = await reader.api.text(f"/api/v1/namespaces/{space}/pods/{pod}/log", {})
        assert answer.status != 403
        refused = await reader.api.text(f"/api/v1/namespaces/{space}/secrets", {})
        assert refused.status == 403

    until(lambda: _may_list(cluster, space), "the role is in force")
    play(cluster, allowed, space, token="reader")

    async def stranger(reader: KubernetesEventSource) -> None:
        events, errors = await reader.read(now(), [])
        assert events == []
        assert errors
        assert "403" in errors[0].message
        assert "get, list and watch" in errors[0].hint

    play(cluster, stranger, space, token="stranger")


def _may_list(cluster: Cluster, space: str) -> bool:
    token = cluster.token_file("reader").read_text()
    path = f"/apis/apps/v1/namespaces/{space}/deployments"
    return cluster.http.get(path, headers={"Authorization": f"Bearer {token}"}).status_code == 200


# --- audit ----------------------------------------------------------------------------------------


def test_the_audit_agrees_with_the_cluster_on_disruption_budgets(cluster: Cluster, space: str) -> None:
    deployment(cluster, space)
    run_all(cluster, space, 2)

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        rules = {one.rule for one in audit(reader.objects, reader.replicas, "c")}
        assert {"no-disruption-budget", "readiness-missing", "max-length-missing", "memory-limit-missing"} <= rules
        budget = {"selector": {"matchLabels": {"app": "chat"}}, "minAvailable": 2}
        path = f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets"
        cluster.create(path, {"metadata": {"name": "chat"}, "spec": budget})

        def blocked() -> bool:
            return "drain-blocked" in {one.rule for one in audit(reader.objects, reader.replicas, "c")}

        await read_until(reader, blocked, "the budget allows nothing")
        assert "no-disruption-budget" not in {one.rule for one in audit(reader.objects, reader.replicas, "c")}

    play(cluster, scene, space)


def test_marked_pods_are_those_whose_eviction_the_api_server_refuses(cluster: Cluster, space: str) -> None:
    deployment(cluster, space)
    run_all(cluster, space, 2)
    budgets = f"/apis/policy/v1/namespaces/{space}/poddisruptionbudgets"
    spec = {"selector": {"matchLabels": {"app": "chat"}}, "minAvailable": 2}
    cluster.create(budgets, {"metadata": {"name": "chat"}, "spec": spec})
    until(lambda: cluster.get(f"{budgets}/chat")["status"].get("currentHealthy") == 2, "the budget counts its pods")

    def evictable() -> set[bool]:
        """Whether the API server would evict the pods, by server-side dry run."""
        answers = set()
        for pod in cluster.pods(space):
            path, name = f"/api/v1/namespaces/{space}/pods/{pod['metadata']['name']}/eviction", pod["metadata"]["name"]
            body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name, "namespace": space}}
            answers.add(cluster.http.post(path, json=body, params={"dryRun": "All"}).status_code < 300)
        return answers

    async def scene(reader: KubernetesEventSource) -> None:
        def marked() -> set[str]:
            labels = reader.graph.labels
            pods = [entity for entity in labels if entity.kind is EntityKind.POD and entity.namespace == space]
            return {labels[pod].get(EVICTION_BLOCKED_BY, "") for pod in pods}

        await news(reader)
        await read_until(reader, lambda: marked() == {f"{space}/chat"}, "both pods name the budget")
        assert evictable() == {False}
        topology = Topology.build(reader.graph.edges, reader.graph.labels, reader.graph.labels)
        pods = [entity for entity in topology.of_kind(EntityKind.POD) if entity.namespace == space]
        for node in {node for pod in pods for node in topology.below(pod, EntityKind.NODE)}:
            assert blocking_budgets(ActionKind.DRAIN, node, topology) == (f"{space}/chat",)
        cluster.patch(f"{budgets}/chat", {"spec": {"minAvailable": 1}})
        await read_until(reader, lambda: marked() == {""}, "the budget allows a disruption again")
        assert evictable() == {True}

    play(cluster, scene, space)


def test_a_change_of_an_event_equals_the_one_in_the_change_log(cluster: Cluster, space: str) -> None:
    path = deployment(cluster, space, replicas=1)

    async def scene(reader: KubernetesEventSource) -> None:
        await news(reader)
        cluster.patch(path, {"spec": {"replicas": 2}}, by="kubectl-scale")
        (reported,) = [one for one in await news(reader) if one.kind is EventKind.CHANGE]
        (read,) = [change_of(one) for one in EntityResolver().events([reported])]
        assert read is not None
        assert (read.code, read.actor, read.before, read.after) == ("scale", "kubectl-scale", "1", "2")
        assert (read.workload, read.service) == ("chat", "chat-70b")

    play(cluster, scene, space)
