"""Counts by tenant: the pages of all gateways added up, and the smallest tenants of a service folded together.

Tenants have unbounded names, so a service keeps its largest ones and sums the others as ``other``. If adapters that see
the same traffic name the tenants of a service, the one nearest to the edge counts.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime
from functools import cache

import numpy as np

from collectors.normalise.source_precedence import rank_of
from outrider.model import CellStatus, EntityKind, EntityRef, Floats, SampleBatch, SignalKey, SignalKind
from outrider.vocabulary import catalog
from outrider.vocabulary.tenants import NO_TENANT, name_of, service_of, tenant_of
from outrider.wire.cardinality import CardinalityLimit

MOST_TENANTS = 20
_MOST_SERVICES = 1_000  # with a memory of their largest tenants
_TOKENS, _REQUESTS = SignalKey("tenant_prompt_tokens_total"), SignalKey("tenant_requests_total")
_ByTenant = dict[str, Floats]


@cache
def tenant_keys() -> tuple[SignalKey, ...]:
    """Columns of a batch of tenants: counts and buckets, which add up. The prompt tokens come first."""
    names = [signal for signal in catalog.signals().values() if signal.entity is EntityKind.TENANT]
    every = (
        key
        for signal in names
        for key in (signal.bucket_keys if signal.kind is SignalKind.HISTOGRAM else (SignalKey(signal.name),))
    )
    return tuple(dict.fromkeys((_TOKENS, *every)))


class TenantTotals:
    """Replaces the batches of tenants by one of the largest tenants of each service."""

    def __init__(self, most: int = MOST_TENANTS) -> None:
        """At most ``most`` tenants of a service keep their names."""
        self._most = most
        self._limits: dict[EntityRef, CardinalityLimit] = {}

    def merge(
        self, batches: Sequence[SampleBatch], adapter_of: Mapping[str, str], at: datetime
    ) -> tuple[SampleBatch, ...]:
        """Returns the batches with one batch of tenants, none without tenants. ``adapter_of``: target -> adapter."""
        own = [batch for batch in batches if batch.kind is EntityKind.TENANT]
        others = tuple(batch for batch in batches if batch.kind is not EntityKind.TENANT)
        counts = _by_service(own, adapter_of)
        self._forget(counts)
        named = {
            tenant_of(service, name): row
            for service, by_tenant in counts.items()
            for name, row in self._folded(service, by_tenant).items()
        }
        if not named:
            return others
        values = np.stack(list(named.values()))
        status = np.where(np.isnan(values), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
        seconds = [batch.interval_seconds for batch in own if batch.interval_seconds is not None]
        interval = float(np.median(seconds)) if seconds else None
        return (
            *others,
            SampleBatch("tenants", at, EntityKind.TENANT, tenant_keys(), tuple(named), values, status, interval),
        )

    def _folded(self, service: EntityRef, by_tenant: Mapping[str, Floats]) -> _ByTenant:
        limit = self._limits.setdefault(service, CardinalityLimit(self._most))
        limit.count({name: _weight(row) for name, row in by_tenant.items() if name != NO_TENANT})
        folded: _ByTenant = {}
        for name, row in by_tenant.items():
            _add(folded, name if name == NO_TENANT else limit.name(name), row)
        return folded

    def _forget(self, present: Mapping[EntityRef, object]) -> None:
        """Limits the memory: services without tenants make room for others."""
        if len(self._limits) > _MOST_SERVICES:
            self._limits = {service: limit for service, limit in self._limits.items() if service in present}


def _by_service(batches: Sequence[SampleBatch], adapter_of: Mapping[str, str]) -> dict[EntityRef, _ByTenant]:
    """Counts of every tenant by service, from the adapter nearest to the edge."""
    counts: dict[EntityRef, dict[int, _ByTenant]] = {}
    for batch in batches:
        rank = rank_of(adapter_of.get(batch.source, ""))
        for tenant, row in _rows(batch):
            _add(counts.setdefault(service_of(tenant), {}).setdefault(rank, {}), name_of(tenant), row)
    return {service: by_rank[min(by_rank)] for service, by_rank in counts.items()}


def _rows(batch: SampleBatch) -> Iterator[tuple[EntityRef, Floats]]:
    """Each tenant with a value in the columns of ``tenant_keys``; NaN where there is none."""
    place = {key: column for column, key in enumerate(tenant_keys())}
    known = [column for column, key in enumerate(batch.keys) if key in place]
    target = [place[batch.keys[column]] for column in known]
    values = np.where(batch.status[:, known] == CellStatus.PRESENT, batch.values[:, known], np.nan)
    for row, tenant in enumerate(batch.entities):
        if np.isfinite(values[row]).any():
            result = np.full(len(place), np.nan)
            result[target] = values[row]
            yield tenant, result


def _add(rows: _ByTenant, name: str, row: Floats) -> None:
    """Adds a row to that of a name; a missing value adds nothing."""
    before = rows.get(name)
    if before is None:
        rows[name] = row
        return
    lacking = np.isnan(before) & np.isnan(row)
    rows[name] = np.where(lacking, np.nan, np.nan_to_num(before) + np.nan_to_num(row))


def _weight(row: Floats) -> float:
    """The traffic of a tenant: its prompt tokens, or its requests if tokens are not counted."""
    tokens, requests = (row[tenant_keys().index(key)] for key in (_TOKENS, _REQUESTS))
    return float(tokens if np.isfinite(tokens) else np.nan_to_num(requests))
