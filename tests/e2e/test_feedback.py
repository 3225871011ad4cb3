"""Feedback on real databases: verdicts through the API; a rule proposed, applied and reverted."""

import contextlib
import json
import re
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import yaml

from outrider.audit import AuditEvent
from outrider.clock import ManualClock, rfc3339
from outrider.model import (
    Alert,
    AlertReason,
    AlertState,
    CellStatus,
    CycleRecord,
    EntityKind,
    EntityRef,
    Priority,
    SampleBatch,
    SignalKey,
)
from outrider.ports import CycleCommit
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.config import settings as settings_file
from service.config.api_settings import ApiSettings
from service.wiring import detectors as wiring_detectors
from service.wiring import stores as wiring_stores
from tests.service.api.test_api import ADMIN, Http
from tests.service.cli.test_cli import answer, run

T0 = datetime(2026, 5, 4, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
RULE = "kv-cache-full"
KEYS = (SignalKey("engine_kv_cache_usage_ratio"), SignalKey("engine_requests_waiting"))
REPLICAS = tuple(EntityRef("c", EntityKind.REPLICA, "llm", f"chat-{number}") for number in range(2))
OCCURRENCES, SPACING = 14, 40  # spacing in minutes
RULES = "# ours\nversion: 1\nrules:\n  - name: ttft-p99-high  # our users wait\n    wait: 6m\n"


def start_of(number):
    return T0 + (SPACING * number + 10) * MINUTE


def values(at):
    """Normal values with plateaus of the first replica; every other one is higher and longer."""
    number, minute = divmod(int((at - T0) / MINUTE), SPACING)
    useful = number % 2 == 0
    full = number < OCCURRENCES and 10 <= minute < (32 if useful else 26)
    return np.array([[(0.99 if useful else 0.96) if full else 0.4, 3.0 if full else 0.0], [0.4, 0.0]])


@pytest.fixture(scope="module", params=["sqlite", "postgresql"])
def store_url(request, tmp_path_factory):
    """A store with half a day of values and verdicts through the API, shared by the tests of this file."""
    with contextlib.ExitStack() as stack:
        if request.param == "sqlite":
            url = f"sqlite:///{tmp_path_factory.mktemp('judged')}/x.db"
        else:
            url = stack.enter_context(request.getfixturevalue("postgres_server").database())
        fill(settings_file.Settings.model_validate({"store": {"url": url}, "collect": {"interval": "1m"}}))
        yield url


def fill(settings):
    end = T0 + (SPACING * OCCURRENCES + 5) * MINUTE
    with wiring_stores.stores(settings) as (state, metrics):
        at = T0
        while at <= end:
            sampled = values(at)
            status = np.full(sampled.shape, CellStatus.PRESENT, dtype=np.uint8)
            metrics.write(at, [SampleBatch("x", at, EntityKind.REPLICA, KEYS, REPLICAS, sampled, status, 60.0)])
            at += MINUTE
        alerts = tuple(
            Alert(
                f"{RULE}/{number}", RULE, Priority.P2, REPLICAS[0], AlertState.RESOLVED, AlertReason.CONDITION_GONE,
                start_of(number), start_of(number), start_of(number) + (24 if number % 2 == 0 else 18) * MINUTE,
            )
            for number in range(OCCURRENCES)
        )  # fmt: skip
        state.commit(CycleCommit(CycleRecord("c", end, 0.1, 1, 1, 1, 1, 1, 1), alerts))
        token = ADMIN["Authorization"].split(" ", 1)[1]
        api_settings = ApiSettings(token=token, rules=wiring_detectors.rules(settings), interval=MINUTE)
        http = Http(create_app(state, metrics, api_settings, ApiExtras(clock=ManualClock(end))))
        for number in range(OCCURRENCES):
            body = {"verdict": "useful" if number % 2 == 0 else "not_useful"}
            done = http.post(f"/api/v1/alerts/{RULE}/{number}/feedback", json=body, headers=ADMIN)
            assert done.status_code == 200, done.text


@pytest.fixture
def platform(store_url, tmp_path):
    """A configuration and a rules file of its own over that store."""
    rules = tmp_path / "rules.yaml"
    rules.write_text(RULES)
    document = {"store": {"url": store_url}, "collect": {"interval": "1m"}, "rules": {"files": [str(rules)]}}
    (tmp_path / "outrider.yaml").write_text(yaml.safe_dump(document))
    return tmp_path


def outrider(platform, *arguments, code=0):
    command = ("feedback", *arguments, "--config", str(platform / "outrider.yaml"), "-o", "json")
    return answer(*command, cwd=platform, code=code)


def audited(platform):
    with wiring_stores.state_reader(settings_file.load(platform / "outrider.yaml")) as store:
        events = (AuditEvent.RULE_TUNED, AuditEvent.RULE_REVERTED)
        file = str(platform / "rules.yaml")
        return [record for record in store.audit() if record.event in events and record.detail["file"] == file]


@pytest.mark.slow
def test_a_tuned_rule_is_applied_and_reverted(platform):
    (row,) = outrider(platform, "precision")
    assert (row["rule"], row["judged"], row["precision"]) == (RULE, OCCURRENCES, 0.5)

    proposal = outrider(platform, "propose", RULE)
    assert (proposal["reason"], proposal["judged"], proposal["unchecked"]) == ("better", OCCURRENCES, [])
    now, best = proposal["now"], proposal["proposed"]
    assert (now["kept_useful"], now["kept_useless"], now["threshold"]) == (7, 7, 0.95)
    assert (best["kept_useful"], best["dropped_useful"], best["dropped_useless"]) == (7, 0, 7)
    assert (best["threshold"], best["delay_most_seconds"]) == (0.961, 0.0)
    assert best["alerts_per_day"] == pytest.approx(now["alerts_per_day"] / 2)
    assert 1.4 * proposal["days"] < 1.0, "a new store is measured over its own history only"

    rules = platform / "rules.yaml"
    shown = outrider(platform, "apply", RULE)
    assert (shown["applied"], rules.read_text()) == (False, RULES), "nothing is document without --yes"
    assert re.search(r"^\+    expr: 'last\(engine_kv_cache_usage_ratio\) > 0\.961 and", shown["diff"], re.MULTILINE)
    assert audited(platform) == []

    done = outrider(platform, "apply", RULE, "--yes")
    after = rules.read_text()
    assert after.startswith(RULES), "comments and other rules stay"
    assert (platform / done["backup"].rsplit("/", 1)[1]).read_text() == RULES
    in_force = {rule.name: rule for rule in wiring_detectors.rules(settings_file.load(platform / "outrider.yaml"))}
    assert "> 0.961 and" in in_force[RULE].expr
    assert in_force[RULE].wait == timedelta(minutes=10)
    (record,) = audited(platform)
    assert (record.event, record.subject, record.detail["file"]) == (AuditEvent.RULE_TUNED, RULE, str(rules))
    assert record.detail["effect"] == "useful 7 kept 0 dropped, useless 7 dropped"

    again = outrider(platform, "propose", RULE, code=1)
    assert again["reason"] == "not_reproduced", "dropped alerts are not dropped again"

    preview = outrider(platform, "revert", RULE)
    assert (preview["applied"], rules.read_text()) == (False, after)
    outrider(platform, "revert", RULE, "--yes")
    assert rules.read_text() == RULES
    assert [record.event for record in audited(platform)] == [AuditEvent.RULE_REVERTED, AuditEvent.RULE_TUNED]
    refused = run("feedback", "revert", RULE, "--config", str(platform / "outrider.yaml"), "-o", "json", cwd=platform)
    assert (refused.returncode, "has no change to revert" in refused.stdout) == (2, True)


@pytest.mark.slow
def test_values_stored_with_verdicts_outlive_raw_retention(platform):
    config = platform / "outrider.yaml"
    document = yaml.safe_load(config.read_text())
    document["store"]["retention"] = {"raw": "1h"}
    config.write_text(yaml.safe_dump(document))
    proposal = outrider(platform, "propose", RULE)
    assert (proposal["reason"], proposal["unchecked"]) == ("better", [])
    assert (proposal["proposed"]["threshold"], proposal["proposed"]["dropped_useless"]) == (0.961, 7)
    assert proposal["days"] == pytest.approx(1 / 24, abs=0.01)


def test_a_changed_rules_file_is_not_overwritten(platform):
    rules = platform / "rules.yaml"
    outrider(platform, "apply", RULE, "--wait", "20m", "--yes")
    assert "wait: 20m" in rules.read_text()
    rules.write_text(rules.read_text() + "# mine\n")
    refused = run(
        "feedback", "revert", RULE, "--yes", "--config", str(platform / "outrider.yaml"), "-o", "json", cwd=platform
    )
    assert (refused.returncode, "has changed since then" in refused.stdout) == (2, True)
    assert rules.read_text().endswith("# mine\n")


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["propose", "kv-cache-ful"], 2, 'did you mean "kv-cache-full"'),
        (["propose", RULE, "--threshold", "0.97", "--wait", "20m"], 2, "cannot be measured together"),
        (["propose", "gpu-memory-high", "--threshold", "0.97"], 2, "does not compare with a single number"),
        (["propose", RULE, "--wait", "soon"], 2, "--wait"),
        (["propose", "engine-dead"], 1, "not evaluated on metric values"),
        (["propose", "ttft-p99-high"], 1, "0 occurrences have a verdict; a proposal needs 10"),
        (["propose", RULE, "--since", rfc3339(start_of(8))], 1, "6 occurrences have a verdict"),
        (["apply", RULE, "--threshold", "0.995"], 1, "drops enough"),
        (["revert", "ttft-p99-high"], 2, "has no change to revert"),
    ],
)
def test_a_refused_proposal_has_a_reason(platform, arguments, code, message):
    command = ("feedback", *arguments, "--config", str(platform / "outrider.yaml"), "-o", "json")
    done = run(*command, cwd=platform)
    assert done.returncode == code, done.stderr
    assert message in (json.loads(done.stdout).get("said") or json.loads(done.stdout)["error"]["message"])
    assert (platform / "rules.yaml").read_text() == RULES


def test_without_a_rules_file_the_error_has_a_hint(platform):
    config = platform / "outrider.yaml"
    document = yaml.safe_load(config.read_text())
    del document["rules"]
    config.write_text(yaml.safe_dump(document))
    done = run("feedback", "apply", RULE, "--config", str(config), "-o", "json", cwd=platform)
    assert done.returncode == 2
    assert "rules.files" in json.loads(done.stdout)["error"]["hint"]


def test_the_table_is_in_both_languages(platform):
    config = str(platform / "outrider.yaml")
    english = run("feedback", "propose", RULE, "--config", config, "-o", "table", cwd=platform).stdout
    assert "* threshold 0.961" in english
    assert "7 / 7" in english
    chinese = run("feedback", "propose", RULE, "--config", config, "-o", "table", "--lang", "zh", cwd=platform).stdout
    assert "* 阈值 0.961" in chinese
