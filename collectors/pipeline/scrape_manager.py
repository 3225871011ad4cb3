"""One collection round: scrape every target concurrently, parse, normalise, roll up to services."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from threading import Lock
from typing import Protocol, runtime_checkable
from zlib import crc32

from collectors.exposition.parser import Page, Parser
from collectors.mapping.target import Target
from collectors.normalise.disappearance import LOST
from collectors.normalise.normalise import Normaliser
from collectors.normalise.service_rollup import device_batches, service_batches
from collectors.normalise.source_precedence import apply_precedence
from collectors.normalise.tenants import MOST_TENANTS, TenantTotals
from collectors.pipeline.backoff import ScrapeBackoff
from collectors.pipeline.carry_forward import CarryForward
from collectors.pipeline.early_screen import EarlyScreen
from collectors.pipeline.log_once import OncePerTargetLogger
from collectors.pipeline.page_ownership import refusal
from collectors.scrape.result import Scrape
from collectors.scrape.series_limit import within_limit
from collectors.scrape.target_health import TargetHealth
from outrider import log
from outrider.errors import CollectError, CollectReason, StoreUnavailableError
from outrider.model import EntityKind, EntityRef, Event, SampleBatch
from outrider.ports import Collected
from outrider.topology import Edge, Graph, Topology, merge_graphs, unlisted_by_pages

Tap = Callable[[Sequence[Scrape]], None]
EarlySink = Callable[[Collected], None]
_FULL_SPREAD_TARGETS = 1_000  # number of targets whose scrapes use all of ``spread``
_MAX_ERROR_TEXT = 300  # characters of an exception in an error message


class Fetcher(Protocol):
    """The part of a scraper that the scrape manager uses."""

    async def scrape_one(self, target: Target, *, at: datetime) -> Scrape:
        """Makes one attempt. Never raises, and ends by the target's deadline."""
        ...

    async def close(self) -> None:
        """Releases connections."""
        ...


@dataclass(frozen=True, slots=True)
class PushedBatch:
    """Data pushed in one round: pages, batches without a page, and targets of silent senders."""

    pages: tuple[tuple[Scrape, Page | None], ...] = ()
    batches: tuple[SampleBatch, ...] = ()
    unseen: tuple[Target, ...] = ()
    facts: Mapping[EntityRef, Mapping[str, str]] = field(default_factory=dict)


class PushSource(Protocol):
    """Targets that push instead of being scraped."""

    @property
    def targets(self) -> tuple[Target, ...]:
        """The currently known push targets."""
        ...

    def take(self, at: datetime) -> PushedBatch:
        """Returns what arrived since the last round. Called from one thread at a time.

        Never raises for a sender's error.
        """
        ...

    def close(self) -> None:
        """Releases resources."""
        ...


@runtime_checkable
class EarlyPushSource(PushSource, Protocol):
    """A push source that can be read between two rounds."""

    def take_early(self, at: datetime) -> tuple[tuple[Scrape, Page | None], ...]:
        """Returns the pages that are complete by now. They belong to the next round, and ``take`` omits them."""
        ...


@dataclass(frozen=True, slots=True)
class _ParsedScrape:
    """A scrape and its page, None if it failed. ``normalised`` is set if that was done before the round ended."""

    scrape: Scrape
    page: Page | None
    normalised: Collected | None = None


