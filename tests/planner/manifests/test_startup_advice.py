from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from outrider.records.change_log import PhaseTime, StartPhase, Startup
from planner.manifests.kube_gpus import checked_resource, resource_of, selector_of
from planner.manifests.startup_advice import WarmSettings, documents, phases_of, warm

BEGAN = datetime(2026, 5, 1, tzinfo=UTC)


def _start(number, pull, load):
    phases = (
        PhaseTime(StartPhase.PULL, pull, "event Pulled"),
        PhaseTime(StartPhase.WEIGHT_LOAD, load, "log"),
        PhaseTime(StartPhase.FIRST_REQUEST, 900.0, "counter"),
    )
    pod = EntityRef("lab", EntityKind.POD, "prod", f"chat-{number}")
    ready = BEGAN + timedelta(seconds=pull + load)
    return Startup(str(number), pod, BEGAN, service="chat", phases=phases, ready_at=ready)


def test_the_longest_phase_comes_first_and_waiting_for_work_does_not_count():
    starts = [_start(1, 100.0, 60.0), _start(2, 140.0, 50.0), _start(3, 120.0, 40.0)]
    result = warm(WarmSettings("chat"), phases_of(starts), starts)
    assert result.attack_first == "pull"
    assert result.phases["pull"] == 120.0
    assert result.lead_time_p95_seconds == 190.0
    saved = {one.name: one.seconds_saved for one in result.remedies}
    assert saved == {"image_pre_pull": 120.0, "weights_on_node": 50.0, "warm_pool": 190.0}


def test_only_remedies_that_hold_gpus_have_a_cost():
    settings = WarmSettings("chat", gpus=4, spare=2, price_per_gpu_hour=2.5)
    result = {
        one.name: one for one in warm(settings, {"schedule": 30.0, "node_provision": 240.0, "pull": 90.0}).remedies
    }
    assert result["balloon_pods"].seconds_saved == 270.0
    assert result["balloon_pods"].idle_gpus == 8
    assert result["balloon_pods"].idle_cost_per_hour == 20.0
    assert result["image_pre_pull"].idle_cost_per_hour == 0.0
    assert warm(WarmSettings("chat", gpus=4), {"schedule": 30.0}).remedies[0].idle_cost_per_hour is None


def test_without_measured_starts_there_is_no_advice():
    result = warm(WarmSettings("chat"), {})
    assert result.attack_first is None
    assert result.remedies == ()


def test_balloons_yield_to_every_replica_and_hold_its_gpus():
    made = documents(
        WarmSettings("chat", "prod", image="vllm/vllm-openai:v0.11.0", url="http://chat:8000", gpus=4, spare=2)
    )
    kinds = [one["kind"] for one in made]
    assert kinds == ["PriorityClass", "Deployment", "PriorityClass", "DaemonSet", "Job"]
    priority, balloons, _, pull, prompts = made
    assert priority["value"] < 0
    assert priority["preemptionPolicy"] == "Never"
    pod = balloons["spec"]["template"]
    assert balloons["spec"]["replicas"] == 2
    assert pod["spec"]["priorityClassName"] == priority["metadata"]["name"]
    assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 4}
    assert balloons["spec"]["selector"]["matchLabels"].items() <= pod["metadata"]["labels"].items()
    assert pull["spec"]["template"]["spec"]["initContainers"][0]["image"] == "vllm/vllm-openai:v0.11.0"
    compile(prompts["spec"]["template"]["spec"]["containers"][0]["command"][2], "prompts", "exec")


def test_without_image_and_url_only_balloons_are_rendered():
    assert [one["kind"] for one in documents(WarmSettings("chat"))] == ["PriorityClass", "Deployment"]


def test_warm_up_prompts_to_another_url_or_model_are_another_job():
    def job(**settings):
        return documents(WarmSettings(**{"service": "chat", "url": "http://chat:8000", **settings}))[-1]

    jobs = [job(), job(url="http://other:8000"), job(model="org/chat-70b"), job(service="a" * 90)]
    assert job() == jobs[0]
    assert len({one["metadata"]["name"] for one in jobs}) == len(jobs)
    assert all(len(one["metadata"]["name"] + "-xxxxx") <= 63 for one in jobs)


def test_balloons_follow_the_selector_and_prompts_run_anywhere():
    made = documents(WarmSettings("chat", url="http://chat:8000", node_selector={"pool": "gpu"}))
    _, balloons, prompts = (one.get("spec", {}).get("template", {}).get("spec") for one in made)
    assert balloons["nodeSelector"] == {"pool": "gpu"}
    assert "nodeSelector" not in prompts


@pytest.mark.parametrize(
    ("gpu_type", "resource"),
    [
        ("H100", "nvidia.com/gpu"),
        ("NVIDIA A100-SXM4-40GB", "nvidia.com/gpu"),
        ("unknown", "nvidia.com/gpu"),
        ("Ascend 910B", "huawei.com/Ascend910"),
        ("910b", "huawei.com/Ascend910"),
        ("Ascend910B3", "huawei.com/Ascend910"),
        ("MI300X", "amd.com/gpu"),
        ("AMD Instinct MI300X", "amd.com/gpu"),
    ],
)
def test_the_gpu_type_determines_the_requested_resource(gpu_type, resource):
    assert resource_of(gpu_type) == resource


def test_node_labels_are_parsed_by_the_rules_of_kubernetes():
    given = ["nvidia.com/gpu.product=NVIDIA-H100-80GB-HBM3", "pool=", "pool="]
    assert selector_of(given) == {"nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3", "pool": ""}
    for wrong in ("pool", "=gpu", "po ol=gpu", "pool=a b", "a/b/c=d", f"pool={'x' * 64}"):
        with pytest.raises(UsageError, match="is not a label with a value"):
            selector_of([wrong])
    with pytest.raises(UsageError, match="gives pool two values"):
        selector_of(["pool=a", "pool=b"])
    with pytest.raises(UsageError, match="is not a resource name"):
        checked_resource("gpu")
