from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from simulator.faults import inject
from simulator.fleet import Fleet
from simulator.servers.http import FleetServer, serve
from simulator.spec.fleets import default_spec
from simulator.world import World
from tests.simulator.small import Bent, small_spec

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
ScenarioStep = Callable[[Fleet, FleetServer, aiohttp.ClientSession], Awaitable[None]]


def play(scene: ScenarioStep, *, closes: bool = False) -> None:
    async def whole() -> None:
        fleet = Fleet(replace(default_spec(), slice_seconds=5.0, tick_seconds=5.0), seed=2, start=START)
        server = await serve(fleet)
        try:
            async with aiohttp.ClientSession() as client:
                await scene(fleet, server, client)
        finally:
            if not closes:
                await server.close()

    asyncio.run(whole())


async def get(client: aiohttp.ClientSession, url: str) -> tuple[int, bytes]:
    async with client.get(url) as answer:
        return answer.status, await answer.read()


async def post(client: aiohttp.ClientSession, url: str, body: Any) -> tuple[int, Any]:
    async with client.post(url, json=body) as answer:
        return answer.status, await answer.json()


def urls(server: FleetServer) -> dict[str, str]:
    return {target["name"]: target["url"] for target in server.targets()["targets"]}


def test_every_target_responds_on_its_own_port() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        listed = urls(server)
        assert len(listed) == len({url.split("/")[2] for url in listed.values()}) == 45
        for url in listed.values():
            status, body = await get(client, url)
            assert status == 200
            assert body.startswith(b"# HELP")
        async with client.get(listed["node-0"]) as answer:
            assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        status, _ = await get(client, f"{server.base_url}/replica/chat-70b-0/metrics")
        assert status == 200
        status, body = await get(client, f"{server.base_url}/replica/nobody/metrics")
        assert (status, b"no target" in body) == (404, True)

    play(scene)


def test_the_list_of_targets_is_a_configuration() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        async with client.get(f"{server.base_url}/control/targets") as answer:
            listed = await answer.json()
        assert listed == server.targets()
        assert listed["cluster"] == "demo"
        by_name = {target["name"]: target for target in listed["targets"]}
        assert by_name["chat-70b-0"]["entity"] == {"kind": "replica", "namespace": "serving", "name": "chat-70b-0"}
        assert by_name["chat-70b-0"]["labels"]["service"] == "chat-70b"
        assert by_name["dcgm-node-3"]["entity"] == {"kind": "node", "name": "node-3"}
        assert by_name["kube-state"]["adapter"] == "kube_state_metrics"

    play(scene)


@pytest.mark.slow
def test_dead_engines_and_exporters_refuse_and_return_on_their_port() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        listed = urls(server)
        engine, exporter = listed["chat-70b-3"], listed["dcgm-node-2"]
        await get(client, engine)  # opens a keep-alive connection
        inject(fleet, "engine-dead", "chat-70b-3", duration=timedelta(seconds=40))
        inject(fleet, "exporter-down", "node-2", duration=timedelta(seconds=40))
        fleet.step(timedelta(seconds=15))
        for url in (engine, exporter, engine.replace("/metrics", "/health")):
            with pytest.raises(aiohttp.ClientConnectorError):
                await get(client, url)
        with pytest.raises(aiohttp.ClientError):
            await get(client, f"{server.base_url}/replica/chat-70b-3/metrics")
        fleet.step(timedelta(minutes=5))
        assert urls(server) == listed
        assert (await get(client, engine))[0] == 200
        assert (await get(client, exporter))[0] == 200

    play(scene)


def test_a_hung_engine_reports_healthy_while_its_load_grows() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        base = urls(server)["code-14b-0"].removesuffix("/metrics")
        inject(fleet, "engine-hung", "code-14b-0")
        loads = []
        for _ in range(3):
            fleet.step(timedelta(seconds=15))
            assert (await get(client, f"{base}/health"))[0] == 200
            async with client.get(f"{base}/load") as answer:
                loads.append((await answer.json())["server_load"])
        assert loads == sorted(loads)
        assert loads[2] > loads[0] + 20

    play(scene)


