"""Warnings of ``config check`` about on-call schedules."""

from datetime import UTC, datetime

import pytest

from outrider.text import yaml_file
from service.config.oncall_settings import OnCallSettings
from service.config.settings import Settings
from service.oncall.config_warnings import button_warnings, oncall_warnings
from tests.service.oncall.test_roster_source import calendar_of
from tests.support import on_call

NOW = datetime(2026, 5, 6, 12, tzinfo=UTC)
DOCUMENT = yaml_file.parse("oncall:\n  schedules:\n    - name: model\n", "outrider.yaml")
NIGHTS = {"start": "20:00", "end": "08:00"}


def warnings(**schedule):
    settings = on_call.settings(schedules=[on_call.SCHEDULE | schedule])
    return [str(problem) for problem in oncall_warnings(settings, DOCUMENT, NOW)]


def test_a_schedule_without_gaps_has_no_warning():
    assert warnings() == []
    assert list(oncall_warnings(OnCallSettings(), DOCUMENT, NOW)) == []


def test_gaps_are_named_in_the_zone_of_the_schedule_with_their_line():
    [warning] = warnings(rotations=[on_call.ROTATION | {"hours": [NIGHTS]}])
    assert warning == (
        "outrider.yaml:3: oncall.schedules[0]: nobody is on call from 2026-05-06 14:00 to 2026-05-06 20:00 "
        "(Europe/Berlin), and 28 more gaps within 28 days"
    )


def test_an_override_closes_a_gap():
    late = on_call.ROTATION | {"start": "2026-05-07"}
    [warning] = warnings(rotations=[late])
    assert "to 2026-05-07 09:00" in warning
    filled = {"person": "zhao", "start": "2026-05-01 00:00", "end": "2026-05-07 09:00"}
    assert warnings(rotations=[late], overrides=[filled]) == []


def test_a_calendar_file_is_read_and_its_unknown_names_are_reported(tmp_path):
    file = tmp_path / "duty.ics"
    file.write_text(calendar_of("Olivia"))
    unknown, gap = warnings(rotations=[], calendar={"file": file})
    assert "names nobody of oncall.people in: Olivia" in unknown
    assert "nobody is on call" in gap
    file.write_text(calendar_of("li", "20260501T000000Z", "20260701T000000Z"))
    assert warnings(rotations=[], calendar={"file": file}) == []


@pytest.mark.parametrize("content", [None, b"\xff\xfe", b"hello"])
def test_a_calendar_file_that_cannot_be_read_is_reported(tmp_path, content):
    file = tmp_path / "duty.ics"
    if content is not None:
        file.write_bytes(content)
    assert any("calendar" in warning for warning in warnings(calendar={"file": file}))


def test_a_calendar_behind_a_url_is_not_read():
    assert warnings(rotations=[], calendar={"url": "https://calendar.example/x.ics"}) == []


@pytest.mark.parametrize(
    ("api", "warned"),
    [
        ({}, False),
        ({"public_url": "http://127.0.0.1:8600"}, False),
        ({"public_url": "https://outrider.example"}, True),
        ({"public_url": "https://outrider.example", "hosts": ["outrider.example"]}, False),
        ({"public_url": "https://outrider.example", "hosts": ["*"]}, False),
    ],
)
def test_a_public_url_whose_host_the_api_refuses_is_reported(api, warned):
    problems = list(button_warnings(Settings.model_validate({"api": api}), DOCUMENT))
    assert bool(problems) is warned


@pytest.mark.parametrize(
    ("url", "buttons", "warned"),
    [
        ("postgresql://outrider@db/outrider", {}, True),
        ("postgresql://outrider@db/outrider", {"key_file": "/run/secrets/button-key"}, False),
        ("sqlite:///outrider.db", {}, False),
    ],
)
def test_a_store_of_several_hosts_without_a_common_key_of_buttons_is_reported(url, buttons, warned):
    public = {"public_url": "http://127.0.0.1:8600"}
    settings = {"store": {"url": url}, "api": public, "oncall": {"buttons": buttons}}
    problems = [str(problem) for problem in button_warnings(Settings.model_validate(settings), DOCUMENT)]
    assert [("each host generates its own key" in problem) for problem in problems] == ([True] if warned else [])
    without = Settings.model_validate(settings | {"api": {}})
    assert list(button_warnings(without, DOCUMENT)) == [], "no message has a button"
