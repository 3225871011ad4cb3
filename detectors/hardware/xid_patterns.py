"""Timing patterns of the fault codes of one device: solo, burst, repeat. Pure.

A dying process logs the same code for each of its channels: a burst, one occurrence. A code that recurs after a pause,
or from another process, is a repeat, which NVIDIA's workflows treat differently.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from outrider.model import Event

TOGETHER = timedelta(seconds=60)  # codes of one fault come within seconds; scrapes are 15 to 30 s apart
BURST = timedelta(seconds=60)  # a longer pause separates two occurrences
_ACTION = re.compile(r"\bto 0x([0-9a-fA-F]+) \(([^)]+)\)")
VERDICT = "154"


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One burst of a code. Attributes are "" if no event of it has them."""

    since: datetime
    until: datetime
    count: int
    process: str = ""
    pod: str = ""
    unit: str = ""


def occurrences(events: Iterable[Event]) -> list[Occurrence]:
    """The bursts of one code of one device, oldest first; ``events`` are in time order.

    Another process ends a burst: two processes that die in parallel are two occurrences.
    """
    result: list[Occurrence] = []
    for event in events:
        attributes = event.attributes
        occurrence = Occurrence(
            event.at, event.at, 1, attributes.get("pid", ""), attributes.get("pod", ""), attributes.get("unit", "")
        )
        last = result[-1] if result else None
        if last is not None and occurrence.since - last.until <= BURST and _alike(last.process, occurrence.process):
            result[-1] = Occurrence(
                last.since, occurrence.until, last.count + 1,
                last.process or occurrence.process, last.pod or occurrence.pod, last.unit or occurrence.unit,
            )  # fmt: skip
        else:
            result.append(occurrence)
    return result


def repeats(result: Sequence[Occurrence], *, same_unit: bool = False) -> list[Occurrence]:
    """Occurrences that are repeats of the newest one; only the newest if it is the first.

    ``same_unit``: only those at the same location of the device, if the newest one names it.
    """
    if not result:
        return []
    newest = result[-1]
    if not same_unit or not newest.unit:
        return list(result)
    return [item for item in result if item.unit == newest.unit]


def recovery_action(events: Sequence[Event]) -> str:
    """The recovery action of the newest XID 154, such as ``GPU Reset Required``; "" for none."""
    for event in reversed(events):
        if event.code == VERDICT:
            match = _ACTION.search(event.attributes.get("text", "") or event.attributes.get("message", ""))
            if match is not None:
                return match[2] if int(match[1], 16) else ""
    return ""


def _alike(one: str, other: str) -> bool:
    return not one or not other or one == other
