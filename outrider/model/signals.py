"""How a column of values is named and read, and why a cell holds what it holds."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class SignalKind(StrEnum):
    """How a column of values is read. Counters are stored as DELTA: the increase since the last scrape."""

    GAUGE = "gauge"
    DELTA = "delta"
    STATE = "state"
    HISTOGRAM = "histogram"


class Statistic(StrEnum):
    """What a step of a window says of a gauge or state that had several values in it."""

    LAST = "last"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"


class Layer(StrEnum):
    """Where a signal, a fault or an incident sits."""

    HARDWARE = "hardware"
    PLATFORM = "platform"
    ENGINE = "engine"
    TRAFFIC = "traffic"
    BUSINESS = "business"
    MONITORING = "monitoring"


class CellStatus(IntEnum):
    """Why a cell holds the value it holds.

    Safety rule 1 (hold scale-in and cordon) is about ABSENT, STALE, RESET and UNTRUSTED; rule 2
    (zero traffic still scales in) about UNDEFINED.
    """

    PRESENT = 0
    UNDEFINED = 1  # 0/0 on a fresh page: nothing happened, so the ratio or quantile has no value
    BELOW_FIRST_BUCKET = 2  # the value is the first bound; the truth lies below it
    ABSENT = 3
    STALE = 4
    RESET = 5
    UNTRUSTED = 6


HOLDING_STATUSES = (CellStatus.ABSENT, CellStatus.STALE, CellStatus.RESET, CellStatus.UNTRUSTED)
SUM_BUCKET = -1


@dataclass(frozen=True, slots=True)
class SignalKey:
    """One column of values.

    ``quantile`` is set on a quantile derived from a histogram. ``bucket`` is set on a raw histogram
    column: the index into the signal's fixed ladder (the last index is +Inf) whose increments the
    column holds, not cumulated over buckets; ``SUM_BUCKET`` holds the increase of the sum.
    """

    name: str
    quantile: float | None = None
    bucket: int | None = None

    def __str__(self) -> str:
        """``name``, ``name@0.99`` or ``name#3``: the spelling used in the store."""
        if self.quantile is not None:
            return f"{self.name}@{self.quantile:g}"
        return self.name if self.bucket is None else f"{self.name}#{self.bucket}"

    @staticmethod
    def parse(text: str) -> SignalKey:
        """Read back what ``str`` wrote."""
        if "@" in text:
            name, quantile = text.split("@", 1)
            return SignalKey(name, quantile=float(quantile))
        if "#" in text:
            name, bucket = text.split("#", 1)
            return SignalKey(name, bucket=int(bucket))
        return SignalKey(text)
