"""Pages to signal batches. Stateful per target: deltas and rates need the previous page.

Status of each cell:
- A first scrape has no increases: ABSENT. So is a counter series seen for the first time, unless the adapter
  states that such a series appears with its first increment (``new_series: from_zero``).
- A counter that decreased or was recreated, or a process that restarted: RESET, no value.
- A number by which the exporter marks a failed reading (``no_value``): UNTRUSTED.
- 0/0: UNDEFINED. NaN published as a ratio: UNDEFINED; any other NaN: UNTRUSTED.
- A negative count, a share above 1, an infinite number: UNTRUSTED.
- A line timestamp that does not move, or differs from the scrape by minutes: STALE, on the first page as on any
  other. If all timestamped lines are STALE, so is the batch. A page with unchanged values is not stale: an idle
  engine stands still. Pages from files may be about any time.
- The clock went backward: batch CLOCK_STEP, increases UNTRUSTED.
- The ``heartbeat`` stood still for too long: everything on the page STALE, batch FROZEN.
- A series that appears twice on the page: the first one counts, batch DUPLICATE.
- Entities that left the page: rows of ABSENT cells and batch PARTIAL. For devices until they are back, for others
  for two minutes, since pods and parts of engines also leave on purpose.
- A failed scrape: target_up 0, and every entity known from this target as a row of ABSENT cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from weakref import WeakKeyDictionary

import numpy as np

from collectors.exposition.parser import Layout, Page
from collectors.mapping import registry
from collectors.mapping.compiler import CompiledLayout, compile_adapter
from collectors.mapping.entity_binding import UnboundEntity, bind, own_entity, resolve
from collectors.mapping.evaluate import evaluate
from collectors.mapping.model import Adapter
from collectors.mapping.target import Target
from collectors.normalise.batches import about_target, absent_batches, batch_of, fill_target, watch_batch
from collectors.normalise.counter_deltas import PreviousScrape, delta_of
from collectors.normalise.cumulative import CumulativeQuantile, quantiles
from collectors.scrape.result import Scrape
from outrider.model import CellStatus, EntityRef, Event, SampleBatch, SignalKey, TrustVerdict
from outrider.ports import Collected


class Normaliser:
    """Turns scrapes into batches, target by target. Scrapes of a target must arrive in time order."""

    def __init__(self, adapters: Mapping[str, Adapter] | None = None) -> None:
        """``adapters`` take precedence over the packaged ones."""
        self._adapters = dict(adapters or {})
        self._past: dict[str, PreviousScrape] = {}
        self._compiled: dict[str, WeakKeyDictionary[Layout, CompiledLayout]] = {}

    def adapter(self, name: str) -> Adapter:
        """Returns the adapter of that name. Raises UsageError if there is none."""
        return self._adapters.get(name) or registry.adapter(name)

    def normalise(self, scrape: Scrape, page: Page | None) -> Collected:
        """Batches, events, edges and labels of one scrape. ``page`` None: the scrape failed."""
        past = self._past_of(scrape.target)
        if page is None:
            return _failed(scrape, past)
        at, page = scrape.at.timestamp(), _without_no_values(past.adapter, page)
        self._align(past, page, scrape.target, at)
        compiled, binding = past.compiled, past.binding
        assert compiled is not None
        assert binding is not None
        change = delta_of(past, compiled, page, at, any_time=scrape.saved)
        values, status = evaluate(compiled, change.rows)
        past.keep(page, at, compiled.start_row)
        past.lost.forget_old(at)
        trust = change.trust(
            status, partial=past.lost.in_doubt(at), exploded=scrape.exploded is not None, repeats=page.layout.repeats
        )
        about = about_target(scrape, past.adapter, samples=scrape.samples or page.samples)
        batches = []
        for kind in past.adapter.keys:
            batch = batch_of(scrape, past, kind, values, status, change.interval, trust)
            if kind is past.adapter.target:
                fill_target(batch, binding.own_row, about | _none_left(past, batch), past)
            batches.append(batch)
        batches.append(watch_batch(scrape, about, change.interval, trust))
        non_empty = tuple(batch for batch in batches if batch.entities)
        return Collected(non_empty, self._events(scrape, past, page, change.interval), past.edges, past.labels)

    def unseen(self, target: Target, at: datetime) -> Collected:
        """A target without data this round because its source is unreachable.

        Every entity known from it is a row of ABSENT cells; target_up is ABSENT too.
        """
        scrape = Scrape(target, at, None, None, 0.0)
        batches = (*absent_batches(scrape, self._past_of(target)), watch_batch(scrape, {}, None, TrustVerdict.FAILED))
        return Collected(batches, (), target.edges, target.facts)

    def needs_two(self, target_name: str) -> list[tuple[EntityRef, SignalKey]]:
        """Cells that the target's only page so far could not give, because they need two scrapes."""
        past = self._past.get(target_name)
        if past is None or not past.first or past.compiled is None or past.binding is None:
            return []
        cells: list[tuple[EntityRef, SignalKey]] = []
        for kind, (first, entities, columns) in past.compiled.shapes.items():
            two = past.compiled.cells.two_scrapes[first : first + entities * columns].reshape(entities, columns)
            keys = past.adapter.keys[kind]
            cells.extend((past.binding.entities[kind][row], keys[column]) for row, column in np.argwhere(two))
        return cells

    def since_start(self, target: Target, page: Page) -> tuple[CumulativeQuantile, ...]:
        """Quantiles since the start of the page's process: for display, never for a detector."""
        return tuple(quantiles(self.adapter(target.adapter), page, target))

    def forget(self, target_name: str) -> None:
        """Drops the state of a target that is no longer configured."""
        self._past.pop(target_name, None)

    def _past_of(self, target: Target) -> PreviousScrape:
        past = self._past.get(target.name)
        if past is None:
            past = self._past[target.name] = PreviousScrape(self.adapter(target.adapter))
        return past

    def _align(self, past: PreviousScrape, page: Page, target: Target, at: float) -> None:
        """Reorders the state to this page if its series differ from the last one's."""
        if past.layout is page.layout and past.bound_to == target:
            return
        cache = self._compiled.setdefault(past.adapter.name, WeakKeyDictionary())
        compiled = cache.get(page.layout)
        if compiled is None:
            compiled = cache[page.layout] = compile_adapter(past.adapter, page.layout)
        past.move_to(page.layout)
        past.compiled = compiled
        past.bind_to(target, bind(past.adapter, compiled.places, compiled.edges, compiled.labels, target), at)

    def _events(self, scrape: Scrape, past: PreviousScrape, page: Page, interval: float | None) -> tuple[Event, ...]:
        compiled = past.compiled
        assert compiled is not None
        assert past.binding is not None
        # a page with devices but without codes means that there are none
        devices = any(past.binding.entities.get(spec.entity) for spec in past.adapter.events)
        if not compiled.watches and not devices:
            return ()

        def entity_of(entity: UnboundEntity) -> EntityRef:
            return resolve(entity, scrape.target)

        since = None if interval is None else scrape.at - timedelta(seconds=interval)
        events = past.codes.new_events(compiled.watches, page, entity_of, scrape.at, scrape.target.name, since)
        past.codes.mark_present([entity for entities in past.binding.entities.values() for entity in entities])
        return events


