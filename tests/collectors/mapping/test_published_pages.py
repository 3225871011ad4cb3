"""Coverage of whole pages: no core signal is missing without a reason.

Pages of the simulated engines have every family of real ones (``tests/simulator/test_pages_engines_real.py``).
Published pages of other projects are looked at where ``OUTRIDER_DATA`` names them.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from collectors.exposition.parser import Parser
from collectors.mapping.coverage import check_coverage
from collectors.mapping.registry import adapter
from outrider.vocabulary import catalog
from tests.simulator.engine_replicas import KINDS, Engines

DATA = Path(os.environ.get("OUTRIDER_DATA", Path(__file__).parents[4] / "shared"))
_DISAGGREGATED = {"engine_kv_transfer_failures_per_second"}  # no KV connector, no transfer
# Triton knows nothing of tokens and batches; its vLLM backend does. First answers are counted on request.
_TRITON = {
    "engine_requests_running", "engine_kv_cache_usage_ratio", "engine_ttft_seconds", "engine_itl_seconds",
    "engine_prompt_tokens_per_second", "engine_generation_tokens_per_second", "engine_generation_tokens_total",
}  # fmt: skip
# A counter of SGLang's scheduler appears with its first increment.
_SGLANG = {"engine_preemptions_per_second", "engine_iterations_total"} | _DISAGGREGATED
MISSING = {"vllm": _DISAGGREGATED, "sglang": _SGLANG, "tgi": set(), "triton": _TRITON, "mindie": set()}
PUBLISHED = {
    # made by SGLang's own code without a request over HTTP and without stages
    "sglang": ("sglang", _SGLANG | {
        "engine_prefill_seconds", "engine_decode_seconds", "engine_error_ratio", "engine_rejected_per_second",
        "engine_http_requests_total", "engine_http_failed_total", "engine_http_refused_total",
    }),
    "tgi": ("tgi", set()),
    "triton": ("triton", _TRITON),
    "mindie": ("mindie", set()),
    # a T4 has no NVLink and no rows to remap; the profiling lines of this page name no device; the rest is opt-in
    "dcgm_exporter_t4": ("dcgm", {
        "hw_accel_tensor_active_ratio", "hw_accel_throttle_thermal_ratio", "hw_accel_throttle_power_ratio",
        "hw_accel_healthy", "hw_accel_ecc_correctable_total", "hw_accel_ecc_uncorrectable_total",
        "hw_accel_memory_retired_total", "hw_accel_row_remap_failed", "hw_accel_row_remap_pending",
        "hw_accel_interconnect_bytes_per_second", "hw_accel_interconnect_errors_total",
    }),
    # a release that named resources in the metric, a cluster without accelerators, no time of becoming ready
    "kube_state_metrics": ("kube_state_metrics", {
        "node_accel_capacity", "node_accel_allocated_ratio", "pod_startup_seconds",
    }),
    "cadvisor": ("cadvisor", {"container_oom_events"}),  # newer than this kubelet
}  # fmt: skip


def missing_core(name: str, text: str) -> set[str]:
    coverage = check_coverage(adapter(name), Parser().parse((text if text.endswith("\n") else f"{text}\n").encode()))
    for language in ("en", "zh"):
        for one in coverage.as_dict(language)["missing"]:
            assert one["fix"], one
            assert "collect.fix" not in one["fix"], one
    assert coverage.present
    return {one.signal for one in coverage.missing if one.expected and catalog.signal(one.signal).tier == "core"}


@pytest.mark.parametrize("kind", KINDS)
def test_engine_pages_give_every_available_core_signal(kind: str) -> None:
    engines = Engines(kind)
    assert missing_core(kind, engines.step()) == MISSING[kind]


@pytest.mark.parametrize("file", PUBLISHED)
def test_published_pages_give_every_available_core_signal(file: str) -> None:
    path = DATA / f"pages/{file}.txt"
    if not path.exists():
        pytest.skip(f"no pages of other systems under {DATA}; set OUTRIDER_DATA to try them")
    name, wanted = PUBLISHED[file]
    assert missing_core(name, path.read_text(encoding="utf-8")) == wanted


@pytest.mark.parametrize("path", sorted(DATA.glob("recordings/vllm-*/pages/*.txt")) or [None])
def test_recorded_vllm_pages_give_every_available_core_signal(path: Path | None) -> None:
    if path is None:
        pytest.skip(f"no recorded pages under {DATA}; set OUTRIDER_DATA to try them")
    assert missing_core("vllm", path.read_text(encoding="utf-8")) == _DISAGGREGATED
