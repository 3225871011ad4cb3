"""Signs of unambiguous hard faults in one scrape or reading, without any window. Pure.

A sign only asks for an early decision. The detectors then judge the same values, as in every cycle.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from detectors.hardware.xid import codes
from outrider.model import (
    CellStatus,
    EntityKind,
    EntityRef,
    Event,
    EventKind,
    Floats,
    SampleBatch,
    SignalKey,
    TrustVerdict,
)

# Classes of codes that end in a reset or a reboot whatever else is seen; other codes may blame an application.
FATAL_CLASSES = frozenset({"node_reboot", "gpu_reset", "gpu_drain_reset"})
MOST_AGE = timedelta(minutes=2)  # an older event belongs to the first reading after a restart
REFUSED = 1.0  # target_failure_code
# A page with a missing device is PARTIAL by definition. After a reset or from a cache, values are left to the cycle.
_READABLE = frozenset({TrustVerdict.FRESH, TrustVerdict.PARTIAL, TrustVerdict.DUPLICATE, TrustVerdict.EXPLOSION})
_SEEN, _ECC = SignalKey("hw_accel_seen"), SignalKey("hw_accel_ecc_uncorrectable_total")
_UP, _CODE, _HEALTH = SignalKey("engine_up"), SignalKey("target_failure_code"), SignalKey("engine_health_ok")


@dataclass(frozen=True, slots=True)
class HardFaultSign:
    """A component that one scrape or reading shows as broken, and the fault."""

    entity: EntityRef
    fault: str


def signs_of(batches: Iterable[SampleBatch], events: Iterable[Event], now: datetime) -> frozenset[HardFaultSign]:
    """Returns the signs of one scrape or reading. A page of doubtful age or after a reset has none."""
    batches = tuple(batches)
    failed = all(batch.trust is TrustVerdict.FAILED for batch in batches)
    readable = failed or all(batch.trust in _READABLE for batch in batches)
    if not readable:
        return frozenset()
    return frozenset((*_codes(events, now), *(sign for batch in batches for sign in _of_batch(batch))))


def _codes(events: Iterable[Event], now: datetime) -> Iterator[HardFaultSign]:
    for event in events:
        known = codes().get(event.code) if event.kind is EventKind.XID else None
        if known is not None and known.fault and known.name in FATAL_CLASSES and now - event.at <= MOST_AGE:
            yield HardFaultSign(event.entity, known.fault)


def _of_batch(batch: SampleBatch) -> Iterator[HardFaultSign]:
    if batch.kind is EntityKind.GPU:
        seen = _column(batch, _SEEN)
        if (seen == 1).any():  # without any device, the exporter is the more likely cause: left to the cycle
            yield from _signs(batch, seen == 0, "gpu-lost")
        yield from _signs(batch, _column(batch, _ECC) > 0, "gpu-ecc-uncorrectable")
    elif batch.kind is EntityKind.REPLICA:
        refused = (_column(batch, _UP) == 0) & (_column(batch, _CODE) == REFUSED)
        yield from _signs(batch, refused, "engine-dead")
        yield from _signs(batch, _column(batch, _HEALTH) == 0, "engine-core-dead")


def _column(batch: SampleBatch, key: SignalKey) -> Floats:
    """The present values of a signal, NaN for any other cell."""
    if key not in batch.keys:
        return np.full(len(batch.entities), np.nan)
    index = batch.keys.index(key)
    values: Floats = np.where(batch.status[:, index] == CellStatus.PRESENT, batch.values[:, index], np.nan)
    return values


def _signs(batch: SampleBatch, rows: np.ndarray, fault: str) -> Iterator[HardFaultSign]:
    return (HardFaultSign(batch.entities[row], fault) for row in np.flatnonzero(rows))
