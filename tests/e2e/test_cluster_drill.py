"""``outrider drill run --kubernetes`` against a platform that watches and repairs the cluster."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from outrider.model import ActionKind, ActionStatus
from service.config import settings as settings_file
from service.drills.cluster.injections import CONSENT
from service.wiring import stores as wiring_stores
from tests.support.acting import ROOT, apply_roles, configuration
from tests.support.kube import Cluster
from tests.support.kube_fleet import KubeFleet, kube_fleet
from tests.support.ports import free_port
from tests.support.waiting import until

pytestmark = [pytest.mark.control_plane, pytest.mark.slow]
SPACE = "drill-e2e"
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


@dataclass
class Running:
    """A platform and its fleet."""

    fleet: KubeFleet
    config: Path
    api: str

    def outrider(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Runs a command of the CLI."""
        command = [sys.executable, "-m", "service.cli", *arguments, "--config", str(self.config), "-o", "json"]
        return subprocess.run(
            command, cwd=self.config.parent, env=ENVIRONMENT, capture_output=True, text=True, timeout=150, check=False
        )

    def drill(self, fault: str, *more: str) -> subprocess.CompletedProcess[str]:
        """Runs a drill on the namespace."""
        return self.outrider("drill", "run", fault, "--kubernetes", SPACE, *more)


@pytest.fixture
def running(control_plane: Cluster, tmp_path: Path) -> Iterator[Running]:
    apply_roles(control_plane)
    with kube_fleet(control_plane, SPACE, ("de-1", "de-2", "de-3"), replicas=3) as fleet:
        control_plane.patch(f"/api/v1/namespaces/{SPACE}", {"metadata": {"labels": {CONSENT: "true"}}})
        port = free_port()
        admin = control_plane.token_file("admin")
        account = {"url": control_plane.url, "bearer_token_file": str(admin), "insecure_skip_verify": True}
        more = {"api": {"port": port}, "dashboard": {"enabled": False}, "log": {"level": "warning"}}
        config = configuration(fleet, tmp_path, interval="1s", drill={"kubernetes": account}, **more)
        command = [sys.executable, "-m", "service.cli", "serve", "--config", str(config)]
        with (tmp_path / "serve.log").open("wb") as log:
            process = subprocess.Popen(command, cwd=tmp_path, env=ENVIRONMENT, stdout=log, stderr=log)
        try:
            until(lambda: len(fleet.engines()) == 3, "all engines run")
            platform = Running(fleet, config, f"http://127.0.0.1:{port}")
            until(lambda: _healthy_cycles(config) >= 10, "ten cycles have read every page")
            yield platform
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _healthy_cycles(config: Path) -> int:
    settings = settings_file.load(config)
    if not (config.parent / "store").exists():
        return 0
    try:
        with wiring_stores.state_reader(settings) as store:
            return sum(cycle.targets == cycle.targets_up == 7 for cycle in store.cycles(limit=100))
    except Exception:  # noqa: BLE001 - the engine is creating the store
        return 0


def test_a_drill_is_planned_run_and_scored(running: Running) -> None:
    planned = running.drill("engine-dead")
    assert planned.returncode == 0, planned.stderr
    requests = json.loads(planned.stdout)["requests"]
    assert [request["method"] for request in requests] == ["POST", "PATCH"]
    before = {pod["metadata"]["uid"] for pod in running.fleet.engines()}

    refused = running.drill("engine-dead", "--apply")
    assert (refused.returncode, "--apply needs --api" in refused.stderr) == (2, True)
    unknown = running.drill("gpu-lost", "--apply", "--api", running.api)
    assert (unknown.returncode, "possible on a cluster: engine-dead" in unknown.stderr) == (2, True)
    assert {pod["metadata"]["uid"] for pod in running.fleet.engines()} == before

    done = running.drill("engine-dead", "--for", "45s", "--apply", "--api", running.api)
    result: dict[str, Any] = json.loads(done.stdout)
    assert result["detected"], result
    assert result["named_entity_correct"], result
    assert result["remediated"], result
    assert result["recover_seconds"] < 45
    settings = settings_file.load(running.config)
    with wiring_stores.state_reader(settings) as store:
        restarts = [action for action in store.actions(limit=100) if action.kind is ActionKind.RESTART_POD]
        events = [record.event for record in store.audit(limit=10_000)]
    assert [action.status for action in restarts] == [ActionStatus.DONE]
    assert events.count("drill_started") == 1
    until(lambda: len(running.fleet.engines()) == 3, "all engines run again")
    assert json.loads(running.drill("engine-dead", "--restore").stdout)["restored"] == []
