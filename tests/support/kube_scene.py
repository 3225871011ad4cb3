"""Model servers on a real control plane, with the test as their kubelet."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from collectors.events.unresolved_event import UnresolvedEvent
from collectors.kubernetes.api import KubeApi
from collectors.kubernetes.event_source import KubernetesEventSource
from collectors.net.http import HttpClient
from outrider.clock import SystemClock, rfc3339
from outrider.wire.http_auth import Access, Tls
from tests.support.kube import Cluster

H100 = {
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.count": "8",
    "nvidia.com/gpu.clique": "7b968a6d-c8aa-45e1-9e07-e1e51be99c31.1",
    "nvidia.com/cuda.driver-version.full": "570.124.06",
    "nvidia.com/cuda.runtime-version.full": "12.8",
    "topology.kubernetes.io/zone": "zone-a",
}


def now() -> datetime:
    return SystemClock().now()


def source(cluster: Cluster, *namespaces: str, token: str = "admin") -> KubernetesEventSource:
    """Returns the product's event source of this API server."""
    access = Access(bearer_token_file=cluster.token_file(token), tls=Tls(insecure_skip_verify=True))
    client = HttpClient("kubernetes", cluster.url, timeout=timedelta(seconds=5), access=access)
    return KubernetesEventSource("kubernetes", KubeApi(client), "c", namespaces=namespaces)


async def news(reader: KubernetesEventSource) -> list[UnresolvedEvent]:
    events, errors = await reader.read(now(), [])
    assert errors == []
    return events


def template(image: str = "vllm/vllm-openai:v0.11.0", gpus: int = 4, *args: str, **pod: Any) -> dict[str, Any]:
    """Returns a pod template of a model server."""
    flags = args or ("--model=meta-llama/Llama-3.3-70B-Instruct", f"--tensor-parallel-size={gpus}")
    container = {
        "name": "vllm",
        "image": image,
        "args": list(flags),
        "resources": {"limits": {"nvidia.com/gpu": str(gpus)}},
    }
    labels = {"app": "chat", "app.kubernetes.io/name": "chat-70b"}
    return {"metadata": {"labels": labels}, "spec": {"containers": [container], **pod}}


def deployment(cluster: Cluster, namespace: str, replicas: int = 2, **spec: Any) -> str:
    """Creates the Deployment ``chat``; returns its path."""
    path = f"/apis/apps/v1/namespaces/{namespace}/deployments"
    wanted = {"selector": {"matchLabels": {"app": "chat"}}, "replicas": replicas, "template": template(), **spec}
    cluster.create(path, {"metadata": {"name": "chat"}, "spec": wanted})
    return f"{path}/chat"


def run(cluster: Cluster, pod: dict[str, Any], *, started: datetime | None = None, restarts: int = 0) -> None:
    """Reports a pod as started and ready, as the kubelet does."""
    begun = rfc3339(started or now())
    cluster.pod_status(
        pod,
        phase="Running",
        conditions=[
            {"type": "PodScheduled", "status": "True", "lastTransitionTime": pod["metadata"]["creationTimestamp"]},
            {"type": "Initialized", "status": "True", "lastTransitionTime": begun},
            {"type": "ContainersReady", "status": "True", "lastTransitionTime": rfc3339(now())},
            {"type": "Ready", "status": "True", "lastTransitionTime": rfc3339(now())},
        ],
        containerStatuses=[
            {
                "name": "vllm", "image": "vllm", "imageID": "", "ready": True, "restartCount": restarts,
                "state": {"running": {"startedAt": begun}},
            }
        ],
    )  # fmt: skip


def run_all(cluster: Cluster, namespace: str, count: int) -> None:
    """Reports every scheduled pod as started and ready."""
    for pod in cluster.scheduled(namespace, count):
        if pod["status"].get("phase") != "Running" and not pod["metadata"].get("deletionTimestamp"):
            run(cluster, pod)


def event(cluster: Cluster, pod: dict[str, Any], reason: str, message: str, at: datetime) -> None:
    """Creates an event of the kubelet about a pod."""
    meta = pod["metadata"]
    involved = {"kind": "Pod", "namespace": meta["namespace"], "name": meta["name"], "uid": meta["uid"]}
    cluster.create(
        f"/api/v1/namespaces/{meta['namespace']}/events",
        {
            "metadata": {"name": f"{meta['name']}.{reason.lower()}"},
            "involvedObject": involved,
            "reason": reason,
            "message": message,
            "type": "Normal",
            "firstTimestamp": rfc3339(at),
            "lastTimestamp": rfc3339(at),
            "count": 1,
        },
    )
