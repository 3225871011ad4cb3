"""Prompt tokens by tenant: the pages of all gateways added up, and the smallest tenants of a service folded together.

Tenants have unbounded names, so a service keeps its largest ones and sums the others as ``other``. If adapters that see
the same traffic name the tenants of a service, the one nearest to the edge counts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime

import numpy as np

from collectors.normalise.source_precedence import rank_of
from outrider.model import CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey
from outrider.vocabulary.tenants import NO_TENANT, name_of, service_of, tenant_of
from outrider.wire.cardinality import CardinalityLimit

MOST_TENANTS = 20
_MOST_SERVICES = 1_000  # with a memory of their largest tenants
_TOKENS = SignalKey("tenant_prompt_tokens_total")


class TenantTokens:
    """Replaces the batches of tenants by one of the largest tenants of each service."""

    def __init__(self, most: int = MOST_TENANTS) -> None:
        """At most ``most`` tenants of a service keep their names."""
        self._most = most
        self._limits: dict[EntityRef, CardinalityLimit] = {}

    def merge(
        self, batches: Sequence[SampleBatch], adapter_of: Mapping[str, str], at: datetime
    ) -> tuple[SampleBatch, ...]:
        """Returns the batches with one batch of tenants, none without tenants. ``adapter_of``: target -> adapter."""
        own = [batch for batch in batches if batch.kind is EntityKind.TENANT and _TOKENS in batch.keys]
        others = tuple(batch for batch in batches if batch.kind is not EntityKind.TENANT)
        tokens = _by_service(own, adapter_of)
        self._forget(tokens)
        named = {
            tenant_of(service, name): value
            for service, by_tenant in tokens.items()
            for name, value in self._folded(service, by_tenant).items()
        }
        if not named:
            return others
        values = np.array(list(named.values()))[:, None]
        status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
        seconds = [batch.interval_seconds for batch in own if batch.interval_seconds is not None]
        interval = float(np.median(seconds)) if seconds else None
        return (
            *others,
            SampleBatch("tenants", at, EntityKind.TENANT, (_TOKENS,), tuple(named), values, status, interval),
        )

    def _folded(self, service: EntityRef, by_tenant: Mapping[str, float]) -> dict[str, float]:
        limit = self._limits.setdefault(service, CardinalityLimit(self._most))
        unnamed = {NO_TENANT: by_tenant[NO_TENANT]} if NO_TENANT in by_tenant else {}
        rest = {name: value for name, value in by_tenant.items() if name != NO_TENANT}
        limit.count(rest)
        return limit.fold(rest) | unnamed

    def _forget(self, present: Mapping[EntityRef, object]) -> None:
        """Limits the memory: services without tenants make room for others."""
        if len(self._limits) > _MOST_SERVICES:
            self._limits = {service: limit for service, limit in self._limits.items() if service in present}


def _by_service(batches: Sequence[SampleBatch], adapter_of: Mapping[str, str]) -> dict[EntityRef, dict[str, float]]:
    """Tokens of every tenant by service, from the adapter nearest to the edge."""
    tokens: dict[EntityRef, dict[int, dict[str, float]]] = {}
    for batch in batches:
        rank, column = rank_of(adapter_of.get(batch.source, "")), batch.keys.index(_TOKENS)
        for row in np.flatnonzero(batch.status[:, column] == CellStatus.PRESENT).tolist():
            tenant, value = batch.entities[row], float(batch.values[row, column])
            own = tokens.setdefault(service_of(tenant), {}).setdefault(rank, {})
            own[name_of(tenant)] = own.get(name_of(tenant), 0.0) + value
    return {service: by_rank[min(by_rank)] for service, by_rank in tokens.items()}