def _without_no_values(adapter: Adapter, page: Page) -> Page:
    """The page without the numbers by which its exporter marks failed readings."""
    if adapter.no_value is None or not (page.values == adapter.no_value).any():
        return page
    return replace(page, values=np.where(page.values == adapter.no_value, np.nan, page.values))


def _failed(scrape: Scrape, past: PreviousScrape) -> Collected:
    past.lost.forget_old(scrape.at.timestamp())
    about = about_target(scrape, past.adapter)
    batches = list(absent_batches(scrape, past))
    for batch in batches:
        if batch.kind is past.adapter.target:
            fill_target(batch, batch.entities.index(own_entity(past.adapter, scrape.target)), about, past)
    batches.append(watch_batch(scrape, about, None, TrustVerdict.FAILED))
    return Collected(tuple(batches), (), scrape.target.edges, scrape.target.facts)


def _none_left(past: PreviousScrape, batch: SampleBatch) -> dict[SignalKey, float]:
    """Count 0 for entities that were here before and are no longer on the page."""
    assert past.binding is not None
    if not past.lost.any():
        return {}
    columns, row = past.adapter.columns[batch.kind], batch.status[past.binding.own_row]
    return {key: 0.0 for key in past.adapter.counts if row[columns[key]] == CellStatus.ABSENT}
