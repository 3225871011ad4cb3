"""A day of stored values of 1,000 GPUs and 1,000 replicas; built once, then read.

The values come from the simulator with the rounding of real pages; see ``benchmarks.fleet_build``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from pathlib import Path

import numpy as np

from benchmarks import fleet_build
from benchmarks.common import cached, quick
from benchmarks.fleet_build import CYCLES, GROUPS, START, STEP
from outrider.model import EntityKind, EntityRef, Floats, SampleBatch, SignalKey, Statuses
from store.tsdb.chunk_codec import Block, Floats32, decode
from store.tsdb.cycle_matrix import SCRAPE_OFFSET
from store.tsdb.series_dictionary import sections_of

__all__ = ["CYCLES", "START", "STEP", "FleetDay", "Hour", "fleet_day"]

ROOT = Path(__file__).resolve().parent.parent
SEED = 11
HOURS, QUICK_HOURS = 24, 1


Target = tuple[slice, tuple[EntityRef, ...], tuple[SignalKey, ...]]


@dataclass(frozen=True, slots=True)
class Hour:
    """An hour of one kind: ``values`` (float32) and ``status`` of shape (keys, entities, times)."""

    kind: EntityKind
    times: Floats  # unix seconds
    keys: tuple[SignalKey, ...]
    entities: tuple[EntityRef, ...]
    values: Floats32
    status: Statuses

    @property
    def present(self) -> int:
        """Number of cells with a value."""
        return int(np.count_nonzero(~np.isnan(self.values)))


class FleetDay:
    """The hours of a prepared day."""

    def __init__(self, folder: Path, hours: int) -> None:
        """``folder`` has the output of ``fleet_build.build`` with ``hours`` hours."""
        self._folder, self.hours, self.name = folder, hours, folder.name
        layout = json.loads((folder / "layout.json").read_text())
        self._entities = {
            EntityKind(kind): tuple(map(EntityRef.from_key, result["entities"])) for kind, result in layout.items()
        }
        self._keys = {EntityKind(kind): tuple(map(SignalKey.parse, result["keys"])) for kind, result in layout.items()}

    @property
    def kinds(self) -> tuple[EntityKind, ...]:
        """The entity kinds that the fleet reports."""
        return tuple(self._keys)

    def keys(self, kind: EntityKind) -> tuple[SignalKey, ...]:
        """Returns the stored columns of a kind; the scrape offset is last."""
        return self._keys[kind]

    def entities(self, kind: EntityKind) -> tuple[EntityRef, ...]:
        """Returns the entities of a kind."""
        return self._entities[kind]

    def hour(self, kind: EntityKind, number: int, *, offset: bool = False) -> Hour:
        """Returns one hour of a kind, starting over after the last one. ``offset``: include the scrape offset."""
        block = Block((self._folder / f"{kind.value}-{number % self.hours:02}.block").read_bytes())
        keys = self._keys[kind]
        sections = [decode([block], section) for section in range(len(sections_of(keys)))]
        values = np.concatenate([section.values for section in sections])
        full = [
            np.zeros(section.values.shape, np.uint8) if section.status is None else section.status
            for section in sections
        ]
        status = np.concatenate(full)
        if not offset:
            keys, values, status = keys[:-1], values[:-1], status[:-1]
        times = START.timestamp() + (np.arange(CYCLES) + number * CYCLES) * STEP.total_seconds()
        return Hour(kind, times, keys, self._entities[kind], values, status)

    def part(self, kind: EntityKind, number: int, every: int) -> Hour:
        """Returns an hour of only every ``every``-th target."""
        whole = self.hour(kind, number)
        chosen = np.concatenate([np.arange(span.start, span.stop) for span, _, _ in self._targets(kind)[::every]])
        entities = tuple(whole.entities[place] for place in chosen.tolist())
        return Hour(kind, whole.times, whole.keys, entities, whole.values[:, chosen], whole.status[:, chosen])

    def cycles(
        self, count: int, kinds: Sequence[EntityKind], *, first: int = 0, every: int = 1
    ) -> Iterator[tuple[datetime, list[SampleBatch]]]:
        """Yields cycles as collectors return them, one batch per target, from cycle ``first`` of the day on.

        ``every``: only every n-th target.
        """
        targets = {kind: self._targets(kind)[::every] for kind in kinds}
        result: list[Hour] = []
        for number in range(first, first + count):
            hour, place = divmod(number, CYCLES)
            if place == 0 or not result:
                result = [self.hour(kind, hour, offset=True) for kind in kinds]
            at = START + number * STEP
            yield at, [batch for one in result for batch in _batches(one, place, at, targets[one.kind])]

    def _targets(self, kind: EntityKind) -> list[Target]:
        """Returns the entities of each target; the same tuples in every cycle, as from collectors."""
        entities, keys = self._entities[kind], self._keys[kind][:-1]
        size = GROUPS.get(kind, len(entities))
        spans = [slice(first, min(first + size, len(entities))) for first in range(0, len(entities), size)]
        return [(span, entities[span], keys) for span in spans]


def _batches(hour: Hour, place: int, at: datetime, targets: Sequence[Target]) -> list[SampleBatch]:
    assert hour.keys[-1] == SCRAPE_OFFSET
    cells = hour.values[:, :, place].T.astype(np.float64)
    status = np.ascontiguousarray(hour.status[:-1, :, place].T)
    values, offsets = np.ascontiguousarray(cells[:, :-1]), cells[:, -1]
    result = []
    for span, entities, keys in targets:
        scraped = at + timedelta(seconds=float(offsets[span.start]))
        interval = STEP.total_seconds()
        result.append(SampleBatch("bench", scraped, hour.kind, keys, entities, values[span], status[span], interval))
    return result


@cache
def fleet_day() -> FleetDay:
    """Returns the day, from the cache or built in about ten minutes on one core; only one hour in a quick run."""
    hours = QUICK_HOURS if quick() else HOURS
    sources = [ROOT / "simulator", ROOT / "outrider/vocabulary/catalog.yaml", Path(fleet_build.__file__)]
    day_folder = cached(
        "fleet-day", [hours, SEED], sources, lambda folder: fleet_build.build(folder, hours=hours, seed=SEED)
    )
    return FleetDay(day_folder, hours)
