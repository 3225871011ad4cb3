"""A fault at work: a beginning, a course, an end, whom it hurts, and the truth about it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from outrider.clock import from_unix
from outrider.model import EntityKind, EntityRef
from simulator.faults.deeds import DEEDS
from simulator.faults.harm import hurt_slots
from simulator.faults.places import NOTHING, Places, spots

if TYPE_CHECKING:
    from simulator.faults.declared import Declared, DeclaredDeed, Effect
    from simulator.fleet import Fleet
    from simulator.pods import Pod

Undo = Callable[["Fleet"], None]


@dataclass(frozen=True, slots=True)
class Truth:
    """What was really broken, half-open in time.

    ``symptoms`` are signals in the order they should move; ``touches`` the entities that it touches at
    its start, the faulted one first; ``negative`` a state that looks alarming and is no fault.
    """

    fault: str
    entity: EntityRef
    start: datetime
    end: datetime
    symptoms: tuple[str, ...]
    touches: tuple[EntityRef, ...] = ()
    negative: bool = False


@dataclass(slots=True)
class _Due:
    """A deed that is still to be done, ``at`` so many seconds after the start."""

    deed: DeclaredDeed
    at: float


@dataclass(slots=True)
class _Held:
    """Who is bent for how long: processes or pods as they were when it began, and the bad revision."""

    processes: dict[int, int] = field(default_factory=dict)
    revision: str = ""


class Injection:
    """A declared fault at work on a fleet. The fleet calls ``advance`` every tick until it answers True."""

    def __init__(
        self, fleet: Fleet, declared: Declared, entity: EntityRef, start: datetime, duration: timedelta, seed: int
    ) -> None:
        """Raises KeyError when the fleet has no such entity."""
        self.declared = declared
        self.seed = seed
        self.started = False
        self.random = np.random.default_rng([seed, 13])
        self.draw = float(np.random.default_rng([seed, 11]).random())
        self._spot = spots(fleet, entity.kind)[entity]
        self._start = start.timestamp()
        self._end = self._start + duration.total_seconds()
        self._due = [_Due(deed, deed.at_seconds) for deed in declared.deeds if deed.at_seconds is not None]
        self._held = _Held()
        self._values: list[np.ndarray] = []
        self._hurt = np.zeros(fleet.bank.size, dtype=bool)
        self._undo: list[Undo] = []
        self._later: list[tuple[float, Undo]] = []
        self.truth = Truth(
            declared.fault,
            entity,
            start,
            start + duration,
            declared.symptoms,
            touched(fleet, declared, entity, self._spot.places(fleet)),
            declared.negative,
        )

    # --- its course -----------------------------------------------------------------------------------

    def advance(self, fleet: Fleet) -> bool:
        """Begin, go on or end, as the fleet's time says. True once it is over."""
        if fleet.at < self._start:
            return False
        if fleet.at >= self._end:
            self._finish(fleet)
            return True
        if not self.started:
            self._begin(fleet)
        self._do_due(fleet)
        self._bend(fleet)
        self._watch(fleet)
        return False

    def stop(self, fleet: Fleet) -> None:
        """End it now and put back what it did; the truth ends now, too."""
        if self in fleet.injections:
            fleet.injections.remove(self)
        if fleet.at < self._end:
            self._end = max(fleet.at, self._start)
            self.truth = replace(self.truth, end=from_unix(self._end))
        self._finish(fleet)

    def harm(self, fleet: Fleet) -> np.ndarray:
        """The slots that this fault hurts now: those it bends that get requests, and those it put out of service.

        A slot it once hurt counts until its pod is ready again where the fault does not reach. Indices, sorted.
        """
        return np.flatnonzero(self._bad(fleet) | (self._hurt & _wanting(fleet)))

    # --- what deeds use -------------------------------------------------------------------------------

    @property
    def entity(self) -> EntityRef:
        """The faulted entity."""
        return self.truth.entity

    @property
    def why(self) -> str:
        """What keeps a pod down that this fault crashed: no other fault cures it."""
        return f"{self.truth.fault} {self.truth.entity.name}"

    @property
    def revision(self) -> str:
        """The revision it rolled out, empty before that."""
        return self._held.revision

    def roll_out(self, revision: str) -> None:
        """From now on, ``holds: revision`` means pods of this one."""
        self._held.revision = revision

    def elapsed(self, fleet: Fleet) -> float:
        """Seconds since it began."""
        return fleet.at - self._start

    def here(self, fleet: Fleet) -> Places:
        """The places it still holds: where its entity is now, less the slots that are free of it."""
        here = self._spot.places(fleet)
        if self.declared.holds == "place":
            return here
        pods = fleet.pods.pods
        if self.declared.holds == "process":
            held = [slot for slot, process in self._held.processes.items() if process_of(pods[slot]) == process]
        else:
            held = [slot for slot in here.slots.tolist() if revision_of(pods[slot]) == self._held.revision]
        slots = np.array(held, dtype=np.int64)
        gpus = np.flatnonzero(np.isin(fleet.pods.owner, slots)) if slots.size else NOTHING
        return Places(gpus, np.unique(fleet.gpus.node[gpus]), slots, here.services)

    def hurts(self, slot: int) -> None:
        """A deed put this slot out of service."""
        self._hurt[slot] = True

    def later(self, fleet: Fleet, seconds: float, what: Undo) -> None:
        """Do something so long from now (inf: never before), or at the end if that comes first."""
        self._later.append((fleet.at + seconds, what))

    # --- inside ---------------------------------------------------------------------------------------

    def _begin(self, fleet: Fleet) -> None:
        self.started = True
        here = self._spot.places(fleet)
        self.truth = replace(self.truth, touches=touched(fleet, self.declared, self.entity, here))
        pods = fleet.pods.pods
        self._held.processes = {slot: process_of(pods[slot]) for slot in here.slots.tolist() if pods[slot].ready}
        self._values = [self._magnitude(fleet, effect, here) for effect in self.declared.effects]

    def _magnitude(self, fleet: Fleet, effect: Effect, here: Places) -> np.ndarray:
        """The value of an effect: one for all its places, or one for each service where it is a share of capacity."""
        value = effect.value(self.draw)
        if not effect.of_capacity:
            return np.array([value])
        services = [fleet.spec.services[number] for number in here.services.tolist()]
        capacity = np.array([service.capacity_per_second(fleet.desired[service.name]) for service in services])
        usual = np.maximum(fleet.traffic.rates(fleet.at)[here.services], 1e-9)
        return np.asarray(np.maximum(effect.least, value * capacity / usual))

    def _do_due(self, fleet: Fleet) -> None:
        for when, what in [entry for entry in self._later if entry[0] <= fleet.at]:
            self._later.remove((when, what))
            what(fleet)
        elapsed = self.elapsed(fleet)
        for due in [due for due in self._due if due.at <= elapsed]:
            self._do(fleet, due.deed)
            if due.deed.every_seconds is None:
                self._due.remove(due)
            else:
                due.at += due.deed.every_seconds

    def _do(self, fleet: Fleet, deed: DeclaredDeed) -> None:
        undo = DEEDS[deed.do].call(fleet, self, **deed.arguments)
        if undo is not None:
            self._undo.append(undo)

    def _bend(self, fleet: Fleet) -> None:
        here = self.here(fleet)
        for effect, value in zip(self.declared.effects, self._values, strict=True):
            onset = effect.onset or self.declared.onset
            strength = onset.strength(self.elapsed(fleet) - effect.after_seconds)
            where = here.of(effect.group)
            if strength == 0.0 or where.size == 0:
                continue
            values = fleet.levers.bend(effect.group, effect.lever)
            if effect.do == "multiply":
                values[where] *= 1.0 + (value - 1.0) * strength
            elif effect.do == "add":
                values[where] += value * strength
            elif strength > 0.5:
                values[where] = value

    def _bad(self, fleet: Fleet) -> np.ndarray:
        """Slots that its bent levers hurt now."""
        found = np.zeros(fleet.bank.size, dtype=bool)
        if not self.started or fleet.at >= self._end:
            return found
        here = self.here(fleet)
        for effect in self.declared.effects:
            onset = effect.onset or self.declared.onset
            if onset.strength(self.elapsed(fleet) - effect.after_seconds) > 0:
                found |= hurt_slots(fleet, effect.group, effect.lever, here)
        return found

    def _watch(self, fleet: Fleet) -> None:
        """Note whom it hurts, and who is well again."""
        bad = self._bad(fleet)
        if bad.any() or self._hurt.any():
            self._hurt |= bad
            self._hurt &= bad | _wanting(fleet)

    def _finish(self, fleet: Fleet) -> None:
        """Put back what deeds did, last first, then do the deeds of the end."""
        if not self.started:
            return
        for undo in reversed(self._undo):
            undo(fleet)
        for _, what in self._later:
            what(fleet)
        self._later, self._undo = [], []
        for deed in self.declared.deeds:
            if deed.at_seconds is None:
                self._do(fleet, deed)
        self._due = []


