"""``outrider notify``: test channels of every type; list and retry dead letters."""

from __future__ import annotations

import json
from contextlib import ExitStack
from datetime import timedelta

import pytest

from alerts.notify.registry import NOTIFIERS, Reach
from outrider.model import NotifyReason, Priority
from outrider.ports import CycleCommit
from tests.service.cli.incidents.test_remediate import Platform
from tests.service.cli.test_cli import answer, run
from tests.support.json_server import Response
from tests.support.mail_server import MailEnd
from tests.support.messages import NOW, a_message
from tests.support.vendors.registry import VENDORS
from tests.support.vendors.server import SECRET, serving


def configured(folder, kind, settings):
    channels = {"oncall": {"type": kind, "language": "zh", **settings}}
    (folder / "outrider.yaml").write_text(json.dumps({"notify": {"channels": channels}}), encoding="utf-8")


@pytest.mark.parametrize("kind", NOTIFIERS)
def test_every_channel_type_can_be_tested(kind, tmp_path):
    with ExitStack() as stack:
        if kind == "email":
            end = MailEnd()
            stack.callback(end.close)
            configured(tmp_path, kind, end.settings())
        else:
            end = stack.enter_context(serving(VENDORS[kind]()))
            configured(tmp_path, kind, end.settings())
        result = answer("notify", "test", "oncall", "-o", "json", cwd=tmp_path)
        costly = NOTIFIERS[kind].reach in (Reach.PHONE, Reach.SMS)
        assert result["error"] is None
        assert [sample["priority"] for sample in result["samples"]] == (["P0"] if costly else ["P0", "P1", "P2", "P3"])
        assert end.mails if kind == "email" else (end.accepted and not end.rejected)


def test_a_failing_channel_ends_the_test_with_its_reason_and_exit_code_1(tmp_path):
    with serving(VENDORS["dingtalk"]()) as vendor:
        configured(tmp_path, "dingtalk", {**vendor.settings(), "secret": "SECwrong"})
        result = answer("notify", "test", "oncall", "-o", "json", cwd=tmp_path, code=1)
    assert result["sent"] == 0
    assert "errcode 310000; check the robot's secret" in result["error"]
    assert SECRET not in json.dumps(result)


def test_the_text_names_receipts_and_a_rejected_format(tmp_path):
    with serving(VENDORS["feishu"]()) as vendor:
        configured(tmp_path, "feishu", vendor.settings())
        vendor.script = [Response(400, {"code": 9499, "msg": "Bad Request"})]
        lines = run("notify", "test", "oncall", "-o", "table", cwd=tmp_path).stdout.splitlines()
    assert lines[0].startswith("P0: delivered as plain text, because the channel rejected the usual format")
    assert lines[1:] == [f"P{number}: delivered (receipt -)" for number in (1, 2, 3)]


def test_an_unknown_channel_is_named_with_the_known_ones(tmp_path):
    configured(tmp_path, "webhook", {"url": "http://127.0.0.1:9/"})
    result = answer("notify", "test", "phone", "-o", "json", cwd=tmp_path, code=2)
    assert result["error"] == {"message": "no channel is named 'phone'", "hint": "known channels: oncall"}


@pytest.fixture
def platform(tmp_path):
    platform = Platform(tmp_path)
    yield platform
    platform.close()


def undelivered(platform, *names):
    messages = tuple(
        a_message("en", id=name, channel="oncall", reason=NotifyReason.OPENED, priority=Priority.P1) for name in names
    )
    platform.state.commit(CycleCommit(platform.state.cycles(limit=1)[0], messages=messages))
    now = NOW + timedelta(hours=25)
    platform.state.claim_messages("test", now, timedelta(minutes=1))
    for name in names:
        platform.state.finish_message(name, delivered=False, now=now, error="errcode 310000")


@pytest.mark.slow
def test_dead_letters_are_listed_and_retried(platform):
    folder = platform.folder
    undelivered(platform, "inc-1:opened:P1:oncall:0", "step:c1/node//node-3", "inc-2:opened:P1:oncall:0")
    listed = answer("notify", "dead-letters", "-o", "json", cwd=folder)
    assert {letter["id"] for letter in listed} == {
        "inc-1:opened:P1:oncall:0", "step:c1/node//node-3", "inc-2:opened:P1:oncall:0"
    }  # fmt: skip
    assert listed[0]["error"] == "errcode 310000"
    assert listed[0]["attempts"] == 1
    assert "errcode 310000" in run("notify", "dead-letters", "-o", "table", cwd=folder).stdout
    retried = answer("notify", "retry", "step:c1/node//node-3", "-o", "json", cwd=folder)
    assert retried == {"retried": ["step:c1/node//node-3"]}
    assert "2 messages are sent again" in run("notify", "retry", "--all", "-o", "table", cwd=folder).stdout
    assert answer("notify", "dead-letters", "-o", "json", cwd=folder) == []
    assert answer("notify", "retry", "inc-1:opened:P1:oncall:0", "-o", "json", cwd=folder, code=2)["error"]["hint"]
    records = [record for record in platform.state.audit() if record.event == "message_retried"]
    assert len(records) == 3


def test_retry_needs_an_id_or_all(tmp_path):
    for arguments in ((), ("x", "--all")):
        assert answer("notify", "retry", *arguments, "-o", "json", cwd=tmp_path, code=2)["error"]["message"]
