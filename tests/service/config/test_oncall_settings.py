"""The section ``oncall`` of the configuration: names that exist, times that fit."""

from datetime import date, time, timedelta

import pytest

from alerts.oncall.roster import StepTarget
from outrider.errors import ConfigError
from outrider.model import Priority
from outrider.vocabulary.time_spans import EVERY_DAY
from service.config import settings as settings_file

FILE = """\
notify:
  channels:
    ding: {type: dingtalk, url: "https://ding.example"}
    duty: {type: webhook, url: "https://duty.example"}
oncall:
  people:
    - {name: li, phone: "+8613800000001", contacts: [{channel: ding, mention: "138"}]}
    - {name: wang, email: wang@example.com}
  teams:
    - name: model
      members: [li, wang]
      lead: wang
      schedule: model
      layers: [engine, traffic]
      groups: {phone: [duty]}
      timezone: Asia/Shanghai
      night: {start: 20:00, end: 08:30, days: [mon, tue]}
  schedules:
    - name: model
      timezone: Europe/Berlin
      rotations:
        - {people: [li, wang], start: 2026-01-05, handover: 09:00, hours: [{start: 08:00, end: 20:00}]}
      overrides: [{person: wang, start: 2026-12-24 18:00, end: 2026-12-26 09:00}]
  escalation:
    P1: {after: 10m, steps: [lead, team], groups: [phone]}
"""


def read(tmp_path, text=FILE):
    file = tmp_path / "outrider.yaml"
    file.write_text(text)
    settings, problems, _ = settings_file.review(file)
    return settings, [str(problem).partition(": ")[2] for problem in problems]


def test_a_whole_section_is_read(tmp_path):
    settings, problems = read(tmp_path)
    assert problems == []
    oncall = settings.oncall
    [rotation] = oncall.schedules[0].rotations
    assert (rotation.start, rotation.handover, rotation.days) == (date(2026, 1, 5), time(9), 7)
    assert rotation.hours[0].span().days == EVERY_DAY
    night = oncall.teams[0].night.span()
    assert (night.start, night.end, night.days) == (time(20), time(8, 30), frozenset({0, 1}))


def test_ladders_that_are_not_set_keep_their_default(tmp_path):
    ladders = read(tmp_path)[0].oncall.ladders
    assert {priority: ladder.after for priority, ladder in ladders.items()} == {
        Priority.P0: timedelta(minutes=5),
        Priority.P1: timedelta(minutes=10),
        Priority.P2: timedelta(hours=1),
    }
    assert ladders[Priority.P1].steps == (StepTarget.LEAD, StepTarget.TEAM)
    assert ladders[Priority.P1].groups == ("phone",)


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("lead: wang", "lead: wong", "oncall.teams[0].lead: no person is named 'wong'; did you mean \"wang\"?"),
        ("members: [li, wang]", "members: [li, zhao]", "oncall.teams[0].members[1]: no person is named 'zhao'"),
        ("schedule: model", "schedule: modul", "oncall.teams[0].schedule: no schedule is named 'modul'"),
        ("channel: ding", "channel: dong", "oncall.people[0].contacts[0].channel: no channel is named 'dong'"),
        ("{phone: [duty]}", "{phone: [dutty]}", "oncall.teams[0].groups.phone[0]: no channel is named 'dutty'"),
        ("{people: [li, wang]", "{people: [li, x]", "oncall.schedules[0].rotations[0].people[1]: no person is named"),
        ("person: wang", "person: x", "oncall.schedules[0].overrides[0].person: no person is named 'x'"),
        ("end: 2026-12-26 09:00", "end: 2026-12-24 09:00", "overrides[0].end: must be after start"),
        ("name: wang", "name: li", "oncall.people[1].name: duplicate name 'li'"),
        ("name: li", 'name: "li, wang"', "oncall.people[0].name:"),
        ("steps: [lead, team]", "steps: []", "oncall.escalation.P1.steps:"),
        ("steps: [lead, team]", "steps: [boss]", "oncall.escalation.P1.steps[0]:"),
        ("handover: 09:00", "handover: 2026-01-01 09:00", "expected a time of day such as 09:00"),
        ("start: 2026-12-24 18:00", "start: 18:00", "expected a date and time such as 2026-12-24 18:00"),
        ("timezone: Europe/Berlin", "timezone: Europe/Bärlin", "is not a time zone"),
        ('"+8613800000001"', '"call me"', "oncall.people[0].phone:"),
        ("      rotations:", "      rotations: []\n      x:", "oncall.schedules[0].x:"),
    ],
)
def test_a_mistake_is_named_with_its_key(tmp_path, old, new, problem):
    assert old in FILE
    _, problems = read(tmp_path, FILE.replace(old, new))
    assert any(problem in line for line in problems), problems


@pytest.mark.parametrize(
    ("section", "problem"),
    [
        ("teams: [{name: a}]", "oncall.teams[0]: has nobody to page"),
        ("schedules: [{name: a}]", "oncall.schedules[0]: needs rotations or a calendar"),
        ("schedules: [{name: a, calendar: {}}]", "needs one of file, url and url_file"),
        ("schedules: [{name: a, calendar: {url: 'https://x', file: y}}]", "needs one of file, url and url_file"),
        ("schedules: [{name: a, calendar: {file: y, every: 5s}}]", "every must be 1m or longer"),
        ("buttons: {valid: 30d}", "valid must be at most 7d"),
    ],
)
def test_a_section_that_cannot_work_is_refused(tmp_path, section, problem):
    _, problems = read(tmp_path, f"oncall:\n  {section}\n")
    assert any(problem in line for line in problems), problems


def test_a_calendar_needs_its_library(tmp_path, monkeypatch):
    monkeypatch.setattr("service.config.oncall_settings.find_spec", lambda _name: None)
    _, problems = read(tmp_path, "oncall:\n  schedules: [{name: a, calendar: {file: y}}]\n")
    [problem] = problems
    assert problem.startswith("oncall.schedules[0].calendar: needs extra libraries; in the checkout of Outrider: pip")


def test_the_defaults_have_nobody(tmp_path):
    settings, problems = read(tmp_path, "cluster: a\n")
    assert problems == []
    assert settings.oncall.teams == []
    with pytest.raises(ConfigError):
        settings_file.load(tmp_path / "missing.yaml")
