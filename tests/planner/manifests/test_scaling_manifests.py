"""The plan as documents for other controllers: in their own formats, without conflicts."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import replace
from datetime import timedelta

import numpy as np
import pytest
import yaml

from outrider.errors import UsageError
from outrider.model import PlanReason
from planner.capacity.plan import PlanSettings, plan
from planner.manifests import scaling_manifests


@pytest.fixture
def made(build):
    values = build.wave(6.0, level=40.0, noise=0.0)
    known = {build.service: build.calibration()}
    settings = PlanSettings()
    result = plan(build.history(values), known, [build.fleet(current_replicas=24)], build.now, settings=settings)
    return result.recommendations[0], result.forecasts[0]


def _aim(kind, **more):
    return scaling_manifests.ScalingTarget(kind, "chat", "prod", **more)


def test_least_replicas_of_an_hpa_and_a_scaled_object(made):
    result, _ = made
    hpa, keda = (scaling_manifests.render(result, _aim(kind)) for kind in ("hpa", "scaled_object"))
    assert hpa.body["spec"] == {"minReplicas": result.target_replicas}
    assert keda.body["spec"] == {"minReplicaCount": result.target_replicas}
    assert hpa.path == "/apis/autoscaling/v2/namespaces/prod/horizontalpodautoscalers/chat"
    assert keda.path == "/apis/keda.sh/v1alpha1/namespaces/prod/scaledobjects/chat"
    assert hpa.body["metadata"]["annotations"][scaling_manifests.REASON_ANNOTATION] == result.reason
    assert yaml.safe_load(hpa.text) == hpa.body
    none = replace(result, target_replicas=0)
    assert scaling_manifests.render(none, _aim("hpa")).body["spec"]["minReplicas"] == 1, "an HPA does not allow zero"
    assert scaling_manifests.render(none, _aim("scaled_object")).body["spec"]["minReplicaCount"] == 0


def test_knative_is_patched_without_a_new_revision(made):
    document = scaling_manifests.render(made[0], _aim("knative"))
    assert "spec" not in document.body
    assert document.body["metadata"]["annotations"][scaling_manifests.KNATIVE_MIN_SCALE] == str(made[0].target_replicas)


def test_cron_hours_cover_the_forecast_with_the_lead_time_ahead(build, made):
    result, forecast = made
    document = scaling_manifests.render(
        result, _aim("cron", timezone="Asia/Shanghai"), forecast, url="http://outrider:8600"
    )
    crons = [one for one in document.body["spec"]["triggers"] if one["type"] == "cron"]
    assert crons
    assert {one["metadata"]["timezone"] for one in crons} == {"Asia/Shanghai"}
    trigger = document.body["spec"]["triggers"][-1]
    assert trigger["metadata"]["url"] == "http://outrider:8600/api/v1/scaling/prod/chat-70b"
    per_replica = result.derivation["capacity_now"] / 24
    spans = scaling_manifests.hours(replace(result, lead_time=timedelta(minutes=30)), forecast, "UTC")
    for at, value in zip(forecast.times, forecast.quantiles[0.95], strict=True):
        inside = [count for start, end, count in spans if start.timestamp() <= at < end.timestamp()]
        if inside:
            assert inside[0] >= min(result.ceiling, value / per_replica) - 1e-6
    with pytest.raises(UsageError, match="no forecast"):
        scaling_manifests.render(result, _aim("cron"))


@pytest.mark.skipif(shutil.which("git") is None, reason="missing: git is not installed")
def test_the_git_patch_applies_to_a_real_repository(tmp_path, made):
    result, _ = made
    aim = _aim("kustomize", file="apps/chat/outrider/kustomization.yaml")
    first, later = (
        scaling_manifests.render(result, aim),
        scaling_manifests.render(replace(result, target_replicas=31), aim),
    )
    subprocess.run(["git", "init", "-q"], cwd=tmp_path, check=True)
    for document in (first, later):
        path = tmp_path / document.file
        before = path.read_text() if path.exists() else ""
        patch = scaling_manifests.git_patch(document, before)
        subprocess.run(["git", "apply", "-"], cwd=tmp_path, input=patch, text=True, check=True)
        assert path.read_text() == document.text
        assert scaling_manifests.git_patch(document, path.read_text()) == ""
    patches = yaml.safe_load(path.read_text())["patches"]
    assert [yaml.safe_load(one["patch"])["spec"] for one in patches] == [{"minReplicas": 31}, {"minReplicaCount": 31}]
    assert not [one for one in patches if "replicas" in yaml.safe_load(one["patch"])["spec"]]


def test_a_webhook_has_the_same_id_for_the_same_plan(made):
    result, _ = made
    first, same = (
        scaling_manifests.payload(result),
        scaling_manifests.payload(replace(result, reason=PlanReason.ENOUGH)),
    )
    assert first["id"] == same["id"]
    assert first["target_replicas"] == result.target_replicas
    assert np.isfinite(first["lead_time_seconds"])
