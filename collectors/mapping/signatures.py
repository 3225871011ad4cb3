"""Adapter of a page or series, by the names of its metrics. Pure."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection
from functools import cache, lru_cache

from collectors.mapping.registry import ADAPTERS, adapter

# Metric that identifies a page whose adapter is not configured. Systems that also publish the metrics of others
# (a router, a Triton with an engine in it) come before them. MindIE, NIM and the eBPF agents that send
# OpenTelemetry have no name of their own: their adapter must be configured.
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
    "litellm": "litellm_proxy_total_requests_metric_total",
    "probe": "probe_success",
    "sdk": "outrider_sdk_answers_total",
}
CARRIERS = ("vllm_router", "triton_trtllm", "triton", "ray_serve")  # their pages contain the metrics of others too
_LEAST = 2  # own metric names required on a page without the exporter's signature metric
_COMMON = re.compile(
    r"up|target_info|(scrape|process|python|go|http|promhttp|grpc|jvm)_.*"
)  # published by many programs


@cache
def metric_owners() -> dict[str, str]:
    """Maps metrics to adapters: by signature, or the only adapter that reads the metric as its own."""
    readers: dict[str, list[str]] = {}
    for name in ADAPTERS:
        for metric in adapter(name).metric_names:
            if not _COMMON.fullmatch(metric):
                readers.setdefault(metric, []).append(name)
    plain = {metric: [name for name in names if name not in CARRIERS] or names for metric, names in readers.items()}
    unique = {metric: names[0] for metric, names in plain.items() if len(names) == 1}
    return unique | {metric: name for name, metric in SIGNATURES.items()}


@lru_cache(maxsize=100_000)
def adapter_of_metric(metric: str) -> str | None:
    """Adapter of a metric, by name or by a pattern of names; None if there is none or several."""
    known = metric_owners().get(metric)
    if known is not None or _COMMON.fullmatch(metric):
        return known
    readers = [name for name in ADAPTERS if adapter(name).reads(metric)]
    plain = [name for name in readers if name not in CARRIERS] or readers
    return plain[0] if len(plain) == 1 else None


def is_common(metric: str) -> bool:
    """True if many programs publish the metric, so that it identifies none."""
    return _COMMON.fullmatch(metric) is not None


def adapter_of_page(names: Collection[str]) -> str | None:
    """Adapter of a page by the names of its metrics; None if none reads it, or several equally well."""
    for name, mark in SIGNATURES.items():
        if mark in names:
            return name
    counts = Counter(owner for metric in names if (owner := adapter_of_metric(metric)) is not None)
    (best, most), (_, second) = (*counts.most_common(2), (None, 0), (None, 0))[:2]
    return best if most >= _LEAST and most > second else None


@lru_cache(maxsize=4_096)
def other_adapter(own: str, names: frozenset[str]) -> str | None:
    """The other adapter that a page without a metric of its own adapter matches; None if there is none."""
    if any(adapter(own).reads(name) and not is_common(name) for name in names):
        return None
    match = adapter_of_page(names)
    return match if match != own else None


def clear_caches() -> None:
    """Clears the caches after an adapter was added."""
    metric_owners.cache_clear()
    adapter_of_metric.cache_clear()
    other_adapter.cache_clear()


def carrier_among(adapters: Collection[str]) -> str | None:
    """Of the adapters that a page matches, the one that carries the others; None if there is none."""
    return next((name for name in CARRIERS if name in adapters), None)
