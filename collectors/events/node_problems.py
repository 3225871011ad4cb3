"""Device faults reported by node-problem-detector and similar agents, as XID events. Pure.

They arrive as Kubernetes Events about a node. Of a kernel-log monitor the message is the line itself, or ends
with it (``Node condition X is now: True, reason: R, message: "LINE"``). Of a plug-in the reason names the code
(``Xid79``, ``NvidiaXID48Error``). NVSentinel sets conditions such as ``SysLogsXIDError`` with a message
``ErrorCode:79 PCI:... Recommended Action=...``. A condition that turns False again is not a fault.
"""

from __future__ import annotations

import re
from dataclasses import replace

from collectors.events import xid_parser
from collectors.events.unresolved_event import UnresolvedEvent
from outrider.model import EntityKind, EventKind

_REASON = re.compile(r"(?i)xid[-_ ]?0*(\d{1,3})(?!\d)")
_CLEARED = re.compile(r"\bis now: (?:False|Unknown)\b")
_XID_CHECK = re.compile(r"(?<!S)X[Ii][Dd]")  # SysLogsXIDError, GpuXidError; SXIDs are of NVSwitches
_CODE = re.compile(r"\bErrorCode:0*(\d{1,3})\b")
_PCI = re.compile(r"\bPCI:([0-9a-fA-F:.]{5,20})")


def read(event: UnresolvedEvent) -> UnresolvedEvent:
    """Returns the device fault that a node's Event reports; the Event unchanged if it reports none."""
    if event.kind is not EventKind.KUBERNETES or event.entity.kind is not EntityKind.NODE or event.pci:
        return event
    message = event.attributes.get("text", "")
    if _CLEARED.search(message):
        return event
    line = xid_parser.read(message)
    if line is not None:
        attributes = {**event.attributes, **line.attributes, "reason": event.code}
        return replace(event, kind=EventKind.XID, code=line.code, attributes=attributes, pci=line.pci)
    reason = _REASON.search(event.code)
    if reason is None and _XID_CHECK.search(event.code):
        reason = _CODE.search(message)
    if reason is None or int(reason[1]) == 0:
        return event
    pci = _PCI.search(message)
    attributes = {**event.attributes, "xid": reason[1], "reason": event.code}
    return replace(event, kind=EventKind.XID, code=reason[1], attributes=attributes, pci=pci[1] if pci else "")
