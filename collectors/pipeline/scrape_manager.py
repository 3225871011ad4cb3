"""One round of collection: scrape every target at once, parse, normalise, roll up to services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Protocol
from zlib import crc32

from collectors.exposition.parser import Page, Parser
from collectors.kubernetes.topology import Graph, beside, joined
from collectors.mapping.target import Target
from collectors.normalise.disappearance import LOST
from collectors.normalise.normalise import Normaliser
from collectors.normalise.service_rollup import device_batches, service_batches
from collectors.normalise.source_precedence import apply_precedence
from collectors.pipeline.backoff import ScrapeBackoff
from collectors.pipeline.carry_forward import CarryForward
from collectors.pipeline.log_once import OncePerTargetLogger
from collectors.pipeline.page_ownership import refusal
from collectors.scrape.result import Scrape
from collectors.scrape.series_limit import within_limit
from collectors.scrape.target_health import TargetHealth
from outrider import log
from outrider.errors import CollectError, CollectReason, StoreAwayError
from outrider.model import EntityKind, EntityRef, Event, SampleBatch
from outrider.ports import Collected
from outrider.topology import Edge, Topology

Tap = Callable[[Sequence[Scrape]], None]
_MANY = 1_000  # targets that take the whole of ``spread``
_MOST_TOLD = 300  # characters of a fault that is told


class Fetcher(Protocol):
    """What the collector needs of a scraper."""

    async def scrape_one(self, target: Target, *, at: datetime) -> Scrape:
        """One attempt, which never raises and ends by the target's deadline."""
        ...

    async def close(self) -> None:
        """Release connections."""
        ...


@dataclass(frozen=True, slots=True)
class PushedBatch:
    """What senders pushed, a round's worth: pages, batches of what is no page, and targets of silent senders."""

    pages: tuple[tuple[Scrape, Page | None], ...] = ()
    batches: tuple[SampleBatch, ...] = ()
    unseen: tuple[Target, ...] = ()
    facts: Mapping[EntityRef, Mapping[str, str]] = field(default_factory=dict)


class PushSource(Protocol):
    """Targets that send instead of being scraped."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """Those that are known now."""
        ...

    def take(self, at: datetime) -> PushedBatch:
        """What came since the last round. Called from one thread at a time; never raises for a sender's fault."""
        ...

    def close(self) -> None:
        """Release what is held."""
        ...


