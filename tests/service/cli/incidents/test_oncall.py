"""``outrider oncall`` and the responses of ``outrider incidents``, against a running API."""

from __future__ import annotations

import json
from datetime import datetime, timedelta

import pytest
import yaml

from outrider.clock import SystemClock, rfc3339
from outrider.testing.trouble import INCIDENT
from tests.service.cli.incidents.test_remediate import Platform
from tests.service.cli.test_cli import answer, run
from tests.support import on_call

KEYS = {"schedule", "person", "from", "to", "source"}


@pytest.fixture
def platform(tmp_path):
    oncall = {"people": on_call.PEOPLE, "teams": on_call.TEAMS, "schedules": [on_call.SCHEDULE]}
    running = Platform(tmp_path, more=yaml.safe_dump({"oncall": oncall}))
    yield running
    running.close()


def command(platform, *arguments, code=0):
    return answer(*arguments, "-o", "json", cwd=platform.folder, code=code)


def test_who_is_on_call_now_and_at_a_time(platform):
    [now] = command(platform, "oncall", "who")
    assert set(now) == KEYS
    assert now["person"] in ("li", "wang")
    at = datetime.fromisoformat(now["to"])
    [later] = command(platform, "oncall", "who", "--at", rfc3339(at))
    assert {now["person"], later["person"]} == {"li", "wang"}
    assert later["from"] == now["to"]


def test_shifts_are_listed_without_gaps_between_them(platform):
    shifts = command(platform, "oncall", "list", "--days", "21")
    assert all(set(shift) == KEYS for shift in shifts)
    assert [shift["to"] for shift in shifts[:-1]] == [shift["from"] for shift in shifts[1:]]
    table = run("oncall", "list", "-o", "table", "--lang", "zh", cwd=platform.folder).stdout
    assert "值班人" in table


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("who", "--at", "soon"), "--at"),
        (("who", "--at", "2040-01-01T00:00:00Z"), "days away"),
        (("override", "--schedule", "model", "--person", "zhao"), "either --to or --for"),
        (("override", "--schedule", "model", "--person", "nobody", "--for", "4h"), "no person is named"),
    ],
)
def test_wrong_usage_is_explained(platform, arguments, message):
    error = command(platform, "oncall", *arguments, code=2)["error"]
    assert message in error["message"]


def test_an_override_is_added_and_removed(platform):
    end = rfc3339(SystemClock().now().replace(microsecond=0) + timedelta(hours=4))
    added = command(
        platform, "oncall", "override", "--schedule", "model", "--person", "zhao", "--to", end, "--as", "li"
    )
    assert (added["person"], added["by"], added["to"]) == ("zhao", "li", end)
    assert command(platform, "oncall", "who")[0]["person"] == "zhao"
    command(platform, "oncall", "remove", added["id"], "--as", "li")
    assert command(platform, "oncall", "who")[0]["person"] != "zhao"


def test_without_schedules_the_list_is_empty(tmp_path):
    (tmp_path / "outrider.yaml").write_text("store: {url: 'sqlite:///o.db'}\n")
    assert answer("oncall", "list", "-o", "json", cwd=tmp_path) == []
    assert "No on-call schedule" in run("oncall", "who", "-o", "table", cwd=tmp_path).stdout


def test_an_incident_is_assigned_commented_and_escalated(platform):
    assigned = command(platform, "incidents", "assign", INCIDENT, "--to", "wang", "--as", "li")
    assert (assigned["to"], assigned["by"]) == ("wang", "li")
    command(platform, "incidents", "comment", INCIDENT, "重新插拔", "--as", "wang")
    command(platform, "incidents", "escalate", INCIDENT)
    kinds = [note.kind.value for note in platform.state.notes([INCIDENT])]
    assert kinds == ["assignment", "comment", "escalation"]


def test_follow_ups_are_added_listed_and_closed(platform):
    arguments = ("replace the riser", "--owner", "hardware", "--due", "2026-05-11")
    added = command(platform, "incidents", "follow-up", INCIDENT, *arguments, "--as", "li")
    assert [item["id"] for item in command(platform, "incidents", "follow-ups", "--open")] == [added["id"]]
    table = run("incidents", "follow-ups", "-o", "table", cwd=platform.folder).stdout
    assert "overdue" in table
    assert command(platform, "incidents", "close-follow-up", added["id"])["closed_at"]
    assert command(platform, "incidents", "follow-ups", "--open") == []
    assert "No follow-ups." in run("incidents", "follow-ups", "--open", "-o", "table", cwd=platform.folder).stdout


def test_a_due_date_that_is_none_is_refused(platform):
    arguments = ("replace it", "--owner", "hardware", "--due", "soon")
    error = command(platform, "incidents", "follow-up", INCIDENT, *arguments, code=2)["error"]
    assert error["hint"] == "write it as 2026-11-28"


def test_config_check_warns_of_gaps(tmp_path):
    nights = on_call.ROTATION | {"start": "2026-01-05", "hours": [{"start": "20:00", "end": "08:00"}]}
    oncall = {"people": on_call.PEOPLE, "schedules": [on_call.SCHEDULE | {"rotations": [nights]}]}
    (tmp_path / "night.yaml").write_text(json.dumps({"oncall": oncall}))
    checked = answer("config", "check", "night.yaml", "-o", "json", cwd=tmp_path)
    assert checked["valid"]
    assert "nobody is on call from" in checked["warnings"][0]["message"]
