"""How the fault codes of one device lie in time: solo, burst, repeat. Pure.

A process that dies tells the same code for each of its channels: a burst, one occurrence. A code that comes
back after a pause, or from another process, is a repeat, which is what NVIDIA's workflows ask about.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outrider.model import Event

TOGETHER = timedelta(seconds=60)  # codes of one fault come within seconds; pages are read every 15 to 30 s
BURST = timedelta(seconds=60)  # a pause that is longer parts two occurrences
_ACTION = re.compile(r"\bto 0x([0-9a-fA-F]+) \(([^)]+)\)")
VERDICT = "154"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One burst of a code. Attributes are "" when no event of it tells them."""

    since: datetime
    until: datetime
    count: int
    process: str = ""
    pod: str = ""
    unit: str = ""


def occurrences(events: Iterable[Event]) -> list[Occurrence]:
    """The bursts of one code of one device, oldest first; ``events`` are in order of time.

    Another process ends a burst: two of them that die side by side are two occurrences.
    """
    found: list[Occurrence] = []
    for event in events:
        told = event.attributes
        one = Occurrence(event.at, event.at, 1, told.get("pid", ""), told.get("pod", ""), told.get("unit", ""))
        last = found[-1] if found else None
        if last is not None and one.since - last.until <= BURST and _alike(last.process, one.process):
            found[-1] = Occurrence(
                last.since, one.until, last.count + 1,
                last.process or one.process, last.pod or one.pod, last.unit or one.unit,
            )  # fmt: skip
        else:
            found.append(one)
    return found


def repeats(found: Sequence[Occurrence], *, same_unit: bool = False) -> list[Occurrence]:
    """Occurrences that belong together as repeats of the newest one; that one alone when it is the first.

    ``same_unit``: only those at the same place of the device, where the newest one names its place.
    """
    if not found:
        return []
    newest = found[-1]
    if not same_unit or not newest.unit:
        return list(found)
    return [one for one in found if one.unit == newest.unit]


def recovery_action(events: Sequence[Event]) -> str:
    """What the driver asks for by the newest XID 154, such as ``GPU Reset Required``; "" for nothing."""
    for event in reversed(events):
        if event.code == VERDICT:
            told = _ACTION.search(event.attributes.get("text", "") or event.attributes.get("message", ""))
            if told is not None:
                return told[2] if int(told[1], 16) else ""
    return ""


def _alike(one: str, other: str) -> bool:
    return not one or not other or one == other
