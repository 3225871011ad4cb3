"""Kernel logs, container logs and the Kubernetes API of a fleet respond like a real cluster."""

from __future__ import annotations

import asyncio
import copy
import json
import re
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

import aiohttp
import pytest
from aiohttp import web

from outrider.clock import parse_rfc3339
from outrider.model import EntityKind, EntityRef
from simulator.fleet import Fleet
from simulator.journal import JournalSource
from simulator.kubernetes.api_view import MOST_CHANGES, ExpiredError, KubernetesView, ObjectSelection
from simulator.servers.log_and_api_endpoints import add_routes, event_settings
from simulator.spec.fleets import default_spec

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
RECORD = re.compile(r"\d+,\d+,\d+,-;.*")


class EndpointClient:
    """A client of a fleet's endpoints."""

    def __init__(self, fleet: Fleet, url: str, client: aiohttp.ClientSession) -> None:
        self.fleet, self.url, self.client = fleet, url, client

    async def get(self, path: str, **params: str) -> tuple[int, str]:
        async with self.client.get(f"{self.url}{path}", params=params) as answer:
            return answer.status, await answer.text()

    async def json(self, path: str, **params: str) -> Any:
        status, body = await self.get(f"/k8s{path}", **params)
        assert status == 200, body
        return json.loads(body)

    async def refused(self, path: str, **params: str) -> tuple[int, str]:
        status, body = await self.get(f"/k8s{path}", **params)
        answer = json.loads(body)
        assert (answer["kind"], answer["status"], answer["code"]) == ("Status", "Failure", status)
        return status, answer["reason"]

    async def records(self, node: str, **params: str) -> list[str]:
        status, body = await self.get(f"/klog/{node}", **params)
        assert status == 200
        assert all(RECORD.fullmatch(line) for line in body.splitlines())
        return body.splitlines()

    def pod(self, name: str) -> EntityRef:
        return self.fleet.entity(EntityKind.POD, name, "serving")

    def gpu(self, number: int) -> EntityRef:
        return self.fleet.entity(EntityKind.GPU, self.fleet.gpu_uuid(number))

    def write(self, source: JournalSource, entity: EntityRef, code: str, text: str = "", **attributes: str) -> None:
        self.fleet.journal.write(self.fleet.at, source, entity, code, text, **attributes)


@cache
def master() -> Fleet:
    return Fleet(replace(default_spec(), slice_seconds=1.0), seed=2, start=START)


def play(scene: Callable[[EndpointClient], Awaitable[None]]) -> None:
    async def whole() -> None:
        fleet = copy.deepcopy(master())
        app = web.Application()
        add_routes(app, fleet, "/blue")
        runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.5)
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        try:
            async with aiohttp.ClientSession() as client:
                await scene(EndpointClient(fleet, f"http://127.0.0.1:{runner.addresses[0][1]}/blue", client))
        finally:
            await runner.cleanup()
        assert fleet.after_step == []

    asyncio.run(whole())


# --- kernel logs ----------------------------------------------------------------------------------


def test_an_xid_is_in_the_log_of_its_node_with_its_device_address() -> None:
    async def scene(client: EndpointClient) -> None:
        begun = await client.records("node-1")
        client.write(JournalSource.KERNEL, client.gpu(11), "xid", "pid=4711, name=python3, Ch 00000008", xid="43")
        client.write(JournalSource.KERNEL, client.gpu(11), "xid", "GPU has fallen off the bus.", xid="79")
        result = await client.records("node-1")
        assert result[: len(begun)] == begun
        device_line, _, first, second = [line.split(";", 1)[1] for line in result[len(begun) :]]
        assert device_line == f"NVRM: GPU at PCI:0000:4c:00: {client.fleet.gpu_uuid(11)}"
        assert first == "NVRM: Xid (PCI:0000:4c:00): 43, pid=4711, name=python3, Ch 00000008"
        fallen = "79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
        assert second == f"NVRM: Xid (PCI:0000:4c:00): {fallen}"
        assert [int(line.split(",")[1]) for line in result] == list(range(len(result)))
        assert await client.records("node-1", after=str(len(result) - 2)) == result[-1:]
        assert await client.records("node-0") == [line for line in await client.records("node-0") if "Xid" not in line]

    play(scene)


