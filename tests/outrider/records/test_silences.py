"""Matchers and windows of silences."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as some

from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from outrider.records.silences import (
    MOST_MATCHERS,
    LabelMatcher,
    MatchOperator,
    Silence,
    SilenceWindow,
    check_matchers,
    in_force,
    parse_matcher,
    selects_everything,
)

NODE = EntityRef("c", EntityKind.NODE, None, "n1")
NOON = datetime(2026, 3, 2, 12, 0, tzinfo=UTC)  # a Monday
LABELS = {"rule": ("gpu-lost",), "node": ("n1",), "service": ("chat", "code")}


def silence(*matchers: str, **fields) -> Silence:
    base = {"rule": None, "entity": None, "until": NOON + timedelta(days=365), "by": "ann"}
    return Silence("s", **{**base, "matchers": tuple(parse_matcher(text) for text in matchers), **fields})


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ('rule="gpu-lost"', True),
        ("rule=gpu-lost", True),
        ("rule='gpu-lost'", True),
        ('rule!="gpu-lost"', False),
        ('rule=~"gpu-.*"', True),
        ('rule=~"gpu"', False),
        ('rule!~"node-.*"', True),
        ("service=code", True),
        ("service!=code", False),
        ("service=mail", False),
        ("service!=mail", True),
        ('pod=""', True),
        ('pod!=""', False),
        ("pod!=p1", True),
        (' node = "n1" ', True),
    ],
)
def test_matchers_mean_what_they_mean_in_alertmanager(text, holds):
    assert parse_matcher(text).holds(LABELS) is holds


@pytest.mark.parametrize(
    ("text", "value"),
    [
        (r'node=~"gpu-\d+"', r"gpu-\d+"),
        (r'node=~"gpu\.1"', r"gpu\.1"),
        (r'node="say \"hi\""', 'say "hi"'),
        (r'node="a\\d"', r"a\d"),
        (r'node="two\nlines"', "two\nlines"),
        (r"node=~'gpu-\d'", r"gpu-\d"),
        (r"node=~gpu-\d", r"gpu-\d"),
    ],
)
def test_backslashes_in_quotes_mean_what_they_mean_in_alertmanager(text, value):
    assert parse_matcher(text).value == value


@pytest.mark.parametrize(
    "text", ["", "rule", "=x", "rule=~(", "rule=~a(?=b)", r"rule=~(a)\1", "a-b=c", f'rule=~"{"a" * 3000}"']
)
def test_what_is_no_matcher_is_refused_with_a_hint(text):
    with pytest.raises(UsageError):
        parse_matcher(text)


@given(some.text(max_size=40), some.sampled_from(MatchOperator))
def test_a_matcher_in_text_form_is_read_back(value, operator):
    matcher = LabelMatcher("node", operator, value)
    if not operator.is_regex:
        assert parse_matcher(str(matcher)) == matcher


def test_an_expression_that_backtracks_forever_elsewhere_takes_no_time():
    matcher = parse_matcher('log=~"(a+)+$"')
    started = time.process_time()
    assert not matcher.holds({"log": ("a" * 100_000 + "b",)})
    assert time.process_time() - started < 1


def test_all_matchers_of_a_silence_must_hold():
    both = silence('rule=~"gpu-.*"', "node=n1")
    assert both.selects("gpu-lost", NODE, LABELS)
    assert not silence('rule=~"gpu-.*"', "node=n2").selects("gpu-lost", NODE, LABELS)
    assert silence("service=chat", rule="gpu-lost", entity=NODE).selects("gpu-lost", NODE, LABELS)
    assert not silence("service=chat", rule="other").selects("gpu-lost", NODE, LABELS)


def test_a_silence_without_a_condition_selects_nothing():
    assert not silence().selects("gpu-lost", NODE, LABELS)


def test_matchers_that_select_everything_are_recognized():
    assert selects_everything([parse_matcher("rule!=x"), parse_matcher('node=~".*"')])
    assert not selects_everything([parse_matcher("rule!=x"), parse_matcher("node=n1")])


def test_too_many_matchers_are_refused():
    with pytest.raises(UsageError):
        check_matchers([parse_matcher("a=b")] * (MOST_MATCHERS + 1))


def test_a_silence_is_in_force_between_its_start_and_its_end():
    timed = silence("node=n1", starts_at=NOON, until=NOON + timedelta(hours=1))
    moments = (NOON - timedelta(seconds=1), NOON, NOON + timedelta(minutes=59), NOON + timedelta(hours=1))
    assert [timed.is_in_force(at) for at in moments] == [False, True, True, False]
    assert in_force([timed, silence("node=n1", until=NOON)], NOON) == (timed,)


def test_a_weekly_window_follows_the_wall_clock_of_its_zone():
    nights = SilenceWindow(22 * 60, 2 * 60, days=(0,), timezone="Europe/Berlin")  # Monday night
    assert nights.current(datetime(2026, 3, 2, 20, 59, tzinfo=UTC)) is None
    assert nights.current(datetime(2026, 3, 2, 21, 0, tzinfo=UTC)) is not None
    assert nights.current(datetime(2026, 3, 3, 0, 59, tzinfo=UTC)) is not None
    assert nights.current(datetime(2026, 3, 3, 1, 0, tzinfo=UTC)) is None
    summer = datetime(2026, 7, 6, 20, 0, tzinfo=UTC)  # one hour earlier in UTC
    assert nights.current(summer) == (summer, summer + timedelta(hours=4))


def test_a_boundary_in_an_hour_that_summer_time_skips_or_repeats_mutes_less():
    skipped = SilenceWindow(2 * 60 + 30, 4 * 60, days=(6,), timezone="Europe/Berlin")
    start, end = skipped.current(datetime(2026, 3, 29, 1, 45, tzinfo=UTC)) or (None, None)
    assert (start, end) == (datetime(2026, 3, 29, 1, 30, tzinfo=UTC), datetime(2026, 3, 29, 2, 0, tzinfo=UTC))
    repeated = SilenceWindow(2 * 60 + 30, 4 * 60, days=(6,), timezone="Europe/Berlin")
    assert repeated.current(datetime(2026, 10, 25, 0, 45, tzinfo=UTC)) is None  # the first 02:45
    assert repeated.current(datetime(2026, 10, 25, 1, 45, tzinfo=UTC)) is not None  # the second one


def test_the_next_occurrence_of_a_window_is_known():
    weekly = SilenceWindow(8 * 60, 10 * 60, days=(2,))
    assert weekly.following(NOON) == (datetime(2026, 3, 4, 8, 0, tzinfo=UTC), datetime(2026, 3, 4, 10, 0, tzinfo=UTC))
    assert SilenceWindow(0, 60, days=()).following(NOON) is None
