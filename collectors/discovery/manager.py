"""Sources of targets side by side: each at its own pace, and none takes anything away by failing."""

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

AdapterDetector = Callable[
    [str, RelabelRules], Awaitable[str | None]
]  # raises CollectError when the page cannot be read
LOOK_AGAIN = timedelta(minutes=10)  # at a page that came and that no adapter reads
MOST_TENANTS = 50
_MOST_GUESSES = 500  # pages looked at in one go, for their adapter


@dataclass(frozen=True, slots=True)
class DiscoveryResult:
    """What all sources know together. The very same object as long as nothing changed."""

    targets: tuple[Target, ...] = ()
    edges: tuple[Edge, ...] = ()
    labels: Mapping[EntityRef, Mapping[str, str]] = field(default_factory=dict)


@dataclass(slots=True)
class _State:
    """One source: what it last said, and what was made of it.

    ``adapters`` are those guessed by page, ``looked`` says when to look at a page again that nobody reads.
    """

    source: TargetSource
    rules: RelabelRules
    begun: datetime | None = None
    seen: DiscoverySnapshot = field(default_factory=DiscoverySnapshot)
    made: dict[str, tuple[DiscoveredTarget, str, Target]] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)
    looked: dict[str, datetime] = field(default_factory=dict)
    unread: int = 0
    faults: list[CollectError] = field(default_factory=list)
    made_of: DiscoverySnapshot | None = None


