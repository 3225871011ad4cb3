"""What one look at a machine's accelerators brought. Pure: no library is asked here.

``values`` go by the names and units that dcgm-exporter prints, because that is what the page shows; a
value that a device did not tell is not there, and never zero.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

from outrider.errors import UnavailableError


@dataclass(frozen=True, slots=True)
class Instance:
    """A MIG instance. ``number`` is its GPU instance id, unique on its device; ``uuid`` "" when not known."""

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
class Name:
    """What stays the same about a device. ``minor`` is the number in ``/dev/nvidiaN``."""

    uuid: str
    index: int
    model: str = ""
    pci: str = ""
    minor: int | None = None


@dataclass(frozen=True, slots=True)
class Device:
    """One device and what it said."""

    name: Name
    values: Mapping[str, float]
    instances: tuple[Instance, ...] = ()
    processes: tuple[Process, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """One look. ``lost`` are devices that were there since the driver was loaded and no longer answer.

    ``traffic_is_rate``: bytes of links are per second (DCGM's profiling), else they are counted (the driver).
    """

    driver: str
    devices: tuple[Device, ...]
    lost: tuple[Name, ...] = ()
    traffic_is_rate: bool = False


@dataclass(frozen=True, slots=True)
class Xid:
    """The driver told of a fault. ``instance`` is the GPU instance it was in, None for the whole device."""

    at: datetime
    device: Name
    code: int
    instance: int | None = None


class AcceleratorsAwayError(UnavailableError):
    """No accelerator can be read now; later it may be possible again."""


class Reader(Protocol):
    """A library that reads the devices of this machine. Not safe for several threads: call it from one."""

    name: str

    def read(self) -> Reading:
        """One look at every device. Raises AcceleratorsAwayError; the next look starts anew."""
        ...

    def wait(self, limit: timedelta) -> list[Xid] | None:
        """XIDs since the last call, oldest first; None, at once, while there is nothing to listen to.

        Waits for the first one, but no longer than ``limit``.
        """
        ...

    def close(self) -> None:
        """Let go of the library."""
        ...


@dataclass(slots=True)
class XidLedger:
    """The XIDs of each device since this process began. dcgm-exporter's gauge and count are made from it."""

    window: timedelta = timedelta(minutes=5)  # what dcgm-exporter counts over when nothing else is set
    last: dict[str, Xid] = field(default_factory=dict)
    _recent: list[Xid] = field(default_factory=list)

    def add(self, xid: Xid) -> None:
        """Note one."""
        self.last[xid.device.uuid] = xid
        self._recent.append(xid)

    def counts(self, at: datetime) -> dict[tuple[str, int], int]:
        """How many of each device and code there were in the window before ``at``."""
        self._recent = [one for one in self._recent if one.at > at - self.window]
        found: dict[tuple[str, int], int] = {}
        for one in self._recent:
            key = (one.device.uuid, one.code)
            found[key] = found.get(key, 0) + 1
        return found


def as_text(value: str | bytes) -> str:
    """What a binding told: those of one age give bytes, of another text."""
    return value.decode("utf-8", errors="replace") if isinstance(value, bytes) else value
