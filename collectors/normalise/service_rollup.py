"""Service signals from those of their replicas: sums and merged buckets, never averages. Pure.

A replica without a value adds nothing; a service has a value if at least one of its replicas has. With
data-parallel ranks the HTTP counters belong to the whole engine and the rest to the ranks (label ``part_of``), so
nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from functools import cache

import numpy as np
from numpy.typing import NDArray

from outrider.model import (
    CellStatus,
    EntityKind,
    EntityRef,
    Floats,
    SampleBatch,
    SignalKey,
    Statuses,
    TrustVerdict,
)
from outrider.topology import Topology
from outrider.vocabulary import catalog

_SCALARS = (
    "engine_http_requests_total", "engine_requests_finished_total", "engine_http_failed_total",
    "engine_requests_failed_total", "engine_http_refused_total", "engine_aborted_per_second",
    "engine_prompt_tokens_total", "engine_generation_tokens_total", "engine_generation_tokens_per_second",
    "engine_inflight_requests", "engine_requests_running", "engine_requests_waiting", "engine_up",
    "engine_health_ok", "engine_sleep_state",
)  # fmt: skip
_OF_DEVICES = ("engine_memory_reserved_ratio", "engine_kv_cache_usage_ratio")
_HISTOGRAMS = ("svc_ttft_seconds", "svc_latency_seconds", "svc_tpot_seconds")
_SUMMED = (
    "svc_requests_total", "svc_failed_total", "svc_refused_total", "svc_abandoned_total",
    "svc_requests_per_second", "svc_success_ratio", "svc_prompt_tokens_total",
    "svc_generation_tokens_total", "svc_tokens_per_second", "svc_inflight_requests", "svc_queue_requests",
    "svc_ready_backends",
)  # fmt: skip


@cache
def _wanted() -> tuple[SignalKey, ...]:
    parts = (catalog.signal(catalog.signal(name).of_parts) for name in _HISTOGRAMS)
    buckets = (key for part in parts for key in part.bucket_keys)
    return (*(SignalKey(name) for name in _SCALARS), *buckets)


@cache
def service_keys() -> tuple[SignalKey, ...]:
    """Columns of a batch of services."""
    buckets = (key for name in _HISTOGRAMS for key in catalog.signal(name).bucket_keys)
    return (*(SignalKey(name) for name in _SUMMED), *buckets)


@cache
def _columns(keys: tuple[SignalKey, ...]) -> NDArray[np.intp]:
    """Index of the wanted columns in a batch; one past the end for missing ones."""
    columns = {key: column for column, key in enumerate(keys)}
    return np.array([columns.get(key, len(keys)) for key in _wanted()], dtype=np.intp)


def service_batches(batches: Sequence[SampleBatch], topology: Topology, at: datetime) -> tuple[SampleBatch, ...]:
    """One batch with every service that has a replica among the batches; nothing if there is none.

    Counters of several batches of one replica are added; of gauges the last one is used. The batch is PARTIAL if a
    replica that responds has no trustworthy increase.
    """
    replicas = [batch for batch in batches if batch.kind is EntityKind.REPLICA]
    rows: list[EntityRef] = [entity for batch in replicas for entity in batch.entities]
    services = [_services_of(entity, topology) for entity in rows]
    names = sorted(
        {service for services_of_row in services for service in services_of_row}, key=lambda service: service.key
    )
    if not names:
        return ()
    number = {service: index for index, service in enumerate(names)}
    pairs = np.array(
        [(row, number[service]) for row, services_of_row in enumerate(services) for service in services_of_row],
        dtype=np.intp,
    )
    values, status, seconds = _stack(replicas)
    table = _Table(values[pairs[:, 0]], status[pairs[:, 0]], pairs[:, 1], len(names))
    last = {entity: row for row, entity in enumerate(rows)}
    newest = np.array([last[entity] == row for row, entity in enumerate(rows)])[pairs[:, 0]]
    whole = np.array([not topology.label(entity, "part_of") for entity in rows])[pairs[:, 0]]
    matrix, statuses = _summed(table, seconds[pairs[:, 0]], newest, whole)
    intervals = seconds[np.isfinite(seconds)]
    return (
        SampleBatch(
            source="services",
            scraped_at=at,
            kind=EntityKind.SERVICE,
            keys=service_keys(),
            entities=tuple(names),
            values=matrix,
            status=statuses,
            interval_seconds=float(np.median(intervals)) if intervals.size else None,
            trust=_trust(replicas),
        ),
    )


def device_batches(batches: Sequence[SampleBatch], topology: Topology, at: datetime) -> tuple[SampleBatch, ...]:
    """Memory signals on each device of an engine: its memory reservation and KV-cache utilization."""
    keys = tuple(SignalKey(name) for name in _OF_DEVICES)
    cells_by_device: dict[EntityRef, list[float]] = {}
    for batch in batches:
        columns = [(index, batch.keys.index(key)) for index, key in enumerate(keys) if key in batch.keys]
        if batch.kind is not EntityKind.REPLICA or not columns:
            continue
        for row, entity in enumerate(batch.entities):
            present = [(index, column) for index, column in columns if batch.status[row, column] == CellStatus.PRESENT]
            for device in _devices_of(entity, topology) if present else ():
                cells = cells_by_device.setdefault(device, [np.nan] * len(keys))
                for index, column in present:
                    cells[index] = float(batch.values[row, column])
    if not cells_by_device:
        return ()
    values = np.array(list(cells_by_device.values()))
    status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    return (SampleBatch("devices", at, EntityKind.GPU, keys, tuple(cells_by_device), values, status),)


def _devices_of(replica: EntityRef, topology: Topology) -> tuple[EntityRef, ...]:
    """Devices below a replica and below its pods: two steps down, independent of the fleet size."""
    below = topology.rests_on(replica)
    near = (
        *below,
        *(deeper for entity in below if entity.kind is EntityKind.POD for deeper in topology.rests_on(entity)),
    )
    return tuple(entity for entity in near if entity.kind is EntityKind.GPU)


def _trust(replicas: Sequence[SampleBatch]) -> TrustVerdict:
    return TrustVerdict.FRESH if all(batch.trust is TrustVerdict.FRESH for batch in replicas) else TrustVerdict.PARTIAL


def _services_of(entity: EntityRef, topology: Topology) -> tuple[EntityRef, ...]:
    return tuple(entity for entity in topology.holds_up(entity) if entity.kind is EntityKind.SERVICE)


def _stack(replicas: Sequence[SampleBatch]) -> tuple[Floats, Statuses, Floats]:
    """The wanted columns of every row, and the interval of each row (NaN without one)."""
    values, status, seconds = [], [], []
    for batch in replicas:
        columns, count = _columns(batch.keys), len(batch.entities)
        none = np.full((count, 1), np.nan), np.full((count, 1), CellStatus.ABSENT, dtype=np.uint8)
        values.append(np.hstack((batch.values, none[0]))[:, columns])
        status.append(np.hstack((batch.status, none[1]))[:, columns])
        seconds.append(np.full(count, np.nan if batch.interval_seconds is None else batch.interval_seconds))
    return np.concatenate(values), np.concatenate(status), np.concatenate(seconds)


class _Table:
    """Rows of replicas with the service of each; sums them by service."""

    def __init__(self, values: Floats, status: Statuses, service: NDArray[np.intp], services: int) -> None:
        self.values = values
        self.status = status
        self.service = service
        self.services = services

    def column(self, name: str) -> Floats:
        """One signal, one number per row."""
        return self.values[:, _SCALARS.index(name)]

    def total(self, numbers: Floats, counted: NDArray[np.bool_] | None = None) -> Floats:
        """Sum by service; NaN if no row has a value."""
        valid = np.isfinite(numbers) if counted is None else np.isfinite(numbers) & counted
        totals = np.bincount(self.service[valid], weights=numbers[valid], minlength=self.services)
        return np.where(np.bincount(self.service[valid], minlength=self.services) > 0, totals, np.nan)

    def worst(self, name: str) -> Statuses:
        """Worst status of a signal by service: the status of a service without a value."""
        statuses = np.zeros(self.services, dtype=np.uint8)
        np.maximum.at(statuses, self.service, self.status[:, _SCALARS.index(name)])
        return statuses


def _summed(
    table: _Table, seconds: Floats, newest: NDArray[np.bool_], whole: NDArray[np.bool_]
) -> tuple[Floats, Statuses]:
    column = table.column
    over_http = np.isfinite(table.total(column("engine_http_requests_total")))
    per_row = np.where(
        over_http[table.service], column("engine_http_requests_total"), column("engine_requests_finished_total")
    )
    requests = table.total(per_row)
    failed = np.fmax(
        table.total(column("engine_http_failed_total")), table.total(column("engine_requests_failed_total"))
    )
    failed = np.where(np.isnan(requests), np.nan, failed)
    at_work = column("engine_requests_running") + column("engine_requests_waiting")
    has_inflight = np.isfinite(table.total(column("engine_inflight_requests"), newest))[table.service]
    inflight = np.where(
        has_inflight & np.isfinite(column("engine_inflight_requests")), column("engine_inflight_requests"), at_work
    )
    ready = (column("engine_up") == 1) & (column("engine_health_ok") != 0) & (column("engine_sleep_state") != 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        success = 1.0 - np.minimum(failed, requests) / requests
        rate = table.total(per_row / seconds, newest)
    columns = [
        requests,
        failed,
        table.total(column("engine_http_refused_total")),
        _abandoned(table, seconds),
        rate,
        success,
        table.total(column("engine_prompt_tokens_total")),
        table.total(column("engine_generation_tokens_total")),
        table.total(column("engine_generation_tokens_per_second"), newest),
        table.total(inflight, newest & (whole | ~has_inflight)),
        table.total(column("engine_requests_waiting"), newest),
        table.total(np.where(np.isnan(column("engine_up")), np.nan, ready), newest & whole),
    ]
    buckets = _buckets(table)
    values = np.column_stack((*columns, buckets))
    worst = np.column_stack(
        [
            *(table.worst(name) for name in ("engine_requests_finished_total",) * 6),
            table.worst("engine_prompt_tokens_total"),
            *(table.worst(name) for name in ("engine_generation_tokens_total",) * 2),
            table.worst("engine_requests_running"),
            table.worst("engine_requests_waiting"),
            table.worst("engine_up"),
            *(table.worst("engine_requests_finished_total") for _ in range(buckets.shape[1])),
        ]
    )
    status = np.where(np.isfinite(values), CellStatus.PRESENT, np.maximum(worst, CellStatus.UNDEFINED))
    status[(requests == 0), _SUMMED.index("svc_success_ratio")] = CellStatus.UNDEFINED
    return values, status.astype(np.uint8)


def _abandoned(table: _Table, seconds: Floats) -> Floats:
    """Requests whose client left: successful over HTTP but never finished, or aborted in the engine.

    NaN if the engines do not distinguish successful from rejected and failed requests.
    """
    column = table.column
    well = table.total(column("engine_http_requests_total")) - table.total(column("engine_http_failed_total"))
    well -= table.total(column("engine_http_refused_total"))
    unfinished = np.maximum(0.0, well - table.total(column("engine_requests_finished_total")))
    return unfinished + np.nan_to_num(table.total(column("engine_aborted_per_second") * seconds))


def _buckets(table: _Table) -> Floats:
    """Bucket increments and sums by service, shape (services, bucket columns)."""
    cells = table.values[:, len(_SCALARS) :]
    valid = np.isfinite(cells)
    summed = np.zeros((table.services, cells.shape[1]))
    np.add.at(summed, table.service, np.where(valid, cells, 0.0))
    counted = np.zeros((table.services, cells.shape[1]), dtype=np.intp)
    np.add.at(counted, table.service, valid)
    return np.where(counted > 0, summed, np.nan)
