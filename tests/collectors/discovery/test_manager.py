"""Discovered addresses become targets; a failing source removes none."""

from __future__ import annotations

import asyncio
import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest
import structlog

from collectors.discovery.adapter_detection import detect_adapter
from collectors.discovery.manager import MOST_TENANTS, Discovery
from collectors.discovery.relabeling import RelabelRules, target_of_discovered
from collectors.discovery.types import DiscoveredTarget, DiscoverySnapshot
from collectors.mapping.target import Target, target_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason
from outrider.model import CellStatus, EntityKind, EntityRef, SignalKey

AT = datetime(2026, 11, 21, 18, 0, tzinfo=UTC)
STEP = timedelta(minutes=1)
VLLM = RelabelRules(adapter="vllm")


class Source:
    """A scripted source."""

    def __init__(self, name: str, *found: DiscoveredTarget, **more) -> None:
        self.name, self.every = name, STEP
        self.seen = DiscoverySnapshot(tuple(found), **more)
        self.fault: Exception | None = None
        self.reads = 0
        self.gate: asyncio.Event | None = None

    async def read(self) -> DiscoverySnapshot:
        self.reads += 1
        if self.gate is not None:
            await self.gate.wait()
        if self.fault is not None:
            raise self.fault
        return self.seen

    async def close(self) -> None:
        self.name += " closed"


def run(discovery: Discovery, rounds: int = 1, first: int = 0):
    async def whole():
        for number in range(first, first + rounds):
            known = await discovery.refresh(AT + number * STEP)
        return known

    return asyncio.run(whole())


def names(known) -> list[str]:
    return [target.name for target in known.targets]


# --- targets --------------------------------------------------------------------------------------


def made(found: DiscoveredTarget, rules: RelabelRules = VLLM, adapter: str = "vllm") -> Target:
    return target_of_discovered("src", "test", found, rules, adapter)


def test_an_engine_target_is_a_replica() -> None:
    labels = {"pod": "chat-0", "namespace": "serving", "service": "chat", "node": "n1", "rubbish": "x" * 900}
    target = made(DiscoveredTarget("10.0.0.1:8000", labels, identity="uid-1"))
    assert target.name == "src-10.0.0.1:8000"
    assert target.url == "http://10.0.0.1:8000/metrics"
    assert target.entity == EntityRef("test", EntityKind.REPLICA, "serving", "chat-0")
    assert target.labels == {"pod": "chat-0", "service": "chat", "node": "n1"}
    assert target.identity == "uid-1"
    assert target.service == EntityRef("test", EntityKind.SERVICE, "serving", "chat")


def test_targets_of_other_kinds() -> None:
    node = made(DiscoveredTarget("n1.example:9400", {"job": "dcgm"}), adapter="dcgm")
    assert (node.entity.kind, node.entity.name, node.labels) == (EntityKind.NODE, "n1.example", {"node": "n1.example"})
    whole = made(DiscoveredTarget("ksm:8080", {}), adapter="kube_state_metrics")
    assert whole.entity == EntityRef("test", EntityKind.CLUSTER, None, "test")
    bare = made(DiscoveredTarget("10.0.0.1:8000", {"job": "chat"}))
    assert (bare.entity.name, bare.labels["service"]) == ("10.0.0.1:8000", "chat")
    assert bare.follows(made(DiscoveredTarget("10.0.0.1:8000", {"job": "chat", "node": "n2"})))
    assert not bare.follows(made(DiscoveredTarget("10.0.0.1:8000", {"job": "chat", "model": "llama"})))
    six = made(DiscoveredTarget("[fd00::1]:8000"))
    assert six.url == "http://[fd00::1]:8000/metrics"


def test_schemes_paths_and_ports() -> None:
    rules = RelabelRules(adapter="vllm", scheme="https", path="/m", port=9000)
    assert made(DiscoveredTarget("a"), rules).url == "https://a:9000/m"
    own = DiscoveredTarget("a:1", {"__scheme__": "http", "__metrics_path__": "x/y"})
    assert made(own, rules).url == "http://a:1/x/y"
    assert made(own, rules).name == "src-a:1_x_y"
    with pytest.raises(CollectError, match="is not a valid address"):
        made(DiscoveredTarget("a:1", {"__scheme__": "gopher"}))


