"""What a page has, lacks, and spells in an old way."""

from __future__ import annotations

from collectors.doctor import examine
from collectors.exposition import Parser
from collectors.registry import adapter


def test_present_missing_old_and_unknown() -> None:
    body = (
        b'# TYPE own histogram\nown_bucket{le="+Inf"} 1\nown_sum 1\nown_count 1\n'
        b"vllm:gpu_cache_usage_perc 1\nvllm:num_requests_running 1\n"
    )
    found = examine(adapter("vllm"), Parser().parse(body))
    assert {"engine_kv_cache_usage_ratio", "engine_requests_running"} <= set(found.present)
    assert found.old_spellings == {"engine_kv_cache_usage_ratio": "vllm:gpu_cache_usage_perc"}
    assert found.unknown_metrics == 1
    missing = {one.signal: one for one in found.missing}
    assert missing["engine_iterations_total"].expected == ("vllm:iteration_tokens_total_count",)
    assert missing["engine_iterations_total"].disables == ("hung_engine",)


def test_words_in_both_languages() -> None:
    found = examine(adapter("dcgm"), Parser().parse(b'DCGM_FI_DEV_GPU_TEMP{UUID="a"} 1\n'))
    for language, words in (("en", "counters file"), ("zh", "计数器文件")):
        listed = {one["signal"]: one for one in found.as_dict(language)["missing"]}
        wanted = listed["hw_accel_throttle_thermal_ratio"]
        assert "DCGM_FI_DEV_THERMAL_VIOLATION" in wanted["fix"]
        assert words in wanted["fix"]
        assert not any(feature.startswith("collect.") for feature in wanted["disables"])
