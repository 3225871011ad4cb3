"""Detection of the adapter from metric names."""

from __future__ import annotations

from pathlib import Path

import pytest

from collectors.mapping import registry, signatures
from collectors.receive.routing import AdapterRouter


@pytest.mark.parametrize(
    ("metric", "adapter"),
    [
        ("vllm:time_to_first_token_seconds_bucket", "vllm"),  # a Triton and a router hand it on
        ("amd_gpu_gfx_activity", "amd"),
        ("npu_chip_info_link_status_0_1", "npu_exporter"),
        ("nv_inference_request_success", "triton"),
        ("process_cpu_seconds_total", None),
        ("num_requests_running", None),  # MindIE's and NIM's
        ("something_else", None),
    ],
)
def test_a_metric_name_belongs_to_its_adapter(metric: str, adapter: str | None) -> None:
    assert signatures.adapter_of_metric(metric) == adapter
    if adapter is not None:
        assert metric in AdapterRouter()._reads[adapter]


def test_a_router_adapter_precedes_the_adapter_of_its_engine() -> None:
    assert signatures.carrier_among(["vllm", "vllm_router"]) == "vllm_router"
    assert signatures.carrier_among(["vllm", "dcgm"]) is None


def test_a_user_adapter_is_detected(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(
        "adapter: mine\ntarget: replica\nentities:\n  replica: {target: true}\n"
        "signals:\n  engine_requests_running: {gauge: mine_running}\n",
        encoding="utf-8",
    )
    assert signatures.adapter_of_metric("mine_running") is None
    registry.add(file)
    signatures.clear_caches()
    try:
        assert signatures.adapter_of_metric("mine_running") == "mine"
    finally:
        registry.ADAPTERS.pop("mine")
        registry.adapter.cache_clear()
        signatures.clear_caches()