def test_actions_and_faults_use_the_control_endpoints() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        endpoint = f"{server.base_url}/control/actions"
        target = {"cluster": "demo", "kind": "node", "namespace": None, "name": "node-1"}
        action = {"id": "x1", "kind": "cordon", "target": target, "params": {}}
        assert await post(client, endpoint, action) == (200, {"status": "done", "detail": "node-1 is cordoned"})
        assert await post(client, endpoint, action) == (200, {"status": "done", "detail": "node-1 is cordoned"})
        by_key = {**action, "id": "x2", "target": "demo/node//node-1"}
        assert (await post(client, endpoint, by_key))[1]["status"] == "already"
        status, truth = await post(
            client, f"{server.base_url}/control/faults", {"fault": "exporter-down", "entity": "node-1", "seconds": 60}
        )
        assert (status, truth["entity"]["name"], truth["end"]) == (200, "node-1", "2026-11-18T12:01:00Z")

    play(scene)


NONSENSE: tuple[tuple[str, Any, str], ...] = (
    ("actions", [], "not a JSON object"),
    ("actions", {"id": "1", "kind": "cordon"}, "no 'target'"),
    ("actions", {"id": "1", "kind": "cordon", "target": {"kind": "shed", "name": "x"}}, "not a kind of entity"),
    ("actions", {"id": "1", "kind": "cordon", "target": "a/b/c/d"}, "is not an entity"),
    ("actions", {"id": "1", "kind": "restart_pod", "target": "pod/nobody"}, "no pod 'nobody'"),
    ("faults", {"fault": "gpu-loss"}, "unknown fault"),
    ("faults", {"fault": "gpu-lost", "seconds": "long"}, "seconds 'long' is not a number"),
    ("faults", {"fault": "gpu-lost", "after_seconds": []}, "after_seconds [] is not a number"),
    ("faults", {"fault": "gpu-lost", "seed": 1.5}, "seed 1.5 is not a whole number"),
    ("faults", {"fault": "gpu-lost", "cluster": "nowhere"}, "no cluster is named 'nowhere'"),
)


def test_an_invalid_request_is_refused_in_one_sentence() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        for endpoint, body, sentence in NONSENSE:
            status, answer = await post(client, f"{server.base_url}/control/{endpoint}", body)
            assert status == 400, body
            assert sentence in answer["error"]["message"]
            assert answer["error"]["hint"]
        assert fleet.injections == []

    play(scene)


def test_the_inbox_stores_webhook_messages() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        async with client.post(f"{server.base_url}/control/inbox", data="hello") as answer:
            assert answer.status == 204
        async with client.get(f"{server.base_url}/control/inbox") as answer:
            assert await answer.json() == ["hello"]

    play(scene)


@pytest.mark.slow
def test_new_replicas_are_listed_once_they_serve() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        server.control.act("1", "scale", "code-14b", {"replicas": 7})
        fleet.step(timedelta(seconds=30))
        assert "code-14b-6" not in urls(server)
        fleet.step(timedelta(minutes=5))
        assert (await get(client, urls(server)["code-14b-6"]))[0] == 200

    play(scene)


def test_a_step_on_another_thread_closes_ports_too() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        url = urls(server)["chat-70b-3"]
        inject(fleet, "engine-dead", "chat-70b-3")
        await asyncio.to_thread(fleet.step, timedelta(seconds=5))
        await server.sync()
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(client, url)

    play(scene)


def silent(fleet: Fleet, *effects: tuple[str, str, int, float]) -> Bent:
    held = Bent(fleet, *effects)
    fleet.step(timedelta(seconds=1))
    return held


def test_requests_to_an_unreachable_host_wait() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        listed = urls(server)
        held = silent(fleet, ("nodes", "reachable", 2, 0.0))
        engine = next(pod.name for pod in fleet.pods.pods if pod.node == 2)
        for url in (listed["node-2"], listed[engine].replace("/metrics", "/health")):
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(get(client, url), 0.05)
        assert (await get(client, listed["node-1"]))[0] == 200
        held.stop(fleet)
        fleet.step(timedelta(seconds=1))
        assert (await get(client, listed["node-2"]))[0] == 200

    play(scene)


