"""The engine's side of the doors: blocks out of the buffer, into pages of the targets that pushed them.

A target that fell silent is a failed scrape, unless everything that its sender told has fallen silent: then
nothing is known of those targets, and it is the sender that is down.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from collectors.exposition.parser import Page
from collectors.mapping.registry import ADAPTERS
from collectors.mapping.target import Target
from collectors.normalise.batches import about_watch, watch_batch
from collectors.pipeline.scrape_manager import PushedBatch
from collectors.receive import block as receive_block
from collectors.receive import kpi as receive_kpi
from collectors.receive.assembler import LayoutCache, SeriesBuffer
from collectors.receive.block import SeriesGroup
from collectors.receive.kpi import KpiValues
from collectors.receive.protocol import DropReason, IngestProtocol, Source
from collectors.receive.routing import ReceiveRule
from collectors.receive.targets import target_of
from collectors.scrape.result import Scrape
from outrider import log
from outrider.clock import Clock, from_unix
from outrider.errors import CollectError, CollectReason, StoreUnavailableError
from outrider.model import EntityKind, EntityRef, SampleBatch, TrustVerdict
from outrider.records.ingest_buffer import IngestBuffer, PushedBlock
from outrider.vocabulary.units import format_duration

_log = log.get("receive")
_Key = tuple[Source, str]


@dataclass(frozen=True, slots=True)
class ReceiveLimits:
    """How much is held and how long. ``settle``: a page is whole when nothing came for so long."""

    samples_per_cycle: int = 2_000_000
    most_targets: int = 20_000
    series_per_target: int = 50_000
    series: int = 3_000_000
    settle: timedelta = timedelta(seconds=5)
    silent_after: timedelta = timedelta(minutes=3)
    forget_after: timedelta = timedelta(hours=1)


@dataclass(slots=True)
class _PushTarget:
    """One target that pushes. ``about`` are its labels, ``sender`` who told of it last."""

    target: Target
    rule: int | None
    buffer: SeriesBuffer
    sender: str
    about: dict[str, str] = field(default_factory=dict)


class PushReceiver:
    """Implements ``collectors.pipeline.scrape_manager.Pushed`` on a spool. One thread at a time."""

    def __init__(
        self,
        spool: IngestBuffer,
        cluster: str,
        clock: Clock,
        *,
        rules: Sequence[ReceiveRule] = (),
        limits: ReceiveLimits | None = None,
        kpis: KpiValues | None = None,
    ) -> None:
        """``clock`` is that of the doors, which stamps what comes; the spool is closed with this one."""
        self._spool = spool
        self._cluster = cluster
        self._clock = clock
        self._rules = tuple(rules)
        self._limits = limits or ReceiveLimits()
        self._kpis = kpis or KpiValues(timedelta(minutes=5), {})
        self._layouts = LayoutCache()
        self._pushing: dict[_Key, _PushTarget] = {}
        self._senders: dict[str, datetime] = {}
        self._targets: tuple[Target, ...] = ()
        self._taken = 0
        self._held = 0
        self._dropped: dict[str, int] = {}
        self._told: set[DropReason] = set()

    @property
    def targets(self) -> tuple[Target, ...]:
        """The targets that push, as of the last round."""
        return self._targets

    def take(self, at: datetime) -> PushedBatch:
        """What came since the last round. What the round before took has been written and is let go now."""
        self._layouts.tidy()
        if self._taken:
            self._spool.release(self._taken)
        self._held = sum(one.buffer.series for one in self._pushing.values())
        for block in self._spool.take(self._taken, self._limits.samples_per_cycle):
            self._read(block, at)
            self._taken = block.id
        now = self._clock.now()
        self._forget(now)
        due = [one for one in self._pushing.values() if one.buffer.due(now, self._limits.settle)]
        pages = [page for page in (self._page(one, now) for one in due) if page is not None]
        failed, unseen, batches = self._silent(now, at)
        self._tell()
        self._targets = tuple(sorted((one.target for one in self._pushing.values()), key=lambda target: target.name))
        batches += self._kpis.batches(at)
        return PushedBatch((*pages, *failed), tuple(batches), tuple(unseen), self._kpis.facts())

    def close(self) -> None:
        """Close the spool."""
        self._spool.close()

    # --- reading ----------------------------------------------------------------------------------

    def _read(self, block: PushedBlock, at: datetime) -> None:
        try:
            if block.door == IngestProtocol.KPI:
                late = sum(not self._kpis.add(kpi, at) for kpi in receive_kpi.decode(block.payload))
                self._drop(DropReason.LATE, late)
                return
            groups = receive_block.decode(block.payload)
        except ValueError as error:
            self._drop(DropReason.UNREADABLE, block.samples)
            _log.error("pushed_block_unreadable", door=block.door, sender=block.sender, error=str(error))
            return
        sender = f"{block.door}/{block.sender}"
        self._senders[sender] = max(block.came_at, self._senders.get(sender, block.came_at))
        for group in groups:
            self._add(group, sender, block)

    def _add(self, group: SeriesGroup, sender: str, block: PushedBlock) -> None:
        key = group.source, group.adapter
        found = self._pushing.get(key)
        if found is None:
            if len(self._pushing) >= self._limits.most_targets or group.adapter not in ADAPTERS:
                self._drop(DropReason.TOO_MANY_TARGETS, sum(len(one.stamps) for one in group.streams))
                return
            found = self._pushing[key] = self._new(group, sender)
        about = {**found.about, **group.about}
        if about != found.about or group.rule != found.rule:
            found.about, found.rule = about, group.rule
            found.target = self._target(group, about)
        found.sender = sender
        added = {} if block.door == IngestProtocol.OTLP else _labels_of(group.source, found.about)
        before, room = found.buffer.series, self._limits.series - self._held
        for reason, count in found.buffer.add(group.streams, added, block.came_at, room).items():
            self._drop(reason, count)
        self._held += found.buffer.series - before

    def _new(self, group: SeriesGroup, sender: str) -> _PushTarget:
        target = self._target(group, group.about)
        _log.info("pushing_target", target=target.name, adapter=target.adapter, entity=target.entity.key, sender=sender)
        return _PushTarget(target, group.rule, SeriesBuffer(self._limits.series_per_target), sender, dict(group.about))

    def _target(self, group: SeriesGroup, about: Mapping[str, str]) -> Target:
        known = group.rule is not None and group.rule < len(self._rules)
        rule = self._rules[group.rule] if known and group.rule is not None else None
        return target_of(self._cluster, group.source, group.adapter, about, rule)

    # --- handing on -------------------------------------------------------------------------------

    def _page(self, one: _PushTarget, now: datetime) -> tuple[Scrape, Page | None] | None:
        """The newest page of a target; None when it is so old that it says nothing of now: a backlog."""
        pushed = one.buffer.take(self._layouts)
        if now - from_unix(pushed.at_ms / 1000) > self._limits.silent_after:
            self._drop(DropReason.TOO_OLD, 1 if pushed.page is None else pushed.page.samples)
            return None
        error = None
        if pushed.page is None:
            error = CollectError(
                f"{one.target.name}: its sender cannot scrape it",
                reason=CollectReason.OTHER,
                hint="look at the target's page in the Prometheus that sends it",
            )
        scrape = Scrape(one.target, from_unix(pushed.at_ms / 1000), None, error, pushed.seconds, samples=pushed.samples)
        return scrape, pushed.page

    def _silent(
        self, now: datetime, at: datetime
    ) -> tuple[list[tuple[Scrape, Page | None]], list[Target], list[SampleBatch]]:
        """Failed scrapes, targets of which nothing is known, and what is said of senders with several targets."""
        limit = self._limits.silent_after
        told_by: dict[str, int] = {}
        for one in self._pushing.values():
            told_by[one.sender] = told_by.get(one.sender, 0) + 1
        failed: list[tuple[Scrape, Page | None]] = []
        unseen: list[Target] = []
        for one in self._pushing.values():
            if one.buffer.came_at is None or now - one.buffer.came_at <= limit:
                continue
            if told_by[one.sender] > 1 and now - self._senders.get(one.sender, now) > limit:
                unseen.append(one.target)
            else:
                failed.append((Scrape(one.target, at, None, _silence(one.target.name, limit), 0.0), None))
        watched = [name for name, count in told_by.items() if count > 1]
        batches = [self._watch(name, at, up=now - self._senders.get(name, now) <= limit) for name in watched]
        return failed, unseen, batches

    def _watch(self, sender: str, at: datetime, *, up: bool) -> SampleBatch:
        target = Target(
            f"sender/{sender}", "push", "", EntityRef(self._cluster, EntityKind.CLUSTER, None, self._cluster)
        )
        error = None if up else _silence(target.name, self._limits.silent_after)
        scrape = Scrape(target, at, None, error, 0.0)
        return watch_batch(scrape, about_watch(scrape, up=up), None, TrustVerdict.FRESH if up else TrustVerdict.FAILED)

    def _forget(self, now: datetime) -> None:
        """Let go of targets that their sender watches no more, and of those long silent."""
        for key, one in list(self._pushing.items()):
            came = one.buffer.came_at
            if one.buffer.retired or (came is not None and now - came > self._limits.forget_after):
                del self._pushing[key]
                _log.info("pushing_target_gone", target=one.target.name, retired=one.buffer.retired)
        for name in [name for name, last in self._senders.items() if now - last > self._limits.forget_after]:
            del self._senders[name]

    def _drop(self, reason: DropReason, count: int) -> None:
        if count:
            self._dropped[reason.value] = self._dropped.get(reason.value, 0) + count
            if reason not in self._told:
                self._told.add(reason)
                _log.warning("pushed_samples_left_out", reason=reason.value, samples=count)

    def _tell(self) -> None:
        """Add what was left out to the store, where the API reads it."""
        if self._dropped:
            with suppress(StoreUnavailableError):  # then it is told another time: what was read must not be lost for it
                self._spool.count(self._dropped)
                self._dropped = {}


def _labels_of(source: Source, about: Mapping[str, str]) -> dict[str, str]:
    """The labels that a Prometheus put on every series of a target: those of its ``up``, where that is told."""
    return dict(about) if "job" in about else {"job": source.job, "instance": source.instance}


def _silence(name: str, limit: timedelta) -> CollectError:
    return CollectError(
        f"{name}: nothing was pushed for {format_duration(limit)}",
        reason=CollectReason.TIMEOUT,
        hint="see whether it runs, and whether its sender reaches this API",
    )
