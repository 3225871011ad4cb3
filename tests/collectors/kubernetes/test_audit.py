"""Violations and valid cases of each audit rule."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.kubernetes.audit import RULES, Severity, WorkloadFinding, audit, selects
from collectors.kubernetes.engine_args import engine_args
from collectors.kubernetes.objects import (
    AUTOSCALERS,
    DEPLOYMENTS,
    DISRUPTION_BUDGETS,
    INFERENCE_SERVICES,
    LEADER_WORKER_SETS,
    NODES,
    PODS,
    QUOTAS,
    Objects,
    Resource,
)
from outrider.text.i18n import texts
from tests.support.kube_replicas import replicas_of

Json = dict[str, Any]
SOUND: Json = {
    "metadata": {"name": "chat", "namespace": "serving", "uid": "d1", "labels": {"app.kubernetes.io/name": "chat-70b"}},
    "spec": {
        "replicas": 2,
        "template": {
            "metadata": {"labels": {"app": "chat"}},
            "spec": {
                "terminationGracePeriodSeconds": 120,
                "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory"}}],
                "containers": [
                    {
                        "name": "vllm",
                        "image": "vllm/vllm-openai:v0.11.0",
                        "args": ["--model=m", "--tensor-parallel-size", "4", "--max-model-len=32768"],
                        "resources": {"limits": {"nvidia.com/gpu": "4", "memory": "200Gi"}, "requests": {"cpu": "16"}},
                        "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],
                        "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}},
                        "startupProbe": {"httpGet": {"path": "/health"}, "periodSeconds": 10, "failureThreshold": 60},
                        "livenessProbe": {"httpGet": {"path": "/health"}},
                    }
                ],
            },
        },
    },
}
BUDGET: Json = {
    "metadata": {"name": "chat", "namespace": "serving", "uid": "b1"},
    "spec": {"maxUnavailable": 1, "selector": {"matchLabels": {"app": "chat"}}},
    "status": {"expectedPods": 2, "currentHealthy": 2, "desiredHealthy": 1, "disruptionsAllowed": 1},
}


def found(workload: Json, *others: tuple[Resource, Json]) -> list[WorkloadFinding]:
    given_ = list(others)
    if not any(resource is DISRUPTION_BUDGETS for resource, _ in others):
        given_.append((DISRUPTION_BUDGETS, BUDGET))
    objects = Objects.of([(DEPLOYMENTS, workload), *given_])
    return list(audit(objects, replicas_of(objects), "c"))


def rules(workload: Json, *others: tuple[Resource, Json]) -> set[str]:
    return {one.rule for one in found(workload, *others)}


def changed(path: str, value: Any) -> Json:
    """The valid workload with one changed value of its container, pod or spec; None removes it."""
    made = copy.deepcopy(SOUND)
    where: Any = made["spec"]
    if path.startswith("pod."):
        where = where["template"]["spec"]
    elif not path.startswith("spec."):
        where = where["template"]["spec"]["containers"][0]
    *parents, last = path.removeprefix("pod.").removeprefix("spec.").split(".")
    for part in parents:
        where = where[part]
    if value is None:
        del where[last]
    else:
        where[last] = value
    return made


def flags(*more: str, tp: int = 4) -> Json:
    return changed("args", ["--model=m", f"--tensor-parallel-size={tp}", "--max-model-len=1", *more])


def test_a_correct_workload_violates_no_rule() -> None:
    assert found(SOUND) == []


@pytest.mark.parametrize(
    ("rule", "workload"),
    [
        ("tp-exceeds-gpus", flags(tp=8)),
        ("gpus-unused", flags(tp=2)),
        ("readiness-missing", changed("readinessProbe", None)),
        ("readiness-before-load", changed("readinessProbe", {"tcpSocket": {"port": 8000}})),
        ("readiness-before-load", changed("readinessProbe", {"httpGet": {"path": "/v2/health/live"}})),
        ("readiness-before-load", changed("readinessProbe", {"httpGet": {"path": "/metrics"}})),
        ("liveness-kills-load", changed("startupProbe", None)),
        ("startup-probe-short", changed("startupProbe", {"periodSeconds": 10, "failureThreshold": 6})),
        ("memory-limit-missing", changed("resources.limits", {"nvidia.com/gpu": "4"})),
        ("cpu-request-missing", changed("resources.requests", None)),
        ("max-length-missing", changed("args", ["--model=m", "-tp", "4"])),
        ("batching-off", flags("--max-num-seqs=1")),
        ("prefix-cache-off", flags("--no-enable-prefix-caching")),
        ("prefix-cache-off", flags("--enable-prefix-caching=false")),
        ("graphs-off", flags("--enforce-eager")),
        ("image-floating", changed("image", "vllm/vllm-openai")),
        ("image-floating", changed("image", "localhost:5000/vllm/vllm-openai:latest")),
        ("shared-memory-small", changed("volumeMounts", None)),
        ("single-replica", changed("spec.replicas", 1)),
        ("grace-short", changed("pod.terminationGracePeriodSeconds", 30)),
    ],
)
def test_one_mistake_violates_one_rule(rule: str, workload: Json) -> None:
    assert rules(workload) == {rule}


@pytest.mark.parametrize(
    "workload",
    [
        changed("image", "vllm/vllm-openai@sha256:" + "0" * 64),
        flags("--data-parallel-size=2", tp=2),
        flags("--enforce-eager=false"),
        changed("command", ["sh", "-c", "vllm serve m --tensor-parallel-size 4 --max-model-len 1000"]),
        changed("readinessProbe", {"exec": {"command": ["check"]}}),
        changed("pod.hostIPC", True),
    ],
)
def test_equivalent_settings_violate_no_rule(workload: Json) -> None:
    assert rules(workload) == set()


def test_workloads_without_accelerators_are_ignored() -> None:
    assert rules(changed("resources", {"limits": {"cpu": "1"}})) == set()


def test_disruption_budgets() -> None:
    other = {**BUDGET, "metadata": {**BUDGET["metadata"], "namespace": "elsewhere"}}
    assert rules(SOUND, (DISRUPTION_BUDGETS, other)) == {"no-disruption-budget"}
    tight = {**BUDGET, "status": {"expectedPods": 2, "currentHealthy": 2, "desiredHealthy": 2, "disruptionsAllowed": 0}}
    assert rules(SOUND, (DISRUPTION_BUDGETS, tight)) == {"drain-blocked"}
    hurt = {**BUDGET, "status": {"expectedPods": 2, "currentHealthy": 1, "desiredHealthy": 1, "disruptionsAllowed": 0}}
    assert rules(SOUND, (DISRUPTION_BUDGETS, hurt)) == set()  # it will allow one again


def scaler(*metrics: Json, most: int = 4) -> Json:
    target = {"kind": "Deployment", "name": "chat"}
    spec = {"scaleTargetRef": target, "maxReplicas": most, "metrics": list(metrics)}
    return {"metadata": {"name": "chat", "namespace": "serving", "uid": "h1"}, "spec": spec}


def test_autoscalers_and_quotas() -> None:
    cpu = {"type": "Resource", "resource": {"name": "cpu"}}
    load = {"type": "External", "external": {"metric": {"name": "requests_waiting"}}}
    quota = {
        "metadata": {"name": "gpus", "namespace": "serving", "uid": "q1"},
        "spec": {"hard": {"requests.nvidia.com/gpu": "12"}},
    }
    assert rules(SOUND, (AUTOSCALERS, scaler(cpu))) == {"scales-on-cpu"}
    assert rules(SOUND, (AUTOSCALERS, scaler(cpu, load))) == set()
    assert rules(SOUND, (AUTOSCALERS, scaler(load)), (QUOTAS, quota)) == {"quota-below-ceiling"}
    assert rules(SOUND, (AUTOSCALERS, scaler(load, most=3)), (QUOTAS, quota)) == set()


def node(name: str, clique: str = "") -> Json:
    labels = {"nvidia.com/gpu.clique": clique} if clique else {}
    return {"metadata": {"name": name, "uid": name, "labels": labels}}


def worker(number: int, on: str) -> Json:
    lws = "leaderworkerset.sigs.k8s.io"
    labels = {f"{lws}/name": "big", f"{lws}/group-index": "0", f"{lws}/worker-index": str(number)}
    spec = copy.deepcopy(flags(tp=8)["spec"]["template"]["spec"])
    meta = {"name": f"big-0-{number}" if number else "big-0", "namespace": "serving", "uid": f"p{number}"}
    return {"metadata": {**meta, "labels": labels}, "spec": {**spec, "nodeName": on}}


@pytest.mark.parametrize(
    ("nodes", "broken"),
    [
        ([node("a", "x.1"), node("b", "x.1")], False),
        ([node("a", "x.1"), node("b", "x.2")], True),
        ([node("a"), node("b")], True),  # no NVLink between nodes is known
    ],
)
def test_a_tensor_parallel_group_stays_inside_one_nvlink_domain(nodes: list[Json], broken: bool) -> None:
    lws = {
        "metadata": {"name": "big", "namespace": "serving", "uid": "l1"},
        "spec": {"replicas": 2, "leaderWorkerTemplate": {"size": 2, "workerTemplate": flags(tp=8)["spec"]["template"]}},
    }
    pods = [(PODS, worker(number, name)) for number, name in enumerate(("a", "b"))]
    objects = Objects.of([(LEADER_WORKER_SETS, lws), *((NODES, one) for one in nodes), *pods])
    reported = audit(objects, replicas_of(objects), "c")
    across = [one for one in reported if one.rule == "tp-across-nvlink"]
    assert bool(across) is broken
    assert all(one.kind == "LeaderWorkerSet" for one in reported)


def test_workloads_of_an_inference_service_are_reported_once() -> None:
    model = {"args": ["--max_length=1"], "image": "kserve/huggingfaceserver:latest-gpu",
             "resources": {"limits": {"nvidia.com/gpu": "1"}}}  # fmt: skip
    isvc = {
        "metadata": {"name": "llama", "namespace": "serving", "uid": "i1"},
        "spec": {"predictor": {"minReplicas": 1, "model": model}},
    }
    owner = {"kind": "InferenceService", "name": "llama", "controller": True}
    owned = copy.deepcopy(changed("readinessProbe", None))
    owned["metadata"]["ownerReferences"] = [owner]
    objects = Objects.of([(INFERENCE_SERVICES, isvc), (DEPLOYMENTS, owned)])
    reported = audit(objects, replicas_of(objects), "c")
    assert {one.workload.name for one in reported} == {"llama"}
    assert {one.service for one in reported} == {"llama"}


def test_findings_are_sorted_by_severity_and_every_rule_has_texts() -> None:
    bad = changed("readinessProbe", None)
    bad["spec"]["replicas"] = 1
    severities = [one.severity for one in found(bad)]
    assert severities == sorted(severities, key=list(Severity).index)
    for language in ("en", "zh"):
        known = texts(language)
        for rule in RULES:
            assert f"audit.{rule}.found" in known
            assert f"audit.{rule}.do" in known
    row = found(bad)[0].as_dict()
    assert row["found"]["zh"] != row["found"]["en"]
    assert "{" not in row["found"]["en"]


def test_selectors() -> None:
    labels = {"app": "chat", "tier": "gold"}
    assert selects({}, labels)
    assert selects({"matchExpressions": [{"key": "app", "operator": "In", "values": ["chat", "x"]}]}, labels)
    assert not selects({"matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["chat"]}]}, labels)
    assert selects({"matchExpressions": [{"key": "zone", "operator": "DoesNotExist"}]}, labels)
    assert not selects({"matchExpressions": [{"key": "zone", "operator": "Exists"}]}, labels)
    assert not selects({"matchExpressions": [{"key": "zone", "operator": "Near"}]}, labels)


@pytest.mark.parametrize(
    ("container", "engine", "model", "tp"),
    [
        ({"image": "vllm/vllm-openai:v1", "args": ["--model", "m", "-tp", "2"]}, "vllm", "m", 2),
        ({"image": "x", "command": ["vllm", "serve", "org/m"], "args": ["-tp=8"]}, "vllm", "org/m", 8),
        ({"image": "lmsysorg/sglang:v1", "command": ["python3", "-m", "sglang.launch_server"],
          "args": ["--model-path", "m", "--tp", "4"]}, "sglang", "m", 4),
        ({"image": "ghcr.io/huggingface/text-generation-inference:3", "env": [{"name": "NUM_SHARD", "value": "2"},
          {"name": "MODEL_ID", "value": "m"}]}, "tgi", "m", 2),
        ({"image": "nvcr.io/x/tensorrt-llm:1", "command": ["trtllm-serve", "m", "--tp_size", "2"]}, "tensorrt_llm", "m", 2),  # noqa: E501
        ({"image": "x", "command": ["bash", "-c", "exec vllm serve 'my model' \\\n --tensor-parallel-size 4"]}, "vllm", "my model", 4),  # noqa: E501
        ({"image": "nginx"}, "", "", 1),
    ],
)  # fmt: skip
def test_command_lines_of_engines(container: Json, engine: str, model: str, tp: int) -> None:
    args = engine_args(container)
    assert (args.engine, args.model, args.tensor_parallel) == (engine, model, tp)


@pytest.mark.parametrize(
    ("args", "role"),
    [
        (["--disaggregation-mode", "prefill"], "prefill"),
        (["--disaggregation-mode=decode"], "decode"),
        (["--disaggregation-mode", "null"], ""),
        (["--kv-transfer-config", '{"kv_connector":"NixlConnector","kv_role":"kv_producer"}'], "prefill"),
        (["--kv-transfer-config", '{"kv_role":"kv_consumer"}'], "decode"),
        (["--kv-transfer-config", '{"kv_role":"kv_both"}'], ""),
        (["--kv-transfer-config", "{broken"], ""),
        (["--kv-transfer-config", "[1]"], ""),
        ([], ""),
    ],
)
def test_the_role_of_an_engine(args: list[str], role: str) -> None:
    facts = engine_args({"image": "vllm/vllm-openai", "args": args}).facts(engine=True)
    assert facts.get("role", "") == role


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(ANYTHING)
def test_arbitrary_objects_do_not_break_the_audit(anything: Any) -> None:
    for path in ("args", "command", "readinessProbe", "startupProbe", "resources", "volumeMounts", "image", "pod.volumes",  # noqa: E501
                 "spec.replicas", "pod.terminationGracePeriodSeconds"):  # fmt: skip
        if anything is not None:
            assert all(one.message("en") for one in found(changed(path, anything)))
    whole = {"metadata": {"name": "x", "uid": "x"}, "spec": anything, "status": anything}
    for resource in (AUTOSCALERS, QUOTAS, PODS, NODES, INFERENCE_SERVICES):
        found(SOUND, (resource, whole))
