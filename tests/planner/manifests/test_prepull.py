"""Images on nodes before their pods: Jobs for known nodes, a DaemonSet for future ones."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml

from outrider.errors import UsageError
from planner.manifests.prepull import PrePullReason, Subject, choose, documents, pinned

IMAGE = "vllm/vllm-openai:v0.11.0"
PINNED = "vllm/vllm-openai@sha256:" + "0a" * 32
CHAT = Subject("chat", "prod", IMAGE)


def containers(body: Any) -> list[dict[str, Any]]:
    spec = body["spec"]["template"]["spec"]
    return [*spec.get("initContainers", []), *spec["containers"]]


def named(subject: Subject, *arguments: Any, **more: Any) -> list[str]:
    return [item["metadata"]["name"] for item in documents(subject, choose(*arguments, **more))[1:]]


@pytest.mark.parametrize(
    ("arguments", "kind", "reason"),
    [
        ((None, ["a", "b"]), "job", PrePullReason.NODES_KNOWN),
        ((None, [], 3), "job", PrePullReason.NODES_KNOWN),
        ((None,), "daemonset", PrePullReason.NO_NODE_KNOWN),
        (("daemonset", ["a"]), "daemonset", PrePullReason.REQUESTED),
        (("job", ["a"]), "job", PrePullReason.REQUESTED),
    ],
)
def test_jobs_are_chosen_if_nodes_are_known(arguments: Any, kind: str, reason: PrePullReason) -> None:
    result = choose(*arguments)
    assert (result.kind, result.reason) == (kind, reason)


def test_jobs_without_a_node_are_refused() -> None:
    with pytest.raises(UsageError, match="none is known") as caught:
        choose("job")
    assert "--node" in caught.value.hint


def test_each_node_has_one_job_without_a_gpu_request_that_tolerates_its_taints() -> None:
    priority, *jobs = documents(CHAT, choose("job", ["a", "b", "a"], taints=["team"]))
    assert priority["preemptionPolicy"] == "Never"
    assert len(jobs) == 2
    for job, node in zip(jobs, "ab", strict=True):
        pod = job["spec"]["template"]["spec"]
        (term,) = pod["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
        assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": [node]}]
        assert pod["priorityClassName"] == priority["metadata"]["name"]
        assert [item["key"] for item in pod["tolerations"]] == ["nvidia.com/gpu", "team"]
        (pull,) = containers(job)
        assert "limits" not in pull["resources"]
        assert set(pull["resources"]["requests"]) == {"cpu", "memory"}
        assert job["spec"]["ttlSecondsAfterFinished"] > 0


def nodes_of(body: Any) -> list[dict[str, Any]]:
    affinity = body["spec"]["template"]["spec"].get("affinity", {}).get("nodeAffinity", {})
    result: list[dict[str, Any]] = affinity.get("requiredDuringSchedulingIgnoredDuringExecution", {}).get(
        "nodeSelectorTerms", []
    )
    return result


@pytest.mark.parametrize("how", [choose("job", [], 3), choose("daemonset")])
@pytest.mark.parametrize(
    ("resource", "label"),
    [
        ("nvidia.com/gpu", "nvidia.com/gpu.present"),
        ("nvidia.com/mig-1g.10gb", "nvidia.com/gpu.product"),
        ("amd.com/gpu", "amd.com/gpu.product-name"),
        ("huawei.com/Ascend910", "node.kubernetes.io/npu.chip.name"),
    ],
)
def test_unnamed_nodes_are_those_with_gpus(how: Any, resource: str, label: str) -> None:
    body = documents(replace(CHAT, gpu_resource=resource), how)[1]
    keys = [item["key"] for term in nodes_of(body) for item in term["matchExpressions"]]
    assert label in keys
    tolerated = [item["key"] for item in body["spec"]["template"]["spec"]["tolerations"]]
    assert tolerated[0] == resource
    assert ("nvidia.com/gpu" in tolerated) == resource.startswith("nvidia.com/")


@pytest.mark.parametrize("how", [choose("job", [], 3), choose("daemonset")])
def test_a_selector_replaces_the_labels_of_vendors(how: Any) -> None:
    body = documents(replace(CHAT, gpu_resource="vendor.io/card", node_selector={"pool": "gpu"}), how)[1]
    assert body["spec"]["template"]["spec"]["nodeSelector"] == {"pool": "gpu"}
    assert nodes_of(body) == []
    with pytest.raises(UsageError, match=r"no node label is known for vendor\.io/card") as caught:
        documents(replace(CHAT, gpu_resource="vendor.io/card"), how)
    assert "--node-selector" in caught.value.hint


def test_nodes_with_similar_names_have_their_own_jobs() -> None:
    nodes = ["ip-10-0-15-245.ec2.internal", "ip-10-0-16-239.ec2.internal"]  # the same six digits of SHA-256
    assert len(set(named(CHAT, "job", nodes))) == 2


def test_a_name_depends_on_the_image_and_the_method() -> None:
    jobs = ("job", ["a"])
    assert named(CHAT, *jobs) == named(CHAT, *jobs)
    others = [
        named(replace(CHAT, image=PINNED), *jobs),
        named(CHAT, *jobs, secret="registry"),
        named(CHAT, *jobs, taints=["team"]),
        named(CHAT, "job", ["b"]),
        named(CHAT, "job", [], 1),
        named(CHAT, *jobs),
    ]
    assert len({name for names in others for name in names}) == len(others)


def test_more_nodes_keep_the_jobs_of_earlier_ones() -> None:
    before, after = named(CHAT, "job", ["a", "b"]), named(CHAT, "job", ["c", "b", "a"])
    assert set(before) < set(after)


def test_names_fit_for_any_service_name() -> None:
    for service in ("a" * 200, "Org/Qwen_2.5-72B", "模型"):
        for how, pod in ((("job", ["n" * 250]), "-xxxxx"), (("job", [], 100_000), "-99999-xxxxx")):
            (name,) = named(replace(CHAT, service=service), *how)
            assert len(name + pod) <= 63


def test_a_tag_is_pulled_again_and_a_digest_is_not() -> None:
    assert not pinned(IMAGE)
    assert pinned(PINNED)
    policies = [
        containers(documents(replace(CHAT, image=image), choose(kind, nodes))[1])[0]["imagePullPolicy"]
        for image in (IMAGE, PINNED)
        for kind, nodes in (("job", ["a"]), ("daemonset", []))
    ]
    assert policies == ["Always", "Always", "IfNotPresent", "IfNotPresent"]


def test_no_container_sees_the_gpus_of_its_node() -> None:
    for how in (choose("job", ["a"]), choose("job", [], 2), choose("daemonset")):
        pull = containers(documents(CHAT, how)[1])[0]
        assert {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"} in pull["env"]


def test_documents_are_written_without_references() -> None:
    for how in (choose("job", ["a", "b"]), choose("job", [], 2), choose("daemonset")):
        assert "&id" not in yaml.safe_dump_all(documents(CHAT, how))