class ScrapeManager:
    """Collects from targets. One round at a time; a target has at most one scrape under way."""

    def __init__(
        self,
        targets: Sequence[Target],
        scraper: Fetcher | None = None,
        *,
        deadline: timedelta | None = None,
        spread: timedelta = timedelta(0),
        normaliser: Normaliser | None = None,
        parser: Parser | None = None,
        tap: Tap | None = None,
        pushed: PushSource | None = None,
    ) -> None:
        """``deadline`` closes a round: answers that come later are handed over in the next one.

        None waits for every target, each bounded by its own timeout. ``spread`` is the time over which a
        thousand scrapes begin; fewer begin sooner. ``tap`` gets every scrape as it came, also what was pushed, once
        a round. What was ``pushed``
        is taken in with what is scraped, so that a service is rolled up from all of its replicas, however
        they are read.
        """
        self._pushed = pushed
        self._pushed_targets: tuple[Target, ...] = ()
        self._known_pushed: tuple[Target, ...] = ()
        self._pushed_facts: Mapping[EntityRef, Mapping[str, str]] = {}
        self._held = CarryForward()
        self._targets: tuple[Target, ...] = ()
        self._by_name: dict[str, Target] = {}
        self._beside: tuple[tuple[Edge, ...], Mapping[EntityRef, Mapping[str, str]]] = ((), {})
        self._scraper = scraper
        self._deadline = deadline
        self.normaliser = normaliser or Normaliser()
        self.parser = parser or Parser()
        self._tap = tap
        self._patience, self._most_spread = ScrapeBackoff(), spread
        self._running: dict[str, asyncio.Task[Scrape]] = {}
        self._health: dict[str, TargetHealth] = {}
        self._seen: dict[str, tuple[tuple[Edge, ...], Mapping[EntityRef, Mapping[str, str]]]] = {}
        self._topology: Topology | None = None
        self._told = OncePerTargetLogger()
        self.set_targets(targets)

    @property
    def targets(self) -> tuple[Target, ...]:
        """What is collected from."""
        return self._targets

    def set_targets(
        self,
        targets: Sequence[Target],
        edges: Sequence[Edge] | None = None,
        labels: Mapping[EntityRef, Mapping[str, str]] | None = None,
    ) -> None:
        """Replace the targets; what is known of those that go is forgotten.

        So is what is known of a target that another one now stands in the place of. ``edges`` and ``labels``
        are topology known beside the pages; None leaves it as it is.
        """
        targets = (*targets, *self._pushed_targets)
        known = {target.name: target for target in (*self._targets, *self._known_pushed)}
        kept = {target.name for target in targets if target.name not in known or target.follows(known[target.name])}
        for gone in [name for name in self._health if name not in kept]:
            self.normaliser.forget(gone)
            self._health.pop(gone)
            self._patience.forget(gone)
            self.parser.forget(gone)
            self._seen.pop(gone, None)
            self._told.forget(gone)
        beside, told = self._beside
        self._beside = (beside if edges is None else tuple(edges), told if labels is None else labels)
        self._known_pushed = self._pushed_targets
        self._targets = tuple(targets[: len(targets) - len(self._pushed_targets)])
        self._by_name = {target.name: target for target in self._targets}
        for target in targets:
            self._health.setdefault(
                target.name,
                TargetHealth(target.name, target.adapter, *(None,) * 5, cluster=target.entity.cluster),
            )
            if target.name not in kept or known.get(target.name) != target:  # new, or moved: its page tells more
                self._seen[target.name] = (target.edges, target.facts)
        self._topology = None

    @property
    def watched(self) -> tuple[Target, ...]:
        """What is collected from, and what pushes."""
        return (*self._targets, *self._pushed_targets)

    @property
    def health(self) -> list[TargetHealth]:
        """Every target, in configured order, then those that push."""
        return [self._health[target.name] for target in (*self._targets, *self._pushed_targets)]

    def topology(self, at: datetime) -> Topology:
        """The graph of target labels and of what the newest good page of each target says."""
        if self._topology is None:
            of_pages: dict[EntityRef, dict[str, str]] = {}
            for facts in (*(facts for _, facts in self._seen.values()), self._pushed_facts):
                for entity, known in facts.items():
                    of_pages.setdefault(entity, {}).update(known)
            seen = [edge for found, _ in self._seen.values() for edge in found]
            told = Graph(*self._beside)
            told = beside(Topology.build(seen, of_pages), told) if told.edges else told
            joint, labels = joined(seen, of_pages, [told])
            edges = _still_there(joint, labels)
            every = (*self._targets, *self._pushed_targets)
            entities = [one for target in every for one in (target.entity, target.watcher)]
            self._topology = Topology.build(edges, (*entities, *labels), labels, at)
        return replace(self._topology, at=at)

    async def collect(self, at: datetime) -> Collected:
        """Scrape every target and normalise what came in time. Never raises for a target's fault."""
        if self._scraper is None and self._pushed is None:
            raise ValueError("a collector without a scraper can only absorb")
        early = self._finished()
        for target in self._targets:
            if target.name not in self._running and self._scraper is not None:
                error = self._patience.pause(target, at)
                if error is not None:
                    early.append(Scrape(target, at, None, error, 0.0))
                    continue
                task = asyncio.create_task(self._at_its_moment(self._scraper, target, at), name=f"scrape {target.name}")
                self._running[target.name] = task
        if self._running:
            seconds = None if self._deadline is None else self._deadline.total_seconds()
            await asyncio.wait(self._running.values(), timeout=seconds)
        scrapes = early + self._finished()
        for name in self._running:
            if name in self._health:
                self._health[name] = replace(self._health[name], late=True)
        # A thread, so that a thousand pages do not hold the loop; rounds never overlap.
        return await asyncio.to_thread(self.absorb, scrapes, at)

    async def _at_its_moment(self, scraper: Fetcher, target: Target, at: datetime) -> Scrape:
        """Each target at its own moment of a round, the same in every round: intervals stay exact."""
        share = min(1.0, len(self._targets) / _MANY)
        later = self._most_spread * share * (crc32(target.name.encode()) / 2**32)
        if later:
            await asyncio.sleep(later.total_seconds())
        try:
            return await scraper.scrape_one(target, at=at + later)
        except Exception as fault:  # noqa: BLE001 (a fault of ours in one target's scrape must not end the round)
            error = CollectError(
                f"{target.name}: its scrape broke off ({type(fault).__name__}: {str(fault)[:_MOST_TOLD]})",
                reason=CollectReason.OTHER,
                hint="look at what the target answers; the log has it once",
            )
            return Scrape(target, at + later, None, error, 0.0)

    def _finished(self) -> list[Scrape]:
        done = [name for name, task in self._running.items() if task.done()]
        scrapes = [self._running.pop(name).result() for name in done]
        # what was asked of a target that has gone since, or that another one has followed, is nobody's past
        scrapes = [one for one in scrapes if (now := self._by_name.get(one.target.name)) and now.follows(one.target)]
        for scrape in scrapes:
            self._patience.note(scrape)
        return scrapes

    def absorb(self, scrapes: Sequence[Scrape], at: datetime) -> Collected:
        """Normalise scrapes, of whatever origin, and add the services' signals."""
        return self._absorb([self._parse(scrape) for scrape in scrapes], at, scrapes)

    def absorb_pages(self, scrapes: Sequence[tuple[Scrape, Page | None]], at: datetime) -> Collected:
        """The same for scrapes whose pages are parsed already; None stands for a failed scrape."""
        return self._absorb(scrapes, at, [_with_page(*one) for one in scrapes])

    def _absorb(
        self, scrapes: Sequence[tuple[Scrape, Page | None]], at: datetime, as_they_came: Sequence[Scrape]
    ) -> Collected:
        brought = self._take(at)
        if self._tap is not None:
            self._tap([*as_they_came, *(_with_page(*one) for one in brought.pages)])
        pushing = {one.target.name for one, _ in brought.pages}
        batches: list[SampleBatch] = list(brought.batches)
        events: list[Event] = []
        for target in brought.unseen:
            batches.extend(self.normaliser.unseen(target, at).batches)
        for scrape, page in sorted((*scrapes, *brought.pages), key=lambda pair: pair[0].at):
            found = self.normaliser.normalise(scrape, page)
            batches.extend(found.batches)
            events.extend(found.events)
            self._note(scrape, page, found)
            if scrape.target.name in pushing:
                self._held.keep(scrape.target.name, found.batches)
        batches.extend(self._between_pages(brought, at))
        topology = self.topology(at)
        batches.extend(device_batches(batches, topology, at))
        services = service_batches(batches, topology, at)
        known = (*self._targets, *self._pushed_targets)
        apply_precedence(batches, services, {target.name: target.adapter for target in known})
        batches.extend(services)
        return Collected(tuple(batches), tuple(events), topology.edges, topology.labels, topology)

    def _take(self, at: datetime) -> PushedBatch:
        """What was pushed, with the targets that pushed it."""
        if self._pushed is None:
            return PushedBatch()
        try:
            brought = self._pushed.take(at)
        except StoreAwayError:
            return PushedBatch()  # the doors take nothing either: senders wait, they are not silent
        found = self._pushed.targets
        if found != self._pushed_targets:
            self._pushed_targets = found
            self.set_targets(self._targets)
            self._held.forget_all_but({target.name for target in found})
        if brought.facts != self._pushed_facts:
            self._pushed_facts, self._topology = brought.facts, None
        return brought

    def _between_pages(self, brought: PushedBatch, at: datetime) -> list[SampleBatch]:
        """What still holds of targets that pushed nothing since the last round."""
        told = {scrape.target.name for scrape, _ in brought.pages} | {target.name for target in brought.unseen}
        silent = [target.name for target in self._pushed_targets if target.name not in told]
        return [batch for name in silent for batch in self._held.again(name, at)]

    def _parse(self, scrape: Scrape) -> tuple[Scrape, Page | None]:
        scrape = within_limit(scrape, self.normaliser.adapter(scrape.target.adapter).reads)
        self._told.limited(scrape)
        if scrape.body is None:
            return scrape, None
        name = scrape.target.name
        try:
            page = self.parser.parse(scrape.body, openmetrics=scrape.openmetrics, source=name)
        except CollectError as error:
            named = CollectError(f"{name}: {error.message}", reason=error.reason, hint=error.hint)
            return replace(scrape, body=None, error=named), None
        self._told.parsed(name, page)
        before = self._health.get(name)
        had_one = before is not None and before.last_success is not None
        wrong = refusal(name, self.normaliser.adapter(scrape.target.adapter), page, had_one=had_one)
        return (scrape, page) if wrong is None else (replace(scrape, body=None, error=wrong), None)

    def _note(self, scrape: Scrape, page: Page | None, found: Collected) -> None:
        name, error = scrape.target.name, scrape.error
        before = self._health.get(name)
        self._health[name] = TargetHealth(
            target=name,
            adapter=scrape.target.adapter,
            up=page is not None,
            samples=page.samples if page is not None else None,
            duration_seconds=scrape.duration_seconds,
            error=error.message if error else None,
            last_success=scrape.at if page is not None else (before.last_success if before else None),
            reason=error.reason if error else None,
            hint=error.hint if error else "",
            cluster=scrape.target.entity.cluster,
        )
        if error is not None and (before is None or before.reason != error.reason):
            log.get("collect").warning("scrape_failed", target=name, reason=error.reason, error=error.message)
        if page is not None and found.labels is not None:
            known = self._seen.get(name)
            if known is None or known[0] is not found.edges or known[1] is not found.labels:
                self._seen[name] = (found.edges, found.labels)
                self._topology = None

    async def close(self) -> None:
        """End scrapes that are still under way and close the scraper."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()
        if self._scraper is not None:
            await self._scraper.close()
        if self._pushed is not None:
            self._pushed.close()


def _with_page(scrape: Scrape, page: Page | None) -> Scrape:
    return scrape if page is None else replace(scrape, page=page)


def _still_there(edges: list[Edge], labels: Mapping[EntityRef, Mapping[str, str]]) -> list[Edge]:
    """Leave out that a lost device holds up a pod which runs on another node by now."""
    gone = {entity for entity, facts in labels.items() if facts.get(LOST) == "true"}
    if not gone:
        return edges
    node_of = {upper: lower for lower, upper in edges if upper in gone and lower.kind is EntityKind.NODE}
    nodes: dict[EntityRef, set[EntityRef]] = {}
    for lower, upper in edges:
        if lower.kind is EntityKind.NODE:
            nodes.setdefault(upper, set()).add(lower)
    return [
        (lower, upper)
        for lower, upper in edges
        if lower not in gone or upper not in nodes or node_of.get(lower) in nodes[upper]
    ]
