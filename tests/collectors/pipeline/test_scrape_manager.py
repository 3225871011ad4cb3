"""A cycle ends at its deadline; late scrapes are delivered in the next one."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
import structlog

from collectors.mapping.target import target_of, targets_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason, ConfigError
from outrider.model import EntityKind, EntityRef, SignalKey

AT = datetime(2026, 3, 1, tzinfo=UTC)
STEP = timedelta(seconds=15)
PAGE = "vllm:num_requests_running 3\nvllm:generation_tokens_total {tokens}\nvllm:request_success_total 4\n"


class Fetched:
    """Responds at once, except for the target ``slow``, which waits for a release."""

    def __init__(self) -> None:
        self.gate = asyncio.Event()
        self.calls: list[str] = []

    async def close(self):
        self.closed = True

    async def scrape_one(self, target, *, at):
        self.calls.append(target.name)
        if target.name == "slow":
            await self.gate.wait()
        return Scrape(target, at, PAGE.format(tokens=at.timestamp()).encode(), None, 0.01)


def targets(*names):
    documents = [
        {"name": name, "adapter": "vllm", "labels": {"service": "chat", "node": "n", "pod": name}} for name in names
    ]
    return targets_of("test", documents)


def up(collected):
    column = 0
    return {
        batch.entities[0].name: batch.values[0, column]
        for batch in collected.batches
        if batch.entities[0].namespace == "targets"
    }


def test_one_cycle_gives_batches_services_and_topology() -> None:
    async def run():
        collector = ScrapeManager(targets("a", "b"), Fetched())
        await collector.collect(AT)
        return collector, await collector.collect(AT + STEP)

    collector, collected = asyncio.run(run())
    assert up(collected) == {"a": 1, "b": 1}
    service = next(batch for batch in collected.batches if batch.kind is EntityKind.SERVICE)
    column = service.keys.index(SignalKey("svc_generation_tokens_total"))
    assert service.values[0, column] == 30
    topology = collector.topology(AT)
    chat = EntityRef("test", EntityKind.SERVICE, "default", "chat")
    assert topology.below(chat, EntityKind.NODE) == (EntityRef("test", EntityKind.NODE, None, "n"),)
    assert topology.label(collector.targets[0].watcher, "stands_for") == "test/replica/default/a"
    assert [one.up for one in collector.health] == [True, True]
    assert collector.health[0].last_success == AT + STEP


def test_a_late_target_is_delivered_next_cycle_and_delays_no_other() -> None:
    async def run():
        fetched = Fetched()
        collector = ScrapeManager(targets("a", "slow"), fetched, deadline=timedelta(milliseconds=50))
        first = await collector.collect(AT)
        late = [one.late for one in collector.health]
        second = await collector.collect(AT + STEP)
        calls = list(fetched.calls)
        fetched.gate.set()
        await asyncio.wait(collector._running.values())
        third = await collector.collect(AT + 2 * STEP)
        await collector.close()
        return first, late, second, calls, third, collector

    first, late, second, calls, third, collector = asyncio.run(run())
    assert up(first) == up(second) == {"a": 1}
    assert late == [False, True]
    assert calls.count("slow") == 1  # never two under way
    times = [batch.scraped_at for batch in third.batches if batch.source == "slow"]
    assert AT in times  # at its own instant
    assert not collector.health[1].late


class Broken(Fetched):
    """Raises an internal error for the target ``bad``."""

    async def scrape_one(self, target, *, at):
        if target.name == "bad":
            raise OverflowError("int too large to convert to float")
        return await super().scrape_one(target, at=at)


def test_an_error_of_one_target_is_its_failed_scrape_logged_once() -> None:
    async def run():
        collector = ScrapeManager(targets("a", "bad"), Broken())
        collected = [await collector.collect(AT + number * STEP) for number in range(3)]
        return collected, collector

    with structlog.testing.capture_logs() as logs:
        rounds, collector = asyncio.run(run())
    assert [up(collected) for collected in rounds] == [{"a": 1, "bad": 0}] * 3
    health = collector.health[1]
    assert (health.up, health.reason) == (False, CollectReason.OTHER)
    assert health.error == "bad: the scrape failed (OverflowError: int too large to convert to float)"
    (reported,) = [one for one in logs if one["event"] == "scrape_failed"]
    assert (reported["target"], reported["error"]) == ("bad", health.error)


def test_a_page_that_cannot_be_parsed_is_a_failed_scrape() -> None:
    collector = ScrapeManager(targets("a"))
    collected = collector.absorb([Scrape(collector.targets[0], AT, b"a 1\nb", None, 0.01)], AT)
    assert up(collected) == {"a": 0}
    health = collector.health[0]
    assert (health.up, health.reason, health.samples) == (False, CollectReason.TRUNCATED, None)
    assert health.error.startswith("a: the page is truncated")
    assert health.last_success is None


def test_a_failed_cycle_keeps_the_topology() -> None:
    (target,) = targets_of("test", [{"name": "d", "adapter": "dcgm", "entity": {"kind": "node", "name": "n"}}])
    collector = ScrapeManager([target])
    collector.absorb([Scrape(target, AT, b'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-a",modelName="H100"} 4\n', None, 0.0)], AT)
    gpu = EntityRef("test", EntityKind.GPU, None, "GPU-a")
    assert collector.topology(AT).label(gpu, "gpu_type") == "H100"
    error = CollectError("d: no", reason=CollectReason.REFUSED)
    collector.absorb([Scrape(target, AT + STEP, None, error, 0.0)], AT + STEP)
    assert (target.entity, gpu) in collector.topology(AT + STEP).edges


def test_targets_may_change() -> None:
    collector = ScrapeManager(targets("a", "b"))
    collector.absorb([Scrape(one, AT, PAGE.format(tokens=1).encode(), None, 0.0) for one in collector.targets], AT)
    collector.set_targets(targets("b", "c"))
    assert [one.target for one in collector.health] == ["b", "c"]
    assert not any(entity.name == "a" for entity in collector.topology(AT).entities)


def test_no_targets_give_no_batches() -> None:
    collector = ScrapeManager((), Fetched())
    assert asyncio.run(collector.collect(AT)).batches == ()


def test_a_thousand_pages_share_one_layout() -> None:
    many = targets(*(f"r{n}" for n in range(1000)))
    collector = ScrapeManager(many)
    for number in range(2):
        body = PAGE.format(tokens=number * 5).encode()
        collected = collector.absorb([Scrape(one, AT + number * STEP, body, None, 0.0) for one in many], AT)
    assert len(collector.parser._layouts) == 1
    service = next(batch for batch in collected.batches if batch.kind is EntityKind.SERVICE)
    assert service.values[0, service.keys.index(SignalKey("svc_generation_tokens_total"))] == 5000
    assert np.isfinite(service.values).any()


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"adapter": "vllm"}, "'name' is missing"),
        ({"name": "a", "adapter": "vlm"}, "unknown adapter 'vlm'"),
        ({"name": "a", "adapter": "vllm", "color": 1}, "unknown key 'color'"),
        ({"name": "a", "adapter": "vllm", "entity": {"kind": "gpux", "name": "a"}}, "gpux"),
    ],
)
def test_invalid_targets_are_reported(document, words) -> None:
    with pytest.raises(ConfigError, match=words):
        targets_of("test", [document])


def test_names_of_targets_are_unique() -> None:
    with pytest.raises(ConfigError, match="duplicate target name 'a'"):
        targets("a", "a")


def test_edges_of_a_target() -> None:
    one = target_of("c", {"name": "r", "adapter": "vllm", "labels": {"node": "n"}})
    edges = [(str(lower), str(upper)) for lower, upper in one.edges]
    assert edges == [("node/n", "replica/default/r"), ("replica/default/r", "service/default/r")]
    assert target_of("c", {"name": "n", "adapter": "node_exporter", "labels": {"node": "n"}}).edges == ()


def test_a_node_depends_on_its_switch_and_storage() -> None:
    labels = {"node": "n", "switch": "rack-0", "storage": "models-0"}
    one = target_of(
        "c", {"name": "dcgm-n", "adapter": "dcgm", "entity": {"kind": "node", "name": "n"}, "labels": labels}
    )
    assert [(str(lower), str(upper)) for lower, upper in one.edges] == [
        ("switch/rack-0", "node/n"),
        ("storage/models-0", "node/n"),
    ]


def test_an_unreachable_target_keeps_its_node_and_a_moved_one_gets_the_new_node():
    (first,) = targets("a")
    collector = ScrapeManager([first])
    topology = collector.topology(AT)
    assert topology.label(first.watcher, "stands_for") == first.entity.key
    assert first.node in topology.causes_of(first.entity)
    moved = replace(first, labels={**first.labels, "node": "elsewhere"})
    collector.set_targets([moved])
    assert {node.name for node in collector.topology(AT).below(first.entity, EntityKind.NODE)} == {"elsewhere"}


TYPES = "# TYPE vllm:num_requests_running {}\n# TYPE vllm:num_requests_running {}\n"


def test_conflicting_metric_types_are_logged_once_per_target() -> None:
    collector = ScrapeManager(targets("a", "b"))

    def absorb(turn: int) -> None:
        body = (TYPES.format("gauge", "counter") + PAGE.format(tokens=turn)).encode()
        collector.absorb([Scrape(one, AT + turn * STEP, body, None, 0.01) for one in collector.targets], AT)

    with structlog.testing.capture_logs() as logs:
        absorb(0)
        absorb(1)
    reported = [
        (one["target"], one["metric"], one["read_as"]) for one in logs if one["event"] == "two_types_of_a_metric"
    ]
    assert reported == [(name, "vllm:num_requests_running", "gauge") for name in ("a", "b")]
