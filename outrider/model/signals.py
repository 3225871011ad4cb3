"""Names and kinds of columns, and the status of cells."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum, StrEnum


class SignalKind(StrEnum):
    """Kind of a column of values. Counters are stored as DELTA: the increase since the last scrape."""

    GAUGE = "gauge"
    DELTA = "delta"
    STATE = "state"
    HISTOGRAM = "histogram"


class Statistic(StrEnum):
    """Statistic of a gauge or state with several values in one step of a window."""

    LAST = "last"
    MEAN = "mean"
    MIN = "min"
    MAX = "max"


class Layer(StrEnum):
    """Layer of a signal, a fault or an incident."""

    HARDWARE = "hardware"
    PLATFORM = "platform"
    ENGINE = "engine"
    TRAFFIC = "traffic"
    BUSINESS = "business"
    MONITORING = "monitoring"


class CellStatus(IntEnum):
    """Status of a cell.

    Safety rule 1 (hold scale-in and cordon) refers to ABSENT, STALE, RESET and UNTRUSTED; rule 2 (zero traffic still
    scales in) to UNDEFINED.
    """

    PRESENT = 0
    UNDEFINED = 1  # 0/0 on a fresh page: without events the ratio or quantile has no value
    BELOW_FIRST_BUCKET = 2  # the value is the first bound; the true value is below it
    ABSENT = 3
    STALE = 4
    RESET = 5
    UNTRUSTED = 6


HOLDING_STATUSES = (CellStatus.ABSENT, CellStatus.STALE, CellStatus.RESET, CellStatus.UNTRUSTED)
SUM_BUCKET = -1


@dataclass(frozen=True, slots=True)
class SignalKey:
    """One column of values.

    ``quantile`` is set for a quantile derived from a histogram. ``bucket`` is set for a raw histogram column: the index
    in the signal's fixed buckets (the last index is +Inf) whose increments the column holds, not cumulative;
    ``SUM_BUCKET`` holds the increase of the sum.
    """

    name: str
    quantile: float | None = None
    bucket: int | None = None

    def __str__(self) -> str:
        """``name``, ``name@0.99`` or ``name#3``: the format in the store."""
        if self.quantile is not None:
            return f"{self.name}@{self.quantile:g}"
        return self.name if self.bucket is None else f"{self.name}#{self.bucket}"

    @staticmethod
    def parse(text: str) -> SignalKey:
        """Parses the output of ``str``."""
        if "@" in text:
            name, quantile = text.split("@", 1)
            return SignalKey(name, quantile=float(quantile))
        if "#" in text:
            name, bucket = text.split("#", 1)
            return SignalKey(name, bucket=int(bucket))
        return SignalKey(text)


def signal_keys(*names: str) -> tuple[SignalKey, ...]:
    """The plain columns of several signals, in their order."""
    return tuple(SignalKey(name) for name in names)
