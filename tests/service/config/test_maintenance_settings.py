"""Maintenance windows of the configuration."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from service.config import settings as settings_file

FILE = """
maintenance:
  - name: patch night
    match: ['node=~"gpu-.*"', "cluster=edge"]
    timezone: Asia/Shanghai
    start: "22:00"
    end: "02:00"
    days: [tue]
"""


def review(tmp_path, text):
    path = tmp_path / "o.yaml"
    path.write_text(text, encoding="utf-8")
    settings, problems, _ = settings_file.review(path)
    return settings, [problem.message for problem in problems]


def test_a_weekly_window_becomes_a_silence(tmp_path):
    settings, problems = review(tmp_path, FILE)
    assert problems == []
    silence = settings.maintenance[0].silence()
    assert silence.dependents
    assert silence.is_in_force(datetime(2026, 3, 3, 14, 30, tzinfo=UTC))  # Tuesday 22:30 in Shanghai
    assert not silence.is_in_force(datetime(2026, 3, 2, 14, 30, tzinfo=UTC))


def test_a_dated_window_is_in_force_once(tmp_path):
    text = (
        FILE.replace('"22:00"', '"2026-12-24 18:00"')
        .replace('"02:00"', '"2026-12-26 06:00"')
        .replace("days: [tue]", "")
    )
    settings, problems = review(tmp_path, text)
    assert problems == []
    silence = settings.maintenance[0].silence()
    assert silence.is_in_force(datetime(2026, 12, 24, 10, 0, tzinfo=UTC))
    assert not silence.is_in_force(datetime(2026, 12, 24, 9, 59, tzinfo=UTC))
    assert silence.until == datetime(2026, 12, 25, 22, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ('node=~"gpu-.*"', "node=~(", "regular expression"),
        ("""['node=~"gpu-.*"', "cluster=edge"]""", '["rule!=x"]', "selects every alert"),
        ("Asia/Shanghai", "Asia/Nowhere", "time zone"),
        ('"22:00"', '"2026-12-24 18:00"', "both be times of day"),
    ],
)
def test_mistakes_are_named(tmp_path, before, after, message):
    _, problems = review(tmp_path, FILE.replace(before, after))
    assert any(message in problem for problem in problems), problems
