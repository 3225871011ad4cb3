"""What node-problem-detector and its kin say of devices, as the events it stands for. Pure.

Their word comes as a Kubernetes Event about a node: of a monitor of the kernel log the message is the line
itself, or ends with it (``Node condition X is now: True, reason: R, message: "LINE"``); of a plug-in the
reason names the code (``Xid79``, ``NvidiaXID48Error``). A condition that is False again tells of no fault.
"""

from __future__ import annotations

import re
from dataclasses import replace

from collectors.events import xid_parser
from collectors.events.unresolved_event import UnresolvedEvent
from outrider.model import EntityKind, EventKind

_REASON = re.compile(r"(?i)xid[-_ ]?0*(\d{1,3})(?!\d)")
_OVER = re.compile(r"\bis now: (?:False|Unknown)\b")
_PCI = re.compile(r"\bPCI:([0-9a-fA-F:.]{5,20})")


def read(seen: UnresolvedEvent) -> UnresolvedEvent:
    """The sighting of the fault that an Event of a node reports; the Event itself when it reports none."""
    if seen.kind is not EventKind.KUBERNETES or seen.entity.kind is not EntityKind.NODE or seen.pci:
        return seen
    message = seen.attributes.get("text", "")
    if _OVER.search(message):
        return seen
    line = xid_parser.read(message)
    if line is not None:
        told = {**seen.attributes, **line.attributes, "reason": seen.code}
        return replace(seen, kind=EventKind.XID, code=line.code, attributes=told, pci=line.pci)
    reason = _REASON.search(seen.code)
    if reason is None or int(reason[1]) == 0:
        return seen
    pci = _PCI.search(message)
    told = {**seen.attributes, "xid": reason[1], "reason": seen.code}
    return replace(seen, kind=EventKind.XID, code=reason[1], attributes=told, pci=pci[1] if pci else "")
