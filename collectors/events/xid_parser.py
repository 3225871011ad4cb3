"""The driver's line about an XID, as the kernel log has it and as others quote it. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from collectors.events.unresolved_event import MOST_TEXT

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{5,20})([^)]*)\): (\d{1,5})\b,?\s*(.*)", re.DOTALL)
_INSTANCE = re.compile(r"GPU-I:0*(\d+)")
_PROCESS = re.compile(r"pid='?(?P<pid>[^',]+)'?,\s*(?:name='?(?P<name>[^',]+)'?,\s*)?")
# GPU, graphics cluster and texture cluster where an exception arose: repeats at one place speak for the hardware
_PLACE = re.compile(r"\bGPC[ =]?(\d+),? *TPC[ =]?(\d+)")


@dataclass(frozen=True, slots=True)
class XidLine:
    """What the line says. ``code`` has no leading zeros."""

    pci: str
    code: str
    attributes: Mapping[str, str]


def read(message: str) -> XidLine | None:
    """The XID a message tells; None for any other message."""
    match = _XID.search(message)
    if match is None:
        return None
    pci, part, code, rest = match.groups()
    found = {"xid": code, "pci": pci}
    instance, process, place = _INSTANCE.search(part), _PROCESS.match(rest), _PLACE.search(rest)
    if instance is not None:
        found["gpu_instance"] = instance[1]
    if process is not None:
        found |= {name: value for name, value in process.groupdict().items() if value}
        rest = rest[process.end() :]
    if place is not None:
        found["unit"] = f"GPC {place[1]}, TPC {place[2]}"
    found["text"] = rest.strip()[:MOST_TEXT]
    return XidLine(pci, str(int(code)), found)