def test_waiting_requests_do_not_delay_shutdown() -> None:
    waiting: list[asyncio.Task[tuple[int, bytes]]] = []

    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        url = urls(server)["kube-state"]
        silent(fleet, ("cluster", "seen", 0, 0.0))
        waiting.append(asyncio.create_task(get(client, url)))
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.shield(waiting[0]), 0.05)
        await server.close()
        with pytest.raises(aiohttp.ClientError):
            await waiting[0]

    play(scene, closes=True)


def test_an_engine_without_its_core_returns_503_at_both_endpoints() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        url = urls(server)["chat-70b-0"]
        silent(fleet, ("slots", "core_dead", 0, 1.0))
        assert (await get(client, url))[0] == 503
        assert (await get(client, url.replace("/metrics", "/health")))[0] == 503

    play(scene)


def test_unlisted_pages_are_served() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        assert "istio-gateway" not in urls(server)
        status, body = await get(client, f"{server.base_url}/istio-gateway/metrics")
        assert (status, b"istio_requests_total" in body) == (200, True)
        status, body = await get(client, f"{server.base_url}/node/node-0/load")
        assert (status, body) == (404, b"no page at /node/node-0/load\n")

    play(scene)


def test_faults_are_injected_listed_and_ended_over_http() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        endpoint = f"{server.base_url}/control/faults"
        status, injected = await post(
            client, endpoint, {"fault": "exporter-down", "entity": "node-1", "after_seconds": 30}
        )
        assert (status, injected["start"], injected["running"]) == (200, "2026-11-18T12:00:30Z", True)
        async with client.get(endpoint) as answer:
            listed = await answer.json()
        assert "gpu-lost" in {known["id"] for known in listed["known"]}
        assert [one["id"] for one in listed["ordered"]] == [injected["id"]]
        fleet.step(timedelta(seconds=45))
        with pytest.raises(aiohttp.ClientConnectorError):
            await get(client, urls(server)["dcgm-node-1"])
        status, _ = await post(client, f"{endpoint}/stop", {"id": injected["id"]})
        assert status == 200
        fleet.step(timedelta(seconds=2))
        assert (await get(client, urls(server)["dcgm-node-1"]))[0] == 200
        assert (await post(client, f"{endpoint}/stop", {"id": "nothing"}))[0] == 400

    play(scene)


def test_several_clusters_are_served_side_by_side() -> None:
    async def scene() -> None:
        home, away = small_spec(), small_spec(cluster="away", prefix="away-")
        world = World(
            [Fleet(replace(spec, tick_seconds=5.0, slice_seconds=5.0), seed=3, start=START) for spec in (home, away)]
        )
        server = await serve(world)
        try:
            async with aiohttp.ClientSession() as client:
                listed = server.targets()
                assert listed["cluster"] == "small"
                by_cluster: dict[str, str] = {one["entity"]["cluster"]: one["url"] for one in listed["targets"]}
                assert {url.split("/")[3] for url in by_cluster.values()} == {"small", "away"}
                assert len({one["name"] for one in listed["targets"]}) == len(listed["targets"])
                for url in by_cluster.values():
                    assert (await get(client, url))[0] == 200
                assert (await get(client, f"{server.base_url}/away/k8s/version"))[0] == 200
                target = {"cluster": "away", "kind": "node", "namespace": None, "name": "away-node-1"}
                action = {"id": "x", "kind": "cordon", "target": target}
                assert (await post(client, f"{server.base_url}/control/actions", action))[1]["status"] == "done"
                assert [fleet.pods.cordoned.tolist() for fleet in world.fleets] == [
                    [False] * 4,
                    [False, True, False, False],
                ]
                lost = {**action, "id": "y", "target": {**target, "cluster": "nowhere"}}
                status, answer = await post(client, f"{server.base_url}/control/actions", lost)
                assert (status, answer["error"]["hint"]) == (400, "clusters: small, away")
        finally:
            await server.close()

    asyncio.run(scene())
