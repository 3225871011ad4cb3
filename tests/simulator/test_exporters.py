from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any

import aiohttp
import pytest

from simulator.exporters import FleetServer, serve
from simulator.faults import inject
from simulator.fleet import Fleet
from simulator.spec import default_spec

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
Scene = Callable[[Fleet, FleetServer, aiohttp.ClientSession], Awaitable[None]]


def play(scene: Scene) -> None:
    async def whole() -> None:
        fleet = Fleet(replace(default_spec(), slice_seconds=1.0), seed=2, start=START)
        server = await serve(fleet)
        try:
            async with aiohttp.ClientSession() as client:
                await scene(fleet, server, client)
        finally:
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


def test_every_target_answers_on_a_port_of_its_own() -> None:
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


def test_dead_engines_and_exporters_refuse_and_come_back_on_their_port() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        listed = urls(server)
        engine, exporter = listed["chat-70b-3"], listed["dcgm-node-2"]
        await get(client, engine)  # leaves a kept-alive connection behind
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


def test_a_hung_engine_says_it_is_healthy_while_its_load_grows() -> None:
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


def test_actions_and_faults_come_in_by_the_control_door() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        door = f"{server.base_url}/control/actions"
        target = {"cluster": "demo", "kind": "node", "namespace": None, "name": "node-1"}
        asked = {"id": "x1", "kind": "cordon", "target": target, "params": {}}
        assert await post(client, door, asked) == (200, {"status": "done", "detail": "node-1 takes no new pods"})
        assert await post(client, door, asked) == (200, {"status": "done", "detail": "node-1 takes no new pods"})
        by_key = {**asked, "id": "x2", "target": "demo/node//node-1"}
        assert (await post(client, door, by_key))[1]["status"] == "already"
        status, truth = await post(
            client, f"{server.base_url}/control/faults", {"fault": "exporter-down", "entity": "node-1", "seconds": 60}
        )
        assert (status, truth["entity"]["name"], truth["end"]) == (200, "node-1", "2026-11-18T12:01:00Z")

    play(scene)


@pytest.mark.parametrize(
    ("door", "body", "sentence"),
    [
        ("actions", [], "not a JSON object"),
        ("actions", {"id": "1", "kind": "cordon"}, "no 'target'"),
        ("actions", {"id": "1", "kind": "cordon", "target": {"kind": "shed", "name": "x"}}, "not a kind of entity"),
        ("actions", {"id": "1", "kind": "cordon", "target": "a/b/c/d"}, "is not an entity"),
        ("actions", {"id": "1", "kind": "restart_pod", "target": "pod/nobody"}, "no pod 'nobody'"),
        ("faults", {"fault": "gpu-loss"}, "no fault"),
        ("faults", {"fault": "gpu-lost", "seconds": "long"}, "not a number"),
    ],
)
def test_nonsense_at_the_door_is_refused_in_one_sentence(door: str, body: Any, sentence: str) -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        status, answer = await post(client, f"{server.base_url}/control/{door}", body)
        assert status == 400
        assert sentence in answer["error"]["message"]
        assert answer["error"]["hint"]

    play(scene)


def test_the_inbox_keeps_what_webhooks_bring() -> None:
    async def scene(fleet: Fleet, server: FleetServer, client: aiohttp.ClientSession) -> None:
        async with client.post(f"{server.base_url}/control/inbox", data="hello") as answer:
            assert answer.status == 204
        async with client.get(f"{server.base_url}/control/inbox") as answer:
            assert await answer.json() == ["hello"]

    play(scene)


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