def test_keeping_dropping_and_labels_of_another_name() -> None:
    rules = RelabelRules(
        keep={"job": re.compile("vllm.*")},
        drop={"env": re.compile("test|dev")},
        labels={"service": "app", "node": "host"},
        adapter="vllm",
    )
    assert rules.wants(DiscoveredTarget("a", {"job": "vllm-chat"}))
    assert not rules.wants(DiscoveredTarget("a", {"job": "x-vllm"}))
    assert not rules.wants(DiscoveredTarget("a", {"job": "vllm", "env": "dev"}))
    assert not rules.wants(DiscoveredTarget("a", {}))
    assert made(DiscoveredTarget("a:1", {"app": "chat", "host": "n1"}), rules).labels == {
        "service": "chat",
        "node": "n1",
    }


def test_the_adapter_of_a_target() -> None:
    rules = RelabelRules(adapter="dcgm", adapters={"vllm-prod": "vllm"})
    assert rules.adapter_of(DiscoveredTarget("a", {"job": "vllm-prod"})) == "vllm"
    assert rules.adapter_of(DiscoveredTarget("a", {"job": "other"})) == "dcgm"
    assert rules.adapter_of(DiscoveredTarget("a", {"job": "vllm-prod"}, adapter="sdk")) == "sdk"
    assert RelabelRules().adapter_of(DiscoveredTarget("a")) is None


def test_targets_report_their_adapter() -> None:
    assert detect_adapter('vllm:num_requests_running{model_name="x"} 3\nprocess_start_time_seconds 1\n') == "vllm"
    assert detect_adapter('# HELP DCGM_FI_DEV_GPU_TEMP x\nDCGM_FI_DEV_GPU_TEMP{gpu="0"} 40\n') == "dcgm"
    assert detect_adapter('outrider_sdk_answers_total 1\noutrider_sdk_kpi{kpi="x"} 3\n') == "sdk"
    assert detect_adapter("process_start_time_seconds 1\ngo_goroutines 4\nup 1\n") is None
    assert detect_adapter("<html>") is None
    assert detect_adapter("") is None


# --- sources side by side -------------------------------------------------------------------------


def test_a_source_that_fails_keeps_its_targets_and_reports_it_once() -> None:
    good, bad = Source("good", DiscoveredTarget("a:1")), Source("bad", DiscoveredTarget("b:1"))
    discovery = Discovery([(good, VLLM), (bad, VLLM)], "test")
    first = run(discovery)
    assert names(first) == ["good-a:1", "bad-b:1"]
    bad.fault = CollectError("bad: gone", reason=CollectReason.REFUSED)
    with structlog.testing.capture_logs() as logs:
        assert run(discovery, 3, first=1) is first, "the very same: nothing has to be done anew"
    assert [(line["event"], line["source"], line["targets_kept"]) for line in logs] == [("discovery_failed", "bad", 1)]
    health = {one.target: one for one in discovery.health}
    assert (health["bad"].up, health["bad"].error, health["bad"].samples) == (False, "bad: gone", 1)
    assert health["bad"].last_success == AT
    assert health["good"].up is True
    bad.fault, bad.seen = None, DiscoverySnapshot((DiscoveredTarget("b:2"),))
    with structlog.testing.capture_logs() as logs:
        assert names(run(discovery, first=4)) == ["good-a:1", "bad-b:2"]
    assert [line["event"] for line in logs] == ["discovery_recovered"]


def test_an_internal_error_keeps_the_targets() -> None:
    source = Source("odd", DiscoveredTarget("a:1"))
    discovery = Discovery([(source, VLLM)], "test")
    run(discovery)
    source.fault = KeyError("x")
    with structlog.testing.capture_logs():
        assert names(run(discovery, first=1)) == ["odd-a:1"]
    assert "unexpected response (KeyError)" in (discovery.health[0].error or "")


def test_an_address_in_two_sources_is_one_target() -> None:
    one = Source("one", DiscoveredTarget("a:1", {"pod": "p", "service": "chat"}))
    two = Source("two", DiscoveredTarget("a:1", {"pod": "q", "node": "n1"}), DiscoveredTarget("c:1"))
    configured = target_of("test", {"name": "mine", "adapter": "vllm", "url": "http://c:1/metrics"})
    known = run(Discovery([(one, VLLM), (two, VLLM)], "test", configured=[configured]))
    assert names(known) == ["mine", "one-a:1"]
    assert known.targets[0] is configured
    assert known.targets[1].labels == {"pod": "p", "service": "chat", "node": "n1"}


