"""An active fault: start, progress, end, impact and ground truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

import numpy as np

from outrider.clock import from_unix
from outrider.model import ActionKind, EntityKind, EntityRef
from simulator.faults.impact import impacted_slots
from simulator.faults.scope import NOTHING, Scope, fleet_entities

if TYPE_CHECKING:
    from simulator.faults.definition import DeclaredAction, Effect, FaultDefinition
    from simulator.fleet import Fleet

Undo = Callable[["Fleet"], None]


@dataclass(frozen=True, slots=True)
class Truth:
    """Ground truth of a fault, half-open in time.

    ``symptoms`` are signals in the expected order of change. ``touches`` are the entities affected at the start, the
    faulted one first. ``negative`` marks a state that resembles a fault but is none.
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
    """A pending action, due ``at`` seconds after the start."""

    action: DeclaredAction
    at: float


@dataclass(slots=True)
class _ProcessScope:
    """Scope that ``holds`` restricts: the engine processes of some slots at the start, or the pods of a revision."""

    slots: np.ndarray = field(default_factory=lambda: NOTHING)
    processes: np.ndarray = field(default_factory=lambda: NOTHING)
    revision: str = ""


class Injection:
    """An active fault of a fleet. The fleet calls ``advance`` every tick until it returns True."""

    def __init__(
        self,
        fleet: Fleet,
        declared: FaultDefinition,
        entity: EntityRef,
        start: datetime,
        duration: timedelta,
        seed: int,
    ) -> None:
        """Raises KeyError if the fleet has no such entity."""
        self.declared = declared
        self.seed = seed
        self.started = self._cured = False
        self.random = np.random.default_rng([seed, 13])
        self.draw = float(np.random.default_rng([seed, 11]).random())
        self._fleet_entity = fleet_entities(fleet, entity.kind)[entity]
        self._start = start.timestamp()
        self._end = self._start + duration.total_seconds()
        self._due = [_Due(action, action.at_seconds) for action in declared.actions if action.at_seconds is not None]
        self._process_scope = _ProcessScope()
        self.logged_deaths: set[tuple[int, float]] = set()  # process ends (slot, time) that are already logged
        self._values: list[np.ndarray] = []
        self._impacted = np.zeros(fleet.bank.size, dtype=bool)
        self._seen_slots = np.zeros(fleet.bank.size, dtype=bool)
        self._undo: list[Undo] = []
        self._later: list[tuple[float, Undo]] = []
        self.truth = Truth(
            declared.fault,
            entity,
            start,
            start + duration,
            declared.symptoms,
            touched(fleet, declared, entity, self._fleet_entity.scope(fleet)),
            declared.negative,
        )

    # --- progress -------------------------------------------------------------------------------------

    def advance(self, fleet: Fleet) -> bool:
        """Starts, continues or ends the fault by the fleet's time. Returns True once it is over."""
        if fleet.at < self._start:
            return False
        if fleet.at >= self._end:
            self._finish(fleet)
            return True
        if not self.started:
            self._begin(fleet)
        self._do_due(fleet)
        self._apply_effects(fleet)
        self._watch(fleet)
        return False

    def stop(self, fleet: Fleet) -> None:
        """Ends the fault now and undoes its actions; its ground truth ends now as well."""
        if self in fleet.injections:
            fleet.injections.remove(self)
        if fleet.at < self._end:
            self._end = max(fleet.at, self._start)
            self.truth = replace(self.truth, end=from_unix(self._end))
        self._finish(fleet)

    def cure(self, fleet: Fleet, action: ActionKind, kind: EntityKind, numbers: np.ndarray) -> bool:
        """Ends its effects if it is a fault of one of these entities that the action cures. Its truth stays as it is.

        ``numbers`` are the fixed indices of entities of ``kind``.
        """
        until = self.declared.cures.get(action)
        if until is None or not self.started or self._cured or self.entity.kind is not kind:
            return False
        if self.elapsed(fleet) > until or not np.isin(self._fleet_entity.number, numbers).any():
            return False
        self._cured, self._due = True, []
        self._undo_actions(fleet)
        return True

    def impact(self, fleet: Fleet) -> np.ndarray:
        """Returns the sorted slots with impact now: affected slots with requests, and slots out of service.

        A slot counts until its pod is ready again outside the scope of the fault.
        """
        return np.flatnonzero(self._impacted_now(fleet) | (self._impacted & _out_of_service(fleet)))

    # --- used by actions ------------------------------------------------------------------------------

    @property
    def entity(self) -> EntityRef:
        """The faulted entity."""
        return self.truth.entity

    @property
    def reason(self) -> str:
        """Reason that keeps a crashed pod down; no other fault cures it."""
        return f"{self.truth.fault} {self.truth.entity.name}"

    @property
    def revision(self) -> str:
        """The revision that the fault rolled out, empty before that."""
        return self._process_scope.revision

    def roll_out(self, revision: str) -> None:
        """Sets the revision that ``holds: revision`` refers to."""
        self._process_scope.revision = revision

    def elapsed(self, fleet: Fleet) -> float:
        """Returns the seconds since the start of the fault."""
        return fleet.at - self._start

    def here(self, fleet: Fleet) -> Scope:
        """Returns the current scope: parts of its entity, without slots that the fault no longer affects."""
        if self._cured:
            return Scope(NOTHING, NOTHING, NOTHING, NOTHING)
        here = self._fleet_entity.scope(fleet)
        if self.declared.holds == "place":
            return here
        pods = fleet.pods.pods
        if self.declared.holds == "process":
            known = self._process_scope
            slots = known.slots[fleet.pods.process[known.slots] == known.processes]
        else:
            held = [slot for slot in here.slots.tolist() if pods[slot].revision == self._process_scope.revision]
            slots = np.array(held, dtype=np.int64)
        gpus = np.flatnonzero(np.isin(fleet.pods.owner, slots)) if slots.size else NOTHING
        return Scope(gpus, np.unique(fleet.gpus.node[gpus]), slots, here.services)

    def mark_impacted(self, slot: int) -> None:
        """Marks a slot that an action put out of service."""
        self._impacted[slot] = True

    def later(self, fleet: Fleet, seconds: float, undo: Undo) -> None:
        """Runs ``undo`` after ``seconds`` (inf: at the end), or at the end of the fault if that comes first."""
        self._later.append((fleet.at + seconds, undo))

    # --- internals ------------------------------------------------------------------------------------

    def _begin(self, fleet: Fleet) -> None:
        self.started = True
        here = self._fleet_entity.scope(fleet)
        self.truth = replace(self.truth, touches=touched(fleet, self.declared, self.entity, here))
        self._process_scope.slots = here.slots[fleet.pods.ready[here.slots]]
        self._process_scope.processes = fleet.pods.process[self._process_scope.slots]
        self._values = [self._magnitude(fleet, effect, here) for effect in self.declared.effects]

    def _magnitude(self, fleet: Fleet, effect: Effect, here: Scope) -> np.ndarray:
        """Returns the value of an effect: one for its scope, or one per service if it is a share of capacity."""
        value = effect.value(self.draw)
        if not effect.of_capacity:
            return np.array([value])
        services = [fleet.spec.services[number] for number in here.services.tolist()]
        capacity = np.array([service.capacity_per_second(fleet.desired[service.name]) for service in services])
        usual = np.maximum(fleet.traffic.rates(fleet.at)[here.services], 1e-9)
        return np.asarray(np.maximum(effect.least, value * capacity / usual))

    def _do_due(self, fleet: Fleet) -> None:
        for when, undo in [entry for entry in self._later if entry[0] <= fleet.at]:
            self._later.remove((when, undo))
            undo(fleet)
        elapsed = self.elapsed(fleet)
        for due in [due for due in self._due if due.at <= elapsed]:
            self._do(fleet, due.action)
            if due.action.every_seconds is None:
                self._due.remove(due)
            else:
                due.at += due.action.every_seconds

    def _do(self, fleet: Fleet, action: DeclaredAction) -> None:
        undo = action.call(fleet, self, **action.arguments)
        if undo is not None:
            self._undo.append(undo)

    def _strength(self, fleet: Fleet, effect: Effect, where: np.ndarray) -> np.ndarray:
        """Returns the current strength of an effect: one for its scope, or one per slot by the age of its process."""
        onset = effect.onset or self.declared.onset
        since = self._start + effect.after_seconds
        if not effect.since_process:
            return np.array([onset.strength(fleet.at - since)])
        begun = [max(since, fleet.pods.pods[slot].started_at) for slot in where.tolist()]
        return np.array([onset.strength(fleet.at - start) for start in begun])

    def _apply_effects(self, fleet: Fleet) -> None:
        here = self.here(fleet)
        for effect, value in zip(self.declared.effects, self._values, strict=True):
            where = here.of(effect.group)
            strength = self._strength(fleet, effect, where)
            if where.size == 0 or not strength.any():
                continue
            effects = fleet.effects.adjust(effect.group, effect.effect_name)
            if effect.do == "multiply":
                effects[where] *= 1.0 + (value - 1.0) * strength
            elif effect.do == "add":
                effects[where] += value * strength
            else:
                effects[where] = np.where(strength > 0.5, value, effects[where])

    def _impacted_now(self, fleet: Fleet) -> np.ndarray:
        """Returns the slots on which its effects have an impact now."""
        result = np.zeros(fleet.bank.size, dtype=bool)
        if not self.started or fleet.at >= self._end:
            return result
        here = self.here(fleet)
        for effect in self.declared.effects:
            if self._strength(fleet, effect, here.of(effect.group)).any():
                result |= impacted_slots(fleet, effect.group, effect.effect_name, here, self._seen_slots)
        return result

    def _watch(self, fleet: Fleet) -> None:
        """Updates the scope, the impacted slots and the recovered ones."""
        self._seen_slots[self.here(fleet).slots] = True
        bad = self._impacted_now(fleet)
        if bad.any() or self._impacted.any():
            self._impacted |= bad
            self._impacted &= bad | _out_of_service(fleet)

    def _finish(self, fleet: Fleet) -> None:
        """Undoes the actions in reverse order, then runs the actions of the end."""
        if not self.started:
            return
        self._undo_actions(fleet)
        for action in self.declared.actions:
            if action.at_seconds is None:
                self._do(fleet, action)
        self._due = []

    def _undo_actions(self, fleet: Fleet) -> None:
        """Undoes its actions in reverse order."""
        for undo in reversed(self._undo):
            undo(fleet)
        for _, pending in self._later:
            pending(fleet)
        self._later, self._undo = [], []