def test_a_killed_pod_is_named_by_its_cgroup() -> None:
    async def scene(client: EndpointClient) -> None:
        pod = client.fleet.pod_named("chat-70b-0")
        assert pod is not None
        assert pod.node is not None
        client.write(JournalSource.KERNEL, client.pod("chat-70b-0"), "oom-kill")
        cgroup, killed = (await client.records(client.fleet.nodes.names[pod.node]))[-2:]
        uid = (await client.json("/api/v1/namespaces/serving/pods/chat-70b-0"))["metadata"]["uid"]
        assert f"kubepods-burstable-pod{uid.replace('-', '_')}.slice" in cgroup
        (number,) = re.findall(r",pid=(\d+),", cgroup)
        assert f"Killed process {number} (VLLM::EngineCor)" in killed

    play(scene)


def test_a_reboot_restarts_the_sequence_with_a_new_boot_id() -> None:
    async def scene(client: EndpointClient) -> None:
        async def boot() -> tuple[str, datetime]:
            async with client.client.get(f"{client.url}/klog/node-2") as answer:
                return answer.headers["Boot-Id"], parse_rfc3339(answer.headers["Boot-Time"])

        client.write(JournalSource.KERNEL, client.fleet.entity(EntityKind.NODE, "node-2"), "link-down")
        before, first = await client.records("node-2"), await boot()
        assert "Link DOWN" in before[-1]
        client.fleet.step(timedelta(seconds=5))
        client.fleet.nodes.reboot(2, client.fleet.at)
        client.fleet.step(timedelta(seconds=15))
        after, second = await client.records("node-2"), await boot()
        assert len(after) == len(before) - 1
        assert after[0].split(",")[1] == "0"
        assert second[0] != first[0]
        assert second[1] == START + timedelta(seconds=5)

    play(scene)


def test_unknown_and_unreachable_nodes() -> None:
    async def scene(client: EndpointClient) -> None:
        assert (await client.get("/klog/nobody"))[0] == 404
        assert (await client.get("/klog/node-0", after="x"))[0] == 400
        client.fleet.effects.adjust("nodes", "reachable")[3] = 0.0
        with pytest.raises(aiohttp.ClientError):
            await client.get("/klog/node-3")
        assert (await client.get("/klog/node-2"))[0] == 200
        client.fleet.effects.adjust("cluster", "seen")[0] = 0.0
        for path in ("/klog/node-2", "/k8s/version", "/k8s/api/v1/pods", "/k8s/api/v1/namespaces/serving/pods/a/log"):
            with pytest.raises(aiohttp.ClientError):
                await client.get(path)

    play(scene)


# --- container logs -------------------------------------------------------------------------------


def test_a_container_log_is_limited_as_requested() -> None:
    async def scene(client: EndpointClient) -> None:
        path = "/k8s/api/v1/namespaces/serving/pods/chat-70b-1/log"
        client.fleet.step(timedelta(seconds=10))
        client.write(JournalSource.ENGINE, client.pod("chat-70b-1"), "engine_line", "Traceback:\n  RuntimeError: boom")
        _, whole = await client.get(path)
        assert [line.rsplit("] ", 1)[-1] for line in whole.splitlines()[-2:]] == ["Traceback:", "  RuntimeError: boom"]
        _, late = await client.get(path, sinceTime="2026-11-18T12:00:05Z", timestamps="true")
        assert [line.split(" ")[0] for line in late.splitlines()] == ["2026-11-18T12:00:10.000000000Z"] * 2
        assert (await client.get(path, sinceSeconds="3"))[1] == "\n".join([*whole.splitlines()[-2:], ""])
        assert (await client.get(path, tailLines="1"))[1] == whole.splitlines()[-1] + "\n"
        assert (await client.get(path, limitBytes="7"))[1] == whole[:7]
        assert (await client.refused(path[4:], sinceTime="soon"))[0] == 400
        assert (await client.refused(path[4:], container="sidecar")) == (400, "BadRequest")
        assert (await client.refused(path[4:], previous="true")) == (400, "BadRequest")
        assert (await client.refused("/api/v1/namespaces/other/pods/chat-70b-1/log")) == (404, "NotFound")

    play(scene)


def test_a_new_container_has_its_own_log_and_the_old_one_stays_readable() -> None:
    async def scene(client: EndpointClient) -> None:
        fleet, path = client.fleet, "/k8s/api/v1/namespaces/serving/pods/chat-70b-1/log"
        pod = fleet.pod_named("chat-70b-1")
        assert pod is not None
        client.write(JournalSource.ENGINE, client.pod("chat-70b-1"), "engine_dead")
        fleet.pods.crash(pod.slot, fleet.at, "engine-dead", held=False)
        assert "EngineDeadError" in (await client.get(path))[1]
        fleet.step(timedelta(seconds=30))
        assert pod.restarts == 1
        assert "EngineDeadError" not in (await client.get(path))[1]
        assert "EngineDeadError" in (await client.get(path, previous="true"))[1]
        fleet.restart(pod.slot)
        assert (await client.refused(path[4:]))[0] == 400
        fleet.step(timedelta(seconds=90))
        assert "EngineDeadError" not in (await client.get(path))[1]

    play(scene)


