"""Durations as people write and read them."""

from datetime import timedelta

import pytest

from outrider.errors import UnitMismatchError, UsageError
from outrider.vocabulary.units import Quantity, format_duration, parse_duration, read_quantity


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.25, "250ms"), (0.0004, "0s"), (0.9996, "1s"), (15, "15s"), (5400, "1h 30m"), (93_600, "1d 2h")],
)
def test_a_duration_is_formatted_with_its_two_largest_units(seconds, text):
    assert format_duration(seconds) == text
    assert format_duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize("text", ["250ms", "15s", "5m", "7d"])
def test_a_parsed_duration_is_formatted_the_same(text):
    assert format_duration(parse_duration(text)) == text


@pytest.mark.parametrize(
    ("given", "unit", "value"),
    [
        (40, "request/second", 40),
        ("40", "request/second", 40),
        ("40/min", "request/second", 40 / 60),
        ("40 req/min", "request/second", 40 / 60),
        ("600 rpm", "request/second", 10),
        ("25 tok/s", "token/second*sequence", 25),
        ("25 tok/s", "token/(second*sequence)", 25),
        ("25 token/(second*sequence)", "token/(second*sequence)", 25),
        ("25 token/second*sequence", "token/(second*sequence)", 25),
        ("1500 tokens/min/seq", "token/second*sequence", 25),
        ("300 tokens per request", "token/request", 300),
        ("60ms", "second", 0.06),
        ("25%", "ratio", 0.25),
        ("1us", "second", 1e-6),
        ("50GB/s", "byte/second", 50e9),
        ("50 MB/s", "byte/second", 50e6),
        ("2 KiB/ms", "byte/second", 2048e3),
        ("400 Gbit/s", "byte/second", 50e9),
        ("8 bits", "byte", 1),
        ("1e3", "token/request", 1000),
    ],
)
def test_an_amount_may_carry_its_unit(given, unit, value):
    assert read_quantity(given, unit) == pytest.approx(value)


@pytest.mark.parametrize(
    ("given", "unit"),
    [("40 tokens", "request/second"), ("300 ms", "token/request"), ("25 tok/min", "ratio"), ("4 gpus", "second")],
)
def test_a_wrong_unit_is_rejected_with_both_units_named(given, unit):
    with pytest.raises(UnitMismatchError) as caught:
        read_quantity(given, unit)
    assert unit in caught.value.message
    assert "is in " in caught.value.message


@pytest.mark.parametrize("given", ["50Gb/s", "50 mb/s", "400Gbps", "2 Kib"])
def test_a_small_b_is_neither_bits_nor_bytes(given):
    with pytest.raises(UsageError, match="may be bits or bytes") as caught:
        read_quantity(given, "byte/second")
    assert "Gbit/s" in caught.value.hint


def test_a_compound_denominator_is_in_parentheses():
    assert Quantity.of(1, "token/second*sequence").unit_text == "token/(second*sequence)"
    assert Quantity.of(1, "token/(second*sequence)") == Quantity.of(1, "token/second*sequence")


@pytest.mark.parametrize("given", ["1,000", "0,5", "1,000 rps"])
def test_a_comma_in_a_number_is_rejected(given):
    with pytest.raises(UsageError, match="has a comma") as caught:
        read_quantity(given, "request/second")
    assert "1000" in caught.value.hint


@pytest.mark.parametrize("given", ["", "many", "--", "1.2.3"])
def test_invalid_quantities_are_rejected(given):
    with pytest.raises(UsageError):
        read_quantity(given, "request/second")
