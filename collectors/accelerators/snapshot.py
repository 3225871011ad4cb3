"""Data model of one reading of a node's accelerators. Pure: no library is called here.

``values`` use dcgm-exporter's names and units, because the page shows these. A value that a device did not report
is missing, never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from outrider.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance. ``number`` is its GPU instance id, unique on its device; ``uuid`` is "" if unknown."""

    number: int
    uuid: str
    profile: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Process:
    """A process with a context on a device. ``instance`` is the GPU instance it runs in."""

    pid: int
    memory_bytes: float | None
    instance: int | None = None


@dataclass(frozen=True, slots=True)
class DeviceName:
    """Constant properties of a device. ``minor`` is the number in ``/dev/nvidiaN``."""

    uuid: str
    index: int
    model: str = ""
    pci: str = ""
    minor: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One device and its values."""

    name: DeviceName
    values: Mapping[str, float]
    instances: tuple[Instance, ...] = ()
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True)
class AcceleratorSnapshot:
    """One reading. ``lost`` are devices that were present since the driver was loaded and do not respond.

    ``traffic_is_rate``: link bytes are per second (DCGM's profiling), else cumulative (the driver).
    """

    driver: str
    devices: tuple[Device, ...]
    lost: tuple[DeviceName, ...] = ()
    traffic_is_rate: bool = False


@dataclass(frozen=True, slots=True)
class Xid:
    """A fault reported by the driver. ``instance`` is its GPU instance, None for the whole device."""

    at: datetime
    device: DeviceName
    code: int
    instance: int | None = None


class AcceleratorsUnavailableError(UnavailableError):
    """No accelerator can be read now; later it may be possible again."""


class Reader(Protocol):
    """A library that reads the devices of this node. Not thread-safe: call it from one thread."""

    name: str

    def read(self) -> AcceleratorSnapshot:
        """Reads every device. Raises AcceleratorsUnavailableError; the next reading starts afresh."""
        ...

    def wait(self, limit: timedelta) -> list[Xid] | None:
        """XIDs since the last call, oldest first; None, at once, if there is nothing to wait for.

        Waits for the first one, at most ``limit``.
        """
        ...

    def close(self) -> None:
        """Shuts the library down."""
        ...


@dataclass(slots=True)
class XidLedger:
    """XIDs of each device since this process started. Source of dcgm-exporter's gauge and count."""

    window: timedelta = timedelta(minutes=5)  # dcgm-exporter's default window
    last: dict[str, Xid] = field(default_factory=dict)
    _recent: list[Xid] = field(default_factory=list)

    def add(self, xid: Xid) -> None:
        """Records an XID."""
        self.last[xid.device.uuid] = xid
        self._recent.append(xid)

    def counts(self, at: datetime) -> dict[tuple[str, int], int]:
        """Number of XIDs of each device and code in the window before ``at``."""
        self._recent = [xid for xid in self._recent if xid.at > at - self.window]
        counts: dict[tuple[str, int], int] = {}
        for xid in self._recent:
            key = (xid.device.uuid, xid.code)
            counts[key] = counts.get(key, 0) + 1
        return counts


def as_text(value: str | bytes) -> str:
    """A binding's string: old versions return bytes, others text."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
