"""Channels, limits, fallbacks and the checks of their keys."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import get_args

import pytest

from alerts.notify import phone
from alerts.notify.registry import NOTIFIERS
from outrider.model import ChannelPolicy, RateLimit
from service.config import notify_settings, settings
from service.wiring import alerting

CHAT = {"type": "slack", "url": "https://hooks.slack.example/x"}
SMS = {
    "type": "twilio_sms", "account_sid": "AC0", "auth_token": "t", "from": "+15005550006", "to": "+8613800000001"
}  # fmt: skip


LINKED = {"public_url": "https://outrider.example"}


def reviewed(folder, **notify):
    notify = LINKED | notify
    (folder / "outrider.yaml").write_text(json.dumps({"notify": notify}), encoding="utf-8")
    loaded, problems, warnings = settings.review(folder / "outrider.yaml")
    return loaded, [(one.key, one.message) for one in problems], [(one.key, one.message) for one in warnings]


def test_every_channel_type_is_a_setting():
    assert set(get_args(notify_settings.ChannelTypeName)) == set(NOTIFIERS)


def test_a_p0_that_reaches_no_phone_is_a_warning(tmp_path):
    _, problems, warnings = reviewed(tmp_path, channels={"team": CHAT}, groups={"im": ["team"]})
    assert problems == []
    ((key, message),) = warnings
    assert key == "notify.groups"
    assert "a P0 reaches no phone and no SMS" in message


@pytest.mark.parametrize(
    ("channels", "groups"),
    [
        ({}, {}),
        ({"team": CHAT, "sms": SMS}, {"im": ["team"], "sms": ["sms"]}),
        ({"sms": SMS}, {"im": ["sms"]}),
        ({"gateway": {"type": "webhook", "url": "https://sms.example"}}, {"phone": ["gateway"]}),
        ({"pager": {"type": "pagerduty", "routing_key": "k"}}, {"im": ["pager"]}),
    ],
)
def test_a_p0_that_reaches_a_phone_is_no_warning(tmp_path, channels, groups):
    assert reviewed(tmp_path, channels=channels, groups=groups)[1:] == ([], [])


@pytest.mark.parametrize(
    ("channels", "groups", "warned"),
    [
        ({"sms": SMS}, {"mail": ["sms"]}, True),  # a P0 is not mailed
        ({"gateway": {"type": "webhook", "url": "https://x.example"}}, {"im": ["gateway"]}, True),
    ],
)
def test_only_the_groups_of_a_p0_count(tmp_path, channels, groups, warned):
    assert bool(reviewed(tmp_path, channels=channels, groups=groups)[2]) is warned


def warned(folder, document):
    document["notify"] = LINKED | document["notify"]
    (folder / "outrider.yaml").write_text(json.dumps(document), encoding="utf-8")
    _, problems, warnings = settings.review(folder / "outrider.yaml")
    assert [str(problem) for problem in problems] == []
    return [(one.key, one.message.split(" reaches")[0]) for one in warnings]


TEAMS = {"people": [{"name": "li"}], "teams": [{"name": "model", "members": ["li"]}]}


def with_groups(*groups):
    teams = [{"name": f"t{number}", "members": ["li"], "groups": own} for number, own in enumerate(groups)]
    return {"people": [{"name": "li"}], "teams": teams}


@pytest.mark.parametrize(
    ("general", "oncall", "keys"),
    [
        ({"im": ["team"]}, TEAMS, ["notify.groups"]),
        ({"im": ["team"]}, with_groups({"sms": ["sms"]}), []),
        ({"im": ["team"]}, with_groups({"sms": ["sms"]}, {"im": ["team"]}), ["oncall.teams[1].groups"]),
        ({"sms": ["sms"]}, with_groups({"sms": [], "im": ["team"]}), ["oncall.teams[0].groups"]),
    ],
)
def test_the_routes_of_each_team_must_reach_a_phone(tmp_path, general, oncall, keys):
    notify = {"channels": {"team": CHAT, "sms": SMS}, "groups": general}
    found = warned(tmp_path, {"notify": notify, "oncall": oncall})
    assert found == [(key, "a P0") for key in keys]


def test_a_p0_rule_or_slo_with_routes_of_its_own_must_reach_a_phone(tmp_path):
    rule = {"kind": "node", "faults": ["node-lost"], "priority": "P0", "runbook": "docs/runbooks/node-lost.md"}
    rules = [{**rule, "name": "quiet", "routes": ["im"]}, {**rule, "name": "loud", "routes": ["im", "sms"]}]
    (tmp_path / "rules.yaml").write_text(json.dumps({"version": 1, "rules": rules}), encoding="utf-8")
    slos = [{"name": "chat", "service": "chat", "page": "P0", "routes": ["im"]}]
    notify = {"channels": {"team": CHAT, "sms": SMS}, "groups": {"im": ["team"], "sms": ["sms"]}}
    found = warned(tmp_path, {"notify": notify, "slos": slos, "rules": {"files": [str(tmp_path / "rules.yaml")]}})
    assert found == [("rules[0].routes", "a P0 of rule quiet"), ("slos[0].routes", "a P0 of this SLO")]


def test_the_keys_of_every_channel_are_checked_without_sending(tmp_path):
    channels = {
        "a": {"type": "slack"},
        "b": {**CHAT, "urls": "x"},
        "c": {**CHAT, "limit": "20 a minute"},
        "d": {**CHAT, "template": "{% if %}"},
        "e": {"type": "sms"},
    }
    _, problems, _ = reviewed(tmp_path, channels=channels)
    found = dict(problems)
    assert "expected a number and a duration such as 20/1m" in found["notify.channels.c.limit"]
    assert "dingtalk" in found["notify.channels.e.type"]
    del channels["c"], channels["e"]
    _, problems, _ = reviewed(tmp_path, channels=channels)
    found = dict(problems)
    assert "needs url" in found["notify.channels.a"]
    assert "has no setting 'urls'" in found["notify.channels.b"]
    assert "syntax error" in found["notify.channels.d"]


def test_a_secret_file_of_another_machine_is_a_warning(tmp_path):
    channels = {"sms": {**SMS, "auth_token_file": "/run/secrets/none"}}
    del channels["sms"]["auth_token"]
    _, problems, warnings = reviewed(tmp_path, channels=channels, groups={"sms": ["sms"]})
    assert problems == []
    assert warnings == [
        (
            "notify.channels.sms.auth_token_file",
            "auth_token_file of the twilio_sms channel cannot be read: No such file or directory",
        )
    ]


def test_limits_and_fallbacks_become_policies(tmp_path):
    channels = {"a": {**CHAT, "limit": "30/1m"}, "b": {**CHAT, "fallback": "a"}, "sms": SMS}
    loaded, problems, _ = reviewed(tmp_path, channels=channels, fallback="sms", fallback_after="10m")
    assert problems == []
    after = timedelta(minutes=10)
    assert loaded.notify.policies() == {
        "a": ChannelPolicy(RateLimit(30, timedelta(minutes=1)), True, "sms", after),
        "b": ChannelPolicy(RateLimit(1, timedelta(seconds=1)), True, "a", after),
        "sms": ChannelPolicy(RateLimit(5, timedelta(minutes=1)), True, None, after, phone.is_sms, per_number=True),
    }


def test_unknown_fallbacks_are_rejected(tmp_path):
    channels = {"team": {**CHAT, "fallback": "team"}, "other": {**CHAT, "fallback": "teem"}}
    _, problems, _ = reviewed(tmp_path, channels=channels, fallback="nobody")
    assert dict(problems) == {
        "notify.fallback": "no channel is named 'nobody'; name it under notify.channels",
        "notify.channels.team.fallback": "a channel cannot be its own fallback",
        "notify.channels.other.fallback": "no channel is named 'teem'; did you mean \"team\"?",
    }


def test_channels_that_show_the_state_of_an_incident_receive_acknowledgements(tmp_path):
    channels = {"team": CHAT, "pager": {"type": "pagerduty", "routing_key": "k"}}
    loaded, _, _ = reviewed(tmp_path, channels=channels)
    assert alerting.messaging_of(loaded).tracking == {"pager"}
    assert alerting.messaging_of(loaded).separate == {"pager"}, "its alerts end one by one"


def test_a_template_may_come_from_a_file(tmp_path):
    (tmp_path / "body.j2").write_text("{{ title }}", encoding="utf-8")
    channels = {"team": {**CHAT, "template_file": str(tmp_path / "body.j2")}}
    loaded, problems, _ = reviewed(tmp_path, channels=channels)
    assert problems == []
    assert set(alerting.notifiers(loaded, "")) == {"team"}
    channels["team"]["template_file"] = str(tmp_path / "missing.j2")
    assert "cannot be read" in reviewed(tmp_path, channels=channels)[1][0][1]
