"""The driver's log line about an XID, in the kernel log or quoted by others. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from collectors.events.unresolved_event import MOST_TEXT

_XID = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:.]{5,20})([^)]*)\): (\d{1,5})\b,?\s*(.*)", re.DOTALL)
_INSTANCE = re.compile(r"GPU-I:0*(\d+)")
_PROCESS = re.compile(r"pid='?(?P<pid>[^',]+)'?,\s*(?:name='?(?P<name>[^',]+)'?,\s*)?")
# GPU, graphics cluster and texture cluster of an exception: repeats in one unit indicate a hardware fault
_UNIT = re.compile(r"\bGPC[ =]?(\d+),? *TPC[ =]?(\d+)")


@dataclass(frozen=True, slots=True)
class XidLine:
    """Parsed XID line. ``code`` has no leading zeros."""

    pci: str
    code: str
    attributes: Mapping[str, str]


def read(message: str) -> XidLine | None:
    """Returns the XID in a message; None for any other message."""
    match = _XID.search(message)
    if match is None:
        return None
    pci, suffix, code, rest = match.groups()
    attributes = {"xid": code, "pci": pci}
    instance, process, unit = _INSTANCE.search(suffix), _PROCESS.match(rest), _UNIT.search(rest)
    if instance is not None:
        attributes["gpu_instance"] = instance[1]
    if process is not None:
        attributes |= {name: value for name, value in process.groupdict().items() if value}
        rest = rest[process.end() :]
    if unit is not None:
        attributes["unit"] = f"GPC {unit[1]}, TPC {unit[2]}"
    attributes["text"] = rest.strip()[:MOST_TEXT]
    return XidLine(pci, str(int(code)), attributes)
