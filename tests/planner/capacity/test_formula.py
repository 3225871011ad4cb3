from __future__ import annotations

from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.errors import UsageError
from planner.capacity.formula import buffer_for, derivation_lines, formula, whole
from planner.performance.headroom import buffer_from_errors

EXAMPLE = {"qps": 40, "tokens": 300, "batch": 32, "tokens_per_second": 25, "buffer": 0.25, "tp": 4}


def test_the_agreed_example_per_replica():
    result = formula(**EXAMPLE)
    assert (result.units_raw, result.unit, result.replicas, result.gpus) == (18.75, "replica", 19, 76)
    assert result.sequences == 480


def test_the_agreed_example_per_gpu():
    result = formula(**EXAMPLE, batch_per="gpu")
    assert (result.units_raw, result.unit, result.replicas, result.gpus) == (18.75, "gpu", 5, 20)


def test_pipeline_stages_belong_to_the_group():
    assert formula(**{**EXAMPLE, "pp": 2}).gpus == 19 * 8
    assert formula(**{**EXAMPLE, "pp": 2}, batch_per="gpu").gpus == 24


def test_the_derivation_prints_every_step_and_its_units():
    lines = formula(**EXAMPLE).lines()
    assert lines[0] == "40 requests/s x 300 tokens/request = 12000 tokens/s"
    assert lines[-1] == "rounded up to 19 replicas of 4 x 1 = 4 GPUs: 76 GPUs"
    assert len(formula(**EXAMPLE).lines("zh")) == len(lines)
    assert formula(**EXAMPLE).derivation["inputs"]["batch"] == {"value": 32, "unit": "sequence/replica"}


@pytest.mark.parametrize(("buffer", "warnings"), [(0.19, ["buffer_low"]), (0.2, []), (0.3, []), (0.5, ["buffer_high"])])
def test_a_buffer_out_of_range_is_warned_about(buffer, warnings):
    result = formula(**{**EXAMPLE, "buffer": buffer})
    assert result.derivation["warnings"] == warnings
    assert len(result.lines()) == 5 + len(warnings)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(("buffer", "code"), [(0.108, "buffer_low"), (0.5, "buffer_high")])
def test_a_measured_buffer_is_reported_as_measured(buffer, code, language):
    given = formula(**{**EXAMPLE, "buffer": buffer})
    result = formula(**{**EXAMPLE, "buffer": buffer}, buffer_source="measured")
    assert (result.derivation["warnings"], result.replicas) == ([code], given.replicas)
    measured = {"en": "the measured forecast error", "zh": "实测误差"}[language]
    assert measured in result.lines(language)[-1]
    assert f"{buffer:g}" in result.lines(language)[-1]
    assert measured not in given.lines(language)[-1]
    assert not [claim for claim in ("lost replica", "丢失") if claim in result.lines(language)[-1]]
    earlier = {name: value for name, value in result.derivation.items() if name != "buffer_source"}
    assert derivation_lines({**earlier, "buffer": {"source": "measured"}}, language) == result.lines(language)
    assert derivation_lines(earlier, language) == given.lines(language)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("qps", -1),
        ("qps", nan),
        ("qps", inf),
        ("tokens", -300),
        ("batch", 0),
        ("batch", -1),
        ("batch", nan),
        ("tokens_per_second", 0),
        ("buffer", -0.1),
        ("tp", 0),
        ("tp", 1.5),
        ("pp", -1),
        ("qps", "40"),
        ("qps", True),
    ],
)
def test_bad_input_names_the_option(name, value):
    with pytest.raises(UsageError) as caught:
        formula(**{**EXAMPLE, name: value})
    assert "--" + name.replace("_", "-") + " " in caught.value.message
    assert caught.value.hint


def test_a_load_too_large_to_compute_is_refused():
    with pytest.raises(UsageError, match="too large"):
        formula(**{**EXAMPLE, "qps": 1e308, "tokens": 1e10})


def test_an_unknown_batch_per_is_refused():
    with pytest.raises(UsageError, match="--batch-per"):
        formula(**EXAMPLE, batch_per="node")


def test_no_load_needs_nothing():
    assert formula(**{**EXAMPLE, "qps": 0}).gpus == 0


