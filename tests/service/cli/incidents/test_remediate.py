"""``outrider remediate``: commands of a person against a running API."""

from __future__ import annotations

import socket
import threading
from dataclasses import replace
from datetime import timedelta

import pytest
import uvicorn

from outrider.model import ActionKind, ActionStatus, BreakerState, EntityKind, EntityRef
from outrider.ports import CycleCommit
from outrider.testing.names import NOW
from outrider.testing.story import Story
from service.api.app import create_app
from service.config import settings as settings_file
from service.wiring.api import api_settings
from store import factory
from tests.service.cli.test_cli import answer, run


class Platform:
    """A filled store, and the API on it."""

    def __init__(self, folder, *, dry_run=True, more="") -> None:
        self.folder, self.switch = folder, folder / "stop"
        server = socket.create_server(("127.0.0.1", 0))
        url = f"sqlite:///{folder}/o.db"
        config = folder / "outrider.yaml"
        config.write_text(
            f"store: {{url: '{url}'}}\napi: {{port: {server.getsockname()[1]}}}\n"
            f"remediation: {{autonomy: act, dry_run: {str(dry_run).lower()}, kill_switch_file: '{self.switch}'}}\n"
            f"{more}"
        )
        answer("db", "upgrade", "-o", "json", cwd=folder)
        state_url, metrics_url = factory.urls_of(url)
        self.state, self._metrics = factory.open_state(state_url), factory.open_metrics(metrics_url)
        Story(history=timedelta(minutes=2)).fill(self.state, self._metrics)
        app = create_app(self.state, self._metrics, api_settings(settings_file.load(config)))
        self._server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
        self._thread = threading.Thread(target=self._server.run, kwargs={"sockets": [server]})
        self._thread.start()
        self._socket = server

    def command(self, *arguments, code=0):
        return answer("remediate", *arguments, "-o", "json", cwd=self.folder, code=code)

    def text(self, *arguments):
        """The output for a terminal."""
        return run("remediate", *arguments, "-o", "table", cwd=self.folder).stdout

    def add(self, id_, status, **more):
        """A copy of the waiting drain."""
        (drain,) = self.state.actions(statuses=[ActionStatus.WAITING_APPROVAL])
        self.commit(actions=(replace(drain, id=id_, status=status, **more),))

    def commit(self, **parts):
        self.state.commit(CycleCommit(self.state.cycles(limit=1)[0], **parts))

    def close(self) -> None:
        self._server.should_exit = True
        self._thread.join()
        self._socket.close()
        self.state.close()
        self._metrics.close()


@pytest.fixture
def platform(tmp_path):
    running = Platform(tmp_path)
    yield running
    running.close()


def test_two_people_approve_and_the_list_counts_them(platform):
    platform.add("two", ActionStatus.WAITING_APPROVAL, approvals_needed=2)
    assert platform.command("approve", "two", "--as", "ann")["approvals"] == ["ann"]
    assert "waiting_approval (1 of 2 approvals)" in platform.text("list")
    refused = run("remediate", "approve", "two", "--as", "Ann", cwd=platform.folder)
    assert refused.returncode == 2
    assert "another person must approve it" in refused.stderr
    assert platform.command("approve", "two", "--as", "张伟")["approved_by"] == "ann, 张伟"


def test_an_approval_shows_the_action_as_a_row(platform):
    platform.add("two", ActionStatus.WAITING_APPROVAL, approvals_needed=2)
    head, row = platform.text("approve", "two", "--as", "ann").splitlines()
    assert head.split() == ["action", "target", "decision", "reason", "status", "id"]
    assert "1 of 2 approvals" in row


def test_a_recommendation_is_requested_by_name(platform):
    platform.add("idea", ActionStatus.PROPOSED)
    refused = run("remediate", "approve", "idea", cwd=platform.folder)
    assert refused.returncode == 2
    assert "request it first: outrider remediate request idea" in refused.stderr
    assert platform.command("request", "idea", "--as", "ann")["requested_by"] == "ann"
    assert platform.command("reject", "idea", "--as", "bo")["reason"] == "rejected_by_hand"


def test_the_name_of_the_system_user_is_the_default(platform, monkeypatch):
    monkeypatch.setenv("LOGNAME", "grace")
    assert platform.command("pause") == {"paused": True}
    assert platform.command("resume") == {"paused": False}
    assert {record.by for record in platform.state.audit(limit=2)} == {"grace"}


