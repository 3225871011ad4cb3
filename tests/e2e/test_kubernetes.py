"""A platform whose only source is a real Kubernetes API: topology, changes, start-ups and audit, in API and CLI."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from outrider.clock import SystemClock
from outrider.model import EntityKind, EntityRef, Event, EventKind
from outrider.records.change_log import lead_time_quantile
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.cli import main as cli
from service.config import settings as settings_file
from service.wiring import api as wiring_api
from service.wiring import platform as wiring_platform
from store import factory
from tests.support.kube import Cluster
from tests.support.kube_scene import H100, deployment, run, template
from tests.support.waiting import until_async

pytestmark = pytest.mark.control_plane


@pytest.fixture
def configuration(control_plane: Cluster, tmp_path: Path) -> Iterator[Path]:
    control_plane.node("e1", **H100)
    control_plane.namespace("e2e")
    file = tmp_path / "outrider.yaml"
    source = {
        "type": "kubernetes",
        "url": control_plane.url,
        "namespaces": ["e2e"],
        "bearer_token_file": str(control_plane.token_file("admin")),
        "tls": {"insecure_skip_verify": True},
    }
    document = {"cluster": "c", "store": {"url": f"sqlite:///{tmp_path}/x.db"}, "events": [source]}
    file.write_text(yaml.safe_dump(document), encoding="utf-8")
    yield file
    control_plane.delete("/apis/apps/v1/namespaces/e2e/deployments/chat")
    for pod in control_plane.pods("e2e"):
        control_plane.delete(f"/api/v1/namespaces/e2e/pods/{pod['metadata']['name']}", params={"gracePeriodSeconds": 0})
    control_plane.delete("/api/v1/nodes/e1")
    control_plane.delete("/api/v1/namespaces/e2e")


def test_a_platform_with_kubernetes_as_its_only_source(
    control_plane: Cluster, configuration: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = deployment(control_plane, "e2e", replicas=1)
    (pod,) = control_plane.scheduled("e2e", 1)
    settings = settings_file.load(configuration)
    platform = wiring_platform.platform(settings, SystemClock(), lockstep=True)
    clock = SystemClock()
    service = EntityRef("c", EntityKind.SERVICE, "e2e", "chat-70b")

    def changes() -> list[Event]:
        events = platform.metrics.events(clock.now() - timedelta(hours=1), clock.now() + timedelta(minutes=1))
        return [event for event in events if event.kind is EventKind.CHANGE]

    async def cycles_until(condition: Callable[[], object], awaited: str) -> None:
        async def cycled() -> object:
            await platform.cycle.run()
            return condition()

        await until_async(cycled, awaited)

    async def whole() -> None:
        await cycles_until(lambda: platform.state.topology().below(service, EntityKind.NODE), "the pod is known")
        run(control_plane, pod)
        control_plane.patch(path, {"spec": {"replicas": 2}}, by="kubectl-scale")
        await cycles_until(lambda: len(changes()) == 1 and platform.change_log.startups(), "scale and start are known")
        control_plane.patch(path, {"spec": {"template": template("vllm/vllm-openai:v0.12.0")}}, by="argocd-controller")
        await cycles_until(lambda: len(changes()) == 2, "the new image is known")

    with asyncio.Runner() as runner:
        runner.run(whole())
        topology = platform.state.topology()
        assert [node.name for node in topology.below(service, EntityKind.NODE)] != []
        # The API has times in whole seconds, which do not order the two changes.
        assert {(change.code, change.entity) for change in changes()} == {("scale", service), ("image", service)}
        ready = platform.metrics.latest(EntityKind.NODE)
        assert "e1" in [node.name for node in ready.entities]
        documents = api(platform.state, platform.metrics, settings)
        runner.run(platform.close())

    assert {(change["code"], change["actor"], change["actor_kind"]) for change in documents["/changes"]["changes"]} == {
        ("image", "argocd-controller", "system"),
        ("scale", "kubectl-scale", "person"),
    }
    starts = {start["pod"]["name"]: start for start in documents["/startups"]["startups"]}
    first = starts[pod["metadata"]["name"]]
    assert first["lead_time_seconds"] is not None
    assert {"schedule"} <= {phase["phase"] for phase in first["phases"]}
    assert documents["/placements"]["placements"]
    assert "readiness-missing" in {finding["rule"] for finding in documents["/audit/workloads"]["findings"]}
    ledger = factory.open_change_log(factory.urls_of(settings.store.url)[0])
    assert lead_time_quantile(ledger.startups()) is not None
    ledger.close()

    monkeypatch.setattr("sys.argv", ["outrider", "audit", "workloads", "--config", str(configuration), "-o", "json"])
    capsys.readouterr()
    with pytest.raises(SystemExit) as exited:
        cli()
    assert exited.value.code == 1  # a missing readiness probe is severe
    result: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert "readiness-missing" in {finding["rule"] for finding in result["findings"]}


def api(state: Any, metrics: Any, settings: settings_file.Settings) -> dict[str, Any]:
    """Returns documents of the API for the same store."""
    ledger = factory.open_change_log(factory.urls_of(settings.store.url)[0])
    app = create_app(state, metrics, wiring_api.api_settings(settings), ApiExtras(change_log=ledger))
    transport = httpx.ASGITransport(app, client=("testclient", 1))

    async def request() -> dict[str, Any]:
        async with httpx.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
            paths = ("/changes", "/startups", "/placements", "/audit/workloads")
            return {path: (await client.get(f"/api/v1{path}")).json() for path in paths}

    try:
        return asyncio.run(request())
    finally:
        ledger.close()


def test_the_audit_requires_a_cluster(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "outrider.yaml"
    file.write_text("cluster: c\n", encoding="utf-8")
    monkeypatch.setattr("sys.argv", ["outrider", "audit", "workloads", "--config", str(file)])
    with pytest.raises(SystemExit) as exited:
        cli()
    assert exited.value.code == 2
    assert "no Kubernetes API is configured" in capsys.readouterr().out
