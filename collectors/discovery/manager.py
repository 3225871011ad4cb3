"""Reads target sources concurrently: each at its own interval; a failing source keeps its targets."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from zlib import crc32

from collectors.discovery.relabeling import RelabelRules, target_of_discovered, url_of
from collectors.discovery.types import DiscoveredTarget, DiscoverySnapshot, TargetSource
from collectors.mapping.target import Target
from collectors.scrape.target_health import TargetHealth
from outrider import log
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityRef
from outrider.topology import Edge
from outrider.wire.cardinality import bounded

AdapterDetector = Callable[[str, RelabelRules], Awaitable[str | None]]  # raises CollectError if the page cannot be read
RETRY_DETECTION = timedelta(minutes=10)  # of a page that no adapter reads
MOST_TENANTS = 50
_MAX_DETECTIONS = 500  # pages fetched per reading to detect their adapter


@dataclass(frozen=True, slots=True)
class DiscoveryResult:
    """Targets and topology of all sources. The same object as long as nothing changed."""

    targets: tuple[Target, ...] = ()
    edges: tuple[Edge, ...] = ()
    labels: Mapping[EntityRef, Mapping[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class _State:
    """One source: its last snapshot and the targets made of it.

    ``adapters`` are those detected by page, ``retry_at`` is the next detection time of a page that no adapter reads.
    """

    source: TargetSource
    rules: RelabelRules
    begun: datetime | None = None
    snapshot: DiscoverySnapshot = field(default_factory=DiscoverySnapshot)
    targets: dict[str, tuple[DiscoveredTarget, str, Target]] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)
    retry_at: dict[str, datetime] = field(default_factory=dict)
    unread: int = 0
    faults: list[CollectError] = field(default_factory=list)
    converted: DiscoverySnapshot | None = None


class Discovery:
    """Reads sources and joins their results. A source has at most one reading in flight."""

    def __init__(
        self,
        sources: Sequence[tuple[TargetSource, RelabelRules]],
        cluster: str,
        *,
        configured: Sequence[Target] = (),
        guess: AdapterDetector | None = None,
    ) -> None:
        """``configured`` targets come first; a page named twice is one target. ``guess`` detects adapters by page."""
        self._states = {source.name: _State(source, rules) for source, rules in sources}
        self._cluster, self._configured, self._guess = cluster, tuple(configured), guess
        self._running: dict[str, asyncio.Task[DiscoverySnapshot]] = {}
        self._health = {name: TargetHealth(name, "discovery", None, None, None, None, None) for name in self._states}
        self.known = DiscoveryResult(self._configured)

    @property
    def health(self) -> list[TargetHealth]:
        """Health of each source; ``samples`` are its targets."""
        return list(self._health.values())

    async def refresh(self, at: datetime, *, wait: float | None = None) -> DiscoveryResult:
        """Reads the due sources and applies finished readings. Never raises for a source's error.

        ``wait`` is the number of seconds to wait for readings in flight, None for all of them.
        """
        for name, state in self._states.items():
            if name not in self._running and _is_due(state, at):
                state.begun = at
                self._running[name] = asyncio.create_task(self._read(state, at), name=f"discover {name}")
        if self._running:
            await asyncio.wait(self._running.values(), timeout=wait)
        done = [(name, task) for name, task in self._running.items() if task.done()]
        for name, _ in done:
            del self._running[name]
        if done:  # a thread, so that a hundred thousand targets do not block the loop; refreshes never overlap
            await asyncio.to_thread(self._absorb, done, at)
        return self.known

    def _absorb(self, done: Sequence[tuple[str, asyncio.Task[DiscoverySnapshot]]], at: datetime) -> None:
        for name, task in done:
            self._take(self._states[name], task, at)
        self._join()

    async def _read(self, state: _State, at: datetime) -> DiscoverySnapshot:
        """One reading, with adapter detection for pages without a configured adapter."""
        snapshot = await state.source.read()
        if self._guess is not None:
            wanted = [url for url in self._without_adapter(state, snapshot) if url not in state.adapters]
            due = [url for url in wanted if state.retry_at.get(url, at) <= at]
            detected = await _detect_all(due[:_MAX_DETECTIONS], state.rules, self._guess)
            state.adapters.update((url, adapter) for url, adapter in detected.items() if adapter is not None)
            state.retry_at.update((url, at + RETRY_DETECTION) for url, adapter in detected.items() if adapter is None)
            still = set(wanted)
            state.retry_at = {url: when for url, when in state.retry_at.items() if url in still}
        return snapshot

    @staticmethod
    def _without_adapter(state: _State, snapshot: DiscoverySnapshot) -> list[str]:
        if snapshot is state.converted and not state.unread:
            return []
        urls = []
        for discovered in snapshot.targets:
            if state.rules.adapter_of(discovered) is None and state.rules.wants(discovered):
                try:
                    urls.append(url_of(discovered, state.rules))
                except CollectError:
                    continue
        return urls

    def _take(self, state: _State, task: asyncio.Task[DiscoverySnapshot], at: datetime) -> None:
        name, fault = state.source.name, task.exception()
        faults: list[CollectError] = []
        if fault is None:
            state.snapshot = task.result()
            faults += state.snapshot.faults
            faults += self._make(state)
        elif isinstance(fault, CollectError):
            faults.append(fault)
        else:
            log.get("discover").error("discovery_broke", source=name, exc_info=fault)
            message = f"{name}: unexpected response ({type(fault).__name__})"
            faults.append(CollectError(message, reason=CollectReason.OTHER, hint="please report this with the log"))
        self._note(state, faults, at, read=fault is None)

    def _make(self, state: _State) -> list[CollectError]:
        """Converts discovered targets; unchanged ones stay the same objects."""
        if state.snapshot is state.converted and not state.unread:
            return state.faults
        converted: dict[str, tuple[DiscoveredTarget, str, Target]] = {}
        faults, unread, name, rules = [], [], state.source.name, state.rules
        for discovered in state.snapshot.targets:
            if not rules.wants(discovered):
                continue
            try:
                url = url_of(discovered, rules)
                adapter = rules.adapter_of(discovered) or state.adapters.get(url)
                if adapter is None:
                    unread.append(url)
                    continue
                before = state.targets.get(url)
                same = before is not None and before[0] == discovered and before[1] == adapter
                target = (
                    before[2]
                    if same and before
                    else target_of_discovered(name, self._cluster, discovered, rules, adapter)
                )
                converted.setdefault(url, (discovered, adapter, target))
            except CollectError as error:
                faults.append(error)
        state.targets, state.converted, state.unread = converted, state.snapshot, len(unread)
        state.adapters = {url: adapter for url, adapter in state.adapters.items() if url in converted}
        if unread:
            more = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
            message = f"{name}: no adapter detected for {unread[0]}{more}"
            faults.append(CollectError(message, reason=CollectReason.NOT_METRICS, hint="set adapter of the source"))
        state.faults = faults
        return faults

    def _note(self, state: _State, faults: Sequence[CollectError], at: datetime, *, read: bool) -> None:
        name = state.source.name
        before, first = self._health[name], faults[0] if faults else None
        message = (
            None if first is None else first.message + (f" (and {len(faults) - 1} more)" if len(faults) > 1 else "")
        )
        self._health[name] = replace(
            before,
            up=read,
            samples=len(state.targets),
            error=message,
            reason=None if first is None else first.reason,
            last_success=at if read else before.last_success,
        )
        if first is not None and message != before.error:
            log.get("discover").warning("discovery_failed", source=name, error=message, targets_kept=len(state.targets))
        elif first is None and before.error:
            log.get("discover").info("discovery_recovered", source=name, targets=len(state.targets))

    def _join(self) -> None:
        """All targets, configured ones first; a page listed twice is one target with the labels of both."""
        targets: dict[str, Target] = {target.name: target for target in self._configured}
        by_url = {target.url: target.name for target in self._configured}
        edges: dict[Edge, None] = {}
        labels: dict[EntityRef, dict[str, str]] = {}
        for state in self._states.values():
            for url, (_, _, discovered) in state.targets.items():
                target = discovered
                if (
                    url not in by_url and discovered.name in targets
                ):  # two addresses that differ only in special characters
                    target = replace(discovered, name=f"{discovered.name}-{crc32(url.encode()):08x}")
                name = by_url.setdefault(url, target.name)
                known = targets.setdefault(name, target)
                if known is not target and known not in self._configured:
                    more = {**target.labels, **known.labels}
                    if more != known.labels:
                        targets[name] = replace(known, labels=more)
            edges.update(dict.fromkeys(state.snapshot.edges))
            for entity, facts in state.snapshot.labels.items():
                labels.setdefault(entity, {}).update(facts)
        result = DiscoveryResult(_with_few_tenants(targets.values()), tuple(edges), labels)
        if result != self.known:
            self.known = result

    async def close(self) -> None:
        """Cancels readings in flight and closes every source."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()
        for state in self._states.values():
            await state.source.close()


def _with_few_tenants(targets: Iterable[Target]) -> tuple[Target, ...]:
    """The targets, with tenant names only for the largest tenants."""
    all_targets = tuple(targets)
    tenants = [target.labels["tenant"] for target in all_targets if "tenant" in target.labels]
    names = bounded(tenants, MOST_TENANTS)
    if all(tenant == name for tenant, name in names.items()):
        return all_targets
    return tuple(
        replace(target, labels={**target.labels, "tenant": names[target.labels["tenant"]]})
        if "tenant" in target.labels
        else target
        for target in all_targets
    )


def _is_due(state: _State, at: datetime) -> bool:
    """True if the interval has passed, or if the clock was set back."""
    return state.begun is None or not state.begun <= at < state.begun + state.source.every


async def _detect_all(urls: Sequence[str], rules: RelabelRules, guess: AdapterDetector) -> dict[str, str | None]:
    """Adapter of each page, some pages at a time; unreadable pages are omitted."""
    gate = asyncio.Semaphore(32)
    adapters: dict[str, str | None] = {}

    async def detect_one(url: str) -> None:
        async with gate:
            with suppress(CollectError):
                adapters[url] = await guess(url, rules)

    await asyncio.gather(*map(detect_one, urls))
    return adapters