def test_the_status_names_everything_that_holds_remediation(platform):
    shown = platform.command("status")
    assert (shown["paused"], shown["kill_switch"]["on"], shown["breaker"]["open"]) == (False, False, False)
    platform.switch.touch()
    platform.commit(breaker=BreakerState(opened_at=NOW, unsuccessful=4, performed=6))
    platform.command("pause")
    text = platform.text("status")
    for part in ("Autonomy: act", "Dry run", "Paused", str(platform.switch), "4 of 6 actions"):
        assert part in text
    chinese = platform.text("status", "--lang", "zh")
    assert "熔断器" in chinese


def test_the_breaker_is_reset_once(platform):
    platform.commit(breaker=BreakerState(opened_at=NOW, unsuccessful=4, performed=6))
    assert platform.command("reset", "--as", "ann")["reset_by"] == "ann"
    assert not platform.state.breaker().is_open
    again = run("remediate", "reset", cwd=platform.folder)
    assert again.returncode == 2
    assert again.stderr.endswith("outrider remediate status shows it\n")


def test_a_degraded_service_is_restored_by_name(tmp_path):
    acting = Platform(tmp_path, dry_run=False)
    try:
        chat = EntityRef("c", EntityKind.SERVICE, "llm", "chat")
        level = {"kind": ActionKind.DEGRADE_SERVICE, "target": chat, "params": {"level": 3}, "dry_run": False}
        acting.add("level", ActionStatus.DONE, **level)
        restored = acting.command("restore", "llm/chat", "--as", "ann")
        assert (restored["kind"], restored["status"], restored["approved_by"]) == ("restore_service", "intended", "ann")
    finally:
        acting.close()


def test_a_service_that_cannot_be_restored_is_explained(tmp_path):
    acting = Platform(tmp_path, dry_run=False)
    known = sorted(service.name for service in acting.state.topology().of_kind(EntityKind.SERVICE))
    try:
        misspelt = run("remediate", "restore", f"{known[0]}x", "--as", "ann", "-o", "table", cwd=tmp_path)
        assert (misspelt.returncode, misspelt.stdout) == (2, "")
        assert f"no service is named '{known[0]}x'; did you mean \"{known[0]}\"?" in misspelt.stderr
        assert f"known services: {', '.join(known)}" in misspelt.stderr
        normal = run("remediate", "restore", known[0], "--as", "ann", "-o", "table", cwd=tmp_path)
        assert normal.returncode == 2
        assert f"the service '{known[0]}' is not degraded" in normal.stderr
        assert "degraded services: none" in normal.stderr
    finally:
        acting.close()


def test_the_plan_shows_every_guard_that_objects_with_its_detail(platform):
    platform.switch.touch()
    platform.commit(breaker=BreakerState(opened_at=NOW, unsuccessful=4, performed=6))
    config = platform.folder / "outrider.yaml"
    freezes = "freezes: [{name: holidays, start: '00:00', end: '00:00'}]"
    more = f"remediation: {{{freezes}, two_person: [cordon], "
    config.write_text(config.read_text().replace("remediation: {", more))
    rows = platform.command("plan", "--fault", "gpu-thermal-throttle", "--entity", "node-3")
    (row,) = (row for row in rows if row["kind"] == "cordon")
    answers = {answer["name"]: answer for answer in row["guards"] if answer["verdict"] != "allowed"}
    reasons = {(name, given["reason"]) for name, given in answers.items()}
    assert reasons >= {
        ("hold", "kill_switch"),
        ("breaker", "breaker_open"),
        ("freeze", "freeze"),
        ("approval", "needs_approval"),
    }
    assert answers["freeze"]["detail"] == "holidays"
    assert {"maintenance_window", "disruption_budget", "autonomy"} <= {answer["name"] for answer in rows[-1]["guards"]}
    shown = platform.text("plan", "--fault", "gpu-thermal-throttle", "--entity", "node-3")
    assert "freeze refuses: frozen (holidays until " in shown
    assert "breaker refuses: the breaker is open until it is reset (open since 2026-" in shown
    assert "approval requests approval: needs manual approval (cordon: two people must approve)" in shown
    passed = {answer["name"] for answer in row["guards"]} - set(answers)
    block = next(block for block in shown.split("\n\n") if "\ncordon " in block)
    lines = [line.strip().split(" passes: ") for line in block.splitlines() if " passes: " in line]
    assert {name for name, _ in lines} == passed, "each guard is shown, also those that pass"
    assert all(text for _, text in lines)
    assert ["rate_limit", "2 of 20 actions of the last hour used"] in lines
