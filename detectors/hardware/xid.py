"""Driver fault codes (XIDs), read from events and never from the gauge.

The gauge of the last XID keeps its value for ever, so after a restart it would report an old fault. Events carry a
timestamp, and two equal codes in a row are two events. ``xid.yaml`` defines the meaning of each code alone, with
others and repeated; ``vendor_codes.yaml`` holds codes of Ascend and AMD.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from functools import cache
from typing import Any

import yaml

from detectors import packaged_data
from detectors.base.findings import evidence, finding, fingerprint
from detectors.hardware.xid_patterns import TOGETHER, VERDICT, Occurrence, occurrences, recovery_action, repeats
from outrider.model import EntityKind, EntityRef, Event, EventKind, Evidence, Finding, Priority, TimeRange
from outrider.topology import Topology

UNKNOWN_SCORE = 0.6  # a code that is not in the table, from newer hardware
SUSPECTED_SCORE = 0.7  # an application code that recurs on the device under other pods
HARDWARE, APPLICATION = "gpu-xid-hardware", "gpu-xid-application"
_SIGNAL = "hw_accel_fault_code"
_FATAL = re.compile(r"(?i)(?:cper_severity_|cper_sev_)?fatal")  # AMD's spellings; NON_FATAL is another severity
_NUMBERINGS = {"ascend": "Ascend", "afid": "AFID"}


@dataclass(frozen=True, slots=True)
class Xid:
    """One code. ``fault`` None: recorded without a finding of its own. ``step`` is the first action to take.

    ``beside`` are steps if another code came with it, ``solo`` if none did, ``repeat`` if it recurred. ``follows``: a
    code that follows others and then has no meaning of its own. ``until``: a state that another code ends. ``unit``:
    repeats count at one location of the device only.
    """

    code: str
    name: str
    fault: str | None
    text: str
    immediate: str
    step: str
    solo: str = ""
    repeat: str = ""
    beside: Mapping[str, str] = field(default_factory=dict)
    follows: bool = False
    until: str = ""
    unit: bool = False


@cache
def xids() -> dict[int, Xid]:
    """NVIDIA's XIDs by code."""
    return {int(code): _row(str(code), entry) for code, entry in _table(packaged_data.nvidia_codes()).items()}


@cache
def codes() -> dict[str, Xid]:
    """Every known code, in the spelling of events."""
    others = {str(code): _row(str(code), entry) for code, entry in _table(packaged_data.vendor_codes()).items()}
    return {**{str(code): row for code, row in xids().items()}, **others}


def _table(text: str) -> dict[Any, dict[str, Any]]:
    result: dict[Any, dict[str, Any]] = yaml.safe_load(text)["codes"]
    return result


def _row(code: str, entry: Mapping[str, Any]) -> Xid:
    return Xid(
        code=code,
        name=entry["class"],
        fault=entry["fault"],
        text=entry["text"],
        immediate=entry["immediate"],
        step=entry.get("step", ""),
        solo=entry.get("solo", ""),
        repeat=entry.get("repeat", ""),
        beside={str(other): step for other, step in entry.get("beside", {}).items()},
        follows=entry.get("follows", False),
        until=str(entry.get("until", "")),
        unit=entry.get("unit", False),
    )


def xid_findings(
    detector: str, events: Sequence[Event], topology: Topology, now: datetime, hold: timedelta
) -> list[Finding]:
    """One finding per component and fault for the codes of the last ``hold``, naming every code.

    Earlier events among ``events`` show whether a code recurred. Application codes concern the pod on the accelerator,
    if there is exactly one. If they recur under other pods, the device is suspected. An unknown code counts as
    hardware with a low score if it is a number (an XID newer than the table) or fatal by its vendor; otherwise it is
    skipped.
    """
    devices: dict[EntityRef, list[Event]] = {}
    for event in sorted(events, key=lambda event: event.at):
        if event.kind is EventKind.XID and event.code != "0" and event.at <= now:
            devices.setdefault(event.entity, []).append(event)
    grouped: dict[tuple[EntityRef, str], list[_CodeSummary]] = {}
    findings: list[Finding] = []
    everywhere = _devices_of_pods(devices)
    for device, events_of_device in devices.items():
        for summary in _summarize(events_of_device, now - hold, everywhere):
            if summary.fault is not None:
                grouped.setdefault((_component(summary, device, topology), summary.fault), []).append(summary)
            elif summary.known is not None and summary.known.until:
                findings.append(_state(detector, device, summary, now))
    findings += [_finding(detector, entity, fault, group, now) for (entity, fault), group in grouped.items()]
    return findings


