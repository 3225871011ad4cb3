"""Step times from load tests: they reproduce the measurement, and apply to the right models."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from outrider.model import Calibration, EntityKind, EntityRef
from planner.cost import cost_text, optimizer
from planner.cost.optimizer import CostRequest, Offer, compare
from planner.performance import measured, roofline
from planner.performance.gpu_catalog import gpu
from planner.performance.memory_fit import Setup
from planner.performance.model_specs import model
from planner.performance.queueing import Slo, Work

AT = datetime(2026, 11, 20, 9, tzinfo=UTC)
SHAPE, H100, WORK = model("Llama-3.1-8B"), gpu("H100"), Work(600, 250)
TEST = Calibration(
    service=EntityRef("c", EntityKind.SERVICE, "prod", "chat"), gpu_type="NVIDIA H100 80GB HBM3",
    tokens_per_request=250.0, batch=64.0, tokens_per_second_per_sequence=20.0, tensor_parallel=1, pipeline_parallel=1,
    startup_seconds=300.0, samples=500, origin="measured", model="meta-llama/Llama-3.1-8B-Instruct", measured_at=AT,
    source="load_test", valid_until=AT + timedelta(days=30),
)  # fmt: skip


def test_a_replica_at_the_tests_batch_is_as_fast_as_it_was_measured() -> None:
    times = measured.step_times(SHAPE, H100, Setup(), WORK, [TEST])
    rate = 64 * 20.0 / 250.0
    step = times.decode(64.0, WORK.context) / (1.0 - rate * WORK.prompt * times.prompt)
    assert step == pytest.approx(1 / 20.0)
    prior = roofline.step_times(SHAPE, H100, Setup())
    assert times.sequence / times.base == pytest.approx(prior.sequence / prior.base), "shares stay as data sheets say"
    assert times.front == prior.front
    for text in ("measured: load_test of chat", "2026-11-20T09:00:00Z", "TP 1", "20 tokens/s at 64 sequences"):
        assert text in times.source


def test_the_nearest_group_counts_and_another_gpu_type_does_not() -> None:
    wide = replace(TEST, tensor_parallel=4, tokens_per_second_per_sequence=60.0)
    tests = [TEST, wide]
    assert "TP 4, 60 tokens/s" in measured.step_times(SHAPE, H100, Setup(tp=4), WORK, tests).source
    times = measured.step_times(SHAPE, H100, Setup(tp=8, pp=2), WORK, tests)
    assert "TP 4, 60 tokens/s" in times.source
    assert times.source.endswith("applied to TP 8 PP 2")
    factor = times.base / roofline.step_times(SHAPE, H100, Setup(tp=8, pp=2)).base
    same = measured.step_times(SHAPE, H100, Setup(tp=4), WORK, tests)
    assert factor == pytest.approx(same.base / roofline.step_times(SHAPE, H100, Setup(tp=4)).base)
    other = measured.step_times(SHAPE, gpu("A100"), Setup(), WORK, tests)
    assert other == roofline.step_times(SHAPE, gpu("A100"), Setup())
    unknown = measured.step_times(SHAPE, H100, Setup(), WORK, [replace(TEST, gpu_type="unknown")])
    assert unknown.source == roofline.SOURCE


def test_the_newest_test_of_a_group_counts_and_other_models_do_not() -> None:
    newer = replace(TEST, measured_at=AT + timedelta(days=1), tokens_per_second_per_sequence=30.0)
    others = [replace(TEST, model=name) for name in ("Llama-3.1-70B", "Llama-3.1-8Bx", "")]
    result = measured.matching_tests([TEST, *others, newer], "Llama-3.1-8B")
    assert result == [newer, TEST]
    assert "30 tokens/s" in measured.step_times(SHAPE, H100, Setup(), WORK, result).source


@pytest.mark.parametrize(
    ("suffix", "bits"),
    [("AWQ", 4), ("Instruct-GPTQ-Int4", 4), ("GPTQ-Int8", 8), ("int8", 8), ("FP8", 8), ("quantized.w4a16", 4),
     ("Instruct-w8a8", 8), ("nf4", 4), ("bnb-4bit", 4), ("bnb", 4), ("MXFP4", 4), ("FP8-dynamic", 8)],
)  # fmt: skip
def test_a_quantized_test_applies_to_the_same_bits_only(suffix: str, bits: int) -> None:
    tests = [replace(TEST, model=f"someone/Llama-3.1-8B-{suffix}")]
    assert [width for width in (4.0, 8.0, 16.0) if measured.matching_tests(tests, "Llama-3.1-8B", width)] == [bits]
    assert measured.bits_of("Llama-3.1-8B-Instruct") is None
    assert measured.bits_of("Mixtral-8x7B-Instruct-v0.1-bf16") == 16.0


def test_only_tests_behind_step_times_are_reported_as_used() -> None:
    wide, elsewhere = replace(TEST, tensor_parallel=8), replace(TEST, gpu_type="A100")
    older = replace(TEST, measured_at=AT - timedelta(days=1))
    request = CostRequest(SHAPE, WORK, 40.0, groups=(1, 2), pipelines=(1,), tests=(TEST, older, wide, elsewhere))
    assert optimizer.used_tests(request, [Offer(H100)]) == [TEST]
    assert optimizer.used_tests(replace(request, groups=(1, 8)), [Offer(H100)]) == [TEST, wide]
    assert optimizer.used_tests(request, [Offer(gpu("A100"))]) == [elsewhere]
    assert optimizer.used_tests(request, [Offer(H100, step_times=roofline.step_times(SHAPE, H100, Setup()))]) == []


@pytest.mark.slow
def test_cost_uses_a_load_test_and_names_it() -> None:
    request = CostRequest(SHAPE, WORK, 40.0, Slo(2.0, 0.06), groups=(1,), pipelines=(1,))
    slow = replace(TEST, tokens_per_second_per_sequence=10.0)
    by_prior, by_test = (compare(replace(request, tests=tests), [Offer(H100)]) for tests in ((), (slow,)))
    assert by_prior.cheapest is not None
    assert by_prior.cheapest.cost_per_hour < (by_test.cheapest.cost_per_hour if by_test.slo_kept else 1e9)
    assert all(option.source.startswith("measured: load_test of chat") for option in by_test.options)
    text = "\n".join(cost_text.lines(replace(request, tests=(slow,)), by_test))
    assert "step times of H100 TP 1: measured: load_test of chat" in text
    assert roofline.SOURCE not in text


def test_pipeline_stages_serve_models_larger_than_a_node() -> None:
    large = model("Llama-3.1-405B")
    request = CostRequest(large, Work(600, 250), 2.0, setup=Setup(bits=16.0))
    alone = compare(replace(request, pipelines=(1,)), [Offer(H100)])
    assert alone.nothing is not None
    assert not alone.front
    staged = compare(request, [Offer(H100)])
    assert staged.front
    assert {option.setup.pp for option in staged.options} <= {2, 4}
    mix = staged.front[0]
    (index,) = mix.replicas
    option = staged.options[index]
    assert option.setup.gpus == option.setup.tp * option.setup.pp > H100.node
    assert f"TP {option.setup.tp} PP {option.setup.pp}" in "\n".join(cost_text.lines(request, staged))
    assert optimizer.describe(request, staged, mix)["replicas"][0]["pp"] == option.setup.pp