def test_targets_come_and_go() -> None:
    source = Source("src", DiscoveredTarget("a:1"), DiscoveredTarget("b:1"))
    discovery = Discovery([(source, VLLM)], "test")
    first = run(discovery)
    source.seen = DiscoverySnapshot((DiscoveredTarget("b:1"), DiscoveredTarget("c:1")))
    second = run(discovery, first=1)
    assert names(second) == ["src-b:1", "src-c:1"]
    assert second.targets[0] is first.targets[1], "what stays is the same object"


def test_each_source_has_its_own_interval() -> None:
    often, seldom = Source("often"), Source("seldom")
    seldom.every = 10 * STEP
    run(Discovery([(often, VLLM), (seldom, VLLM)], "test"), 5)
    assert (often.reads, seldom.reads) == (5, 1)


def test_a_hanging_source_does_not_delay_the_others() -> None:
    async def whole() -> None:
        slow, quick = Source("slow", DiscoveredTarget("s:1")), Source("quick", DiscoveredTarget("q:1"))
        slow.gate = asyncio.Event()
        discovery = Discovery([(slow, VLLM), (quick, VLLM)], "test")
        for number in range(3):
            known = await discovery.refresh(AT + number * STEP, wait=0.02)
            assert names(known) == ["quick-q:1"]
        assert slow.reads == 1
        slow.gate.set()
        assert names(await discovery.refresh(AT + 3 * STEP)) == ["slow-s:1", "quick-q:1"]
        await discovery.close()
        assert slow.name == "slow closed"

    asyncio.run(whole())


def test_an_adapter_is_detected_once_and_unknown_pages_are_reported() -> None:
    looked: list[str] = []

    async def look(url: str, _rules: RelabelRules) -> str | None:
        looked.append(url)
        if url == "http://starts:1/metrics":
            raise CollectError("not yet", reason=CollectReason.REFUSED)
        return {"http://a:1/metrics": "vllm", "http://b:1/metrics": "dcgm"}.get(url)

    found = [DiscoveredTarget(f"{name}:1") for name in ("a", "b", "odd", "starts")]
    source = Source("src", *found, DiscoveredTarget("named:1", adapter="vllm"))
    discovery = Discovery([(source, RelabelRules())], "test", guess=look)
    with structlog.testing.capture_logs():
        known = run(discovery, 12)
    assert {one.name: one.adapter for one in known.targets} == {
        "src-a:1": "vllm", "src-b:1": "dcgm", "src-named:1": "vllm",
    }  # fmt: skip
    assert looked.count("http://a:1/metrics") == 1
    assert looked.count("http://odd:1/metrics") == 2, "once more after ten minutes"
    assert looked.count("http://starts:1/metrics") == 12, "it may come up at any time"
    assert discovery.health[0].error == "src: no adapter detected for http://odd:1/metrics (and 1 more)"
    assert discovery.health[0].up is True


def test_an_unknown_adapter_is_reported() -> None:
    source = Source("src", DiscoveredTarget("a:1", adapter="vlm"), DiscoveredTarget("b:1"))
    discovery = Discovery([(source, VLLM)], "test")
    with structlog.testing.capture_logs() as logs:
        assert names(run(discovery, 3)) == ["src-b:1"]
    assert [line["event"] for line in logs] == ["discovery_failed"], "logged once, and not retracted"
    assert "names the unknown adapter 'vlm'" in (discovery.health[0].error or "")


def test_one_change_among_ten_thousand_targets() -> None:
    found = [
        DiscoveredTarget(f"10.0.{n // 250}.{n % 250}:8000", {"pod": f"p{n}", "service": "chat"}) for n in range(10_000)
    ]
    source = Source("src", *found)
    discovery = Discovery([(source, VLLM)], "test")
    first = run(discovery)
    assert len(first.targets) == 10_000
    found[7] = replace(found[7], identity="new")
    source.seen = DiscoverySnapshot(tuple(replace(one) for one in found))
    second = run(discovery, first=1)
    assert sum(a is b for a, b in zip(first.targets, second.targets, strict=True)) == 9_999


# --- a collector whose targets come and go --------------------------------------------------------

TOKENS = SignalKey("engine_generation_tokens_total")


class Pages:
    """A scraper with scripted pages; ``gate`` delays a scrape."""

    def __init__(self) -> None:
        self.tokens: dict[str, float] = {}
        self.gate: asyncio.Event | None = None

    async def scrape_one(self, target: Target, *, at: datetime) -> Scrape:
        tokens = self.tokens[target.name]
        if self.gate is not None:
            await self.gate.wait()
        body = f'vllm:generation_tokens_total{{engine="0",model_name="m"}} {tokens}\n'
        return Scrape(target, at, body.encode(), None, 0.01)

    async def close(self) -> None:
        pass


