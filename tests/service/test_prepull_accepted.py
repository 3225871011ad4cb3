"""Pre-pull manifests on a real API server: accepted, placed by the real scheduler, ended by the real Job controller."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from planner.manifests.prepull import PRIORITY, PrePull, Subject, choose, documents
from tests.support.accepted import SPACE, accepting, applied, taken, where
from tests.support.kube import Cluster
from tests.support.waiting import until

pytestmark = pytest.mark.control_plane

IMAGE = "vllm/vllm-openai@sha256:" + "0a" * 32
NODES = ("pull-1", "pull-2", "pull-3")
CHAT = Subject("chat", SPACE, IMAGE, node_selector={"pool": "pull"})


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    with accepting(control_plane) as found:
        for name in NODES:
            found.node(name, pool="pull")
            taints = [{"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}]
            found.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": taints}})
        yield found
        for name in NODES:
            found.delete(f"/api/v1/nodes/{name}")


def put(cluster: Cluster, subject: Subject, how: PrePull) -> list[dict[str, Any]]:
    """Apply all, twice; returns what the server made of all but the priority class."""
    return [taken(cluster, body) for body in documents(subject, how)][1:]


def pulling(cluster: Cluster) -> list[dict[str, Any]]:
    found = [pod for pod in cluster.pods(SPACE) if pod["metadata"]["labels"].get("outrider.io/warm") == "pre-pull"]
    return [pod for pod in found if "deletionTimestamp" not in pod["metadata"]]


def placed(cluster: Cluster) -> list[str]:
    return sorted(pod["spec"]["nodeName"] for pod in pulling(cluster) if pod["spec"].get("nodeName"))


def end(cluster: Cluster) -> None:
    """Reports of kubelets after the image was pulled and the shell has ended."""
    done = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    for pod in pulling(cluster):
        state = {"name": "pull", "state": done, "ready": False, "restartCount": 0, "image": IMAGE, "imageID": IMAGE}
        cluster.pod_status(pod, phase="Succeeded", containerStatuses=[state])


def complete(cluster: Cluster, name: str) -> bool:
    conditions = cluster.get(where("Job", name)).get("status", {}).get("conditions", [])
    return any(one["type"] == "Complete" and one["status"] == "True" for one in conditions)


@pytest.mark.parametrize("service", ["chat", "Org/Qwen_2.5-72B", "模型", "a" * 90])
@pytest.mark.parametrize("how", [choose("job", NODES, secret="registry"), choose("job", [], 3), choose("daemonset")])
def test_documents_are_accepted_for_any_service_name(cluster: Cluster, service: str, how: PrePull) -> None:
    made = put(cluster, replace(CHAT, service=service), how)
    assert {one["kind"] for one in made} == {"Job" if how.kind == "job" else "DaemonSet"}


def test_one_job_per_node_pulls_ends_and_is_not_recreated(cluster: Cluster) -> None:
    jobs = put(cluster, CHAT, choose("job", NODES))
    until(lambda: placed(cluster) == sorted(NODES), "each node has a pod, past its taint")
    assert {pod["spec"]["priority"] for pod in pulling(cluster)} == {PRIORITY}
    assert {pod["spec"]["preemptionPolicy"] for pod in pulling(cluster)} == {"Never"}
    end(cluster)
    for job in jobs:
        name = job["metadata"]["name"]
        until(lambda name=name: complete(cluster, name), f"{name} is complete")  # type: ignore[misc]
    again = [applied(cluster, body).json() for body in documents(CHAT, choose("job", NODES))[1:]]
    assert [one["metadata"]["uid"] for one in again] == [one["metadata"]["uid"] for one in jobs]
    assert all(complete(cluster, job["metadata"]["name"]) for job in jobs)
    assert len(pulling(cluster)) == len(NODES)


def test_a_job_for_any_nodes_puts_its_pods_on_as_many(cluster: Cluster) -> None:
    (job,) = put(cluster, CHAT, choose("job", [], 3))
    until(lambda: placed(cluster) == sorted(NODES), "three pods are on three nodes")
    end(cluster)
    until(lambda: complete(cluster, job["metadata"]["name"]), "the Job is complete")
    assert cluster.get(where("Job", job["metadata"]["name"]))["status"]["completedIndexes"] == "0-2"


@pytest.mark.parametrize("how", [choose("job", [], 2), choose("daemonset")])
def test_nodes_without_gpus_pull_nothing(cluster: Cluster, how: PrePull) -> None:
    """By the label that NVIDIA's programs give: neither a node for other work nor the pools of others."""
    labeled = {"nvidia.com/gpu.present": "true"}
    cluster.node("pull-gpu-1", **labeled)
    cluster.node("pull-gpu-2", **labeled)
    cluster.node("pull-cpu", gpus=0)
    try:
        put(cluster, replace(CHAT, node_selector=None), how)
        until(lambda: placed(cluster) == ["pull-gpu-1", "pull-gpu-2"], "each node with GPUs has a pod")
        assert len(pulling(cluster)) == 2, "and none that waits for another"
    finally:
        for name in ("pull-gpu-1", "pull-gpu-2", "pull-cpu"):
            cluster.delete(f"/api/v1/nodes/{name}")


def test_nodes_with_similar_names_both_pull(cluster: Cluster) -> None:
    alike = ("ip-10-0-15-245.ec2.internal", "ip-10-0-16-239.ec2.internal")
    made = put(cluster, CHAT, choose("job", alike))
    assert len({one["metadata"]["uid"] for one in made}) == 2


def test_another_image_is_another_job_beside_the_first(cluster: Cluster) -> None:
    put(cluster, CHAT, choose("job", NODES[:1]))
    taken(cluster, documents(replace(CHAT, image=IMAGE.replace("0a", "0b")), choose("job", NODES[:1]))[1])
    until(lambda: placed(cluster) == [NODES[0]] * 2, "two pods are placed")


def test_the_daemon_set_reaches_a_node_that_joins_and_takes_a_new_image(cluster: Cluster) -> None:
    how = choose("daemonset")
    (made,) = put(cluster, CHAT, how)
    until(lambda: placed(cluster) == sorted(NODES), "each node has a pod")
    cluster.node("pull-late", pool="pull")
    try:
        until(lambda: "pull-late" in placed(cluster), "the node that joined has a pod")
    finally:
        cluster.delete("/api/v1/nodes/pull-late")
    other = documents(replace(CHAT, image=IMAGE.replace("0a", "0b")), how)[1]
    changed = applied(cluster, other).json()["metadata"]
    assert changed["uid"] == made["metadata"]["uid"]
    assert changed["generation"] == made["metadata"]["generation"] + 1
