"""``outrider capacity what-if warm``: nodes, GPU resource, and the note about image tags."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.service.cli.test_cli import answer

WARM = ("capacity", "warm", "--service", "chat", "--phase", "pull=140", "-o", "json")
IMAGE = ("--image", "vllm/vllm-openai:v0.11.0")


def settings(folder: Path, gpu_type: str) -> None:
    (folder / "outrider.yaml").write_text(f"services: [{{name: chat, gpu_type: '{gpu_type}'}}]\n")


def made(found: dict[str, Any], kind: str) -> dict[str, Any]:
    pod: dict[str, Any] = next(one for one in found["documents"] if one["kind"] == kind)["spec"]["template"]["spec"]
    return pod


@pytest.mark.parametrize(
    ("gpu_type", "resource", "label"),
    [
        ("H100", "nvidia.com/gpu", "nvidia.com/gpu.present"),
        ("MI300X", "amd.com/gpu", "amd.com/gpu.product-name"),
        ("Ascend 910B", "huawei.com/Ascend910", "node.kubernetes.io/npu.chip.name"),
    ],
)
def test_the_resource_is_that_of_the_services_gpus(tmp_path: Path, gpu_type: str, resource: str, label: str) -> None:
    settings(tmp_path, gpu_type)
    found = answer(*WARM, *IMAGE, cwd=tmp_path)
    assert found["gpu_resource"] == resource
    assert made(found, "Deployment")["containers"][0]["resources"]["limits"] == {resource: 1}
    terms = made(found, "DaemonSet")["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert label in [one["key"] for term in terms["nodeSelectorTerms"] for one in term["matchExpressions"]]
    assert label in found["pre_pull"]["why"]


def test_named_nodes_and_resource_are_used(tmp_path: Path) -> None:
    settings(tmp_path, "Ascend 910B")
    named = ("--node-selector", "pool=npu", "--node-selector", "zone=a", "--gpu-resource", "huawei.com/npu")
    found = answer(*WARM, *IMAGE, *named, cwd=tmp_path)
    for kind in ("Deployment", "DaemonSet"):
        assert made(found, kind)["nodeSelector"] == {"pool": "npu", "zone": "a"}
        assert made(found, kind)["tolerations"][0]["key"] == "huawei.com/npu"
    assert "affinity" not in made(found, "DaemonSet")
    assert made(found, "Deployment")["containers"][0]["resources"]["limits"] == {"huawei.com/npu": 1}
    assert "--node-selector" not in found["pre_pull"]["why"], "nothing is left to name"


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_note_about_a_tag_matches_the_documents(tmp_path: Path, language: str) -> None:
    daemon = answer(*WARM, *IMAGE, "--lang", language, cwd=tmp_path)["pre_pull"]
    jobs = answer(*WARM, *IMAGE, "--node", "a", "--lang", language, cwd=tmp_path)["pre_pull"]
    assert "rollout restart" in daemon["why"]
    assert "rollout restart" not in jobs["why"]
    pinned = ("--image", "vllm/vllm-openai@sha256:" + "0a" * 32)
    assert "sha256" not in answer(*WARM, *pinned, "--lang", language, cwd=tmp_path)["pre_pull"]["why"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--node-selector", "gpu"), "--node-selector 'gpu' is not a label with a value"),
        (("--node-selector", "a=b", "--node-selector", "a=c"), "gives a two values"),
        (("--gpu-resource", "gpu"), "--gpu-resource 'gpu' is not a resource name"),
        ((*IMAGE, "--gpu-resource", "vendor.io/card"), "no node label is known for vendor.io/card"),
    ],
)
def test_invalid_node_selectors_are_rejected(tmp_path: Path, arguments: tuple[str, ...], expected: str) -> None:
    found = answer(*WARM, *arguments, cwd=tmp_path, code=2)
    assert expected in found["error"]["message"]
    assert found["error"]["hint"]
