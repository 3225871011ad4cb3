"""XIDs: the fault codes of NVIDIA drivers, read from events and never from the gauge.

The gauge of the last XID keeps its value for ever, so after a restart it would tell of a fault that
nobody had. Events carry their instant, and two equal codes in a row are two events.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import cache
from importlib import resources

import yaml

from detectors.verdicts import evidence, finding
from outrider.model import EntityKind, EntityRef, Event, EventKind, Finding
from outrider.topology import Topology

UNKNOWN_SCORE = 0.6  # a code that the catalogue does not know: newer hardware than the table


@dataclass(frozen=True, slots=True)
class Xid:
    """One code. ``fault`` None means: recorded, no finding of its own. ``step`` is the first thing to do."""

    code: int
    name: str
    fault: str | None
    text: str
    immediate: str
    step: str


@cache
def xids() -> dict[int, Xid]:
    """The catalogue by code."""
    text = resources.files("detectors").joinpath("xid.yaml").read_text(encoding="utf-8")
    return {
        code: Xid(
            code=code,
            name=entry["class"],
            fault=entry["fault"],
            text=entry["text"],
            immediate=entry["immediate"],
            step=entry.get("step", ""),
        )
        for code, entry in yaml.safe_load(text)["codes"].items()
    }


def xid_findings(
    detector: str, events: Sequence[Event], topology: Topology, now: datetime, hold: timedelta
) -> list[Finding]:
    """One finding per component and fault for the XIDs of the last ``hold``, naming every code.

    Application codes are about the pod that runs on the accelerator, when exactly one does. A code that
    is no number is left out; one that the catalogue lacks counts as hardware, with little confidence.
    """
    grouped: dict[tuple[EntityRef, str], list[Event]] = {}
    for event in events:
        known = xids().get(int(event.code)) if event.code.isdigit() else None
        fault = known.fault if known else "gpu-xid-hardware" if event.code.isdigit() else None
        if event.kind is not EventKind.XID or fault is None or event.code == "0":
            continue
        if now - hold < event.at <= now:
            grouped.setdefault((_component(event.entity, fault, topology), fault), []).append(event)
    return [_finding(detector, entity, fault, found, now) for (entity, fault), found in grouped.items()]


def _component(entity: EntityRef, fault: str, topology: Topology) -> EntityRef:
    if fault != "gpu-xid-application":
        return entity
    pods = [pod for pod in topology.holds_up(entity) if pod.kind is EntityKind.POD]
    return pods[0] if len(pods) == 1 else entity


def _finding(detector: str, entity: EntityRef, fault: str, events: Sequence[Event], now: datetime) -> Finding:
    counted: dict[int, int] = {}
    for event in events:
        counted[int(event.code)] = counted.get(int(event.code), 0) + 1
    because = []
    for code, count in sorted(counted.items()):
        known = xids().get(code)
        text = "xid" if known else "xid_unknown"
        meaning, step = (known.text, known.step or known.immediate) if known else ("", "")
        because.append(
            evidence("hw_accel_fault_code", float(code), text, code=code, count=count, meaning=meaning, step=step)
        )
    return finding(
        detector,
        entity,
        fault,
        score=0.95 if any(code in xids() for code in counted) else UNKNOWN_SCORE,
        since=min(event.at for event in events).timestamp(),
        now=now,
        because=tuple(because),
    )
