"""Series names of stored columns on a Prometheus-compatible server, in both directions. Pure.

A series is one column of one entity: ``outrider_<signal>`` with the labels ``cluster``, ``kind``, ``namespace`` (if
any) and ``name`` of the entity, and ``outrider``, its owner. Buckets are ``outrider_<signal>_bucket`` with ``le``,
cumulative as in Prometheus, for ``histogram_quantile``; their sum is ``outrider_<signal>_sum``. Statistics computed by
a source without buckets are ``outrider_<signal>_mean``, and ``outrider_<signal>`` with ``quantile``. The recording
rules of ``outrider promql`` use the same names after their colon.
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
"""Status of a cell without a number, as the number of its ``CellStatus``.

Label ``signal`` is the column, ``name#*`` all columns of a histogram. Present and absent cells have none.
"""
CYCLE_METRIC: Final = "outrider_stored_cycle_microseconds"
"""One series per kind, written after everything else of a cycle: its value is the exact timestamp of the cycle. Label
``write`` is 2 if its millisecond was in use: the timestamp was written again, which replaces the previous samples, or
another timestamp has the same millisecond.
"""
OWNER: Final = "outrider"
FIRST, AGAIN = "1", "2"
WHOLE: Final = "#*"


@dataclass(frozen=True, slots=True)
class SeriesName:
    """A metric with the labels that distinguish its columns, without those of the entity."""

    metric: str
    labels: tuple[tuple[str, str], ...] = ()


@cache
def bounds_of(signal: str) -> tuple[float, ...]:
    """The bucket bounds of a histogram in the catalog; empty for any other signal."""
    known = catalog.signals().get(signal)
    return () if known is None else known.bounds


@cache
def spelled_bounds(signal: str) -> tuple[str, ...]:
    """The ``le`` of every bucket of a histogram in the catalog, +Inf last."""
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
    """The column of a series, by its labels with ``__name__``; None for a foreign series."""
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
    """The entity of a series."""
    return EntityRef(labels.get("cluster", ""), kind, labels.get("namespace") or None, labels.get("name", ""))