# --- the API --------------------------------------------------------------------------------------


def test_pods_and_nodes_have_the_shapes_of_the_api() -> None:
    async def scene(client: EndpointClient) -> None:
        listed = await client.json("/api/v1/pods")
        assert (listed["kind"], listed["apiVersion"], len(listed["items"])) == ("PodList", "v1", 16)
        pod = await client.json("/api/v1/namespaces/serving/pods/code-14b-0")
        assert pod["spec"]["nodeName"] in client.fleet.nodes.names
        assert pod["spec"]["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": "2"}
        assert {one["type"]: one["status"] for one in pod["status"]["conditions"]}["Ready"] == "True"
        state = pod["status"]["containerStatuses"][0]
        assert (state["ready"], state["restartCount"], list(state["state"])) == (True, 0, ["running"])
        client.fleet.pods.cordoned[4] = True
        node = await client.json("/api/v1/nodes/node-4")
        assert node["spec"]["unschedulable"] is True
        assert node["status"]["allocatable"]["nvidia.com/gpu"] == "8"
        assert await client.refused("/api/v1/nodes/nobody") == (404, "NotFound")
        assert (await client.json("/apis/apps/v1/statefulsets"))["items"] == []

    play(scene)


def test_a_crashed_pod_waits_in_crash_loop_and_reports_its_last_end() -> None:
    async def scene(client: EndpointClient) -> None:
        pod = client.fleet.pod_named("code-14b-1")
        assert pod is not None
        client.fleet.kubelets.kill_for_memory(pod)
        result = await client.json("/api/v1/namespaces/serving/pods/code-14b-1")
        state = result["status"]["containerStatuses"][0]
        assert state["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        assert state["lastState"]["terminated"]["reason"] == "OOMKilled"
        assert state["lastState"]["terminated"]["exitCode"] == 137
        events = (await client.json("/api/v1/events"))["items"]
        assert [(event["reason"], event["involvedObject"]["kind"]) for event in events] == [("OOMKilling", "Node")]

    play(scene)


def test_lists_are_paged_and_tokens_expire() -> None:
    async def scene(client: EndpointClient) -> None:
        names, token, pages = [], "", 0
        while True:
            page = await client.json("/api/v1/pods", limit="5", **({"continue": token} if token else {}))
            names += [one["metadata"]["name"] for one in page["items"]]
            token, pages = page["metadata"].get("continue", ""), pages + 1
            if not token:
                break
        assert (pages, len(names), len(set(names))) == (4, 16, 16)
        assert await client.refused("/api/v1/pods", **{"continue": "rubbish"}) == (400, "BadRequest")
        assert await client.refused("/api/v1/pods", limit="many") == (400, "BadRequest")

    play(scene)


def test_selectors_filter_objects() -> None:
    async def scene(client: EndpointClient) -> None:
        async def names(path: str, **params: str) -> int:
            return len((await client.json(path, **params))["items"])

        assert await names("/api/v1/pods", labelSelector="app.kubernetes.io/name=code-14b") == 6
        assert await names("/api/v1/pods", fieldSelector="spec.nodeName=node-0") == 2
        assert await names("/api/v1/namespaces/other/pods") == 0
        assert await client.refused("/api/v1/pods", labelSelector="a in (b)") == (400, "BadRequest")

    play(scene)


def test_a_repeated_event_raises_its_count_and_old_events_expire() -> None:
    async def scene(client: EndpointClient) -> None:
        client.write(JournalSource.KUBERNETES, client.pod("chat-70b-0"), "BackOff", "Back-off", type="Warning")
        client.fleet.step(timedelta(seconds=10))
        client.write(JournalSource.KUBERNETES, client.pod("chat-70b-0"), "BackOff", "Back-off", type="Warning")
        client.write(JournalSource.KUBERNETES, client.pod("chat-70b-0"), "Started", "Started container vllm")
        backoff, started = (await client.json("/api/v1/events"))["items"]
        assert (backoff["count"], started["count"]) == (2, 1)
        assert (backoff["firstTimestamp"], backoff["lastTimestamp"]) == ("2026-11-18T12:00:00Z", "2026-11-18T12:00:10Z")
        assert (backoff["type"], started["type"]) == ("Warning", "Normal")

    play(scene)


def test_a_rollout_creates_a_revision_and_a_rollback_reuses_the_old_one() -> None:
    async def scene(client: EndpointClient) -> None:
        fleet, path = client.fleet, "/apis/apps/v1/namespaces/serving"

        async def deployment() -> Any:
            return await client.json(f"{path}/deployments/chat-70b")

        async def revisions() -> dict[str, tuple[str, int]]:
            sets = (await client.json(f"{path}/replicasets", labelSelector="app.kubernetes.io/name=chat-70b"))["items"]
            return {
                one["metadata"]["labels"]["app.kubernetes.io/version"]: (
                    one["metadata"]["annotations"]["deployment.kubernetes.io/revision"],
                    one["status"]["replicas"],
                )
                for one in sets
            }

        assert await revisions() == {"v1": ("1", 10)}
        fleet.rollout("chat-70b", "v2", text="new release")
        fleet.step(timedelta(seconds=30))
        result = await deployment()
        assert result["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "2"
        assert "--revision=v2" in result["spec"]["template"]["spec"]["containers"][0]["args"]
        assert result["status"]["updatedReplicas"] == 1
        assert await revisions() == {"v1": ("1", 9), "v2": ("2", 1)}
        fleet.rollback("chat-70b")
        fleet.step(timedelta(seconds=15))
        result = await deployment()
        assert result["metadata"]["annotations"]["deployment.kubernetes.io/revision"] == "3"
        assert (await revisions())["v1"][0] == "3"

    play(scene)


async def lines_of(answer: aiohttp.ClientResponse, count: int) -> list[tuple[str, str]]:
    result = []
    while len(result) < count:
        line = json.loads(await answer.content.readline())
        result.append((line["type"], line["object"]["metadata"].get("name", "")))
    return result


def test_a_watch_streams_changes_as_the_fleet_moves() -> None:
    async def scene(client: EndpointClient) -> None:
        version = (await client.json("/api/v1/pods"))["metadata"]["resourceVersion"]
        watch_params = {
            "watch": "true",
            "resourceVersion": version,
            "timeoutSeconds": "30",
            "allowWatchBookmarks": "true",
        }
        async with client.client.get(f"{client.url}/k8s/api/v1/pods", params=watch_params) as answer:
            assert await lines_of(answer, 1) == [("BOOKMARK", "")]
            pod = client.fleet.pod_named("chat-70b-3")
            assert pod is not None
            client.fleet.restart(pod.slot)
            client.fleet.step(timedelta(seconds=1))
            expected = [("DELETED", "chat-70b-3"), ("ADDED", "chat-70b-3"), ("BOOKMARK", "")]
            assert await lines_of(answer, 3) == expected
        everything = {"watch": "true", "timeoutSeconds": "1"}
        async with client.client.get(f"{client.url}/k8s/api/v1/nodes", params=everything) as answer:
            assert [what for what, _ in await lines_of(answer, 8)] == ["ADDED"] * 8

    play(scene)


def test_an_expired_watch_must_list_again() -> None:
    async def scene(client: EndpointClient) -> None:
        gone = {"watch": "true", "resourceVersion": "1001", "timeoutSeconds": "5"}
        view = KubernetesView(client.fleet)
        view.refresh()
        for number in range(MOST_CHANGES + 10):
            client.write(JournalSource.KUBERNETES, client.pod("chat-70b-0"), "Probe", f"number {number}")
        await client.json("/api/v1/events")
        async with client.client.get(f"{client.url}/k8s/api/v1/events", params=gone) as answer:
            line = json.loads(await answer.content.readline())
        assert (line["type"], line["object"]["code"]) == ("ERROR", 410)
        page = view.page("events", ObjectSelection(), limit=3)
        view.forget()
        with pytest.raises(ExpiredError):
            view.page("events", ObjectSelection(), limit=3, token=page["metadata"]["continue"])

    play(scene)


def test_the_settings_name_every_endpoint() -> None:
    result = event_settings("http://127.0.0.1:1/blue", cluster="blue")
    assert [one["type"] for one in result] == ["kernel_log", "kubernetes", "engine_log"]
    assert len({one["name"] for one in result}) == 3
    assert {one["cluster"] for one in result} == {"blue"}
    assert result[0]["url"] == "http://127.0.0.1:1/blue/klog/{node}"
