"""``--apply`` of warm-up, pre-pull and scaling documents, on a real control plane."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from outrider.audit import AuditEvent
from outrider.model import (
    BacktestScore,
    CycleRecord,
    EntityKind,
    EntityRef,
    Forecast,
    Plan,
    PlanReason,
    Recommendation,
)
from outrider.ports import CycleCommit
from service.config.settings import Settings, StoreSettings
from service.wiring import stores as wiring_stores
from tests.service.cli.test_cli import answer, run
from tests.support.accepted import SPACE, accepting, where
from tests.support.crds import CHANGED_BY_PLANS
from tests.support.kube import Cluster

AT = datetime(2026, 11, 21, 12, tzinfo=UTC)
CHAT = EntityRef("default", EntityKind.SERVICE, SPACE, "chat")
WARM = (
    "capacity",
    "what-if",
    "warm",
    "--service",
    "chat",
    "--image",
    "vllm/vllm-openai:v0.11.0",
    "--phase",
    "pull=140",
)
EMIT = ("capacity", "emit", "--service", "chat")
BALLOON = where("Deployment", "chat-balloon")


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    with accepting(control_plane, *CHANGED_BY_PLANS) as accepted:
        yield accepted


def configured(folder: Path, cluster: Cluster, token: str = "admin") -> Path:
    """Writes a configuration with this API server and a store in the folder."""
    api = {"url": cluster.url, "bearer_token_file": str(cluster.token_file(token)), "insecure_skip_verify": True}
    document = {
        "store": {"url": f"sqlite:///{folder}/s.db"},
        "services": [{"name": "chat", "namespace": SPACE}],
        "planner": {"scaling": {"kubernetes": api}},
    }
    (folder / "outrider.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")
    return folder


def stores(folder: Path) -> Any:
    return wiring_stores.stores(Settings(store=StoreSettings(url=f"sqlite:///{folder}/s.db")))


def plan(folder: Path, chat: EntityRef = CHAT) -> None:
    """Stores a plan with a forecast that alternates every hour."""
    times = AT.timestamp() + 600.0 * np.arange(144)
    hourly = np.repeat(np.resize(np.asarray([20.0, 90.0]), 24), 6)
    forecast = Forecast(
        "service_requests_per_second", chat, AT, timedelta(minutes=10), times,
        {0.5: hourly * 0.8, 0.95: hourly}, "wave", BacktestScore(None, None, None, 0),
    )  # fmt: skip
    wanted = Recommendation(
        service=chat, gpu_type="H100", current_replicas=4, target_replicas=6, gpus=24, floor=2, ceiling=20,
        binding="load", need_at=None, needed_by=None, lead_time=timedelta(minutes=8), cost_per_hour=None,
        currency="USD", derivation={"capacity_now": 40.0}, reason=PlanReason.FORECAST_PEAK, made_at=AT,
    )  # fmt: skip
    with stores(folder) as (state, _):
        made = Plan(recommendations=(wanted,), forecasts=(forecast,))
        state.commit(CycleCommit(CycleRecord("c", AT, 1.0, 3, 3, 0, 0, 0, 0), plan=made))


def audited(folder: Path) -> list[tuple[str, str]]:
    """Subject and outcome of every performed action in the audit log, oldest first."""
    with stores(folder) as (state, _):
        records = [each for each in state.audit(limit=50) if each.event is AuditEvent.ACTION_PERFORMED]
    return [(each.subject, each.reason) for each in sorted(records, key=lambda each: each.id)]


@pytest.mark.control_plane
def test_a_preview_prints_what_would_change_and_stores_nothing(cluster: Cluster, tmp_path: Path) -> None:
    configured(tmp_path, cluster)
    shown = answer(*WARM, "--apply", "-o", "json", cwd=tmp_path)
    assert {each["result"] for each in shown["applied"]} == {"created"}
    assert all(each["dry_run"] for each in shown["applied"])
    balloon = next(each for each in shown["applied"] if each["object"] == f"Deployment {SPACE}/chat-balloon")
    assert (balloon["request"]["method"], balloon["request"]["url"]) == ("PATCH", BALLOON)
    assert cluster.http.get(BALLOON).status_code == 404
    text = run(*WARM, "--apply", "-o", "table", cwd=tmp_path).stdout
    assert f"Deployment {SPACE}/chat-balloon would be created" in text
    assert "Nothing has been changed. Add --yes to apply." in text
    assert "尚未更改任何内容" in run(*WARM, "--apply", "-o", "table", "--lang", "zh", cwd=tmp_path).stdout


@pytest.mark.control_plane
def test_confirmed_documents_are_applied_once_and_audited(cluster: Cluster, tmp_path: Path) -> None:
    configured(tmp_path, cluster)
    shown = answer(*WARM, "--apply", "--yes", "-o", "json", cwd=tmp_path)
    assert {(each["result"], each["dry_run"]) for each in shown["applied"]} == {("created", False)}
    assert cluster.get(BALLOON)["spec"]["replicas"] == 1
    names = [f"apply {each['object']}" for each in shown["applied"]]
    assert audited(tmp_path) == [(name, "created") for name in names]
    again = answer(*WARM, "--apply", "--yes", "-o", "json", cwd=tmp_path)
    assert {each["result"] for each in again["applied"]} == {"unchanged"}
    assert len(audited(tmp_path)) == len(names), "what is not stored is not audited"


@pytest.mark.control_plane
def test_the_cron_scaler_of_the_plan_is_applied(cluster: Cluster, tmp_path: Path) -> None:
    plan(configured(tmp_path, cluster))
    shown = answer(*EMIT, "--format", "cron", "--apply", "--yes", "-o", "json", cwd=tmp_path)
    (applied,) = shown["applied"]
    assert (applied["object"], applied["result"]) == (f"ScaledObject {SPACE}/chat", "created")
    assert cluster.get(where("ScaledObject", "chat"))["spec"]["triggers"]
    text = run(*EMIT, "--format", "cron", "--apply", "-o", "table", cwd=tmp_path).stdout
    assert f"ScaledObject {SPACE}/chat would stay as it is" in text


@pytest.mark.control_plane
def test_a_plan_of_another_cluster_is_not_applied(cluster: Cluster, tmp_path: Path) -> None:
    plan(configured(tmp_path, cluster), replace(CHAT, cluster="west"))
    done = run(*EMIT, "--format", "cron", "--apply", cwd=tmp_path)
    assert (done.returncode, "every service of the plan is in another cluster: west" in done.stdout) == (2, True)


@pytest.mark.control_plane
def test_patches_are_sent_and_not_applied(cluster: Cluster, tmp_path: Path) -> None:
    plan(configured(tmp_path, cluster))
    done = run(*EMIT, "--format", "hpa", "--apply", cwd=tmp_path)
    assert (done.returncode, "hpa changes another object" in done.stderr + done.stdout) == (2, True)
    assert "--send" in done.stderr + done.stdout
    none = run(*EMIT, "--apply", cwd=tmp_path)
    assert (none.returncode, "no document of the plan is a whole object" in none.stderr + none.stdout) == (2, True)


@pytest.mark.control_plane
def test_a_missing_permission_is_named_and_audited(cluster: Cluster, tmp_path: Path) -> None:
    configured(tmp_path, cluster, "stranger")
    done = run(*WARM, "--apply", "--yes", "-o", "json", cwd=tmp_path)
    assert done.returncode == 2
    assert 'resource \\"priorityclasses\\"' in done.stdout
    assert "rbac-apply.yaml" in done.stdout
    assert audited(tmp_path) == [("apply", "failed")]


@pytest.mark.control_plane
def test_a_pause_and_the_kill_switch_refuse_to_apply(cluster: Cluster, tmp_path: Path) -> None:
    file = configured(tmp_path, cluster) / "outrider.yaml"
    (tmp_path / "stop").touch()
    before = file.read_text(encoding="utf-8")
    file.write_text(f"{before}remediation: {{kill_switch_file: {tmp_path}/stop}}\n", encoding="utf-8")
    killed = run(*WARM, "--apply", "--yes", "-o", "json", cwd=tmp_path)
    assert (killed.returncode, "the kill switch is on" in killed.stdout) == (2, True)
    (tmp_path / "stop").unlink()
    with stores(tmp_path) as (state, _):
        state.set_paused(True, "anna", AT)
    done = run(*WARM, "--apply", "--yes", "-o", "json", cwd=tmp_path)
    assert (done.returncode, "remediation is paused" in done.stdout) == (2, True)
    assert cluster.http.get(BALLOON).status_code == 404


def test_confirmation_alone_and_a_missing_server_are_refused(tmp_path: Path) -> None:
    (tmp_path / "outrider.yaml").write_text("services: [{name: chat}]\n", encoding="utf-8")
    alone = run(*WARM, "--yes", "-o", "json", cwd=tmp_path)
    assert (alone.returncode, "--yes requires --apply" in alone.stdout) == (2, True)
    unset = run(*WARM, "--apply", "-o", "json", cwd=tmp_path)
    assert (unset.returncode, "planner.scaling.kubernetes.url" in unset.stdout) == (2, True)
