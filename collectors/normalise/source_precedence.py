"""What several pages say of one service becomes one number. Pure but for the batches, which are changed in place.

Every sidecar, gateway and agent sees a part of a service's traffic: what the pages of one adapter say is added up.
Adapters that look at the same traffic are not: the one nearest to the edge counts. Routers and gateways stand before
what a service counts of itself and what is derived from its replicas, because they also see what never reached one;
agents that watch a kernel stand behind.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model import CellStatus, EntityKind, EntityRef, Floats, SampleBatch, SignalKey, SignalKind
from outrider.vocabulary import catalog

# Nearest to the edge first; "" is what is derived from replicas.
_RANKS = (
    "epp", "dynamo", "vllm_router", "ray_serve", "otel_genai", "knative", "envoy", "istio", "sdk", "", "hubble", "obi",
    "coroot",
)  # fmt: skip
_RANK = {adapter: rank for rank, adapter in enumerate(_RANKS)}
_WEIGHT = "svc_requests_total"
# Each page tells all of it.
_LARGEST = frozenset({"svc_ready_backends", "svc_pool_saturation_ratio", "svc_kpi_value"})


@dataclass(frozen=True, slots=True)
class _ServiceReport:
    """One batch that has values of one signal for one service."""

    adapter: str
    batch: SampleBatch
    row: int
    columns: NDArray[np.intp]
    weight: float

    @property
    def keys(self) -> tuple[SignalKey, ...]:
        """What the columns are."""
        return tuple(self.batch.keys[column] for column in self.columns)

    @property
    def values(self) -> Floats:
        """The cells as they are."""
        found: Floats = self.batch.values[self.row, self.columns]
        return found

    def set_values(self, values: Floats) -> None:
        """Take other values in their place."""
        self.batch.values[self.row, self.columns] = values

    def clear(self) -> None:
        """Leave the word to another."""
        self.batch.values[self.row, self.columns] = np.nan
        self.batch.status[self.row, self.columns] = CellStatus.ABSENT


def apply_precedence(
    batches: Iterable[SampleBatch], derived: Iterable[SampleBatch], adapter_of: Mapping[str, str]
) -> None:
    """Let one batch speak for each signal of each service. ``adapter_of``: target name -> adapter.

    Pages of adapters that do not look at traffic, such as the probe, are left as they are.
    """
    newest = {  # a source may have been read more than once in a round; each of its pages has a time of its own
        batch.source: batch
        for batch in batches
        if batch.kind is EntityKind.SERVICE and adapter_of.get(batch.source) in _RANK
    }
    scraped = [(adapter_of[source], batch) for source, batch in newest.items()]
    if not scraped:
        return
    ours = [("", batch) for batch in derived if batch.kind is EntityKind.SERVICE]
    found: dict[tuple[EntityRef, str], list[_ServiceReport]] = {}
    for adapter, batch in (*scraped, *ours):
        for telling, service, name in _service_reports(adapter, batch):
            found.setdefault((service, name), []).append(telling)
    for (_, name), tellings in found.items():
        if len(tellings) > 1:
            _resolve(name, tellings)


def _service_reports(adapter: str, batch: SampleBatch) -> Iterable[tuple[_ServiceReport, EntityRef, str]]:
    columns: dict[str, list[int]] = {}
    for column, key in enumerate(batch.keys):
        columns.setdefault(key.name, []).append(column)
    signals = {name: np.array(found, dtype=np.intp) for name, found in columns.items() if name.startswith("svc_")}
    weight = batch.keys.index(SignalKey(_WEIGHT)) if SignalKey(_WEIGHT) in batch.keys else -1
    for row, service in enumerate(batch.entities):
        requests = float(batch.values[row, weight]) if weight >= 0 else np.nan
        for name, places in signals.items():
            if (batch.status[row, places] == CellStatus.PRESENT).any():
                yield _ServiceReport(adapter, batch, row, places, requests), service, name


def _resolve(name: str, tellings: Sequence[_ServiceReport]) -> None:
    best = min(tellings, key=lambda one: _RANK[one.adapter]).adapter
    speakers = [one for one in tellings if one.adapter == best]
    if len(speakers) > 1:
        speakers[0].set_values(_joined(name, speakers))
    for one in tellings:
        if one is not speakers[0]:
            one.clear()


def _joined(name: str, speakers: Sequence[_ServiceReport]) -> Floats:
    """The cells of all pages of one adapter as those of one."""
    values = np.stack([one.values for one in speakers])
    there = np.isfinite(values)
    is_mean = catalog.signal(name).kind is SignalKind.HISTOGRAM and values.shape[1] == 1
    if name in _LARGEST or any(key.quantile is not None for key in speakers[0].keys):  # quantiles cannot be merged
        joined = np.where(there, values, -np.inf).max(axis=0)
    elif (
        catalog.signal(name).unit == "ratio" or is_mean
    ):  # each page counts by its requests, alike where some page does not tell them
        requests = np.array([one.weight for one in speakers])
        known = np.isfinite(requests).all() and requests.sum() > 0
        weights = (requests if known else np.ones(len(speakers)))[:, None] * there
        joined = (np.where(there, values, 0.0) * weights).sum(axis=0) / np.maximum(weights.sum(axis=0), 1e-300)
    else:
        joined = np.where(there, values, 0.0).sum(axis=0)
    return np.asarray(np.where(there.any(axis=0), joined, np.nan))
