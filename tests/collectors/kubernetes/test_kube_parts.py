"""Owners, templates, actors, ends and starts of Kubernetes objects."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.kubernetes.accelerators import cuda_of, driver_of
from collectors.kubernetes.actors import actor_of, kind_of, managers
from collectors.kubernetes.api import ApiChange
from collectors.kubernetes.objects import (
    CONFIG_MAPS,
    DISRUPTION_BUDGETS,
    INFERENCE_SERVICES,
    LEADER_WORKER_SETS,
    NODES,
    PODS,
    RAY_SERVICES,
    CachedObjects,
    Objects,
    ResourceUpdate,
    digests,
    slim,
)
from collectors.kubernetes.pod_templates import config_maps, service_of, templated
from collectors.kubernetes.pods import pod_facts, with_service, workload_of
from collectors.kubernetes.replicas import PodIndex
from collectors.kubernetes.rollout_status import PendingRollouts, rollout_status
from collectors.kubernetes.startup_log import Mark
from collectors.kubernetes.startups import StartupTracker, pull_seconds
from collectors.kubernetes.topology import graph
from collectors.kubernetes.workload_diff import scale_change, shape_of, template_change
from outrider.clock import rfc3339
from outrider.model import EntityKind, EntityRef
from outrider.records.change_log import ActorKind, ChangeStatus, StartPhase
from outrider.topology import EVICTION_BLOCKED_BY, NOT_READY, Topology, merge_graphs, unlisted_by_pages
from tests.support.kube_replicas import replicas_of

Json = dict[str, Any]
AT = datetime(2026, 11, 18, 12, tzinfo=UTC)
GPU = {"name": "vllm", "image": "v:1", "resources": {"limits": {"nvidia.com/gpu": "1"}}}


def pod(name: str = "chat-0", node: str = "n1", owner: tuple[str, str] | None = None, **labels: str) -> Json:
    meta: Json = {
        "name": name,
        "namespace": "s",
        "uid": name,
        "labels": {key.replace("__", "/"): v for key, v in labels.items()},
    }
    meta["creationTimestamp"] = rfc3339(AT - timedelta(minutes=5))
    if owner is not None:
        meta["ownerReferences"] = [{"kind": owner[0], "name": owner[1], "controller": True}]
    return {"metadata": meta, "spec": {"nodeName": node, "containers": [GPU]}, "status": {}}


# --- owners and services --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("result", "owner"),
    [
        (pod(owner=("ReplicaSet", "chat-7f9c"), **{"pod-template-hash": "7f9c"}), ("Deployment", "chat")),
        (pod(owner=("ReplicaSet", "chat-766c5d9856")), ("Deployment", "chat")),
        (pod(owner=("StatefulSet", "chat")), ("StatefulSet", "chat")),
        (pod(**{"serving.kserve.io__inferenceservice": "llama"}), ("InferenceService", "llama")),
        (pod(**{"leaderworkerset.sigs.k8s.io__name": "big"}), ("LeaderWorkerSet", "big")),
        (pod(**{"ray.io__originated-from-cr-name": "rag", "ray.io__originated-from-crd": "RayService"}), ("RayService", "rag")),  # noqa: E501
        (pod(**{"ray.io__cluster": "train"}), ("RayCluster", "train")),
        (pod(), ("", "")),
    ],
)  # fmt: skip
def test_the_owner_of_a_pod_is_its_top_level_workload(result: Json, owner: tuple[str, str]) -> None:
    assert workload_of(result) == owner


def test_the_service_of_a_pod_is_its_label_or_its_owner() -> None:
    assert pod_facts(pod(**{"app.kubernetes.io__name": "chat-70b"})).service == "chat-70b"
    assert pod_facts(pod(team="x"), service_label="team").service == "x"
    assert pod_facts(pod(**{"serving.kserve.io__inferenceservice": "llama"})).service == "llama"
    assert with_service(pod_facts(pod(owner=("StatefulSet", "chat")))).service == "chat"
    assert with_service(pod_facts(pod())).service == "chat-0"
    assert with_service(pod_facts(pod(owner=("StatefulSet", "chat"))), front="chat-front").service == "chat-front"
    plain = {**pod(owner=("DaemonSet", "agent")), "spec": {"containers": [{"name": "a"}]}}
    assert with_service(pod_facts(plain)).service == ""


def test_the_role_of_a_pod_comes_from_its_labels_with_our_label_first() -> None:
    llmd, dynamo = {"llm-d.ai__role": "prefill"}, {"nvidia.com__dynamo-sub-component-type": "decode"}
    assert pod_facts(pod(**llmd)).own["role"] == "prefill"
    assert pod_facts(pod(**dynamo)).own["role"] == "decode"
    assert pod_facts(pod(**llmd, **dynamo, **{"outrider.io__role": "both"})).own["role"] == "both"
    assert "role" not in pod_facts(pod()).own
    objects = Objects.of([(PODS, pod(**llmd))])
    reported = graph(objects, replicas_of(objects), "c").labels
    assert reported[EntityRef("c", EntityKind.REPLICA, "s", "chat-0")]["role"] == "prefill"


def test_mig_slices_count_as_accelerators() -> None:
    container = {
        "name": "v",
        "resources": {"limits": {"nvidia.com/mig-3g.40gb": "2", "cpu": "4", "nvidia.com/gpu.shared": "1"}},
    }
    result = {**pod(), "spec": {"nodeName": "n1", "containers": [container]}}
    assert dict(pod_facts(result).accelerators) == {"nvidia.com/mig-3g.40gb": 2.0, "nvidia.com/gpu.shared": 1.0}
    objects = Objects.of([(PODS, result)])
    reported = graph(objects, replicas_of(objects), "c").labels
    assert reported[EntityRef("c", EntityKind.POD, "s", "chat-0")]["asks:nvidia.com/mig-3g.40gb"] == "2"


def test_versions_of_driver_and_cuda_in_old_and_new_labels() -> None:
    new = {"nvidia.com/cuda.driver-version.full": "570.124.06", "nvidia.com/cuda.runtime-version.full": "12.8"}
    old = {"nvidia.com/cuda.driver.major": "535", "nvidia.com/cuda.driver.minor": "161",
           "nvidia.com/cuda.driver.rev": "08", "nvidia.com/cuda.runtime.major": "12",
           "nvidia.com/cuda.runtime.minor": "2"}  # fmt: skip
    assert (driver_of(new), cuda_of(new)) == ("570.124.06", "12.8")
    assert (driver_of(old), cuda_of(old)) == ("535.161.08", "12.2")
    assert (driver_of({}), cuda_of({})) == ("", "")


# --- beside pages ---------------------------------------------------------------------------------


def refs(*names: str) -> list[EntityRef]:
    kinds = {"p": EntityKind.POD, "r": EntityKind.REPLICA, "s": EntityKind.SERVICE}
    return [EntityRef("c", kinds[name[0]], "s", name[2:]) for name in names]


def test_a_replica_known_from_targets_keeps_name_and_service() -> None:
    objects = Objects.of([(PODS, pod())])
    one, replica, service = refs("p-chat-0", "r-engine-7", "s-chat")
    pages = Topology.build([(one, replica), (replica, service)], labels={replica: {"model": "from the page"}})
    reported = unlisted_by_pages(pages, graph(objects, replicas_of(objects), "c"))
    kinds = {upper.kind for _, upper in reported.edges}
    assert kinds == {EntityKind.POD, EntityKind.REPLICA}
    assert replica in reported.labels
    _, labels = merge_graphs(pages.edges, pages.labels, [reported])
    assert labels[replica]["model"] == "from the page"
    assert labels[replica]["gpus"] == "1"
    assert refs("r-chat-0")[0] not in reported.labels


def test_replicas_without_pod_names_are_not_reported_twice() -> None:
    objects = Objects.of([(PODS, pod(**{"app.kubernetes.io__name": "chat"}))])
    replica, service = refs("r-some-page", "s-chat")
    pages = Topology.build([(replica, service)])
    reported = unlisted_by_pages(pages, graph(objects, replicas_of(objects), "c"))
    assert all(upper.kind is EntityKind.POD for _, upper in reported.edges)


def test_a_completed_pod_has_no_edges() -> None:
    over = {**pod(), "status": {"phase": "Succeeded"}}
    objects = Objects.of([(PODS, over)])
    assert graph(objects, replicas_of(objects), "c").edges == ()


def test_a_status_change_updates_no_index() -> None:
    index = PodIndex()
    index.take(pod())
    before = index.version
    index.take({**pod(), "status": {"phase": "Running"}})
    assert index.version == before
    index.take(pod(node="n2"))
    index.drop("chat-0")
    index.drop("chat-0")
    assert index.version == before + 2


# --- what is cached ---------------------------------------------------------------------------------


def test_a_list_removes_missing_objects_of_its_namespace_only() -> None:
    cached = CachedObjects()
    here, there = pod("a"), pod("b")
    there["metadata"]["namespace"] = "other"
    cached.take(ResourceUpdate(PODS, [ApiChange("LISTED", here), ApiChange("LISTED", there)], whole=True))
    gone = cached.take(ResourceUpdate(PODS, [], whole=True, namespace="s"))
    assert [one.before["metadata"]["name"] for one in gone] == ["a"]
    assert [one.after for one in gone] == [{}]
    assert set(cached.objects) == {"b"}
    assert cached.take(ResourceUpdate(PODS, [])) == []


def test_a_repeated_resource_version_is_not_a_change() -> None:
    cached = CachedObjects()
    result = pod()
    result["metadata"]["resourceVersion"] = "7"
    assert len(cached.take(ResourceUpdate(PODS, [ApiChange("ADDED", result)]))) == 1
    assert cached.take(ResourceUpdate(PODS, [ApiChange("LISTED", result)], whole=True)) == []


def test_only_digests_of_a_config_map_are_stored() -> None:
    result = {"metadata": {"name": "m", "uid": "m"}, "data": {"a": "secret text"}, "binaryData": {"b": "AAAA"}}
    kept = slim(CONFIG_MAPS, result)
    assert "secret" not in str(kept)
    assert set(digests(kept)) == {"a", "b"}
    assert digests(kept) == digests(result)


# --- shapes ---------------------------------------------------------------------------------------


def test_a_leader_worker_set_has_two_templates_and_its_own_count() -> None:
    group = {
        "size": 2,
        "leaderTemplate": {"spec": {"containers": [GPU]}},
        "workerTemplate": {"spec": {"containers": [GPU]}},
    }
    lws = {"metadata": {"name": "big"}, "spec": {"replicas": 3, "leaderWorkerTemplate": group}}
    before = shape_of(templated(LEADER_WORKER_SETS, lws))
    assert set(before.containers) == {"leader/vllm", "worker/vllm"}
    group["workerTemplate"] = {"spec": {"containers": [{**GPU, "image": "v:2"}]}}
    lws["spec"]["replicas"] = 4
    after = shape_of(templated(LEADER_WORKER_SETS, lws))
    assert template_change(before, after).code == "image"
    assert scale_change(before, after) is not None


def test_an_inference_service_describes_its_model() -> None:
    model = {"modelFormat": {"name": "huggingface"}, "storageUri": "hf://org/m", "runtime": "kserve-vllm"}
    isvc = {"metadata": {"name": "llama"}, "spec": {"predictor": {"minReplicas": 1, "model": dict(model)}}}
    before = shape_of(templated(INFERENCE_SERVICES, isvc))
    isvc["spec"]["predictor"]["model"]["storageUri"] = "hf://org/m-fp8"
    after = shape_of(templated(INFERENCE_SERVICES, isvc))
    change = template_change(before, after)
    assert (change.code, change.after) == ("model-revision", "--storage-uri=hf://org/m-fp8")
    assert service_of(templated(INFERENCE_SERVICES, isvc), "app") == "llama"


def test_a_ray_service_has_groups_and_an_application() -> None:
    workers = {"groupName": "gpu", "replicas": 2, "template": {"spec": {"containers": [GPU]}}}
    spec = {"serveConfigV2": "applications: [a]", "rayClusterConfig": {"workerGroupSpecs": [workers]}}
    ray = {"metadata": {"name": "rag"}, "spec": spec}
    before = shape_of(templated(RAY_SERVICES, ray))
    assert before.replicas == 2
    assert set(before.containers) == {"gpu/vllm"}
    workers["replicas"] = 5
    after = shape_of(templated(RAY_SERVICES, ray))
    assert scale_change(before, after) is not None
    assert before.same_template(after)


def test_every_reference_to_a_config_map_is_found() -> None:
    spec = {
        "volumes": [{"name": "a", "configMap": {"name": "one"}},
                    {"name": "b", "projected": {"sources": [{"configMap": {"name": "two"}}]}}],
        "containers": [{"envFrom": [{"configMapRef": {"name": "three"}}],
                        "env": [{"name": "X", "valueFrom": {"configMapKeyRef": {"name": "four", "key": "k"}}}]}],
    }  # fmt: skip
    assert config_maps({"spec": {"template": {"spec": spec}}}) == {"one", "two", "three", "four"}


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(ANYTHING)
def test_arbitrary_objects_do_not_raise(anything: Any) -> None:
    for result in ({"metadata": anything, "spec": anything, "status": anything},
                  {"spec": {"template": anything, "predictor": anything, "leaderWorkerTemplate": anything,
                            "rayClusterConfig": anything}}):  # fmt: skip
        for resource in (LEADER_WORKER_SETS, INFERENCE_SERVICES, RAY_SERVICES, NODES):
            shown = templated(resource, result)
            shape_of(shown)
            config_maps(shown)
            slim(resource, result)
        actor_of(result)
        rollout_status(result)
        pod_facts(result)
        starts = StartupTracker("c", lambda _: None, lambda _: "")
        starts.event({"involvedObject": anything, "reason": anything, "message": anything}, AT)
        starts.pod(pod_facts(pod()), {**pod(), "status": anything}, AT)
        starts.drain(AT)


# --- actors ---------------------------------------------------------------------------------------


def managed(*entries: tuple[str, str, str, Json]) -> Json:
    fields = [
        {"manager": name, "operation": "Update", "time": time, "subresource": part, "fieldsV1": touched}
        for name, time, part, touched in entries
    ]
    return {"metadata": {"managedFields": fields}}


def test_the_actor_is_the_last_writer_of_the_field() -> None:
    spec: Json = {"f:spec": {"f:template": {}, "f:replicas": {}}}
    result = managed(
        ("helm", "2026-11-18T10:00:00Z", "", spec),
        ("kube-controller-manager", "2026-11-18T11:00:00Z", "scale", {"f:spec": {"f:replicas": {}}}),
        ("kube-controller-manager", "2026-11-18T12:00:00Z", "status", {"f:status": {}, "f:spec": {}}),
        ("kubectl-label", "2026-11-18T12:00:00Z", "", {"f:metadata": {"f:labels": {}}}),
    )
    assert actor_of(result, ("f:spec/f:template",)).name == "helm"
    assert actor_of(result, ("f:spec/f:replicas",)).kind is ActorKind.SYSTEM
    assert actor_of(result, ("f:metadata/f:labels",)).kind is ActorKind.PERSON
    assert actor_of({}).attributes == {}


def test_the_new_writer_wins_within_one_second() -> None:
    spec: Json = {"f:spec": {}}
    before = managed(("zz-first", "2026-11-18T10:00:00Z", "", spec))
    after = managed(("zz-first", "2026-11-18T10:00:00Z", "", spec), ("a-second", "2026-11-18T10:00:00Z", "", spec))
    assert actor_of(after).name == "zz-first"
    assert actor_of(after, before={"managers": managers(before)}).name == "a-second"


def test_a_pipeline_names_its_user() -> None:
    result = managed(("argocd-controller", "2026-11-18T10:00:00Z", "", {"f:spec": {}}))
    notes = {"outrider.dev/actor": "ada", "kubernetes.io/change-cause": "faster kernels"}
    result["metadata"]["annotations"] = notes
    reported = actor_of(result)
    assert (reported.name, reported.kind, reported.cause) == ("ada", ActorKind.PERSON, "faster kernels")
    result["metadata"]["annotations"] = {"outrider.dev/actor": "renovate[bot]"}
    assert actor_of(result).kind is ActorKind.SYSTEM


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("kubectl-client-side-apply", ActorKind.PERSON), ("k9s", ActorKind.PERSON), ("Mozilla", ActorKind.PERSON),
        ("argocd-application-controller", ActorKind.SYSTEM), ("keda-operator", ActorKind.SYSTEM),
        ("kustomize-controller", ActorKind.SYSTEM), ("outrider", ActorKind.SYSTEM), ("nfd-master", ActorKind.SYSTEM),
        ("helm", ActorKind.UNKNOWN), ("Terraform", ActorKind.UNKNOWN), ("", ActorKind.UNKNOWN),
    ],
)  # fmt: skip
def test_actors_are_users_or_systems(name: str, kind: ActorKind) -> None:
    assert kind_of(name) is kind


# --- ends -----------------------------------------------------------------------------------------


def workload(
    generation: int = 2, observed: int | None = 2, updated: int = 2, available: int = 2, **status: Any
) -> Json:
    reported = {"replicas": 2, "updatedReplicas": updated, "availableReplicas": available, **status}
    reported |= {} if observed is None else {"observedGeneration": observed}
    return {"metadata": {"generation": generation}, "spec": {"replicas": 2}, "status": reported}


def test_the_end_of_a_change() -> None:
    assert rollout_status(workload()) is not None
    for under_way in (
        workload(observed=1),
        workload(updated=1),
        workload(available=1),
        workload(replicas=3),
        {"metadata": {"generation": 1}, "spec": {}},
    ):
        assert rollout_status(under_way) is None
    late = {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded", "message": "timed out"}
    assert rollout_status(workload(available=1, conditions=[late])) == (ChangeStatus.FAILED, "timed out")


def test_changes_supersede_and_revert_each_other() -> None:
    pending = PendingRollouts()
    assert list(pending.note("u", "c1", "image", AT)) == []
    (overtaken,) = pending.note("u", "c2", "flags", AT)
    assert (overtaken.change, overtaken.ended) == ("c1", ChangeStatus.SUPERSEDED)
    assert list(pending.note("u", "s1", "scale", AT)) == []  # another sort of change goes on beside it
    assert {(one.change, one.ended) for one in pending.update("u", workload(), AT)} == {
        ("c2", ChangeStatus.SUCCEEDED), ("s1", ChangeStatus.SUCCEEDED),
    }  # fmt: skip
    assert list(pending.update("u", workload(), AT)) == []
    (undone,) = pending.note("u", "c3", "rollback", AT)
    assert (undone.change, undone.ended) == ("c2", ChangeStatus.ROLLED_BACK)
    assert [one.change for one in pending.deleted("u", AT)] == ["c3"]


# --- starts ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("message", "seconds"),
    [
        ('Successfully pulled image "v" in 1m12.5s (1m12.5s including waiting). Image size: 1 bytes.', 72.5),
        ('Successfully pulled image "v" in 845ms (845ms including waiting)', 0.845),
        ('Successfully pulled image "v" in 2h3m4s', 7384.0),
        ('Container image "v" already present on machine', 0.0),
        ('Successfully pulled image "v"', None),
    ],
)
def test_the_duration_of_an_image_pull(message: str, seconds: float | None) -> None:
    assert pull_seconds(message) == (None if seconds is None else pytest.approx(seconds))


def conditions(**at: datetime) -> list[Json]:
    return [{"type": name, "status": "True", "lastTransitionTime": rfc3339(when)} for name, when in at.items()]


def test_provisioning_of_a_new_node_is_a_phase() -> None:
    began = AT - timedelta(minutes=5)
    starts = StartupTracker("c", lambda _: began + timedelta(seconds=90), lambda _: "H100")
    result = pod()
    result["status"] = {"conditions": conditions(PodScheduled=began + timedelta(seconds=95))}
    starts.pod(pod_facts(result), result, AT)
    (reported,) = starts.drain(AT)
    phases = {one.phase: one.seconds for one in reported.phases}
    assert phases == {StartPhase.NODE_PROVISION: 90.0, StartPhase.SCHEDULE: 5.0}
    assert starts.drain(AT) == ()


def test_a_phase_lasts_until_the_slowest_rank() -> None:
    starts = StartupTracker("c", lambda _: None, lambda _: "")
    result = pod()
    starts.pod(pod_facts(result), result, AT)
    for mark in (
        Mark("weight_load", AT, None, "begin"),
        Mark("weight_load", AT + timedelta(seconds=30), None, "end"),
        Mark("weight_load", AT + timedelta(seconds=32), None, "end"),
        Mark("graph_capture", AT, 7.0),
        Mark("graph_capture", AT, 6.0),
    ):
        starts.mark("s", "chat-0", mark)
    starts.mark("s", "another", Mark("compile", AT, 1.0))
    (reported,) = starts.drain(AT)
    assert {one.phase: one.seconds for one in reported.phases} == {
        StartPhase.WEIGHT_LOAD: 32.0, StartPhase.GRAPH_CAPTURE: 7.0,
    }  # fmt: skip


def test_a_pod_that_already_ran_has_no_phases() -> None:
    starts = StartupTracker("c", lambda _: None, lambda _: "")
    result = pod()
    long_ago = AT - timedelta(days=3)
    result["metadata"]["creationTimestamp"] = rfc3339(long_ago)
    result["status"] = {"conditions": conditions(PodScheduled=long_ago, Ready=AT - timedelta(days=1))}
    starts.pod(pod_facts(result), result, AT)
    (reported,) = starts.drain(AT)
    assert (reported.began_at, reported.phases, reported.ready_at) == (long_ago, (), None)
    assert list(starts.waiting()) == []
    starts.gone("chat-0", AT)
    assert starts.drain(AT)[0].gone_at == AT


def test_stored_starts_continue_after_a_restart() -> None:
    first = StartupTracker("c", lambda _: None, lambda _: "")
    result, other = pod(), pod("chat-1")
    began = AT - timedelta(minutes=5)
    for one in (result, other):
        one["status"] = {"conditions": conditions(PodScheduled=began, Ready=began + timedelta(minutes=3))}
        first.pod(pod_facts(one), one, AT)
    first.served("c/chat-0/0", AT)
    kept = first.drain(AT)
    assert len(kept) == 2

    soon = StartupTracker("c", lambda _: None, lambda _: "")
    soon.pod(pod_facts(result), result, AT + timedelta(minutes=1))
    gone = soon.resume(kept, AT + timedelta(minutes=1))
    assert [(one.id, one.gone_at) for one in gone] == [("c/chat-1/0", AT + timedelta(minutes=1))]
    assert [one.served_at for one in soon.drain(AT)] == [AT]

    later = StartupTracker("c", lambda _: None, lambda _: "")
    days = AT + timedelta(days=2)
    later.pod(pod_facts(result), result, days)
    later.resume(kept, days)
    assert later.drain(days) == ()  # nothing to say that is not kept already
    later.pod(pod_facts(result), {**result, "status": {**result["status"], "phase": "Running"}}, days)
    later.gone("chat-0", days)
    (ended,) = later.drain(days)
    assert ended.phases == next(one for one in kept if one.id == ended.id).phases != ()
    assert (ended.gone_at, ended.served_at) == (days, AT)


def test_pods_without_accelerators_are_not_replicas() -> None:
    starts = StartupTracker("c", lambda _: None, lambda _: "")
    plain = {**pod(), "spec": {"containers": [{"name": "a"}]}}
    starts.pod(pod_facts(plain), plain, AT)
    assert starts.drain(AT) == ()


# --- disruption budgets ---------------------------------------------------------------------------

CHAT = {"app": "chat"}


def budget(allowed: int, *, healthy: int = 2, desired: int = 2, selector: Json | None = None, **spec: str) -> Json:
    selected: Json = {"matchLabels": CHAT} if selector is None else selector
    return {
        "metadata": {"name": "chat", "namespace": "s", "uid": "budget"},
        "spec": {"selector": selected, **spec},
        "status": {"disruptionsAllowed": allowed, "currentHealthy": healthy, "desiredHealthy": desired},
    }


def member(
    *, ready: bool = True, phase: str = "Running", owner: tuple[str, str] | None = ("StatefulSet", "chat")
) -> Json:
    condition = {"type": "Ready", "status": str(ready)}
    return {**pod(owner=owner, **CHAT), "status": {"phase": phase, "conditions": [condition]}}


def blocked(budget_: Json, pod_: Json) -> dict[str, str]:
    """Labels of the pod about evictions."""
    objects = Objects.of([(PODS, pod_), (DISRUPTION_BUDGETS, budget_)])
    labels = graph(objects, replicas_of(objects), "c").labels[EntityRef("c", EntityKind.POD, "s", "chat-0")]
    return {name: labels[name] for name in (EVICTION_BLOCKED_BY, NOT_READY) if name in labels}


def test_a_pod_names_the_budget_that_refuses_its_eviction() -> None:
    assert blocked(budget(0), member()) == {EVICTION_BLOCKED_BY: "s/chat"}
    assert blocked(budget(1), member()) == {}
    assert blocked(budget(0, selector={"matchLabels": {"app": "other"}}), member()) == {}
    assert blocked(budget(0, selector={}), member()) == {EVICTION_BLOCKED_BY: "s/chat"}, "{} selects every pod"
    elsewhere = budget(0)
    elsewhere["metadata"]["namespace"] = "t"
    assert blocked(elsewhere, member()) == {}


def test_a_pod_that_is_not_ready_follows_the_policy_of_its_budget() -> None:
    healthy, lacking = budget(0), budget(0, healthy=1)
    assert blocked(healthy, member(ready=False)) == {}
    assert blocked(lacking, member(ready=False)) == {EVICTION_BLOCKED_BY: "s/chat", NOT_READY: "true"}
    assert blocked(lacking, member()) == {EVICTION_BLOCKED_BY: "s/chat"}
    always = budget(0, healthy=1, unhealthyPodEvictionPolicy="AlwaysAllow")
    assert blocked(always, member(ready=False)) == {}
    assert blocked(budget(0, healthy=0, desired=0), member(ready=False))[NOT_READY] == "true"


@pytest.mark.parametrize(
    "spared", [member(phase="Pending"), member(phase="Succeeded"), member(owner=None), member(owner=("DaemonSet", "x"))]
)
def test_pods_that_a_drain_leaves_or_always_evicts_are_not_marked(spared: Json) -> None:
    assert blocked(budget(0), spared) == {}


def test_several_budgets_are_all_named() -> None:
    other = budget(0)
    other["metadata"] |= {"name": "all", "uid": "other"}
    objects = Objects.of([(PODS, member()), (DISRUPTION_BUDGETS, budget(0)), (DISRUPTION_BUDGETS, other)])
    labels = graph(objects, replicas_of(objects), "c").labels
    names = labels[EntityRef("c", EntityKind.POD, "s", "chat-0")][EVICTION_BLOCKED_BY].split(",")
    assert sorted(names) == ["s/all", "s/chat"]