@pytest.mark.parametrize(
    ("amount", "expected"),
    [(2.0000000001, 2), (1e-9, 1), (2.0, 2), (2.001, 3), (1.9999999999, 2), (0.0, 0), (0.3 / 0.1, 3)],
)
def test_float_noise_buys_no_replica(amount, expected):
    assert whole(amount) == expected


_amount = st.floats(0.01, 1e4)


@given(_amount, _amount, _amount, _amount, st.floats(0, 1), st.integers(1, 8), st.integers(1, 4), st.booleans())
def test_the_result_serves_the_load_and_one_group_less_does_not(qps, tokens, batch, speed, buffer, tp, pp, per_gpu):
    result = formula(
        qps=qps,
        tokens=tokens,
        batch=batch,
        tokens_per_second=speed,
        buffer=buffer,
        tp=tp,
        pp=pp,
        batch_per="gpu" if per_gpu else "replica",
    )
    units = result.gpus if per_gpu else result.replicas
    one_less = units - (tp * pp if per_gpu else 1)
    assert result.gpus == result.replicas * tp * pp
    assert units >= result.units_raw * (1 - 2e-9)
    assert one_less < result.units_raw


def test_seconds_in_service_count_the_same_sequences():
    # 300 tokens at 25 a second take 12 s: Little's law counts 40 x 12 = 480 sequences
    tokens, seconds = formula(**EXAMPLE), formula(qps=40, seconds=12, batch=32, buffer=0.25, tp=4)
    assert (seconds.units_raw, seconds.replicas, seconds.gpus, seconds.sequences) == (18.75, 19, 76, 480)
    assert seconds.derivation["inputs"]["seconds"] == {"value": 12, "unit": "second/request"}
    assert len(seconds.lines("zh")) == len(tokens.lines()) - 1
    assert "Little" in seconds.lines()[0]


@pytest.mark.parametrize("given", [{}, {"tokens": 300}, {"tokens": 300, "tokens_per_second": 25, "seconds": 12}])
def test_the_work_of_a_request_is_given_once(given):
    with pytest.raises(UsageError, match="--seconds"):
        formula(qps=40, batch=32, **given)


def test_a_buffer_in_percent_is_refused_with_the_likely_ratio():
    with pytest.raises(UsageError) as caught:
        formula(**{**EXAMPLE, "buffer": 25})
    assert "0.25" in caught.value.hint


def test_the_buffer_becomes_the_measured_error_once_there_are_enough():
    errors = [0.01 * n - 0.5 for n in range(101)]
    assert buffer_from_errors(errors) == pytest.approx(0.45)
    assert buffer_from_errors(errors[:20]) is None
    assert buffer_from_errors([-0.2] * 50) == 0.0
    assert buffer_from_errors([*errors, nan]) == pytest.approx(0.45)


@pytest.mark.parametrize(
    ("measured", "value", "bounded"), [(0.0, 0.05, True), (0.22, 0.22, False), (0.9, 0.6, True), (0.6, 0.6, False)]
)
def test_a_measured_error_replaces_the_buffer_within_bounds(measured, value, bounded):
    result = buffer_for({600.0: 0.01, 1800.0: measured, 7200.0: 0.5}, 1000.0, 0.25)
    assert (result.value, result.source, result.measured, result.lead_seconds) == (value, "measured", measured, 1800.0)
    assert result.as_dict()["bounded"] is bounded


def test_the_configured_buffer_counts_until_an_error_is_known_so_far_ahead():
    for known in ({}, {600.0: 0.1}):
        result = buffer_for(known, 900.0, 0.25)
        assert (result.value, result.source, result.measured) == (0.25, "configured", None)


@pytest.mark.parametrize(
    ("work", "hint"),
    [
        ({}, "--tokens and --tokens-per-second, or --seconds"),
        ({"tokens": 300}, "give --tokens-per-second too"),
        ({"tokens_per_second": 25}, "give --tokens too"),
        ({"tokens": 300, "tokens_per_second": 25, "seconds": 12}, "not both"),
    ],
)
def test_a_missing_part_of_the_work_is_reported(work, hint):
    with pytest.raises(UsageError) as caught:
        formula(qps=40, batch=32, **work)
    assert hint in caught.value.hint