@dataclass(frozen=True, slots=True)
class _CodeSummary:
    """One code of one device: its recent events and their interpretation."""

    code: str
    known: Xid | None
    fault: str | None
    events: tuple[Event, ...]
    before: tuple[Occurrence, ...]
    step: str
    score: float


_DevicesOfPods = dict[tuple[str, str], set[EntityRef]]


def _devices_of_pods(devices: Mapping[EntityRef, Sequence[Event]]) -> _DevicesOfPods:
    """Devices on which a pod has had a code."""
    devices_of_pods: _DevicesOfPods = {}
    for device, events_of_device in devices.items():
        for event in events_of_device:
            if event.attributes.get("pod"):
                devices_of_pods.setdefault((event.code, event.attributes["pod"]), set()).add(device)
    return devices_of_pods


def _summarize(events: Sequence[Event], since: datetime, everywhere: _DevicesOfPods) -> list[_CodeSummary]:
    """Interpretation of the codes of one device, those of ``events_of_device`` (oldest first) after ``since``."""
    recent = [event for event in events if event.at > since]
    action = recovery_action(recent)
    code_summaries = []
    for code in dict.fromkeys(event.code for event in recent):
        known, mine = codes().get(code), tuple(event for event in recent if event.code == code)
        if known is not None and _is_over(known, mine, recent):
            continue
        others = _beside(code, mine, recent)
        if known is not None and known.follows and any(not _follows(other) for other in others):
            continue
        back = repeats(
            occurrences(event for event in events if event.code == code), same_unit=bool(known and known.unit)
        )
        fault, score = _fault(code, known, mine)
        # a pod with the code on other devices as well causes it itself
        pods = {item.pod for item in back if item.pod and len(everywhere[code, item.pod]) == 1}
        if (fault == APPLICATION and len(pods) > 1) or (code == VERDICT and action and not _explained(recent)):
            fault, score = HARDWARE, SUSPECTED_SCORE
        code_summaries.append(
            _CodeSummary(code, known, fault, mine, tuple(back), action or _step(known, others, back), score)
        )
    return code_summaries


def _explained(recent: Sequence[Event]) -> bool:
    """True if a code is present that the driver's recovery action can refer to."""
    known = (codes().get(event.code) for event in recent if event.code != VERDICT)
    return any(item is None or item.fault is not None for item in known)


def _follows(code: str) -> bool:
    known = codes().get(code)
    return known is not None and (known.follows or known.name == "verdict")


def _is_over(known: Xid, mine: Sequence[Event], recent: Sequence[Event]) -> bool:
    """True for a state that was ended by its end code."""
    return bool(known.until) and any(event.code == known.until and event.at >= mine[-1].at for event in recent)


def _beside(code: str, mine: Sequence[Event], recent: Sequence[Event]) -> set[str]:
    """Other codes of the device within ``TOGETHER`` of one of these events."""
    return {
        event.code
        for event in recent
        if event.code != code and any(abs(event.at - item.at) <= TOGETHER for item in mine)
    }


def _step(known: Xid | None, others: set[str], back: Sequence[Occurrence]) -> str:
    if known is None:
        return ""
    chosen = next((step for code, step in known.beside.items() if code in others), "")
    if not chosen and len(back) > 1:
        chosen = known.repeat
    if not chosen and not others:
        chosen = known.solo
    return chosen or known.step or known.immediate


