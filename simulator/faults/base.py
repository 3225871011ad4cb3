"""What every fault is: a beginning, a course, an end, and the truth about it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar

from outrider.model import EntityKind, EntityRef

if TYPE_CHECKING:
    from simulator.fleet import Fleet


@dataclass(frozen=True, slots=True)
class Truth:
    """What was really broken, half-open in time. ``symptoms`` are signals in the order they should move."""

    fault: str
    entity: EntityRef
    start: datetime
    end: datetime
    symptoms: tuple[str, ...]


def ramp(at: float, start: float, seconds: float) -> float:
    """An onset that grows from 0 to 1 over ``seconds``."""
    return min(1.0, max(0.0, (at - start) / seconds)) if seconds > 0 else float(at >= start)


class Injection:
    """A fault at work on a fleet. The fleet calls ``advance`` every tick until it answers True."""

    fault: ClassVar[str]
    kind: ClassVar[EntityKind]
    lasts: ClassVar[timedelta]
    symptoms: ClassVar[tuple[str, ...]]

    def __init__(self, entity: EntityRef, start: datetime, duration: timedelta, seed: int) -> None:
        self.truth = Truth(self.fault, entity, start, start + duration, self.symptoms)
        self.seed = seed
        self.started = False
        self._start = start.timestamp()
        self._end = self._start + duration.total_seconds()

    @classmethod
    def candidates(cls, fleet: Fleet) -> Sequence[EntityRef]:
        """Entities that can have this fault."""
        raise NotImplementedError

    @classmethod
    def likely(cls, fleet: Fleet) -> Sequence[EntityRef]:
        """Those a seed chooses from: the candidates on which the fault does harm."""
        return cls.candidates(fleet)

    def advance(self, fleet: Fleet) -> bool:
        """Begin, go on or end, as the fleet's time says. True once it is over."""
        if fleet.at < self._start:
            return False
        if fleet.at >= self._end:
            if self.started:
                self.finish(fleet)
            return True
        if not self.started:
            self.started = True
            self.begin(fleet)
        self.hold(fleet)
        return False

    def stop(self, fleet: Fleet) -> None:
        """End it now."""
        self._end = min(self._end, fleet.at)

    def elapsed(self, fleet: Fleet) -> float:
        """Seconds since it began."""
        return fleet.at - self._start

    def begin(self, fleet: Fleet) -> None:
        """Break it."""

    def hold(self, fleet: Fleet) -> None:
        """Keep it broken; called every tick."""

    def finish(self, fleet: Fleet) -> None:
        """Let it be whole again."""


def replicas_of(fleet: Fleet, *, ready: bool) -> list[EntityRef]:
    """The replicas that exist, or only those that serve."""
    return [
        fleet.entity(EntityKind.REPLICA, pod.name, pod.service.namespace)
        for pod in fleet.pods.pods
        if (pod.ready if ready else pod.exists)
    ]


def gpu_place(fleet: Fleet, entity: EntityRef) -> int:
    """The index of a device by its entity."""
    return next(gpu for gpu in range(fleet.gpus.size) if fleet.gpu_uuid(gpu) == entity.name)


def gpus_of(fleet: Fleet, *, serving: bool) -> list[EntityRef]:
    """All devices, or only those a serving engine uses."""
    owners = fleet.pods.owner
    return [
        fleet.entity(EntityKind.GPU, fleet.gpu_uuid(gpu))
        for gpu in range(fleet.gpus.size)
        if not serving or (owners[gpu] >= 0 and fleet.pods.pods[int(owners[gpu])].ready)
    ]
