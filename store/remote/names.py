"""How a stored column is called on a Prometheus-compatible server, and back. Pure.

A series is one column of one entity: ``outrider_<signal>`` with the labels ``cluster``, ``kind``,
``namespace`` (where there is one) and ``name`` of the entity, and ``outrider``, which says whose it
is. Buckets are ``outrider_<signal>_bucket`` with ``le``, cumulated over the bounds as Prometheus has
them, so that ``histogram_quantile`` reads them; their sum is ``outrider_<signal>_sum``. What a source
without buckets worked out itself is ``outrider_<signal>_mean``, and ``outrider_<signal>`` with
``quantile``. The recording rules of ``outrider promql`` call a signal the same behind their colon.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from outrider.model import SUM_BUCKET, EntityKind, EntityRef, SignalKey, SignalKind
from outrider.vocabulary import catalog

PREFIX: Final = "outrider_"
STATUS_METRIC: Final = "outrider_cell_status"
"""Why a cell has no number: the number of the ``CellStatus``; label ``signal`` spells the column, ``name#*`` all
columns of a histogram. Cells that are present or absent have none."""
CYCLE_METRIC: Final = "outrider_stored_cycle_microseconds"
"""One series a kind, written once everything else of a cycle is: its value is the cycle's exact instant. Label
``write`` is 2 where its millisecond was taken: the instant was written again, and what stood there before is not read
any more, or another instant has the same millisecond."""
OWNER: Final = "outrider"
FIRST, AGAIN = "1", "2"
WHOLE: Final = "#*"


@dataclass(frozen=True, slots=True)
class SeriesName:
    """A metric with the labels that tell its columns apart; those of the entity come beside them."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()


@cache
def bounds_of(signal: str) -> tuple[float, ...]:
    """The bucket bounds of a catalogued histogram, empty for everything else."""
    known = catalog.signals().get(signal)
    return () if known is None else known.bounds


@cache
def spelled_bounds(signal: str) -> tuple[str, ...]:
    """The ``le`` of every bucket of a catalogued histogram, +Inf last."""
    return (*(f"{bound:.12g}" for bound in bounds_of(signal)), "+Inf")


@cache
def name_of(key: SignalKey) -> SeriesName:
    """The series of a column."""
    metric = PREFIX + key.name
    if key.quantile is not None:
        return SeriesName(metric, (("quantile", f"{key.quantile:g}"),))
    if key.bucket is None:
        return SeriesName(f"{metric}_mean" if _is_histogram(key.name) else metric)
    if not bounds_of(key.name):
        return SeriesName(metric, (("bucket", str(key.bucket)),))
    if key.bucket == SUM_BUCKET:
        return SeriesName(f"{metric}_sum")
    return SeriesName(f"{metric}_bucket", (("le", spelled_bounds(key.name)[key.bucket]),))


def key_of(labels: Mapping[str, str]) -> SignalKey | None:
    """The column of a series by its labels, ``__name__`` among them; None for what is no column of ours."""
    metric = labels.get("__name__", "")
    if not metric.startswith(PREFIX) or metric in {STATUS_METRIC, CYCLE_METRIC}:
        return None
    name = metric.removeprefix(PREFIX)
    if "quantile" in labels:
        return SignalKey(name, quantile=float(labels["quantile"]))
    if "bucket" in labels:
        return SignalKey(name, bucket=int(labels["bucket"]))
    for ending in ("_bucket", "_sum", "_mean"):
        base = name.removesuffix(ending)
        if base != name and _is_histogram(base):
            return _of_histogram(base, ending, labels)
    return SignalKey(name)


def _of_histogram(name: str, ending: str, labels: Mapping[str, str]) -> SignalKey | None:
    if ending == "_mean":
        return SignalKey(name)
    if ending == "_sum":
        return SignalKey(name, bucket=SUM_BUCKET)
    known = spelled_bounds(name)
    le = labels.get("le", "")
    return SignalKey(name, bucket=known.index(le)) if le in known else None


def _is_histogram(name: str) -> bool:
    known = catalog.signals().get(name)
    return known is not None and known.kind is SignalKind.HISTOGRAM


def entity_of(labels: Mapping[str, str], kind: EntityKind) -> EntityRef:
    """The entity that a series is about."""
    return EntityRef(labels.get("cluster", ""), kind, labels.get("namespace") or None, labels.get("name", ""))