def _fault(code: str, known: Xid | None, mine: Sequence[Event]) -> tuple[str | None, float]:
    if known is not None:
        return known.fault, 0.95
    fatal = any(_FATAL.fullmatch(event.attributes.get("severity", "")) for event in mine)
    return (HARDWARE if code.isdigit() or fatal else None), UNKNOWN_SCORE


def _component(summary: _CodeSummary, device: EntityRef, topology: Topology) -> EntityRef:
    if summary.fault != APPLICATION:
        return device
    part = next(
        (event.attributes["gpu_instance"] for event in summary.events if "gpu_instance" in event.attributes), ""
    )
    whole = EntityRef(device.cluster, device.kind, device.namespace, f"{device.name}/{part}")
    at = whole if part and topology.holds_up(whole) else device
    pods = [pod for pod in topology.holds_up(at) if pod.kind is EntityKind.POD]
    return pods[0] if len(pods) == 1 else device


def _evidence(summary: _CodeSummary) -> list[Evidence]:
    number = float(summary.code) if summary.code.isdigit() else None

    def observed(text: str, **arguments: object) -> Evidence:
        return evidence(_SIGNAL, number, text, None, code=named(summary.code), **arguments)

    meaning = summary.known.text if summary.known is not None else ""
    text = "xid" if summary.known is not None else "xid_unknown"
    result = [observed(text, count=len(summary.events), meaning=meaning, step=summary.step)]
    if len(summary.before) > 1:
        unit = next((item.unit for item in reversed(summary.before) if item.unit), "")
        pods = len({item.pod for item in summary.before if item.pod})
        text = "xid_pods" if pods > 1 else "xid_unit" if unit and summary.known and summary.known.unit else "xid_repeat"
        result.append(observed(text, times=len(summary.before), pods=pods, unit=unit))
    reporters = (source for event in summary.events for source in event.attributes.get("sources", "").split(", "))
    sources = ", ".join(dict.fromkeys(source for source in reporters if source))
    return [*result, observed("xid_sources", sources=sources)] if sources else result


def _finding(detector: str, entity: EntityRef, fault: str, group: Sequence[_CodeSummary], now: datetime) -> Finding:
    """One finding per component, for codes on any of its devices."""
    codes_of: dict[str, _CodeSummary] = {}
    for summary in group:
        known = codes_of.get(summary.code)
        codes_of[summary.code] = summary if known is None else _joined(known, summary)
    ordered = sorted(codes_of.values(), key=lambda summary: (not summary.code.isdigit(), summary.code.zfill(20)))
    return finding(
        detector,
        entity,
        fault,
        score=max(summary.score for summary in ordered),
        since=min(event.at for summary in ordered for event in summary.events).timestamp(),
        now=now,
        evidence_items=tuple(item for summary in ordered for item in _evidence(summary)),
    )


def _joined(one: _CodeSummary, other: _CodeSummary) -> _CodeSummary:
    return replace(
        max(one, other, key=lambda summary: summary.score),
        events=(*one.events, *other.events),
        before=max(one.before, other.before, key=len),
    )


def named(code: str) -> str:
    """A code with the name of its numbering: ``XID 79``, ``Ascend 40F84E00``, ``AFID 24``."""
    vendor, colon, number = code.partition(":")
    return f"{_NUMBERINGS.get(vendor, vendor)} {number}" if colon else f"XID {code}"


def _state(detector: str, device: EntityRef, summary: _CodeSummary, now: datetime) -> Finding:
    """Finding of a state that lasts until another code ends it: an anomaly without a fault."""
    return Finding(
        detector=detector,
        entity=device,
        signals=(_SIGNAL,),
        severity=Priority.P3,
        score=0.5,
        observed=float(summary.code),
        expected=None,
        window=TimeRange(min(event.at for event in summary.events), now),
        evidence=tuple(_evidence(summary)),
        fingerprint=fingerprint(detector, device, f"xid-{summary.code}"),
    )
