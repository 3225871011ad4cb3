"""Present, missing and deprecated metrics of a page."""

from __future__ import annotations

import pytest

from collectors.exposition.parser import Parser
from collectors.mapping.coverage import check_coverage
from collectors.mapping.registry import adapter


def test_coverage_lists_present_missing_deprecated_and_unknown_metrics() -> None:
    body = (
        b'# TYPE own histogram\nown_bucket{le="+Inf"} 1\nown_sum 1\nown_count 1\n'
        b"vllm:gpu_cache_usage_perc 1\nvllm:num_requests_running 1\n"
    )
    coverage = check_coverage(adapter("vllm"), Parser().parse(body))
    assert {"engine_kv_cache_usage_ratio", "engine_requests_running"} <= set(coverage.present)
    assert coverage.old_spellings == {"engine_kv_cache_usage_ratio": "vllm:gpu_cache_usage_perc"}
    assert coverage.unknown_metrics == 1
    missing = {one.signal: one for one in coverage.missing}
    assert missing["engine_iterations_total"].expected == ("vllm:iteration_tokens_total_count",)
    assert missing["engine_iterations_total"].disables == ("hung_engine",)


def test_coverage_texts_exist_in_both_languages() -> None:
    coverage = check_coverage(adapter("dcgm"), Parser().parse(b'DCGM_FI_DEV_GPU_TEMP{UUID="a"} 1\n'))
    for language, words in (("en", "counters file"), ("zh", "计数器文件")):
        listed = {one["signal"]: one for one in coverage.as_dict(language)["missing"]}
        wanted = listed["hw_accel_throttle_thermal_ratio"]
        assert "DCGM_FI_DEV_THERMAL_VIOLATION" in wanted["fix"]
        assert words in wanted["fix"]
        assert not any(feature.startswith("collect.") for feature in wanted["disables"])


def test_old_and_new_names_of_dcgm() -> None:
    lines = b'DCGM_FI_DEV_GPU_TEMP{UUID="a"} 1\nDCGM_FI_DEV_BOARD_POWER_WATTS{UUID="a"} 1\n'
    coverage = check_coverage(adapter("dcgm"), Parser().parse(lines))
    assert coverage.old_spellings == {"hw_accel_temperature_celsius": "DCGM_FI_DEV_GPU_TEMP"}


def test_advice_contains_the_line_of_the_counters_file() -> None:
    coverage = check_coverage(adapter("dcgm"), Parser().parse(b'DCGM_FI_DEV_GPU_TEMP{UUID="a"} 1\n')).as_dict()
    fixes = {one["signal"]: one["fix"].splitlines() for one in coverage["missing"]}
    line = "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL, counter, Total number of double-bit volatile ECC errors."
    assert fixes["hw_accel_ecc_uncorrectable_total"][1:] == [line]
    assert len(fixes["hw_accel_interconnect_errors_total"][1:]) == 4


def test_samples_without_a_device_are_ignored() -> None:
    coverage = check_coverage(adapter("dcgm"), Parser().parse(b"DCGM_FI_DEV_GPU_TEMP 1\n"))
    assert "hw_accel_temperature_celsius" not in coverage.present


def test_a_mean_is_distinguished_from_quantiles() -> None:
    page = b"nv_inference_request_duration_us 1\nnv_inference_request_success 1\n"
    coverage = check_coverage(adapter("triton"), Parser().parse(page))
    assert "engine_e2e_seconds" in coverage.present
    (mean,) = (one for one in coverage.as_dict()["means_only"] if one["signal"] == "engine_e2e_seconds")
    assert mean["expected"] == ["nv_inference_request_summary_us"]
    assert "summary_latencies=true" in mean["fix"]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("sglang", "--enable-metrics"),
        ("mindie", "MIES_SERVICE_MONITOR_MODE=1"),
        ("trtllm_serve", "return_perf_metrics: true"),
        ("llamacpp", "--metrics"),
        ("lmdeploy", "--enable-metrics"),
        ("npu_exporter", "configuration file"),
        ("hubble", "httpV2"),
    ],
)
def test_an_empty_page_gives_advice(name, words) -> None:
    coverage = check_coverage(adapter(name), Parser().parse(b"up 1\n")).as_dict()
    assert any(words in one["fix"] for one in coverage["missing"])


def test_metrics_that_a_system_never_publishes_are_reported() -> None:
    coverage = check_coverage(adapter("tgi"), Parser().parse(b"tgi_queue_size 1\n")).as_dict()
    ttft = next(one for one in coverage["missing"] if one["signal"] == "engine_ttft_seconds")
    assert ttft["expected"] == []
    assert ttft["disables"]
    assert ttft["fix"].startswith("Hugging Face TGI does not publish it")
    coverage = check_coverage(adapter("nvidia_gpu_exporter"), Parser().parse(b"nvidia_smi_count 1\n")).as_dict()
    assert any(one["signal"] == "hw_accel_fault_code" and "dcgm-exporter" in one["fix"] for one in coverage["missing"])
    assert all(
        one["expected"] for one in check_coverage(adapter("vllm"), Parser().parse(b"up 1\n")).as_dict()["missing"]
    )
