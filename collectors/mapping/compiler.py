"""Compiles an adapter and a page layout into arrays of row indices, once per layout.

Nearly everything an adapter requests is linear in the rows of a page: sums, means, differences, one-hot codes, and
bucket increments (a cumulative bucket minus the one below). So a page is evaluated by one weighted ``bincount``
into *slots*, one grouped maximum and one grouped minimum, and a division of slots for the ratios. The rows of a
page appear three times in the input vector: as values, as increases and as rates; a constant 1 follows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from collectors.exposition.parser import Layout
from collectors.mapping.entity_binding import FaultCodeRow, LayoutEntities, UnboundEntity
from collectors.mapping.layout_plan import CellInput, LayoutPlan, labels_without
from collectors.mapping.model import Adapter, Aggregate, Operator, Statistic
from outrider.model import EntityKind, Floats
from outrider.vocabulary import catalog

Indices = NDArray[np.intp]
Flags = NDArray[np.bool_]
Shape = tuple[int, int, int]


_COUNTED = ("_total", "_bucket", "_count", "_sum")
_OF_NOTHING = frozenset({Statistic.QUANTILES, Statistic.MEAN})  # NaN without events


@dataclass(frozen=True, slots=True)
class Groups:
    """Rows grouped by the slot that takes their maximum or minimum."""

    rows: Indices
    weights: Floats
    starts: Indices
    slots: Indices


@dataclass(frozen=True, slots=True)
class Cells:
    """Post-processing of each cell; arrays of shape (cells,) but for the last three.

    ``equals`` is NaN if a cell is not a comparison. ``nan_is_undefined`` is set if NaN on the page means that nothing
    happened, as in a ratio or quantile of nothing. Values below ``least`` or above ``most`` are not valid for the
    signal; increases and values derived from them have no bounds. ``joins`` are outs to be combined within their
    cell, ``histograms`` the cells of histogram columns, group after group from ``histogram_starts``.
    """

    scale: Floats
    offset: Floats
    equals: Floats
    absolute: Flags
    nan_is_undefined: Flags
    two_scrapes: Flags
    least: Floats
    most: Floats
    joins: Mapping[Aggregate, Indices]
    histograms: Indices
    histogram_starts: Indices


@dataclass(frozen=True, slots=True, eq=False)
class CompiledLayout:
    """Everything needed to evaluate pages of one layout; independent of the target.

    A *cell* is an (entity, column) of one kind of entity. ``cell_of_out`` numbers them through all kinds, ``shapes``
    gives (first cell, entities, columns) of each kind. ``out_right`` is -1 if the left slot is the value.
    ``start_row`` is -1 if the page does not give the start time of its process. ``beats`` are the rows of the
    adapter's heartbeat. ``born`` are rows of counters with a creation time, ``born_at`` the rows of their
    ``_created``.
    """

    slots: int
    linear_rows: Indices
    linear_weights: Floats
    linear_slots: Indices
    maxima: Groups
    minima: Groups
    out_left: Indices
    out_right: Indices
    out_compare: Flags
    out_product: Flags
    cell_of_out: Indices
    cells: Cells
    places: Mapping[EntityKind, tuple[UnboundEntity, ...]]
    shapes: Mapping[EntityKind, Shape]
    edges: tuple[tuple[UnboundEntity, UnboundEntity], ...]
    labels: tuple[tuple[UnboundEntity, Mapping[str, str]], ...]
    watches: tuple[FaultCodeRow, ...]
    start_row: int
    beats: Indices
    born: Indices
    born_at: Indices


def compile_adapter(adapter: Adapter, layout: Layout) -> CompiledLayout:
    """Compiles an adapter for pages of this layout."""
    plan = LayoutPlan(adapter, layout, LayoutEntities(adapter, layout))
    for name, rules in adapter.rules.items():
        plan.add_signal(name, rules)
    edges = tuple(dict.fromkeys(plan.places.edges()))
    places, shapes = _rank(plan, edges)
    of_out = [_cell(out, places, shapes) for out in plan.outs]
    rows, weights, slots = _columns(plan.linear)
    start = layout.names.get(adapter.start_time) if adapter.start_time else None
    born, born_at = _births(layout)
    return CompiledLayout(
        slots=plan.slots,
        linear_rows=rows,
        linear_weights=weights,
        linear_slots=slots,
        maxima=_grouped(plan.extremes[Aggregate.MAX]),
        minima=_grouped(plan.extremes[Aggregate.MIN]),
        out_left=np.array([out.left for out in plan.outs], dtype=np.intp),
        out_right=np.array([out.right for out in plan.outs], dtype=np.intp),
        out_compare=np.array([out.rule.operator is Operator.AT_LEAST for out in plan.outs], dtype=bool),
        out_product=np.array([out.rule.operator is Operator.PRODUCT for out in plan.outs], dtype=bool),
        cell_of_out=np.array(of_out, dtype=np.intp),
        cells=_cells(adapter, plan.outs, of_out, shapes),
        places={kind: tuple(ranked) for kind, ranked in places.items()},
        shapes=shapes,
        edges=edges,
        labels=tuple(plan.places.labels()),
        watches=tuple(plan.places.watches()),
        start_row=int(start[0]) if start is not None else -1,
        beats=_beats(adapter, layout),
        born=born,
        born_at=born_at,
    )


def _births(layout: Layout) -> tuple[Indices, Indices]:
    """Counters with a ``_created`` series (OpenMetrics 1.0, section 5.1.2), and the row of that series."""
    created = {
        (name.removesuffix("_created"), labels_without(layout.series[row], "le")): int(row)
        for name, rows in layout.names.items()
        if name.endswith("_created")
        for row in rows
    }
    pairs = []
    for name, rows in layout.names.items() if created else ():
        family = next((name.removesuffix(end) for end in _COUNTED if name.endswith(end)), None)
        if family is not None:
            pairs_of_name = (
                (int(row), created.get((family, labels_without(layout.series[row], "le")))) for row in rows
            )
            pairs += [pair for pair in pairs_of_name if pair[1] is not None]
    both = np.array(pairs, dtype=np.intp).reshape(-1, 2)
    return both[:, 0], both[:, 1]


def _beats(adapter: Adapter, layout: Layout) -> Indices:
    """Rows that move on every page; none if the page has no such counter."""
    names = adapter.heartbeat.metrics.on(layout.names) if adapter.heartbeat else ()
    return np.concatenate([np.empty(0, dtype=np.intp), *(layout.names[name] for name in names)])


def _rank(
    plan: LayoutPlan, edges: tuple[tuple[UnboundEntity, UnboundEntity], ...]
) -> tuple[dict[EntityKind, dict[UnboundEntity, int]], dict[EntityKind, Shape]]:
    """Row of each entity within its kind, and the first cell of each kind."""
    keys = plan.adapter.keys
    places: dict[EntityKind, dict[UnboundEntity, int]] = {}
    for entity in (*(out.place for out in plan.outs), *(end for edge in edges for end in edge)):
        if entity.kind in keys:
            ranked = places.setdefault(entity.kind, {})
            ranked.setdefault(entity, len(ranked))
    shapes: dict[EntityKind, Shape] = {}
    first = 0
    for kind, ranked in places.items():
        shapes[kind] = (first, len(ranked), len(keys[kind]))
        first += len(ranked) * len(keys[kind])
    return places, shapes


def _cell(
    out: CellInput, places: Mapping[EntityKind, Mapping[UnboundEntity, int]], shapes: Mapping[EntityKind, Shape]
) -> int:
    first, _, columns = shapes[out.place.kind]
    return first + places[out.place.kind][out.place] * columns + out.column


def _cells(adapter: Adapter, outs: list[CellInput], of_out: list[int], shapes: Mapping[EntityKind, Shape]) -> Cells:
    count = sum(entities * columns for _, entities, columns in shapes.values())
    scale, offset, equals = np.ones(count), np.zeros(count), np.full(count, np.nan)
    least, most = np.full(count, -np.inf), np.full(count, np.inf)
    absolute, undefined, two = (np.zeros(count, dtype=bool) for _ in range(3))
    joins: dict[Aggregate, list[int]] = {}
    histograms: dict[tuple[UnboundEntity, str], list[int]] = {}
    for number, (out, at) in enumerate(zip(outs, of_out, strict=True)):
        rule, unit = out.rule, catalog.signal(out.rule.signal).unit
        # The scale of a histogram applies to its bounds and is part of the weights already.
        scale[at] = 1.0 if rule.operator is Operator.HISTOGRAM else rule.scale
        offset[at], absolute[at] = rule.offset, rule.absolute
        equals[at] = np.nan if rule.equals is None else rule.equals
        undefined[at] = rule.statistic in _OF_NOTHING or (unit == "ratio" and adapter.no_value is None)
        two[at] = rule.needs_two
        if not rule.needs_two and rule.equals is None:
            least[at], most[at] = catalog.signal(rule.signal).plausible
        if rule.per:
            joins.setdefault(rule.aggregate, []).append(number)
        if rule.operator is Operator.HISTOGRAM:
            histograms.setdefault((out.place, rule.signal), []).append(at)
    return Cells(
        scale=scale,
        offset=offset,
        equals=equals,
        absolute=absolute,
        nan_is_undefined=undefined,
        two_scrapes=two,
        least=least,
        most=most,
        joins={aggregate: np.array(cells, dtype=np.intp) for aggregate, cells in joins.items()},
        histograms=np.array([at for cells in histograms.values() for at in cells], dtype=np.intp),
        histogram_starts=np.cumsum([0, *(len(cells) for cells in histograms.values())])[:-1].astype(np.intp),
    )


def _columns(entries: list[tuple[int, float, int]]) -> tuple[Indices, NDArray[np.float64], Indices]:
    rows, weights, slots = zip(*entries, strict=True) if entries else ((), (), ())
    return np.array(rows, dtype=np.intp), np.array(weights, dtype=np.float64), np.array(slots, dtype=np.intp)


def _grouped(entries: list[tuple[int, float, int]]) -> Groups:
    rows, weights, slots = _columns(sorted(entries, key=lambda entry: entry[2]))
    unique_slots, starts = np.unique(slots, return_index=True)
    return Groups(rows, weights, starts.astype(np.intp), unique_slots.astype(np.intp))
