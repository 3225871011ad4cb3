"""Whose page or series this is, by the names of its metrics. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from functools import cache, lru_cache

from collectors.mapping.registry import ADAPTERS, adapter

# A metric that tells whose page this is, where nobody named the adapter. Who publishes the metrics of others beside
# its own (a router, a Triton with an engine in it) stands before them. MindIE, NIM and the eBPF agents that speak
# OpenTelemetry have no name of their own: they must be named.
SIGNATURES: dict[str, str] = {
    "vllm_router": "vllm:num_incoming_requests_total",
    "triton_trtllm": "nv_trt_llm_request_metrics",
    "triton": "nv_inference_request_success",
    "ray_serve": "ray_serve_replica_processing_queries",
    "vllm": "vllm:num_requests_running",
    "sglang": "sglang:num_running_reqs",
    "tgi": "tgi_queue_size",
    "trtllm_serve": "trtllm_request_success_total",
    "lmdeploy": "lmdeploy:num_requests_running",
    "llamacpp": "llamacpp:requests_processing",
    "kserve": "request_predict_seconds_count",
    "dcgm": "DCGM_FI_DEV_GPU_TEMP",
    "npu_exporter": "npu_chip_info_temperature",
    "nvidia_gpu_exporter": "nvidia_smi_utilization_gpu_ratio",
    "amd": "gpu_gfx_activity",
    "node_exporter": "node_cpu_seconds_total",
    "coroot": "container_http_requests_total",
    "cadvisor": "container_cpu_usage_seconds_total",
    "kube_state_metrics": "kube_pod_info",
    "istio": "istio_requests_total",
    "envoy": "envoy_cluster_upstream_rq_total",
    "hubble": "hubble_http_requests_total",
    "epp": "inference_pool_ready_pods",
    "dynamo": "dynamo_frontend_requests_total",
    "knative": "kn_serving_invocation_duration_seconds_count",
    "keda": "keda_scaler_metrics_value",
    "otel_genai": "gen_ai_server_request_duration_seconds_count",
    "probe": "probe_success",
    "sdk": "outrider_sdk_answers_total",
}
CARRIERS = ("vllm_router", "triton_trtllm", "triton", "ray_serve")  # their pages hold the metrics of others too
_LEAST = 2  # names of its own that a page must bear, where it has not the one that marks the exporter
_COMMON = re.compile(r"up|target_info|(scrape|process|python|go|http|promhttp|grpc|jvm)_.*")  # many programs have them


@cache
def tells() -> dict[str, str]:
    """The adapter that a metric speaks for: that of its signature, or the only one that reads it as its own."""
    readers: dict[str, list[str]] = {}
    for name in ADAPTERS:
        for metric in adapter(name).metric_names:
            if not _COMMON.fullmatch(metric):
                readers.setdefault(metric, []).append(name)
    plain = {metric: [name for name in found if name not in CARRIERS] or found for metric, found in readers.items()}
    alone = {metric: found[0] for metric, found in plain.items() if len(found) == 1}
    return alone | {metric: name for name, metric in SIGNATURES.items()}


@lru_cache(maxsize=100_000)
def speaks_for(metric: str) -> str | None:
    """The adapter that a metric speaks for, by name or by a pattern of names; None when none or several."""
    known = tells().get(metric)
    if known is not None or _COMMON.fullmatch(metric):
        return known
    readers = [name for name in ADAPTERS if adapter(name).reads(metric)]
    plain = [name for name in readers if name not in CARRIERS] or readers
    return plain[0] if len(plain) == 1 else None


def is_common(metric: str) -> bool:
    """Whether many programs have it, so that it tells nothing of whose page it is on."""
    return _COMMON.fullmatch(metric) is not None


def whose(names: Collection[str]) -> str | None:
    """The adapter of a page by the names of its metrics; None when none reads it, or several equally well."""
    for name, mark in SIGNATURES.items():
        if mark in names:
            return name
    counts = Counter(one for metric in names if (one := speaks_for(metric)) is not None)
    (best, most), (_, second) = (*counts.most_common(2), (None, 0), (None, 0))[:2]
    return best if most >= _LEAST and most > second else None


@lru_cache(maxsize=4_096)
def looks_like(own: str, names: frozenset[str]) -> str | None:
    """The other adapter that a page without a metric of its own adapter speaks for; None when none does."""
    if any(adapter(own).reads(name) and not is_common(name) for name in names):
        return None
    found = whose(names)
    return found if found != own else None


def forget() -> None:
    """After an adapter was added: look anew."""
    tells.cache_clear()
    speaks_for.cache_clear()
    looks_like.cache_clear()


def first_of(adapters: Collection[str]) -> str | None:
    """Of the adapters that a page speaks for, the one that carries the others; None when none does."""
    return next((name for name in CARRIERS if name in adapters), None)
