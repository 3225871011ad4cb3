"""The Kubernetes API as an event source: Events, rollouts, flags, replicas, lists, watches and failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.events.unresolved_event import FIRST_LOOK, EntityResolver, UnresolvedEvent
from collectors.kubernetes.api import KubeApi, ListWatch, ResourceExpiredError
from collectors.kubernetes.event_source import KubernetesEventSource, unresolved_event_of
from collectors.net.http import HttpClient, HttpResponse
from outrider.clock import rfc3339
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind, EntityRef, EventKind
from outrider.topology import Topology
from outrider.wire.http_auth import Access, Tls
from tests.collectors.api_server import ApiServer, api_server

AT = datetime(2026, 11, 18, 12, tzinfo=UTC)
EVENTS, DEPLOYMENTS = "/api/v1/events", "/apis/apps/v1/deployments"
SETS = "/apis/apps/v1/namespaces/serving/replicasets"
ScenarioStep = Callable[[ApiServer, KubernetesEventSource], Awaitable[None]]


def play(scene: ScenarioStep, **given_: Any) -> None:
    async def whole() -> None:
        async with api_server() as (server, api):
            await scene(server, KubernetesEventSource("kubernetes", api, "c", **given_))

    asyncio.run(whole())


def event(uid: str = "e1", reason: str = "BackOff", count: int = 1, ago: float = 10.0, **more: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": uid, "namespace": "serving", "uid": uid},
        "involvedObject": {"kind": "Pod", "namespace": "serving", "name": "chat-0"},
        "reason": reason,
        "message": "Back-off restarting failed container",
        "type": "Warning",
        "count": count,
        "lastTimestamp": rfc3339(AT - timedelta(seconds=ago)),
        **more,
    }


NAMED = {"app": "chat", "app.kubernetes.io/name": "chat-70b"}


def deployment(
    args: list[str] | None = None,
    *,
    image: str = "vllm:1",
    replicas: int = 3,
    version: str = "v1",
    revision: int = 1,
    progressed: float = 10.0,
    labels: dict[str, str] | None = None,
    **more: Any,
) -> dict[str, Any]:
    return {
        "metadata": {
            "name": "chat",
            "namespace": "serving",
            "uid": "d1",
            "labels": {"team": "x"},
            "annotations": {"deployment.kubernetes.io/revision": str(revision)},
            **more,
        },
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "chat"}},
            "template": {
                "metadata": {"labels": {**(labels or NAMED), "app.kubernetes.io/version": version}},
                "spec": {"containers": [{"name": "vllm", "image": image, "args": args or ["--max-num-seqs=256"]}]},
            },
        },
        "status": {
            "conditions": [{"type": "Progressing", "lastUpdateTime": rfc3339(AT - timedelta(seconds=progressed))}]
        },
    }


def replicaset(of: dict[str, Any], number: int, born: float, history: str = "") -> dict[str, Any]:
    notes = {"deployment.kubernetes.io/revision": str(number)}
    notes |= {"deployment.kubernetes.io/revision-history": history} if history else {}
    return {
        "metadata": {
            "uid": f"rs{number}",
            "annotations": notes,
            "creationTimestamp": rfc3339(AT - timedelta(seconds=born)),
            "ownerReferences": [{"uid": "d1"}],
        },
        "spec": of["spec"],
    }


def codes(events: list[UnresolvedEvent]) -> list[str]:
    return [one.code for one in events]


async def news(source: KubernetesEventSource, at: datetime = AT) -> list[UnresolvedEvent]:
    events, errors = await source.read(at, [])
    assert errors == []
    return events


# --- Events ---------------------------------------------------------------------------------------


def test_an_event_refers_to_its_pod_node_or_workload() -> None:
    read = unresolved_event_of(event(), "c", AT)
    assert read is not None
    uid, count, seen = read
    assert (uid, count, seen.kind, seen.code) == ("e1", 1, EventKind.KUBERNETES, "BackOff")
    assert seen.entity == EntityRef("c", EntityKind.POD, "serving", "chat-0")
    assert seen.at == AT - timedelta(seconds=10)
    assert seen.attributes["text"] == "Back-off restarting failed container"
    for kind, name, entity in (
        ("Node", "n1", EntityRef("c", EntityKind.NODE, None, "n1")),
        ("ReplicaSet", "chat-766c5d9856", EntityRef("c", EntityKind.WORKLOAD, "serving", "chat")),
        ("HorizontalPodAutoscaler", "chat", EntityRef("c", EntityKind.WORKLOAD, "serving", "chat")),
        ("Service", "chat", EntityRef("c", EntityKind.SERVICE, "serving", "chat")),
    ):
        involved = {"kind": kind, "name": name, "namespace": "serving"}
        read = unresolved_event_of(event(involvedObject=involved), "c", AT)
        assert read is not None
        assert read[2].entity == entity
    for involved in ({"kind": "Lease", "name": "x"}, {"kind": "Pod"}, {}, None):
        assert unresolved_event_of(event(involvedObject=involved), "c", AT) is None


def test_both_event_apis_give_equal_events() -> None:
    newer = {
        "metadata": {"uid": "e2", "namespace": "serving"},
        "regarding": {"kind": "Pod", "namespace": "serving", "name": "chat-0"},
        "reason": "Unhealthy",
        "note": "Readiness probe failed",
        "eventTime": "2026-11-18T11:00:00.000000Z",
        "series": {"count": 7, "lastObservedTime": "2026-11-18T11:59:00.500000Z"},
        "reportingComponent": "kubelet",
    }
    read = unresolved_event_of(newer, "c", AT)
    assert read is not None
    assert (read[1], read[2].at, read[2].attributes["text"]) == (
        7, AT - timedelta(seconds=59.5), "Readiness probe failed",
    )  # fmt: skip


def test_an_event_can_announce_a_change() -> None:
    notes = {"outrider.dev/change": "power-limit", "outrider.dev/from": "700", "outrider.dev/to": "400"}
    reported = event(
        metadata={"uid": "e3", "annotations": notes},
        involvedObject={"apiVersion": "outrider.dev/v1", "kind": "gpu", "name": "GPU-1", "namespace": "x"},
    )
    read = unresolved_event_of(reported, "c", AT)
    assert read is not None
    assert (read[2].kind, read[2].code) == (EventKind.CHANGE, "power-limit")
    assert read[2].entity == EntityRef("c", EntityKind.GPU, None, "GPU-1")
    assert (read[2].attributes["from"], read[2].attributes["to"]) == ("700", "400")


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)


def holed(events: Any, draw: Callable[[Any], Any]) -> Any:
    """The same object with parts replaced by arbitrary values."""
    if draw(st.integers(0, 7)) == 0:
        return draw(JSON)
    if isinstance(events, dict):
        return {name: holed(value, draw) for name, value in events.items() if draw(st.integers(0, 9))}
    return [holed(one, draw) for one in events] if isinstance(events, list) else events


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_arbitrary_objects_do_not_raise(drawn: st.DataObject) -> None:
    reported = holed(event(), drawn.draw)
    if isinstance(reported, dict):
        read = unresolved_event_of(reported, "c", AT)
        assert read is None or (read[2].at <= AT and read[2].code and read[1] >= 1)


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_arbitrary_lists_and_changes_do_not_raise(drawn: st.DataObject) -> None:
    first, second, sets = (
        holed([deployment()], drawn.draw),
        holed(deployment(["--other"], revision=2), drawn.draw),
        holed([replicaset(deployment(), 1, 99.0), replicaset(deployment(["--other"]), 2, 9.0)], drawn.draw),
    )

    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        server.objects = {DEPLOYMENTS: first, EVENTS: holed([event()], drawn.draw), SETS: sets}
        for number in range(2):
            _, errors = await source.read(AT + timedelta(seconds=number), [])
            assert all(isinstance(error, CollectError) for error in errors)
            if isinstance(second, dict) and isinstance(second.get("metadata", {}), dict):
                server.tell(DEPLOYMENTS, "MODIFIED", second)

    if isinstance(first, list) and isinstance(sets, list):
        play(scene)


def test_only_new_events_are_reported_once() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        old = FIRST_LOOK.total_seconds() + 60
        server.objects = {EVENTS: [event("e1"), event("e2", "Evicted", ago=old)]}
        assert codes(await news(source)) == ["BackOff"]
        server.tell(EVENTS, "MODIFIED", event("e1"))
        server.tell(EVENTS, "ADDED", event("e3", "Killing"))
        server.tell(EVENTS, "DELETED", event("e2", "Evicted", ago=old))
        assert codes(await news(source)) == ["Killing"]
        server.tell(EVENTS, "MODIFIED", event("e1", count=5))
        (again,) = await news(source)
        assert (again.code, again.attributes["count"], again.key) == ("BackOff", "5", "kubernetes/c/e1/5")
        assert await news(source) == []

    play(scene)


# --- pages and watches ----------------------------------------------------------------------------


def test_a_large_list_is_read_in_chunks() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        server.objects = {EVENTS: [event(f"e{number}") for number in range(2_345)]}
        assert len(await news(source)) == 2_345
        tokens = [query.get("continue") for path, query in server.requested if path == EVENTS]
        assert tokens == [None, "500", "1000", "1500", "2000"]

    play(scene)


def test_a_list_that_expires_during_reading_is_read_again() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        server.objects = {EVENTS: [event(f"e{number}") for number in range(700)]}
        server.expire_pages = 1
        assert len(await news(source)) == 700
        server.expire_pages, server.gone = 2, {EVENTS}
        server.objects[EVENTS].append(event("new"))
        _, (error,) = await source.read(AT, [])
        assert isinstance(error, ResourceExpiredError)
        assert len(await news(source)) == 1

    play(scene)


def test_an_interrupted_watch_keeps_its_events_and_resumes() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        assert await news(source) == []
        server.tell(EVENTS, "ADDED", event("e1"))
        server.broken = {EVENTS}
        assert codes(await news(source)) == ["BackOff"]
        server.tell(EVENTS, "ADDED", event("e2", "Killing"))
        assert codes(await news(source)) == ["Killing"]
        watched = [query["resourceVersion"] for path, query in server.requested if path == EVENTS and "watch" in query]
        assert watched == ["100", "101"]

    play(scene)


def test_a_watch_that_breaks_without_events_is_an_error() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        await news(source)
        server.broken = {EVENTS}
        events, (error,) = await source.read(AT, [])
        assert (events, error.reason) == ([], CollectReason.RESET)
        server.tell(EVENTS, "ADDED", event("e2", "Killing"))
        assert codes(await news(source)) == ["Killing"]

    play(scene)


def test_after_410_only_new_events_are_reported() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        server.objects = {EVENTS: [event("e1")], DEPLOYMENTS: [deployment()]}
        assert codes(await news(source)) == ["BackOff"]
        server.objects = {EVENTS: [event("e1"), event("e2", "Evicted")], DEPLOYMENTS: [deployment(replicas=5)]}
        server.gone = {EVENTS, DEPLOYMENTS}
        assert sorted(codes(await news(source))) == ["Evicted", "scale"]

    play(scene)


def test_a_server_without_bookmarks_does_not_block() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        server.silent = True
        await news(source)
        server.tell(EVENTS, "ADDED", event("e1"))
        assert codes(await news(source)) == ["BackOff"]

    play(scene)


def test_a_forbidden_resource_is_reported_and_the_rest_is_read() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        server.forbidden = {DEPLOYMENTS}
        server.objects = {EVENTS: [event("e1")]}
        events, (error,) = await source.read(AT, [])
        assert codes(events) == ["BackOff"]
        assert 'returned 403: cannot list resource "deployments"' in error.message
        assert "token_file" in error.hint

    play(scene)


@pytest.mark.parametrize("body", [b"[" * 200_000, b"[]", b"nonsense"])
def test_a_refusal_of_any_shape_is_an_error_message(body: bytes) -> None:
    api = KubeApi(HttpClient("kubernetes", "http://127.0.0.1:9"))
    error = api._refused("/api/v1/pods", HttpResponse(503, {}, body))
    assert error.message == "kubernetes: http://127.0.0.1:9/api/v1/pods returned 503"


def test_a_dead_endpoint_and_an_unreadable_token_are_error_messages(tmp_path) -> None:
    async def scene() -> None:
        none = tmp_path / "none"
        for given_, reason, expected in (
            (Access(), CollectReason.REFUSED, "kubernetes: http://127.0.0.1:9 refuses connections"),
            (Access(bearer_token_file=none), CollectReason.OTHER, f"its token file {none} cannot be read"),
            (Access(tls=Tls(ca_file=none)), CollectReason.TLS, f"the certificates in {none} cannot be read"),
        ):
            source = KubernetesEventSource(
                "kubernetes", KubeApi(HttpClient("kubernetes", "http://127.0.0.1:9", access=given_)), "c"
            )
            events, errors = await source.read(AT, [])
            assert events == []
            assert {error.reason for error in errors} == {reason}
            assert expected in errors[0].message
            await source.close()

    asyncio.run(scene())


def test_the_token_is_read_for_every_request(tmp_path) -> None:
    async def scene() -> None:
        token = tmp_path / "token"
        token.write_text("first\n")
        async with api_server(access=Access(bearer_token_file=token)) as (server, api):
            feed = ListWatch(api, EVENTS)
            await feed.read()
            token.write_text("second\n")
            await feed.read()
            assert server.tokens == ["Bearer first", "Bearer second"]

    asyncio.run(scene())


def test_an_invalid_json_response_is_reported() -> None:
    async def scene() -> None:
        async with api_server() as (server, api):
            server.news[EVENTS] = [b"<html>\n"]
            feed = ListWatch(api, EVENTS)
            await feed.read()
            with pytest.raises(CollectError, match="a response that is not JSON"):
                await feed.read()
            assert await feed.read() == []

    asyncio.run(scene())


def test_namespaces_are_read_one_by_one() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        await news(source)
        assert {path for path, _ in server.requested if path.endswith("events")} == {
            "/api/v1/namespaces/a/events",
            "/api/v1/namespaces/b/events",
        }

    play(scene, namespaces=["a", "b"])


# --- changes --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("after", "code", "reported"),
    [
        ({"image": "vllm:2"}, "image", ("vllm:1", "vllm:2")),
        ({"args": ["--max-num-seqs=8"]}, "flags", ("--max-num-seqs=256", "--max-num-seqs=8")),
        ({"version": "v2", "args": ["--max-num-seqs=256", "--revision=v2"]}, "rollout", ("v1", "v2")),
        ({"image": "vllm:2", "args": ["--max-num-seqs=8"]}, "rollout", ("1", "2")),
    ],
)
def test_a_template_change_is_reported_with_old_and_new_value(
    after: dict[str, Any], code: str, reported: tuple[str, str]
) -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        server.objects = {DEPLOYMENTS: [deployment(progressed=9_000)]}
        assert await news(source) == []
        new = deployment(**after, revision=2)
        server.objects[SETS] = [replicaset(deployment(), 1, 9_000), replicaset(new, 2, 20.0)]
        server.tell(DEPLOYMENTS, "MODIFIED", new)
        (change,) = await news(source)
        assert (change.kind, change.code) == (EventKind.CHANGE, code)
        assert (change.attributes["from"], change.attributes["to"]) == reported
        assert (change.at, change.key) == (AT - timedelta(seconds=20), "kubernetes/c/revision/d1/2")
        server.tell(DEPLOYMENTS, "MODIFIED", {**new, "status": {"readyReplicas": 1}})
        assert await news(source) == []

    play(scene)


def test_a_rollback_is_detected_by_the_replica_set_history() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        new = deployment(version="v2", revision=2, progressed=9_000)
        server.objects = {DEPLOYMENTS: [new]}
        await news(source)
        server.objects[SETS] = [replicaset(new, 2, 60.0), replicaset(deployment(), 3, 9_000, history="1")]
        server.tell(DEPLOYMENTS, "MODIFIED", deployment(revision=3, progressed=5.0))
        (change,) = await news(source)
        assert (change.code, change.attributes["from"], change.attributes["to"]) == ("rollback", "v2", "v1")
        assert change.at == AT - timedelta(seconds=5)

    play(scene)


def test_scaling_and_restarts_are_reported() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        server.objects = {DEPLOYMENTS: [deployment(progressed=9_000)]}
        await news(source)
        server.tell(DEPLOYMENTS, "MODIFIED", deployment(replicas=7))
        (scale,) = await news(source)
        assert (scale.code, scale.attributes["from"], scale.attributes["to"], scale.at) == ("scale", "3", "7", AT)
        again = deployment(replicas=7)
        stamp = {"kubectl.kubernetes.io/restartedAt": "2026-11-18T11:59:00Z"}
        again["spec"]["template"]["metadata"]["annotations"] = stamp
        server.tell(DEPLOYMENTS, "MODIFIED", again)
        assert codes(await news(source)) == ["restart"]

    play(scene)


def test_a_scaling_has_the_time_of_its_recent_writer() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        server.objects = {DEPLOYMENTS: [deployment(progressed=9_000)]}
        await news(source)
        events = []
        for number, seconds in enumerate((3, 600)):
            later = AT + timedelta(seconds=30 * (number + 1))
            written = [{"manager": "kubectl", "time": rfc3339(later - timedelta(seconds=seconds))}, {"time": None}]
            server.tell(DEPLOYMENTS, "MODIFIED", deployment(replicas=10 + number, managedFields=written))
            events += [(later - one.at).total_seconds() for one in await news(source, later)]
        assert events == [3, 0]

    play(scene)


def test_only_a_recent_rollout_is_reported_on_the_first_read() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        new = deployment(version="v2", revision=2, progressed=60.0)
        server.objects = {
            DEPLOYMENTS: [new],
            SETS: [replicaset(deployment(), 1, 90_000), replicaset(new, 2, 600.0)],
        }
        (change,) = await news(source)
        assert (change.code, change.at) == ("rollout", AT - timedelta(minutes=10))

    async def old(server: ApiServer, source: KubernetesEventSource) -> None:
        new = deployment(version="v2", revision=2, progressed=60.0)
        server.objects = {DEPLOYMENTS: [new], SETS: [replicaset(deployment(), 1, 90_000), replicaset(new, 2, 9_000)]}
        assert await news(source) == []

    play(scene)
    play(old)


def test_secrets_in_flags_are_never_reported() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        server.objects = {DEPLOYMENTS: [deployment(["--api-key=hunter1", "--token", "hunter2"], progressed=9_000)]}
        await news(source)
        secret = deployment(["--api-key=hunter3", "--token", "hunter4"])
        secret["spec"]["template"]["spec"]["containers"][0]["env"] = [{"name": "HF_TOKEN", "value": "hunter5"}]
        server.tell(DEPLOYMENTS, "MODIFIED", secret)
        (change,) = await news(source)
        assert change.code == "flags"
        assert "hunter" not in str(change)
        assert "--api-key=(" in change.attributes["to"]

    play(scene)


def test_a_workload_change_is_reported_on_its_service() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        server.objects = {DEPLOYMENTS: [deployment(progressed=9_000)]}
        await news(source)
        server.tell(DEPLOYMENTS, "MODIFIED", deployment(replicas=1))
        (change,) = await news(source)
        replica = EntityRef("c", EntityKind.REPLICA, "serving", "chat-0")
        service = EntityRef("c", EntityKind.SERVICE, "serving", "chat-by-target")
        known = Topology.build([(replica, service)], labels={replica: {"workload": "chat"}})
        assert EntityResolver(known).entity(change) == service
        assert EntityResolver().entity(change) == EntityRef("c", EntityKind.SERVICE, "serving", "chat-70b")

    play(scene)


def test_a_change_of_a_workload_without_a_service_is_reported_on_the_workload() -> None:
    async def scene(server: ApiServer, source: KubernetesEventSource) -> None:
        server.objects = {DEPLOYMENTS: [deployment(progressed=9_000, labels={"run": "chat"})]}
        await news(source)
        server.tell(DEPLOYMENTS, "MODIFIED", deployment(replicas=1, labels={"run": "chat"}))
        (change,) = await news(source)
        assert EntityResolver().entity(change) == EntityRef("c", EntityKind.WORKLOAD, "serving", "chat")

    play(scene, service_label="team/serves")
