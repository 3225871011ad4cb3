"""Merges the signals that several pages give of one service. Pure, but changes the batches in place.

Every sidecar, gateway and agent sees a part of a service's traffic: the pages of one adapter are added up.
Adapters that see the same traffic are not: the one nearest to the edge counts. Routers and gateways precede the
service's own counts and those derived from its replicas, because they also see requests that never reached a
replica. Agents that watch a kernel come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model import CellStatus, EntityKind, EntityRef, Floats, SampleBatch, SignalKey, SignalKind
from outrider.vocabulary import catalog

# Nearest to the edge first; "" stands for signals derived from replicas.
_RANKS = (
    "litellm", "epp", "dynamo", "vllm_router", "ray_serve", "otel_genai", "knative", "envoy", "istio", "sdk", "",
    "hubble", "obi", "coroot",
)  # fmt: skip
_RANK = {adapter: rank for rank, adapter in enumerate(_RANKS)}
_WEIGHT = "svc_requests_total"
# Each page gives the total.
_LARGEST = frozenset({"svc_ready_backends", "svc_pool_saturation_ratio", "svc_kpi_value"})


def rank_of(adapter: str) -> int:
    """Returns the distance of an adapter from the edge; the largest one for unknown adapters."""
    return _RANK.get(adapter, len(_RANKS))


@dataclass(frozen=True, slots=True)
class _ServiceReport:
    """One batch with values of one signal for one service."""

    adapter: str
    batch: SampleBatch
    row: int
    columns: NDArray[np.intp]
    weight: float

    @property
    def keys(self) -> tuple[SignalKey, ...]:
        """The keys of the columns."""
        return tuple(self.batch.keys[column] for column in self.columns)

    @property
    def values(self) -> Floats:
        """The cells."""
        cells: Floats = self.batch.values[self.row, self.columns]
        return cells

    def set_values(self, values: Floats) -> None:
        """Replaces the cells."""
        self.batch.values[self.row, self.columns] = values

    def clear(self) -> None:
        """Marks the cells ABSENT: another report takes precedence."""
        self.batch.values[self.row, self.columns] = np.nan
        self.batch.status[self.row, self.columns] = CellStatus.ABSENT


def apply_precedence(
    batches: Iterable[SampleBatch], derived: Iterable[SampleBatch], adapter_of: Mapping[str, str]
) -> None:
    """Leaves one batch with values for each signal of each service. ``adapter_of``: target name -> adapter.

    Pages of adapters that do not observe traffic, such as the probe, are unchanged.
    """
    newest = {  # a source may have been read more than once in a round; each page has its own time
        batch.source: batch
        for batch in batches
        if batch.kind is EntityKind.SERVICE and adapter_of.get(batch.source) in _RANK
    }
    scraped = [(adapter_of[source], batch) for source, batch in newest.items()]
    if not scraped:
        return
    own = [("", batch) for batch in derived if batch.kind is EntityKind.SERVICE]
    reports_by_signal: dict[tuple[EntityRef, str], list[_ServiceReport]] = {}
    for adapter, batch in (*scraped, *own):
        for report, service, name in _service_reports(adapter, batch):
            reports_by_signal.setdefault((service, name), []).append(report)
    for (_, name), reports in reports_by_signal.items():
        if len(reports) > 1:
            _resolve(name, reports)


def _service_reports(adapter: str, batch: SampleBatch) -> Iterable[tuple[_ServiceReport, EntityRef, str]]:
    columns: dict[str, list[int]] = {}
    for column, key in enumerate(batch.keys):
        columns.setdefault(key.name, []).append(column)
    signals = {
        name: np.array(columns_of_signal, dtype=np.intp)
        for name, columns_of_signal in columns.items()
        if name.startswith("svc_")
    }
    weight = batch.keys.index(SignalKey(_WEIGHT)) if SignalKey(_WEIGHT) in batch.keys else -1
    for row, service in enumerate(batch.entities):
        requests = float(batch.values[row, weight]) if weight >= 0 else np.nan
        for name, indices in signals.items():
            if (batch.status[row, indices] == CellStatus.PRESENT).any():
                yield _ServiceReport(adapter, batch, row, indices, requests), service, name


def _resolve(name: str, reports: Sequence[_ServiceReport]) -> None:
    best = min(reports, key=lambda report: _RANK[report.adapter]).adapter
    preferred = [report for report in reports if report.adapter == best]
    if len(preferred) > 1:
        preferred[0].set_values(_merged(name, preferred))
    for report in reports:
        if report is not preferred[0]:
            report.clear()


def _merged(name: str, reports: Sequence[_ServiceReport]) -> Floats:
    """The cells of all pages of one adapter, merged."""
    values = np.stack([report.values for report in reports])
    valid = np.isfinite(values)
    is_mean = catalog.signal(name).kind is SignalKind.HISTOGRAM and values.shape[1] == 1
    if name in _LARGEST or any(key.quantile is not None for key in reports[0].keys):  # quantiles cannot be merged
        merged = np.where(valid, values, -np.inf).max(axis=0)
    elif (
        catalog.signal(name).unit == "ratio" or is_mean
    ):  # weighted by requests; equal weights if a page does not report them
        requests = np.array([report.weight for report in reports])
        known = np.isfinite(requests).all() and requests.sum() > 0
        weights = (requests if known else np.ones(len(reports)))[:, None] * valid
        merged = (np.where(valid, values, 0.0) * weights).sum(axis=0) / np.maximum(weights.sum(axis=0), 1e-300)
    else:
        merged = np.where(valid, values, 0.0).sum(axis=0)
    return np.asarray(np.where(valid.any(axis=0), merged, np.nan))
