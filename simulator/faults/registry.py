"""Every fault the fleet knows, and the door to inject one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from outrider.errors import UsageError
from outrider.model import EntityRef
from simulator.faults.base import Injection, Truth
from simulator.faults.engine_dead import EngineDead
from simulator.faults.engine_hung import EngineHung
from simulator.faults.exporter_down import ExporterDown
from simulator.faults.gpu_lost import GpuLost
from simulator.faults.gpu_thermal_throttle import GpuThermalThrottle
from simulator.faults.traffic_surge import TrafficSurge

if TYPE_CHECKING:
    from simulator.fleet import Fleet

FAULTS: dict[str, type[Injection]] = {
    "engine-dead": EngineDead,
    "engine-hung": EngineHung,
    "exporter-down": ExporterDown,
    "gpu-lost": GpuLost,
    "gpu-thermal-throttle": GpuThermalThrottle,
    "traffic-surge": TrafficSurge,
}


def inject(
    fleet: Fleet,
    fault: str,
    entity: EntityRef | str | None = None,
    start: datetime | None = None,
    duration: timedelta | None = None,
    seed: int = 0,
) -> Truth:
    """Plan a fault and return the truth about it.

    ``entity`` None lets ``seed`` choose among those on which it does harm; a string is an entity's
    name. ``start`` defaults to now, ``duration`` to the fault's own. Raises UsageError for a fault or
    an entity that does not exist, naming near matches.
    """
    kind = FAULTS.get(fault)
    if kind is None:
        raise UsageError(f"the simulator has no fault {fault!r}", hint=_near(fault, list(FAULTS)))
    if duration is not None and duration <= timedelta(0):
        raise UsageError("a fault must last longer than 0 s", hint="give a positive duration such as 5m")
    chosen = _choose(fleet, kind, seed) if entity is None else _find(fleet, kind, entity)
    injection = kind(chosen, fleet.now if start is None else start, kind.lasts if duration is None else duration, seed)
    fleet.injections.append(injection)
    return injection.truth


def _choose(fleet: Fleet, kind: type[Injection], seed: int) -> EntityRef:
    likely = kind.likely(fleet)
    if not likely:
        raise UsageError(
            f"nothing in the fleet can have {kind.fault} now", hint="wait until a replica serves, or name an entity"
        )
    return likely[int(np.random.default_rng([seed, 7]).integers(len(likely)))]


def _find(fleet: Fleet, kind: type[Injection], entity: EntityRef | str) -> EntityRef:
    known = kind.candidates(fleet)
    name = entity if isinstance(entity, str) else entity.name
    found = next((ref for ref in known if entity in (ref, ref.name)), None)
    if found is None:
        raise UsageError(
            f"the fleet has no {kind.kind.value} {name!r} for {kind.fault}",
            hint=_near(name, [ref.name for ref in known]),
        )
    return found


def _near(word: str, known: Sequence[str]) -> str:
    close = difflib.get_close_matches(word, known, n=3, cutoff=0.5)
    return "did you mean " + " or ".join(close) + "?" if close else "known: " + ", ".join(known[:8])
