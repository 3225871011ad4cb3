"""Device faults in events of node-problem-detector and similar tools."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from collectors.events.node_problems import read
from collectors.events.unresolved_event import EntityResolver, UnresolvedEvent
from outrider.model import EntityKind, EntityRef, EventKind
from outrider.topology import Topology

AT = datetime(2026, 11, 18, 12, tzinfo=UTC)
NODE = EntityRef("c", EntityKind.NODE, None, "node-1")
GPU = EntityRef("c", EntityKind.GPU, None, "GPU-11111111-2222-3333-4444-555555555555")
LINE = "NVRM: Xid (PCI:0000:3b:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


def seen(reason: str, message: str, entity: EntityRef = NODE) -> UnresolvedEvent:
    reported = {"text": message, "component": "kernel-monitor"}
    return UnresolvedEvent(EventKind.KUBERNETES, reason, AT, "kubernetes", "kubernetes/c/uid/1", entity, reported)


@pytest.mark.parametrize(
    ("reason", "message", "code"),
    [
        ("GPUHardwareError", LINE, "79"),  # a rule of the kernel monitor: the message is the line
        ("Xid79", f'Node condition GPUHealthy is now: True, reason: Xid79, message: "{LINE}"', "79"),
        ("Xid74Detected", "NVLink trouble", "74"),
        ("NvidiaXID48Error", "double bit error", "48"),
        ("NvidiaXid_094", "", "94"),
    ],
)
def test_a_node_event_with_an_xid_becomes_an_xid_event(reason, message, code) -> None:
    result = read(seen(reason, message))
    assert (result.kind, result.code, result.at, result.key) == (EventKind.XID, code, AT, "kubernetes/c/uid/1")
    assert (result.attributes["reason"], result.attributes["component"]) == (reason, "kernel-monitor")


def test_the_device_is_found_by_its_pci_address() -> None:
    topology = Topology.build([(NODE, GPU)], labels={GPU: {"pci": "00000000:3B:00.0"}})
    assert EntityResolver(topology).entity(read(seen("Xid79", LINE))) == GPU
    assert EntityResolver(topology).entity(read(seen("Xid79", "on GPU at PCI:0000:3b:00"))) == GPU
    assert EntityResolver(topology).entity(read(seen("Xid79", "somewhere"))) == NODE


@pytest.mark.parametrize(
    ("reason", "message", "entity"),
    [
        ("Xid79", f"Node condition GPUHealthy is now: False, reason: Xid79, message: {LINE}", NODE),
        ("NodeNotReady", "Node node-1 status is now: NodeNotReady", NODE),
        ("XIDErrors", "no number", NODE),
        ("Xid0", "", NODE),
        ("Xid79", LINE, EntityRef("c", EntityKind.POD, "serving", "chat-0")),
    ],
)
def test_other_events_are_unchanged(reason, message, entity) -> None:
    one = seen(reason, message, entity)
    assert read(one) is one
