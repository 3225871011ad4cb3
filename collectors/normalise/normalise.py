"""Pages to signal batches. Stateful per target: deltas and rates need what the last page said.

What each cell's status means here:

- a first scrape has no increases: ABSENT; so has a counter series seen for the first time, unless the
  adapter knows that such a series appears with its first increment (``new_series: from_zero``);
- a counter that went backward or was created anew, or a process that started anew: RESET, nothing is claimed;
- a number by which the exporter says that it could not read something (``no_value``): UNTRUSTED;
- 0/0: UNDEFINED; NaN published as a ratio: UNDEFINED, as anything else: UNTRUSTED;
- a negative count, a share above 1, a number without end: UNTRUSTED;
- a line's own timestamp that does not move, or lies minutes before or behind the scrape: STALE, on the first
  page as on every other; when all lines that have one are so, so is the batch. A page whose numbers stand
  still is not stale: an idle engine stands still. Pages from files may be about any time;
- the clock went back: batch CLOCK_STEP, increases UNTRUSTED;
- what moves on every page (``heartbeat``) has stood still for too long: everything on it STALE, batch FROZEN;
- a series that stands on the page twice: the first one counts, batch DUPLICATE;
- entities that left the page: rows of ABSENT cells; batch PARTIAL, for devices until they are back, for all else
  for two minutes, since pods and parts of engines also leave on purpose;
- a failed scrape: target_up 0, and every entity known from this target as a row of ABSENT cells.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timedelta
from weakref import WeakKeyDictionary

import numpy as np

from collectors.exposition.parser import Layout, Page
from collectors.mapping import registry
from collectors.mapping.compiler import Compiled, compile_adapter
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
    """Turns scrapes into batches, target by target. Feed each target's scrapes in order of time."""

    def __init__(self, adapters: Mapping[str, Adapter] | None = None) -> None:
        """``adapters`` are tried before the packaged ones."""
        self._adapters = dict(adapters or {})
        self._past: dict[str, PreviousScrape] = {}
        self._compiled: dict[str, WeakKeyDictionary[Layout, Compiled]] = {}

    def adapter(self, name: str) -> Adapter:
        """The adapter of that name. Raises UsageError when there is none."""
        return self._adapters.get(name) or registry.adapter(name)

    def normalise(self, scrape: Scrape, page: Page | None) -> Collected:
        """Batches, events, edges and labels of one scrape. ``page`` None: the scrape failed."""
        past = self._past_of(scrape.target)
        if page is None:
            return _failed(scrape, past)
        at, page = scrape.at.timestamp(), _told(past.adapter, page)
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
        seen = tuple(batch for batch in batches if batch.entities)
        return Collected(seen, self._events(scrape, past, page, change.interval), past.edges, past.labels)

    def unseen(self, target: Target, at: datetime) -> Collected:
        """A target about which nothing is known this round: whoever reads it for us is out of reach.

        Every entity known from it is a row of ABSENT cells, target_up is ABSENT too.
        """
        scrape = Scrape(target, at, None, None, 0.0)
        batches = (*absent_batches(scrape, self._past_of(target)), watch_batch(scrape, {}, None, TrustVerdict.FAILED))
        return Collected(batches, (), target.edges, target.facts)

    def needs_two(self, target_name: str) -> list[tuple[EntityRef, SignalKey]]:
        """What the target's only page so far could not tell, because it takes two scrapes."""
        past = self._past.get(target_name)
        if past is None or not past.first or past.compiled is None or past.binding is None:
            return []
        found: list[tuple[EntityRef, SignalKey]] = []
        for kind, (first, entities, columns) in past.compiled.shapes.items():
            two = past.compiled.cells.two_scrapes[first : first + entities * columns].reshape(entities, columns)
            keys = past.adapter.keys[kind]
            found.extend((past.binding.entities[kind][row], keys[column]) for row, column in np.argwhere(two))
        return found

    def since_start(self, target: Target, page: Page) -> tuple[CumulativeQuantile, ...]:
        """Quantiles over everything the process of this page has seen: never for a detector."""
        return tuple(quantiles(self.adapter(target.adapter), page, target))

    def forget(self, target_name: str) -> None:
        """Drop everything known of a target that is configured no more."""
        self._past.pop(target_name, None)

    def _past_of(self, target: Target) -> PreviousScrape:
        past = self._past.get(target.name)
        if past is None:
            past = self._past[target.name] = PreviousScrape(self.adapter(target.adapter))
        return past

    def _align(self, past: PreviousScrape, page: Page, target: Target, at: float) -> None:
        """Bring what is known into the order of this page, when its series are not those of the last one."""
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
        # a page with devices and no code of theirs says that they have none
        devices = any(past.binding.entities.get(spec.entity) for spec in past.adapter.events)
        if not compiled.watches and not devices:
            return ()

        def entity_of(place: UnboundEntity) -> EntityRef:
            return resolve(place, scrape.target)

        since = None if interval is None else scrape.at - timedelta(seconds=interval)
        found = past.codes.look(compiled.watches, page, entity_of, scrape.at, scrape.target.name, since)
        past.codes.saw([entity for entities in past.binding.entities.values() for entity in entities])
        return found


def _told(adapter: Adapter, page: Page) -> Page:
    """The page without the numbers by which its exporter says that it could not read something."""
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
    """A count of entities that were here before and of which the page shows none any more."""
    assert past.binding is not None
    if not past.lost.any():
        return {}
    columns, row = past.adapter.columns[batch.kind], batch.status[past.binding.own_row]
    return {key: 0.0 for key in past.adapter.counts if row[columns[key]] == CellStatus.ABSENT}