def _wanting(fleet: Fleet) -> np.ndarray:
    """Slots that should serve and do not, bool of shape (slots,)."""
    wanting: np.ndarray = np.fromiter((pod.exists and not pod.ready for pod in fleet.pods.pods), bool, fleet.bank.size)
    return wanting


def process_of(pod: Pod) -> int:
    """A number that is another one for every new engine process of a slot."""
    return int(getattr(pod, "process", pod.generation * 100_000 + pod.restarts))


def revision_of(pod: Pod) -> str:
    """The revision a pod runs."""
    return str(getattr(pod, "revision", "v1"))


def touched(fleet: Fleet, declared: Declared, entity: EntityRef, here: Places) -> tuple[EntityRef, ...]:
    """The entity, and everything its levers reach: devices and hosts bent, replicas on them, services bent."""
    pods, found = fleet.pods.pods, [entity]
    if declared.removes or "nodes" in declared.groups:
        found += [fleet.entity(EntityKind.NODE, fleet.nodes.names[node]) for node in here.nodes.tolist()]
    if declared.removes or "gpus" in declared.groups:
        found += [fleet.entity(EntityKind.GPU, fleet.gpu_uuid(gpu)) for gpu in here.gpus.tolist()]
    slots = [pods[slot] for slot in here.slots.tolist()]
    found += [fleet.entity(EntityKind.REPLICA, pod.name, pod.service.namespace) for pod in slots]
    if "services" in declared.groups or entity.kind is EntityKind.CLUSTER:
        services = [fleet.spec.services[number] for number in here.services.tolist()]
        found += [fleet.entity(EntityKind.SERVICE, service.name, service.namespace) for service in services]
    return tuple(dict.fromkeys(found))