def increase(collected, name: str) -> float | CellStatus:
    for batch in collected.batches:
        for row, entity in enumerate(batch.entities):
            if entity.kind is EntityKind.REPLICA and entity.name == name and TOKENS in batch.keys:
                column = batch.keys.index(TOKENS)
                status = CellStatus(int(batch.status[row, column]))
                return float(batch.values[row, column]) if status is CellStatus.PRESENT else status
    raise AssertionError(name)


def test_a_new_owner_of_an_address_starts_over_and_the_rest_continues() -> None:
    def target(name: str, identity: str) -> Target:
        return made(DiscoveredTarget(f"{name}:1", {"replica": name}, identity=identity))

    async def whole() -> None:
        pages = Pages()
        collector = ScrapeManager([target("a", "1"), target("b", "1")], pages)
        pages.tokens = {"src-a:1": 100, "src-b:1": 1000}
        await collector.collect(AT)
        pages.tokens = {"src-a:1": 150, "src-b:1": 1100}
        collected = await collector.collect(AT + STEP)
        assert (increase(collected, "a"), increase(collected, "b")) == (50, 100)
        collector.set_targets([target("a", "2"), target("b", "1"), target("c", "1")])
        pages.tokens = {"src-a:1": 900, "src-b:1": 1200, "src-c:1": 5}
        collected = await collector.collect(AT + 2 * STEP)
        assert increase(collected, "a") is CellStatus.ABSENT, "900 - 150 would be two pods in one figure"
        assert increase(collected, "b") == 100
        assert increase(collected, "c") is CellStatus.ABSENT
        pages.tokens["src-a:1"] = 910
        assert increase(await collector.collect(AT + 3 * STEP), "a") == 10

    asyncio.run(whole())


def test_an_outdated_detection_result_is_dropped() -> None:
    async def whole() -> None:
        pages = Pages()
        old, new = (
            made(DiscoveredTarget("a:1", {"replica": "a"}, identity="1")),
            made(DiscoveredTarget("a:1", {"replica": "a"}, identity="2")),
        )
        collector = ScrapeManager([old], pages, deadline=timedelta(seconds=0.02))
        pages.tokens, pages.gate = {"src-a:1": 100}, asyncio.Event()
        await collector.collect(AT)
        collector.set_targets([new])
        pages.gate.set()
        await asyncio.wait(collector._running.values())
        pages.tokens, pages.gate = {"src-a:1": 5000}, None
        collected = await collector.collect(AT + STEP)
        assert increase(collected, "a") is CellStatus.ABSENT
        assert [one.last_success for one in collector.health] == [AT + STEP]
        await collector.close()

    asyncio.run(whole())


def test_topology_is_kept_if_only_targets_are_set() -> None:
    node, pod = EntityRef("test", EntityKind.NODE, None, "n"), EntityRef("test", EntityKind.POD, "x", "p")
    collector = ScrapeManager(())
    collector.set_targets((), [(node, pod)], {node: {"nvlink_domain": "c.0"}})
    collector.set_targets([made(DiscoveredTarget("a:1"))])
    topology = collector.topology(AT)
    assert topology.holds_up(node) == (pod,)
    assert topology.label(node, "nvlink_domain") == "c.0"
    collector.set_targets((), (), {})
    assert collector.topology(AT).entities == frozenset()


def test_names_that_differ_in_special_characters_are_two_targets() -> None:
    pages = [DiscoveredTarget("a:1", {"__metrics_path__": path}) for path in ("/x/y", "/x_y")]
    known = run(Discovery([(Source("src", *pages), VLLM)], "test"))
    assert len({one.name for one in known.targets}) == 2
    assert [one.url for one in known.targets] == ["http://a:1/x/y", "http://a:1/x_y"]


def test_tenants_and_request_classes_are_bounded() -> None:
    found = [
        DiscoveredTarget(f"a{n}:1", {"tenant": f"t{n}", "request_class": f"vip online user-{n}"}) for n in range(200)
    ]
    known = run(
        Discovery([(Source("src", *found, DiscoveredTarget("b:1", {"request_class": "my own"})), VLLM)], "test")
    )
    tenants = {one.labels.get("tenant") for one in known.targets} - {None}
    assert len(tenants) == MOST_TENANTS + 1
    assert "other" in tenants
    assert {one.labels["request_class"] for one in known.targets} == {"vip-online", "other"}