def _out_of_service(fleet: Fleet) -> np.ndarray:
    """Returns True for slots that should serve and do not, shape (slots,)."""
    return np.asarray(fleet.pods.existing & ~fleet.pods.ready)


def touched(fleet: Fleet, declared: FaultDefinition, entity: EntityRef, here: Scope) -> tuple[EntityRef, ...]:
    """Returns the entity and all entities affected by its effects: GPUs, nodes, the replicas on them, services."""
    pods, result = fleet.pods.pods, [entity]
    whole = declared.removes and entity.kind is not EntityKind.GPU
    if whole or "nodes" in declared.groups:
        result += [fleet.entity(EntityKind.NODE, fleet.nodes.names[node]) for node in here.nodes.tolist()]
    if declared.removes or "gpus" in declared.groups:
        result += [fleet.entity(EntityKind.GPU, fleet.gpu_uuid(gpu)) for gpu in here.gpus.tolist()]
    slots = [pods[slot] for slot in here.slots.tolist()]
    result += [fleet.entity(EntityKind.REPLICA, pod.name, pod.service.namespace) for pod in slots]
    if "services" in declared.groups or entity.kind is EntityKind.CLUSTER:
        services = [fleet.spec.services[number] for number in here.services.tolist()]
        result += [fleet.entity(EntityKind.SERVICE, service.name, service.namespace) for service in services]
    return tuple(dict.fromkeys(result))