class ScrapeManager:
    """Collects from targets. One round at a time; a target has at most one scrape in flight."""

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
        most_tenants: int = MOST_TENANTS,
    ) -> None:
        """``deadline`` closes a round: later responses are handed over in the next one.

        None waits for every target, each bounded by its own timeout. ``spread`` is the time over which the scrapes of a
        thousand targets start; fewer targets use less of it. ``tap`` receives every scrape unchanged once a round,
        pushed ones included. ``pushed`` data joins the scraped data, so that a service is rolled up from all of its
        replicas, however they are collected. ``most_tenants`` is the number of named tenants of a service.
        """
        self._pushed = pushed
        self._pushed_targets: tuple[Target, ...] = ()
        self._known_pushed: tuple[Target, ...] = ()
        self._pushed_facts: Mapping[EntityRef, Mapping[str, str]] = {}
        self._carried = CarryForward()
        self._tenants = TenantTotals(most_tenants)
        self._targets: tuple[Target, ...] = ()
        self._by_name: dict[str, Target] = {}
        self._extra_topology: tuple[tuple[Edge, ...], Mapping[EntityRef, Mapping[str, str]]] = ((), {})
        self._scraper = scraper
        self._deadline = deadline
        self.normaliser = normaliser or Normaliser()
        self.parser = parser or Parser()
        self._tap = tap
        self._backoff, self._max_spread = ScrapeBackoff(), spread
        self._running: dict[str, asyncio.Task[Scrape]] = {}
        self._health: dict[str, TargetHealth] = {}
        self._page_topology: dict[str, tuple[tuple[Edge, ...], Mapping[EntityRef, Mapping[str, str]]]] = {}
        self._topology: Topology | None = None
        self._anomalies = OncePerTargetLogger()
        self._early_sink: EarlySink | None = None
        self._screen = EarlyScreen(self.normaliser.adapter)
        self._early: dict[str, Future[_ParsedScrape]] = {}  # normalised before the end of their round, by target
        self._early_pushed: list[_ParsedScrape] = []
        self._normalising = Lock()  # parser and normaliser serve one thread at a time
        self._early_reader: ThreadPoolExecutor | None = None
        self.set_targets(targets)

    def on_early(self, sink: EarlySink) -> None:
        """Sets the receiver of pages that may show a hard fault; each is sent as soon as it is normalised."""
        self._early_sink = sink
        self._early_reader = ThreadPoolExecutor(1, thread_name_prefix="early-reader")

    @property
    def targets(self) -> tuple[Target, ...]:
        """The scraped targets."""
        return self._targets

    def set_targets(
        self,
        targets: Sequence[Target],
        edges: Sequence[Edge] | None = None,
        labels: Mapping[EntityRef, Mapping[str, str]] | None = None,
    ) -> None:
        """Replaces the targets and drops the state of removed ones.

        A target that another one replaces loses its state too. ``edges`` and ``labels`` are topology from other sources
        than pages; None leaves it unchanged.
        """
        targets = (*targets, *self._pushed_targets)
        known = {target.name: target for target in (*self._targets, *self._known_pushed)}
        continued = {
            target.name for target in targets if target.name not in known or target.follows(known[target.name])
        }
        for name in [name for name in self._health if name not in continued]:
            self.normaliser.forget(name)
            self._health.pop(name)
            self._backoff.forget(name)
            self.parser.forget(name)
            self._page_topology.pop(name, None)
            self._anomalies.forget(name)
            self._screen.forget(name)
            self._early.pop(name, None)
        old_edges, old_labels = self._extra_topology
        self._extra_topology = (old_edges if edges is None else tuple(edges), old_labels if labels is None else labels)
        self._known_pushed = self._pushed_targets
        self._targets = tuple(targets[: len(targets) - len(self._pushed_targets)])
        self._by_name = {target.name: target for target in self._targets}
        for target in targets:
            self._health.setdefault(
                target.name,
                TargetHealth(target.name, target.adapter, *(None,) * 5, cluster=target.entity.cluster),
            )
            if (
                target.name not in continued or known.get(target.name) != target
            ):  # new, or moved: topology from the configuration until its page is read
                self._page_topology[target.name] = (target.edges, target.facts)
        self._topology = None

    @property
    def watched(self) -> tuple[Target, ...]:
        """All targets, scraped and pushed."""
        return (*self._targets, *self._pushed_targets)

    @property
    def health(self) -> list[TargetHealth]:
        """Health of every target: scraped ones in configured order, then pushed ones."""
        return [self._health[target.name] for target in (*self._targets, *self._pushed_targets)]

    def topology(self, at: datetime) -> Topology:
        """Returns the graph of target labels and of the newest good page of each target."""
        if self._topology is None:
            page_labels: dict[EntityRef, dict[str, str]] = {}
            for facts in (*(facts for _, facts in self._page_topology.values()), self._pushed_facts):
                for entity, values in facts.items():
                    page_labels.setdefault(entity, {}).update(values)
            page_edges = [edge for edges, _ in self._page_topology.values() for edge in edges]
            extra = Graph(*self._extra_topology)
            extra = unlisted_by_pages(Topology.build(page_edges, page_labels), extra) if extra.edges else extra
            joint, labels = merge_graphs(page_edges, page_labels, [extra])
            edges = _current_edges(joint, labels)
            every = (*self._targets, *self._pushed_targets)
            entities = [entity for target in every for entity in (target.entity, target.watcher)]
            self._topology = Topology.build(edges, (*entities, *labels), labels, at)
        return replace(self._topology, at=at)

    async def collect(self, at: datetime) -> Collected:
        """Scrapes every target and normalises the responses that arrived in time. Never raises for a target's error."""
        if self._scraper is None and self._pushed is None:
            raise ValueError("a scrape manager without a scraper can only absorb")
        early = self._finished()
        for target in self._targets:
            if target.name not in self._running and self._scraper is not None:
                error = self._backoff.pause(target, at)
                if error is not None:
                    early.append(Scrape(target, at, None, error, 0.0))
                    continue
                task = asyncio.create_task(
                    self._scrape_at_offset(self._scraper, target, at), name=f"scrape {target.name}"
                )
                self._running[target.name] = task
        if self._running:
            seconds = None if self._deadline is None else self._deadline.total_seconds()
            await asyncio.wait(self._running.values(), timeout=seconds)
        scrapes = early + self._finished()
        for name in self._running:
            if name in self._health:
                self._health[name] = replace(self._health[name], late=True)
        # A thread, so that a thousand pages do not block the loop; rounds never overlap.
        return await asyncio.to_thread(self.absorb, scrapes, at)

    async def _scrape_at_offset(self, scraper: Fetcher, target: Target, at: datetime) -> Scrape:
        """Scrapes a target at its own offset into the round, the same in every round: intervals stay exact."""
        share = min(1.0, len(self._targets) / _FULL_SPREAD_TARGETS)
        later = self._max_spread * share * (crc32(target.name.encode()) / 2**32)
        if later:
            await asyncio.sleep(later.total_seconds())
        try:
            scrape = await scraper.scrape_one(target, at=at + later)
        except Exception as fault:  # noqa: BLE001 (a bug in one target's scrape must not end the round)
            error = CollectError(
                f"{target.name}: the scrape failed ({type(fault).__name__}: {str(fault)[:_MAX_ERROR_TEXT]})",
                reason=CollectReason.OTHER,
                hint="check the target's response; the log has the error once",
            )
            return Scrape(target, at + later, None, error, 0.0)
        self._read_early(scrape)
        return scrape

    def _read_early(self, scrape: Scrape) -> None:
        """Normalises a page that may show a hard fault in a thread of its own; the round then takes the result.

        The event loop would be too slow for that: it has a thousand other scrapes to serve.
        """
        current = self._by_name.get(scrape.target.name)
        if self._early_reader is None or current is None or not current.follows(scrape.target):
            return
        if self._screen.selects(scrape):
            self._early[scrape.target.name] = self._early_reader.submit(self._normalise_early, scrape)

    def _normalise_early(self, scrape: Scrape) -> _ParsedScrape:
        with self._normalising:
            parsed, page = self._parse(scrape)
            early = _ParsedScrape(parsed, page, self.normaliser.normalise(parsed, page))
        self._send_early(early)
        return early

    async def read_pushed_early(self, at: datetime) -> None:
        """Normalises pushed pages that are complete by now, between two rounds. The next round takes the results."""
        if self._early_sink is None or not isinstance(self._pushed, EarlyPushSource) or self._normalising.locked():
            return  # a round that is being normalised takes them itself
        await asyncio.to_thread(self._take_early, self._pushed, at)

    def _take_early(self, pushed: EarlyPushSource, at: datetime) -> None:
        with self._normalising:
            try:
                pages = pushed.take_early(at)
            except StoreUnavailableError:
                return
            new = [_ParsedScrape(*parsed, self.normaliser.normalise(*parsed)) for parsed in pages]
            self._early_pushed += new
        for early in new:
            self._send_early(early)

    def _send_early(self, early: _ParsedScrape) -> None:
        if self._early_sink is not None and early.normalised is not None:
            self._early_sink(early.normalised)

    def _finished(self) -> list[Scrape]:
        done = [name for name, task in self._running.items() if task.done()]
        scrapes = [self._running.pop(name).result() for name in done]
        # drop scrapes of targets that were removed or replaced meanwhile
        scrapes = [
            scrape
            for scrape in scrapes
            if (current := self._by_name.get(scrape.target.name)) and current.follows(scrape.target)
        ]
        for scrape in scrapes:
            self._backoff.note(scrape)
        return scrapes

    def absorb(self, scrapes: Sequence[Scrape], at: datetime) -> Collected:
        """Normalises scrapes of any origin and adds the signals of services."""
        early = [self._taken_early(scrape) for scrape in scrapes]
        with self._normalising:
            parsed = [item or _ParsedScrape(*self._parse(scrape)) for item, scrape in zip(early, scrapes, strict=True)]
            return self._absorb(parsed, at, scrapes)

    def absorb_pages(self, scrapes: Sequence[tuple[Scrape, Page | None]], at: datetime) -> Collected:
        """Same for scrapes with parsed pages; None stands for a failed scrape."""
        parsed = [_ParsedScrape(scrape, page) for scrape, page in scrapes]
        with self._normalising:
            return self._absorb(parsed, at, [_with_page(*scrape) for scrape in scrapes])

    def _absorb(self, scrapes: Sequence[_ParsedScrape], at: datetime, raw: Sequence[Scrape]) -> Collected:
        push = self._take(at)
        pushed = [*self._early_pushed, *(_ParsedScrape(scrape, page) for scrape, page in push.pages)]
        self._early_pushed = []
        if self._tap is not None:
            self._tap([*raw, *(_with_page(item.scrape, item.page) for item in pushed)])
        pushing = {item.scrape.target.name for item in pushed}
        batches: list[SampleBatch] = list(push.batches)
        events: list[Event] = []
        for target in push.unseen:
            batches.extend(self.normaliser.unseen(target, at).batches)
        for item in sorted((*scrapes, *pushed), key=lambda item: item.scrape.at):
            name = item.scrape.target.name
            normalised = item.normalised or self.normaliser.normalise(item.scrape, item.page)
            batches.extend(normalised.batches)
            events.extend(normalised.events)
            self._note(item.scrape, item.page, normalised)
            if name in pushing:
                self._carried.keep(name, normalised.batches)
        batches.extend(self._between_pages(pushing, push.unseen, at))
        topology = self.topology(at)
        batches.extend(device_batches(batches, topology, at))
        services = service_batches(batches, topology, at)
        targets = (*self._targets, *self._pushed_targets)
        adapters = {target.name: target.adapter for target in targets}
        apply_precedence(batches, services, adapters)
        all_batches = (*self._tenants.merge(batches, adapters, at), *services)
        return Collected(all_batches, tuple(events), topology.edges, topology.labels, topology)

    def _take(self, at: datetime) -> PushedBatch:
        """Returns the pushed data and updates the push targets."""
        if self._pushed is None:
            return PushedBatch()
        try:
            push = self._pushed.take(at)
        except StoreUnavailableError:
            return PushedBatch()  # ingest endpoints accept nothing either: senders wait, they are not silent
        targets = self._pushed.targets
        if targets != self._pushed_targets:
            self._pushed_targets = targets
            self.set_targets(self._targets)
            self._carried.forget_all_but({target.name for target in targets})
        if push.facts != self._pushed_facts:
            self._pushed_facts, self._topology = push.facts, None
        return push

    def _between_pages(self, pushing: Collection[str], unseen: Sequence[Target], at: datetime) -> list[SampleBatch]:
        """Batches carried forward for targets that pushed nothing since the last round."""
        reported = {*pushing, *(target.name for target in unseen)}
        silent = [target.name for target in self._pushed_targets if target.name not in reported]
        return [batch for name in silent for batch in self._carried.again(name, at)]

    def _taken_early(self, scrape: Scrape) -> _ParsedScrape | None:
        """Returns the page as it was read early; None if it was not, or if that failed."""
        reading = self._early.pop(scrape.target.name, None)
        if reading is None:
            return None
        try:
            early = reading.result()
        except Exception as fault:  # noqa: BLE001 (the round reads the page again)
            name, error = scrape.target.name, str(fault)[:_MAX_ERROR_TEXT]
            log.get("collect").error("early_reading_failed", target=name, error=error)
            return None
        return early if early.scrape.at == scrape.at else None

    def _parse(self, scrape: Scrape) -> tuple[Scrape, Page | None]:
        scrape = within_limit(scrape, self.normaliser.adapter(scrape.target.adapter).reads)
        self._anomalies.limited(scrape)
        if scrape.body is None:
            return scrape, None
        name = scrape.target.name
        try:
            page = self.parser.parse(scrape.body, openmetrics=scrape.openmetrics, source=name)
        except CollectError as error:
            named = CollectError(f"{name}: {error.message}", reason=error.reason, hint=error.hint)
            return replace(scrape, body=None, error=named), None
        self._anomalies.parsed(name, page)
        before = self._health.get(name)
        had_one = before is not None and before.last_success is not None
        wrong = refusal(name, self.normaliser.adapter(scrape.target.adapter), page, had_one=had_one)
        return (scrape, page) if wrong is None else (replace(scrape, body=None, error=wrong), None)

    def _note(self, scrape: Scrape, page: Page | None, normalised: Collected) -> None:
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
        if page is not None and normalised.labels is not None:
            known = self._page_topology.get(name)
            if known is None or known[0] is not normalised.edges or known[1] is not normalised.labels:
                self._page_topology[name] = (normalised.edges, normalised.labels)
                self._topology = None

    async def close(self) -> None:
        """Cancels scrapes in flight and closes the scraper."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()
        if self._early_reader is not None:
            self._early_reader.shutdown(cancel_futures=True)
        if self._scraper is not None:
            await self._scraper.close()
        if self._pushed is not None:
            self._pushed.close()


def _with_page(scrape: Scrape, page: Page | None) -> Scrape:
    return scrape if page is None else replace(scrape, page=page)


def _current_edges(edges: list[Edge], labels: Mapping[EntityRef, Mapping[str, str]]) -> list[Edge]:
    """Removes edges from a lost device to a pod that runs on another node by now."""
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
