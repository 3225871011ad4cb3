"""Durations as people write and read them."""

from datetime import timedelta

import pytest

from outrider.units import format_duration, parse_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0, "0s"), (0.25, "250ms"), (0.0004, "0s"), (0.9996, "1s"), (15, "15s"), (5400, "1h 30m"), (93_600, "1d 2h")],
)
def test_a_duration_is_told_by_its_two_largest_parts(seconds, text):
    assert format_duration(seconds) == text
    assert format_duration(timedelta(seconds=seconds)) == text


@pytest.mark.parametrize("text", ["250ms", "15s", "5m", "7d"])
def test_what_was_read_is_told_the_same(text):
    assert format_duration(parse_duration(text)) == text
