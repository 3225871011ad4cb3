"""Saturation points of load tests, and results of other load testers."""

from __future__ import annotations

import json

import pytest

from outrider.errors import UsageError
from planner.performance.loadtest_import import load_points
from planner.performance.queueing import Slo
from planner.performance.saturation_point import (
    LoadPoint,
    NoSaturationPoint,
    SaturationPoint,
    SaturationReason,
    saturation_point,
    step_times,
)


def point(users, tokens, ttft=0.1, **more):
    return LoadPoint(users, tokens / 100, tokens, 100, 50, ttft=ttft, **more)


RAMP = [point(1, 50), point(2, 98, 0.11), point(4, 180, 0.14), point(8, 186, 0.6), point(16, 187, 3.0)]


@pytest.mark.parametrize(
    ("points", "slo", "sequences", "reason"),
    [
        (RAMP, Slo(), 4, SaturationReason.FLAT),
        (RAMP, Slo(ttft=0.12), 2, SaturationReason.SLO),
        (RAMP[:3], Slo(), 4, SaturationReason.NOT_REACHED),
        ([*RAMP[:2], point(4, 90, error_ratio=0.4)], Slo(), 2, SaturationReason.ERRORS),
        (list(reversed(RAMP)), Slo(), 4, SaturationReason.FLAT),
    ],
)
def test_the_last_useful_step_within_the_slo_counts(points, slo, sequences, reason):
    result = saturation_point(points, slo)
    assert isinstance(result, SaturationPoint)
    assert (result.sequences, result.reason) == (sequences, reason)
    assert result.peak_tokens_per_second == max(step.tokens_per_second for step in points)


def test_a_test_without_a_knee_has_a_reason():
    assert saturation_point([]) == NoSaturationPoint(SaturationReason.NO_POINTS)
    assert saturation_point(RAMP, Slo(ttft=0.01)).reason is SaturationReason.SLO_NEVER
    assert saturation_point([point(1, 50, None)], Slo(ttft=1.0)).reason is SaturationReason.SLO_NEVER, (
        "the SLI was not measured"
    )


def test_step_times_are_fitted_by_a_line():
    steps = [point(n, 100.0, tpot_mean=0.01 + 0.001 * n) for n in (1, 4, 16)]
    result = step_times(steps)
    assert result.base == pytest.approx(0.01)
    assert result.sequence == pytest.approx(0.001)
    assert step_times(steps[:1]) is None


VLLM = {
    "completed": 200,
    "failed": 2,
    "max_concurrency": 16,
    "request_throughput": 4.0,
    "output_throughput": 800.0,
    "total_input_tokens": 51200,
    "total_output_tokens": 40000,
    "mean_ttft_ms": 90.0,
    "p99_ttft_ms": 250.0,
    "mean_tpot_ms": 19.0,
    "p99_tpot_ms": 24.0,
}
LLMPERF = {
    "num_concurrent_requests": 8,
    "results_num_completed_requests": 150,
    "results_num_completed_requests_per_min": 120.0,
    "results_mean_output_throughput_token_per_s": 300.0,
    "results_number_output_tokens_mean": 150.0,
    "results_number_input_tokens_mean": 550.0,
    "results_ttft_s_quantiles_p95": 0.4,
    "results_inter_token_latency_s_quantiles_p95": 0.03,
    "results_inter_token_latency_s_mean": 0.025,
    "results_error_rate": 0.0,
}
K6 = {
    "metrics": {
        "http_reqs": {"count": 300, "rate": 5.0},
        "http_req_waiting": {"avg": 80.0, "p(95)": 200.0},
        "http_req_failed": {"value": 0.1, "passes": 30, "fails": 270},
        "vus_max": {"value": 10, "min": 10, "max": 10},
    }
}


def test_vllm_bench_is_read():
    tool, (result,) = load_points(json.dumps(VLLM), "a.json")
    assert tool == "vllm"
    assert (result.concurrency, result.tokens_per_second, result.tokens_per_request) == (16, 800.0, 200.0)
    assert (result.ttft, result.tpot, result.quantile) == (0.25, 0.024, 0.99)
    assert result.error_ratio == pytest.approx(2 / 202)
    # an open loop: 4 a second for .09 + 199 x .019 seconds
    open_loop = load_points(json.dumps({**VLLM, "max_concurrency": None}), "a.json")[1][0]
    assert open_loop.concurrency == pytest.approx(4 * (0.09 + 199 * 0.019))


def test_llmperf_and_several_results_a_file_are_read():
    text = "\n".join(json.dumps({**LLMPERF, "num_concurrent_requests": users}) for users in (4, 8))
    tool, result = load_points(text, "b.jsonl")
    assert tool == "llmperf"
    assert [item.concurrency for item in result] == [4, 8]
    assert (result[0].requests_per_second, result[0].ttft, result[0].tpot_mean) == (2.0, 0.4, 0.025)


@pytest.mark.parametrize("nested", [False, True])
def test_k6_is_read_in_both_of_its_forms(nested):
    document = {"metrics": {name: {"values": row} for name, row in K6["metrics"].items()}} if nested else dict(K6)
    if nested:
        document["metrics"]["http_req_failed"]["values"] = {"rate": 0.1}
    tool, (result,) = load_points(json.dumps([document]), "c.json", tokens=100)
    assert tool == "k6"
    assert (result.concurrency, result.ttft) == (10, 0.2)
    assert result.tokens_per_second == pytest.approx(5 * 0.9 * 100)
    with pytest.raises(UsageError, match="counts no tokens"):
        load_points(json.dumps(document), "c.json")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no result"),
        ("[]", "has no result"),
        ("{nonsense", "x.json:1: not JSON"),
        ("[1]", "must be an object"),
        ('{"hello": 1}', "not a result of vllm"),
        (json.dumps({**VLLM, "completed": "many"}), "completed must be a number"),
        (json.dumps([VLLM, LLMPERF]), "llmperf and vllm"),
        (json.dumps({"metrics": {"http_reqs": {}, "output_tokens": {"avg": 5}}}), "vus_max"),
    ],
)
def test_foreign_results_are_refused(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        load_points(text, "x.json")
    assert caught.value.hint