class Discovery:
    """Reads sources and joins what they found. A source has at most one reading under way."""

    def __init__(
        self,
        sources: Sequence[tuple[TargetSource, RelabelRules]],
        cluster: str,
        *,
        configured: Sequence[Target] = (),
        guess: AdapterDetector | None = None,
    ) -> None:
        """``configured`` targets come first; a page that two name is one target. ``guess`` looks at pages."""
        self._states = {source.name: _State(source, rules) for source, rules in sources}
        self._cluster, self._configured, self._guess = cluster, tuple(configured), guess
        self._running: dict[str, asyncio.Task[DiscoverySnapshot]] = {}
        self._health = {name: TargetHealth(name, "discovery", None, None, None, None, None) for name in self._states}
        self.known = DiscoveryResult(self._configured)

    @property
    def health(self) -> list[TargetHealth]:
        """How each source fares; ``samples`` are the targets it brings."""
        return list(self._health.values())

    async def refresh(self, at: datetime, *, wait: float | None = None) -> DiscoveryResult:
        """Read what is due and take up what is there. Never raises for a source's fault.

        ``wait`` is how many seconds to wait for readings under way, None for all of them.
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
        if done:  # a thread, so that a list of a hundred thousand does not hold the loop; refreshes never overlap
            await asyncio.to_thread(self._absorb, done, at)
        return self.known

    def _absorb(self, done: Sequence[tuple[str, asyncio.Task[DiscoverySnapshot]]], at: datetime) -> None:
        for name, task in done:
            self._take(self._states[name], task, at)
        self._join()

    async def _read(self, state: _State, at: datetime) -> DiscoverySnapshot:
        """One reading, with a look at pages that nobody named an adapter for."""
        seen = await state.source.read()
        if self._guess is not None:
            wanted = [url for url in self._unnamed(state, seen) if url not in state.adapters]
            due = [url for url in wanted if state.looked.get(url, at) <= at]
            looked = await _guessed(due[:_MOST_GUESSES], state.rules, self._guess)
            state.adapters.update((url, adapter) for url, adapter in looked.items() if adapter is not None)
            state.looked.update((url, at + LOOK_AGAIN) for url, adapter in looked.items() if adapter is None)
            still = set(wanted)
            state.looked = {url: when for url, when in state.looked.items() if url in still}
        return seen

    @staticmethod
    def _unnamed(state: _State, seen: DiscoverySnapshot) -> list[str]:
        if seen is state.made_of and not state.unread:
            return []
        urls = []
        for found in seen.found:
            if state.rules.adapter_of(found) is None and state.rules.wants(found):
                try:
                    urls.append(url_of(found, state.rules))
                except CollectError:
                    continue
        return urls

    def _take(self, state: _State, task: asyncio.Task[DiscoverySnapshot], at: datetime) -> None:
        name, fault = state.source.name, task.exception()
        faults: list[CollectError] = []
        if fault is None:
            state.seen = task.result()
            faults += state.seen.faults
            faults += self._make(state)
        elif isinstance(fault, CollectError):
            faults.append(fault)
        else:
            log.get("discover").error("discovery_broke", source=name, exc_info=fault)
            said = f"{name}: its answer could not be understood ({type(fault).__name__})"
            faults.append(CollectError(said, reason=CollectReason.OTHER, hint="please report this with the log"))
        self._note(state, faults, at, read=fault is None)

    def _make(self, state: _State) -> list[CollectError]:
        """Targets of what was found; those that are as they were stay the same objects."""
        if state.seen is state.made_of and not state.unread:
            return state.faults
        made: dict[str, tuple[DiscoveredTarget, str, Target]] = {}
        faults, unread, name, rules = [], [], state.source.name, state.rules
        for found in state.seen.found:
            if not rules.wants(found):
                continue
            try:
                url = url_of(found, rules)
                adapter = rules.adapter_of(found) or state.adapters.get(url)
                if adapter is None:
                    unread.append(url)
                    continue
                before = state.made.get(url)
                same = before is not None and before[0] == found and before[1] == adapter
                target = (
                    before[2] if same and before else target_of_discovered(name, self._cluster, found, rules, adapter)
                )
                made.setdefault(url, (found, adapter, target))
            except CollectError as error:
                faults.append(error)
        state.made, state.made_of, state.unread = made, state.seen, len(unread)
        state.adapters = {url: adapter for url, adapter in state.adapters.items() if url in made}
        if unread:
            more = f" (and {len(unread) - 1} more)" if len(unread) > 1 else ""
            said = f"{name}: no adapter is known to read {unread[0]}{more}"
            faults.append(CollectError(said, reason=CollectReason.NOT_METRICS, hint="name one with adapter"))
        state.faults = faults
        return faults

    def _note(self, state: _State, faults: Sequence[CollectError], at: datetime, *, read: bool) -> None:
        name = state.source.name
        before, first = self._health[name], faults[0] if faults else None
        said = None if first is None else first.message + (f" (and {len(faults) - 1} more)" if len(faults) > 1 else "")
        self._health[name] = replace(
            before,
            up=read,
            samples=len(state.made),
            error=said,
            reason=None if first is None else first.reason,
            last_success=at if read else before.last_success,
        )
        if first is not None and said != before.error:
            log.get("discover").warning("discovery_failed", source=name, error=said, targets_kept=len(state.made))
        elif first is None and before.error:
            log.get("discover").info("discovery_recovered", source=name, targets=len(state.made))

    def _join(self) -> None:
        """All targets, configured ones first; a page that stands twice is one target with the labels of both."""
        targets: dict[str, Target] = {target.name: target for target in self._configured}
        by_url = {target.url: target.name for target in self._configured}
        edges: dict[Edge, None] = {}
        labels: dict[EntityRef, dict[str, str]] = {}
        for state in self._states.values():
            for url, (_, _, made) in state.made.items():
                target = made
                if url not in by_url and made.name in targets:  # two addresses that only differ in odd letters
                    target = replace(made, name=f"{made.name}-{crc32(url.encode()):08x}")
                name = by_url.setdefault(url, target.name)
                known = targets.setdefault(name, target)
                if known is not target and known not in self._configured:
                    more = {**target.labels, **known.labels}
                    if more != known.labels:
                        targets[name] = replace(known, labels=more)
            edges.update(dict.fromkeys(state.seen.edges))
            for entity, facts in state.seen.labels.items():
                labels.setdefault(entity, {}).update(facts)
        found = DiscoveryResult(_with_few_tenants(targets.values()), tuple(edges), labels)
        if found != self.known:
            self.known = found

    async def close(self) -> None:
        """End readings that are under way and close every source."""
        for task in self._running.values():
            task.cancel()
        await asyncio.gather(*self._running.values(), return_exceptions=True)
        self._running.clear()
        for state in self._states.values():
            await state.source.close()


def _with_few_tenants(targets: Iterable[Target]) -> tuple[Target, ...]:
    """The same targets, with names of tenants only for those that most of the targets are of."""
    known = tuple(targets)
    tenants = [one.labels["tenant"] for one in known if "tenant" in one.labels]
    names = bounded(tenants, MOST_TENANTS)
    if all(tenant == name for tenant, name in names.items()):
        return known
    return tuple(
        replace(one, labels={**one.labels, "tenant": names[one.labels["tenant"]]}) if "tenant" in one.labels else one
        for one in known
    )


def _is_due(state: _State, at: datetime) -> bool:
    """A clock that was set back makes everything due."""
    return state.begun is None or not state.begun <= at < state.begun + state.source.every


async def _guessed(urls: Sequence[str], rules: RelabelRules, guess: AdapterDetector) -> dict[str, str | None]:
    """What each page is read by, a few pages at a time; those that cannot be read are left out."""
    gate = asyncio.Semaphore(32)
    found: dict[str, str | None] = {}

    async def one(url: str) -> None:
        async with gate:
            with suppress(CollectError):
                found[url] = await guess(url, rules)

    await asyncio.gather(*map(one, urls))
    return found
