"""Series and values as promtool reads them."""

from __future__ import annotations

import json
import math
import shutil
import subprocess

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider.model import CellStatus
from service.rules.series_notation import MOST_VALUES, NotationError, parse_series, parse_values

NUMBERS = st.integers(-999, 999).map(lambda number: number / 4)
STEPS = st.integers(0, 999).map(lambda number: number / 4)
COUNTS = st.integers(0, 12)
WORDS = st.one_of(
    st.builds("{:g}".format, NUMBERS),
    st.builds("{:g}x{}".format, NUMBERS, COUNTS),
    st.builds("{:g}+{:g}x{}".format, NUMBERS, STEPS, COUNTS),
    st.builds("{:g}-{:g}x{}".format, NUMBERS, STEPS, COUNTS),
    st.just("_"),
    st.builds("_x{}".format, st.integers(1, 5)),
    st.just("stale"),
)
TEXTS = st.lists(WORDS, min_size=1, max_size=6).map(" ".join)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("1", [1.0]),
        ("1x3", [1.0] * 4),
        ("1+2x3", [1.0, 3.0, 5.0, 7.0]),
        ("5-2.5x2", [5.0, 2.5, 0.0]),
        ("-2+4x3", [-2.0, 2.0, 6.0, 10.0]),
        ("1 _x2 4", [1.0, None, None, 4.0]),
        ("1e3 .5 nan stale", [1000.0, 0.5, None, None]),
        ("", []),
    ],
)
def test_values_are_expanded(text, values):
    parsed = parse_values(text)
    assert [None if math.isnan(value) else value for value in parsed.values] == values


def test_a_missing_value_has_its_reason():
    assert parse_values("1 _ stale NaN").status.tolist() == [
        CellStatus.PRESENT,
        CellStatus.ABSENT,
        CellStatus.STALE,
        CellStatus.UNDEFINED,
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("1 a", "word 2: expected 5, 5x3, 5+2x3"),
        ("1+2", "word 1: expected"),
        ("1x-3", "word 1: expected"),
        ("1 _x", "word 2: expected"),
        ("inf", "word 1: expected"),
        ("1e300+1e308x9", "word 1: '1e300+1e308x9' is too large"),
        ("1x999999999999", "word 1: more than 50,000 values"),
        (f"1x{MOST_VALUES - 1} 1", "word 2: more than 50,000 values"),
        ("{{schema:0 sum:1}}", "word 1: expected"),
    ],
)
def test_a_wrong_value_is_named_by_its_position(text, message):
    with pytest.raises(NotationError) as caught:
        parse_values(text)
    assert str(caught.value).startswith(message)


@given(TEXTS)
def test_every_step_has_one_value_or_a_reason(text):
    parsed = parse_values(text)
    assert parsed.values.shape == parsed.status.shape
    assert ((parsed.status == CellStatus.PRESENT) == np.isfinite(parsed.values)).all()


@given(TEXTS, TEXTS)
def test_two_texts_in_one_are_their_values_one_after_the_other(one, other):
    first, second, both = parse_values(one), parse_values(other), parse_values(f"{one} {other}")
    np.testing.assert_array_equal(both.values, np.concatenate([first.values, second.values]))
    np.testing.assert_array_equal(both.status, np.concatenate([first.status, second.status]))


@given(
    st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True),
    st.dictionaries(st.from_regex(r"[a-z_][a-z0-9_]{0,8}", fullmatch=True), st.text(max_size=8), max_size=4),
)
def test_any_label_is_read_as_it_was_written(name, labels):
    inner = ", ".join(f"{key}={_quoted(text)}" for key, text in labels.items())
    assert parse_series(f"{name}{{{inner}}}") == (name, labels)


def _quoted(text):
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "expected a series"),
        ("9a", "expected a series"),
        ('a{b="c"', "expected a series"),
        ('a{b="c" d="e"}', 'expected a label such as service="chat" at \'b="c" d="e"\''),
        ("a{b=c}", "expected a label"),
        ('a{b="c",b="d"}', "the label b is repeated"),
    ],
)
def test_a_wrong_series_is_refused(text, message):
    with pytest.raises(NotationError) as caught:
        parse_series(text)
    assert str(caught.value).startswith(message)


def test_promtool_expands_values_alike(tmp_path):
    if shutil.which("promtool") is None:
        pytest.skip("missing: promtool (Debian package prometheus)")
    texts = ["1x3 _x2 7", "1+2x3 _ 5-0.5x4", "-2+4x3 stale 1", "_ _x3 0.25x2", "1e2-25x4", "5x0 _x1 6"]
    tests = []
    for text in texts:
        parsed = parse_values(text)
        checks = [
            {
                "expr": "last_over_time(x[1s])",
                "eval_time": f"{step}m",
                "exp_samples": [] if math.isnan(value) else [{"labels": "x", "value": float(value)}],
            }
            for step, value in enumerate(parsed.values)
        ]
        tests.append({"interval": "1m", "input_series": [{"series": "x", "values": text}], "promql_expr_test": checks})
    file = tmp_path / "notation.yaml"
    file.write_text(json.dumps({"rule_files": [], "evaluation_interval": "1m", "tests": tests}), encoding="utf-8")
    answer = subprocess.run(["promtool", "test", "rules", str(file)], capture_output=True, text=True, check=False)
    assert answer.returncode == 0, answer.stdout + answer.stderr
