"""``outrider capacity what-if steer``, with JSON output, and its actions on a simulated fleet."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from outrider.model import CellStatus, CycleRecord, EntityKind, SampleBatch, SignalKey
from outrider.ports import CycleCommit
from planner.traffic import routes
from service.config.settings import Settings, StoreSettings
from service.wiring import stores as wiring_stores
from simulator.fleet import Fleet
from simulator.servers.control import Control
from simulator.spec.fleets import default_spec
from tests.service.cli.capacity.test_sizing_cli import KEYS, NOW, filled, fleet, replica
from tests.service.cli.test_cli import answer, run
from tests.support import traffic_scene
from tests.support.kube import Cluster

REPLICAS = [
    {"name": "chat-70b-0", "queued_tokens": 90000, "tokens_per_second": 1000},
    {"name": "chat-70b-1", "queued_tokens": 0, "tokens_per_second": 1000},
    {"name": "chat-70b-2", "queued_tokens": 0, "tokens_per_second": 2000},
]
STEER = ("capacity", "steer", "--file", "r.json", "--service", "chat-70b")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "r.json").write_text(json.dumps(REPLICAS))
    return tmp_path


def test_weights_are_proposed_with_documents_and_dry_run_actions(folder: Path) -> None:
    found = answer(*STEER, "--documents", "out.yaml", cwd=folder)
    assert (found["reason"], found["dry_run"], found["current_source"]) == ("by_wait", True, "even")
    assert sum(found["weights"].values()) == 100
    assert found["weights"]["chat-70b-0"] < found["weights"]["chat-70b-1"] < found["weights"]["chat-70b-2"]
    assert found["p95_wait_seconds"] < found["p95_wait_current_seconds"]
    written = list(yaml.safe_load_all((folder / "out.yaml").read_text(encoding="utf-8")))
    assert [one["kind"] for one in written] == ["Service", "Service", "Service", "HTTPRoute"]
    assert written == found["documents"]
    for action in found["actions"]:
        assert (action["kind"], action["dry_run"], action["decision"]) == ("shift_traffic", True, "ask")
        assert (action["status"], action["reason"]) == ("proposed", "needs_approval")
    assert [one["id"] for one in answer(*STEER, cwd=folder)["actions"]] == [one["id"] for one in found["actions"]]


def test_the_current_route_is_changed_and_then_kept(folder: Path) -> None:
    answer(*STEER, "--format", "istio", "--documents", "out.yaml", cwd=folder)
    rule, route = yaml.safe_load_all((folder / "out.yaml").read_text(encoding="utf-8"))
    assert rule["kind"] == "DestinationRule"
    spare = {"destination": {"host": "spare"}, "weight": 0}
    for one, weight in zip(route["spec"]["http"][0]["route"], (40, 20, 20), strict=True):
        one["weight"] = weight
    route["spec"]["http"][0]["route"].append({**spare, "weight": 20})
    (folder / "now.yaml").write_text(yaml.safe_dump(route))
    found = answer(*STEER, "--current", "now.yaml", "--documents", "new.yaml", cwd=folder)
    assert (found["current_source"], found["kept"], found["weights"]["spare"]) == ("route", ["spare"], 20)
    assert {one["target"]["name"] for one in found["actions"]} == {one["name"] for one in REPLICAS}
    (changed,) = yaml.safe_load_all((folder / "new.yaml").read_text(encoding="utf-8"))
    assert routes.current_weights(changed, "new") == found["weights"]
    (folder / "new.yaml").rename(folder / "now.yaml")
    again = answer(*STEER, "--current", "now.yaml", "--documents", "new.yaml", cwd=folder, code=1)
    assert (again["reason"], again["documents"], again["actions"], again["written"]) == ("no_gain", [], [], None)
    assert not (folder / "new.yaml").exists()


def test_the_actions_apply_the_weights_to_a_simulated_fleet(folder: Path) -> None:
    found = answer(*STEER, cwd=folder)
    world = Fleet(replace(default_spec(), slice_seconds=1.0), seed=5, start=NOW)
    control = Control(world)
    names = [pod.name for pod in world.pods.of_service("chat-70b") if pod.exists]
    for name in names[len(REPLICAS) :]:  # a fleet of as many
        control.act(f"out-{name}", "shift_traffic", name, {"weight": 0.0})
    for action in found["actions"]:
        control.act(action["id"], action["kind"], action["target"]["name"], action["params"])
    weights = {
        pod.name: float(world.router.weights[pod.slot]) for pod in world.pods.of_service("chat-70b") if pod.exists
    }
    total = sum(weights.values())
    for name, weight in found["weights"].items():
        assert weights[name] / total == pytest.approx(weight / 100, abs=1e-3)


def test_a_stored_replica_without_values_is_not_idle(tmp_path: Path) -> None:
    settings = Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/s.db"))
    (tmp_path / "outrider.yaml").write_text(f"store: {{url: 'sqlite:///{tmp_path}/s.db'}}\n")
    with wiring_stores.stores(settings) as (state, metrics):
        filled(metrics)
        keys = tuple(SignalKey(key) for key in KEYS)
        for minute in range(10):  # longer than what counts as the newest value
            at: datetime = NOW + timedelta(minutes=minute)
            values = np.array([[30.0, 0.0, 1.0, 1.0, 0.5], [60.0, 40.0, 1.0, 1.0, 0.5]])
            status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
            some = (replica("h-0"), replica("a-0"))
            metrics.write(at, [SampleBatch("t", at, EntityKind.REPLICA, keys, some, values, status)])
        state.commit(CycleCommit(CycleRecord("c", NOW, 1.0, 3, 3, 0, 0, 0, 0), topology=fleet()))
    found = answer("capacity", "steer", "--service", "chat", "--arriving", "1000", cwd=tmp_path)
    assert found["kept"] == ["h-1"]
    assert found["weights"]["h-1"] == found["current"]["h-1"]
    assert found["weights"]["a-0"] < found["weights"]["h-0"]
    balance = ("capacity", "balance", "--service", "chat", "--arriving", "1000")
    weighed = answer(*balance, cwd=tmp_path)
    assert ("h-1" in weighed["weights"], weighed["silent"]) == (False, ["h-1"])
    assert "h-1: no data, so no weight is recommended" in run(*balance, "-o", "table", cwd=tmp_path).stdout
    assert "h-1：没有数据" in run(*balance, "-o", "table", "--lang", "zh", cwd=tmp_path).stdout
    output = run("capacity", "steer", "--service", "chat", "--arriving", "1000", "-o", "table", cwd=tmp_path).stdout
    assert "h-1: weight 33 -> 33, no data: unchanged" in output
    assert " - s" not in output


def test_excess_traffic_is_reported(folder: Path) -> None:
    full = {"name": "chat-70b-0", "queued_tokens": 0, "tokens_per_second": 1000, "kv_ratio": 0.95}
    (folder / "r.json").write_text(json.dumps([full, REPLICAS[1]]))
    found = answer(*STEER, "--arriving", "1900", cwd=folder, code=1)
    assert (found["reason"], found["documents"], found["actions"]) == ("overload", [], [])
    assert (found["arriving_tokens_per_second"], found["speed_tokens_per_second"]) == (1900, 1000)
    assert "add replicas" in run(*STEER, "--arriving", "1900", "-o", "table", cwd=folder).stdout
    assert "1900" in run(*STEER, "--arriving", "1900", "-o", "table", "--lang", "zh", cwd=folder).stdout


def test_a_drained_backend_gets_traffic_when_it_is_named(folder: Path) -> None:
    answer(*STEER, "--format", "istio", "--gateway", "edge", "--host", "chat.example.com", "--documents", "out.yaml",
           cwd=folder)  # fmt: skip
    _, route = yaml.safe_load_all((folder / "out.yaml").read_text(encoding="utf-8"))
    assert route["spec"]["hosts"] == ["chat.example.com"]
    for one, weight in zip(route["spec"]["http"][0]["route"], (50, 50, 0), strict=True):
        one["weight"] = weight
    (folder / "now.yaml").write_text(yaml.safe_dump(route))
    now = (*STEER, "--arriving", "800", "--current", "now.yaml")
    found = answer(*now, cwd=folder)
    assert (found["drained"], found["weights"]["chat-70b-2"]) == (["chat-70b-2"], 0)
    assert "--refill" in run(*now, "-o", "table", cwd=folder).stdout
    assert answer(*now, "--refill", "chat-70b-2", cwd=folder)["weights"]["chat-70b-2"] > 0


def test_the_table_follows_the_language(folder: Path) -> None:
    output = run(*STEER, "-o", "table", cwd=folder).stdout
    assert "proposed, not applied" in output
    assert "P95 wait" in output
    assert "仅为建议" in run(*STEER, "-o", "table", "--lang", "zh", cwd=folder).stdout


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("--format", "nginx"), "--format 'nginx' is not known"),
        (("--current", "r.json"), "r.json is not an HTTPRoute"),
        (("--current", "absent.yaml"), "absent.yaml cannot be read"),
        (("--current", "cut.yaml"), "cut.yaml:3: not YAML"),
        (("--current", "other.yaml"), "no backend is a replica of chat-70b"),
        (("--current", "other.yaml", "--format", "istio"), "--format and --current exclude each other"),
        (("--least", "60", "--most", "20"), "invalid bounds"),
        (("--stands", "0s"), "--stands"),
        (("--refill", "x"), "--refill: x is not a backend"),
        (("--host", "chat.example.com"), "--host applies to a gateway"),
    ],
)
def test_impossible_steering_names_the_reason(folder: Path, arguments: tuple[str, ...], expected: str) -> None:
    (folder / "cut.yaml").write_text("a: 1\nb: [1\n")
    refs = [{"name": "x", "port": 80}, {"name": "y", "port": 80}]
    other: dict[str, Any] = {"kind": "HTTPRoute", "metadata": {"name": "o"}, "spec": {"rules": [{"backendRefs": refs}]}}
    (folder / "other.yaml").write_text(yaml.safe_dump(other))
    found = answer(*STEER, *arguments, cwd=folder, code=2)
    assert expected in found["error"]["message"]
    assert found["error"]["hint"]


@pytest.fixture
def cluster(control_plane: Cluster) -> Iterator[Cluster]:
    """A control plane with a route to three replicas, named as those of the file."""
    traffic_scene.prepare(control_plane)
    yield control_plane
    traffic_scene.clean(control_plane)


def configured(folder: Path, cluster: Cluster, *, dry_run: bool) -> None:
    api = {"url": cluster.url, "bearer_token_file": str(cluster.token_file("admin")), "insecure_skip_verify": True}
    remediation = {
        "dry_run": dry_run,
        "actuators": {"balance_traffic": "traffic"},
        "kubernetes": api,
        "traffic": {"routes": {"chat-70b": {"kind": "http_route", "name": "chat"}}},
    }
    document = {
        "store": {"url": f"sqlite:///{folder}/s.db"},
        "services": [{"name": "chat-70b", "namespace": traffic_scene.SPACE}],
        "remediation": remediation,
    }
    (folder / "outrider.yaml").write_text(yaml.safe_dump(document), encoding="utf-8")


@pytest.mark.control_plane
def test_proposed_weights_are_set_on_the_live_route(cluster: Cluster, folder: Path) -> None:
    names = [one["name"] for one in REPLICAS]
    for name in names:
        traffic_scene.pod(cluster, str(name))
        traffic_scene.service(cluster, str(name), replica=str(name))
    path = traffic_scene.http_route(cluster, dict.fromkeys(map(str, names), 1))

    def weights() -> dict[str, int]:
        (rule,) = cluster.get(path)["spec"]["rules"]
        return {reference["name"]: reference["weight"] for reference in rule["backendRefs"]}

    configured(folder, cluster, dry_run=False)
    previewed = answer(*STEER, "--apply", cwd=folder)
    assert (previewed["applied"]["status"], previewed["applied"]["dry_run"]) == ("dry_run", True)
    assert previewed["applied"]["requests"][0]["url"] == path
    assert set(weights().values()) == {1}
    found = answer(*STEER, "--apply", "--yes", cwd=folder)
    assert found["applied"]["status"] == "done"
    assert weights() == found["weights"]
    text = run(*STEER, "--apply", "--yes", "-o", "table", cwd=folder).stdout
    assert "already: HTTPRoute chat has these weights already" in text
    assert "not applied" not in text
    configured(folder, cluster, dry_run=True)
    assert answer(*STEER, "--arriving", "1500", "--apply", "--yes", cwd=folder)["applied"]["dry_run"] is True
    with wiring_stores.stores(Settings(store=StoreSettings(url=f"sqlite:///{folder}/s.db"))) as (state, _):
        reasons = [record.reason for record in reversed(state.audit())]
    assert reasons == ["dry_run", "done", "already", "dry_run"]


def test_weights_without_a_performer_are_a_dry_run(folder: Path) -> None:
    found = answer(*STEER, "--apply", "--yes", cwd=folder)
    assert (found["applied"]["status"], found["applied"]["requests"]) == ("dry_run", [])
    assert run(*STEER, "--yes", cwd=folder).returncode == 2
