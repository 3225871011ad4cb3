"""Consumer of the ingest buffer: turns blocks into pages of the targets that pushed them.

A silent target is a failed scrape, unless all targets of its sender are silent: then their state is unknown, and the
sender is down.
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
    """Limits of buffered data and its age. ``settle``: a page is complete if nothing arrived for this time."""

    samples_per_cycle: int = 2_000_000
    most_targets: int = 20_000
    series_per_target: int = 50_000
    series: int = 3_000_000
    settle: timedelta = timedelta(seconds=5)
    silent_after: timedelta = timedelta(minutes=3)
    forget_after: timedelta = timedelta(hours=1)


@dataclass(slots=True)
class _PushTarget:
    """One push target. ``about`` are its labels, ``sender`` the last sender that reported it."""

    target: Target
    rule: int | None
    buffer: SeriesBuffer
    sender: str
    about: dict[str, str] = field(default_factory=dict)


class PushReceiver:
    """A ``collectors.pipeline.scrape_manager.PushSource`` on an ingest buffer. One thread at a time."""

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
        """``clock`` is that of the ingest endpoints, which stamps received data. ``close`` also closes the buffer."""
        self._spool = spool
        self._cluster = cluster
        self._clock = clock
        self._rules = tuple(rules)
        self._limits = limits or ReceiveLimits()
        self._kpis = kpis or KpiValues(timedelta(minutes=5), {})
        self._layouts = LayoutCache()
        self._by_source: dict[_Key, _PushTarget] = {}
        self._senders: dict[str, datetime] = {}
        self._targets: tuple[Target, ...] = ()
        self._taken = 0
        self._handed_over = 0  # blocks up to this one were part of a round
        self._buffered_series = 0
        self._dropped: dict[str, int] = {}
        self._logged_reasons: set[DropReason] = set()

    @property
    def targets(self) -> tuple[Target, ...]:
        """The push targets as of the last round."""
        return self._targets

    def take(self, at: datetime) -> PushedBatch:
        """Data received since the last round. Data of the previous round has been written and is dropped now."""
        if self._handed_over:
            self._spool.release(self._handed_over)
        now = self._clock.now()
        self._read_blocks(at)
        self._handed_over = self._taken
        self._forget(now)
        pages = self._complete_pages(now)
        failed, unseen, batches = self._silent(now, at)
        self._store_drop_counts()
        self._targets = tuple(
            sorted((target_state.target for target_state in self._by_source.values()), key=lambda target: target.name)
        )
        batches += self._kpis.batches(at)
        return PushedBatch((*pages, *failed), tuple(batches), tuple(unseen), self._kpis.facts())

    def take_early(self, at: datetime) -> tuple[tuple[Scrape, Page | None], ...]:
        """Pages that are complete by now. Their data stays in the buffer until the next round has been written."""
        self._read_blocks(at)
        return tuple(self._complete_pages(self._clock.now()))

    def _read_blocks(self, at: datetime) -> None:
        self._layouts.tidy()
        self._buffered_series = sum(target_state.buffer.series for target_state in self._by_source.values())
        for block in self._spool.take(self._taken, self._limits.samples_per_cycle):
            self._read(block, at)
            self._taken = block.id

    def _complete_pages(self, now: datetime) -> list[tuple[Scrape, Page | None]]:
        due = [
            target_state
            for target_state in self._by_source.values()
            if target_state.buffer.due(now, self._limits.settle)
        ]
        return [page for page in (self._page(target_state, now) for target_state in due) if page is not None]

    def close(self) -> None:
        """Closes the ingest buffer."""
        self._spool.close()

    # --- reading ----------------------------------------------------------------------------------

    def _read(self, block: PushedBlock, at: datetime) -> None:
        try:
            if block.protocol == IngestProtocol.KPI:
                late = sum(not self._kpis.add(kpi, at) for kpi in receive_kpi.decode(block.payload))
                self._drop(DropReason.LATE, late)
                return
            groups = receive_block.decode(block.payload)
        except ValueError as error:
            self._drop(DropReason.UNREADABLE, block.samples)
            _log.error("pushed_block_unreadable", protocol=block.protocol, sender=block.sender, error=str(error))
            return
        sender = f"{block.protocol}/{block.sender}"
        self._senders[sender] = max(block.came_at, self._senders.get(sender, block.came_at))
        for group in groups:
            self._add(group, sender, block)

    def _add(self, group: SeriesGroup, sender: str, block: PushedBlock) -> None:
        key = group.source, group.adapter
        target_state = self._by_source.get(key)
        if target_state is None:
            if len(self._by_source) >= self._limits.most_targets or group.adapter not in ADAPTERS:
                self._drop(DropReason.TOO_MANY_TARGETS, sum(len(series.stamps) for series in group.streams))
                return
            target_state = self._by_source[key] = self._new(group, sender)
        about = {**target_state.about, **group.about}
        if about != target_state.about or group.rule != target_state.rule:
            target_state.about, target_state.rule = about, group.rule
            target_state.target = self._target(group, about)
        target_state.sender = sender
        added = {} if block.protocol == IngestProtocol.OTLP else _labels_of(group.source, target_state.about)
        before, room = target_state.buffer.series, self._limits.series - self._buffered_series
        for reason, count in target_state.buffer.add(group.streams, added, block.came_at, room).items():
            self._drop(reason, count)
        self._buffered_series += target_state.buffer.series - before

    def _new(self, group: SeriesGroup, sender: str) -> _PushTarget:
        target = self._target(group, group.about)
        _log.info("pushing_target", target=target.name, adapter=target.adapter, entity=target.entity.key, sender=sender)
        return _PushTarget(target, group.rule, SeriesBuffer(self._limits.series_per_target), sender, dict(group.about))

    def _target(self, group: SeriesGroup, about: Mapping[str, str]) -> Target:
        known = group.rule is not None and group.rule < len(self._rules)
        rule = self._rules[group.rule] if known and group.rule is not None else None
        return target_of(self._cluster, group.source, group.adapter, about, rule)

    # --- handing on -------------------------------------------------------------------------------

    def _page(self, state: _PushTarget, now: datetime) -> tuple[Scrape, Page | None] | None:
        """Newest page of a target; None if it is too old to describe the present: a backlog."""
        pushed = state.buffer.take(self._layouts)
        if now - from_unix(pushed.at_ms / 1000) > self._limits.silent_after:
            self._drop(DropReason.TOO_OLD, 1 if pushed.page is None else pushed.page.samples)
            return None
        error = None
        if pushed.page is None:
            error = CollectError(
                f"{state.target.name}: scrape by its sender failed",
                reason=CollectReason.OTHER,
                hint="check the target's page in the Prometheus that sends it",
            )
        scrape = Scrape(
            state.target, from_unix(pushed.at_ms / 1000), None, error, pushed.seconds, samples=pushed.samples
        )
        return scrape, pushed.page

    def _silent(
        self, now: datetime, at: datetime
    ) -> tuple[list[tuple[Scrape, Page | None]], list[Target], list[SampleBatch]]:
        """Failed scrapes, targets of unknown state, and signals of senders with several targets."""
        limit = self._limits.silent_after
        targets_by_sender: dict[str, int] = {}
        for state in self._by_source.values():
            targets_by_sender[state.sender] = targets_by_sender.get(state.sender, 0) + 1
        failed: list[tuple[Scrape, Page | None]] = []
        unseen: list[Target] = []
        for state in self._by_source.values():
            if state.buffer.came_at is None or now - state.buffer.came_at <= limit:
                continue
            if targets_by_sender[state.sender] > 1 and now - self._senders.get(state.sender, now) > limit:
                unseen.append(state.target)
            else:
                failed.append((Scrape(state.target, at, None, _silence(state.target.name, limit), 0.0), None))
        watched = [name for name, count in targets_by_sender.items() if count > 1]
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
        """Drops targets that their sender no longer scrapes, and those silent for long."""
        for key, state in list(self._by_source.items()):
            received_at = state.buffer.came_at
            if state.buffer.retired or (received_at is not None and now - received_at > self._limits.forget_after):
                del self._by_source[key]
                _log.info("pushing_target_gone", target=state.target.name, retired=state.buffer.retired)
        for name in [name for name, last in self._senders.items() if now - last > self._limits.forget_after]:
            del self._senders[name]

    def _drop(self, reason: DropReason, count: int) -> None:
        if count:
            self._dropped[reason.value] = self._dropped.get(reason.value, 0) + count
            if reason not in self._logged_reasons:
                self._logged_reasons.add(reason)
                _log.warning("pushed_samples_left_out", reason=reason.value, samples=count)

    def _store_drop_counts(self) -> None:
        """Adds the numbers of dropped samples to the store, where the API reads them."""
        if self._dropped:
            with suppress(StoreUnavailableError):  # reported in a later round: received data must not be lost
                self._spool.count(self._dropped)
                self._dropped = {}


def _labels_of(source: Source, about: Mapping[str, str]) -> dict[str, str]:
    """Labels that a Prometheus added to every series of a target: those of its ``up``, if known."""
    return dict(about) if "job" in about else {"job": source.job, "instance": source.instance}


def _silence(name: str, limit: timedelta) -> CollectError:
    return CollectError(
        f"{name}: no data pushed for {format_duration(limit)}",
        reason=CollectReason.TIMEOUT,
        hint="check that it runs, and that its sender reaches this API",
    )
