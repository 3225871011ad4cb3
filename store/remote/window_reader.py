"""Fills a grid from a Prometheus-compatible server."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np

from outrider.model import SUM_BUCKET, EntityKind, EntityRef, SignalKey, Statistic
from store.remote.api_responses import Matrix, matrix, numbers
from store.remote.client import Server
from store.remote.names import (
    CYCLE_METRIC,
    OWNER,
    STATUS_METRIC,
    WHOLE,
    bounds_of,
    entity_of,
    key_of,
    name_of,
)
from store.remote.query_ranges import Part, Raw, folded_parts, folds, raw_parts
from store.remote.selectors import Selector
from store.remote.series_decoder import (
    COLUMN_LABELS,
    EntityLabels,
    Slab,
    codes_of,
    column_labels,
    entity_labels_of,
    narrowed,
    scatter,
    section_of,
    series_of,
    stored,
)
from store.remote.write_markers import Cycles
from store.tsdb.chunk_codec import Section
from store.tsdb.cycle_matrix import SCRAPE_OFFSET, column_order
from store.tsdb.grid import Column, ColumnRequest, Grid
from store.tsdb.window_reader import sorted_entities

_NAMED = 50  # entities named in a query; for more, the whole kind is queried
_SIGNALS_NAMED = 100
_LAST, _SUM = "last_over_time", "sum_over_time"
_FOLDS = {
    Statistic.LAST: _LAST,
    Statistic.MEAN: "avg_over_time",
    Statistic.MIN: "min_over_time",
    Statistic.MAX: "max_over_time",
}


@dataclass(frozen=True, slots=True)
class WindowRequest:
    """Subject of a read: a kind, and the output rows of its entities. ``named`` are those to name in a query."""

    kind: EntityKind
    rows: Mapping[EntityLabels, int]
    named: tuple[EntityRef, ...] = ()

    @staticmethod
    def of(kind: EntityKind, entities: Sequence[EntityRef], *, all_of_kind: bool) -> WindowRequest:
        """``all_of_kind``: the entities are all of their kind, and need not be named."""
        rows = {(entity.cluster, entity.namespace or "", entity.name): row for row, entity in enumerate(entities)}
        return WindowRequest(kind, rows, () if all_of_kind or len(entities) > _NAMED else tuple(entities))


class Reader:
    """Reads from one server, with several queries at once."""

    def __init__(self, server: Server, cycles: Cycles, pool: ThreadPoolExecutor) -> None:
        """``pool`` runs the queries."""
        self._server, self._cycles, self._pool = server, cycles, pool

    # --- entities and columns ---------------------------------------------------------------------

    def fill(
        self, grid: Grid, kind: EntityKind, wanted: Sequence[ColumnRequest], requested: Sequence[EntityRef] | None
    ) -> tuple[EntityRef, ...]:
        """Fills the grid; returns the entities of its rows: the requested ones, or all with a cycle in the span."""
        start, end = grid.span
        count = self._cycles.count(kind, start, end) if end > start else None
        if count is None or not count.first + count.again:
            grid.open(len(requested or ()))
            return tuple(requested or ())
        entities = tuple(requested) if requested is not None else self._present(kind, start, end, exact=count.again > 0)
        about = WindowRequest.of(kind, entities, all_of_kind=requested is None)
        series = len(entities) * sum(len(series_of(request)) for request in wanted)
        if folds(count, grid.span, grid.step, series):
            parts: Iterable[Part] = folded_parts(grid.span, grid.step, series)
        else:
            parts = raw_parts(self._cycles.between(kind, start, end), series)
        grid.open(len(entities))
        self._fill_parts(grid, wanted, about, parts)
        return entities

    def _fill_parts(
        self, grid: Grid, wanted: Sequence[ColumnRequest], about: WindowRequest, parts: Iterable[Part]
    ) -> None:
        """Writes every part into its columns."""
        columns = [grid.column(request) for request in wanted]
        entities = len(about.rows)
        for part in parts:
            statuses = self._statuses(about, {request.name for request in wanted}, part)
            query = partial(self._cells, about, part, statuses)
            cells = self._pool.map(query, columns, wanted)
            for column, request, section in zip(columns, wanted, cells, strict=True):
                if section is not None:
                    column.add(slice(0, len(request.stored)), slice(0, entities), part.times, section)
        for column in columns:
            column.finish()

    def _present(self, kind: EntityKind, start: int, end: int, *, exact: bool) -> tuple[EntityRef, ...]:
        """Every entity in a cycle of the span. Prometheus 2 includes the previous millisecond."""
        selector = self._of_kind(name_of(SCRAPE_OFFSET).metric, kind)
        if exact:  # a repeated write may lack entities of the first one
            stamped = self._cycles.between(kind, start, end)
            path, fields = Raw(stamped).fields(selector, _LAST)
            response = matrix(self._server.query(path, fields))
            series_rows = np.repeat(np.arange(len(response.labels)), response.counts)
            rows = np.unique(series_rows[stamped.positions(response.stamps) >= 0]).tolist()
            labels = [response.labels[label] for label in rows]
        else:
            fields = selector.folded_once("count_over_time", start // 1000, -(-end // 1000))
            labels = [series for series, _ in numbers(self._server.query("query", fields))]
        return sorted_entities([entity_of(label, kind) for label in labels], kind)

    def keys(self, kind: EntityKind, start: int, end: int) -> list[SignalKey]:
        """Every column with a cell in [start, end) (microseconds), in stored order."""
        others = f"{STATUS_METRIC}|{CYCLE_METRIC}"
        all_series = self._of_kind("", kind)
        all_series = Selector("", (*all_series.matchers, f'__name__!~"{others}"'))
        result: set[SignalKey] = set()
        for labels in self._grouped(all_series, ("__name__", *COLUMN_LABELS), start, end):
            key = key_of(labels)
            if key is not None and key != SCRAPE_OFFSET:
                result.add(key)
        for labels in self._grouped(self._of_kind(STATUS_METRIC, kind), ("signal",), start, end):
            result.update(_keys_spelled(labels.get("signal", "")))
        return sorted(result, key=column_order)

    def _grouped(self, selector: Selector, labels: Sequence[str], start: int, end: int) -> list[Mapping[str, str]]:
        fields = selector.folded_once(_LAST, start // 1000, -(-end // 1000))
        fields["query"] = f"count by ({','.join(labels)}) ({fields['query']})"
        return [series for series, _ in numbers(self._server.query("query", fields))]

    def _of_kind(self, metric: str, kind: EntityKind) -> Selector:
        return Selector(metric).equal(OWNER, self._server.remote.owner).equal("kind", kind.value)

    # --- cells ------------------------------------------------------------------------------------

    def _selector(self, metric: str, about: WindowRequest) -> Selector:
        result = self._of_kind(metric, about.kind)
        if not about.named:
            return result
        for label in ("cluster", "namespace"):
            values = {getattr(entity, label) or "" for entity in about.named}
            if len(values) == 1:
                result = result.equal(label, values.pop())
        return result.among("name", sorted({entity.name for entity in about.named}))

    def _cells(
        self,
        about: WindowRequest,
        part: Part,
        statuses: Mapping[str, list[Slab]],
        column: Column,
        request: ColumnRequest,
    ) -> Section | None:
        """Cells of one signal, of shape (stored columns, entities, times); None if there are none."""
        fold = _SUM if request.summed else _FOLDS[column.statistic]
        slots = {name: slot for slot, name in enumerate(series_of(request))}
        shape = (len(slots), len(about.rows), part.times.size)
        series = np.full(shape, np.nan)
        result = False
        for metric in dict.fromkeys(name.metric for name in slots):
            slots_by_labels = {name.labels: slot for name, slot in slots.items() if name.metric == metric}
            response = self._query(narrowed(self._selector(metric, about), slots_by_labels), fold, part)
            result |= bool(response.labels)
            rows = [
                (slots_by_labels.get(column_labels(labels), -1), about.rows.get(entity_labels_of(labels), -1))
                for labels in response.labels
            ]
            scatter(series, rows, response, part)
        codes = codes_of(request, statuses, shape[1:])
        if not result and codes is None:
            return None
        return section_of(stored(request, series, slots), codes, part)

    def _query(self, selector: Selector, fold: str, part: Part) -> Matrix:
        return matrix(self._server.query(*part.fields(selector, fold)))

    def _statuses(self, about: WindowRequest, names: Collection[str], part: Part) -> dict[str, list[Slab]]:
        """Recorded statuses of these signals, by signal: column names with their numbers."""
        selector = self._selector(STATUS_METRIC, about)
        if len(names) <= _SIGNALS_NAMED:
            selector = selector.matching("signal", f"({'|'.join(sorted(names))})([@#].*)?")
        response = self._query(selector, _LAST, part)
        spelled = list(dict.fromkeys(labels.get("signal", "") for labels in response.labels))
        series = np.full((len(spelled), len(about.rows), part.times.size), np.nan)
        slots = {text: slot for slot, text in enumerate(spelled)}
        rows = [
            (slots[labels.get("signal", "")], about.rows.get(entity_labels_of(labels), -1))
            for labels in response.labels
        ]
        scatter(series, rows, response, part)
        result: dict[str, list[Slab]] = {}
        for text, slot in slots.items():
            result.setdefault(text.partition("#")[0].partition("@")[0], []).append((text, series[slot]))
        return result


def _keys_spelled(text: str) -> Sequence[SignalKey]:
    """The columns of a status."""
    if text.endswith(WHOLE):
        name = text.removesuffix(WHOLE)
        return [SignalKey(name, bucket=bucket) for bucket in (*range(len(bounds_of(name)) + 1), SUM_BUCKET)]
    return [SignalKey.parse(text)] if text else []
