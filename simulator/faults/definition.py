"""A parsed fault file as frozen values. ``loader`` describes the format."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal

from outrider.model import ActionKind, EntityKind, Layer
from simulator.faults.onset import Onset

Doing = Literal["multiply", "add", "set"]
Hold = Literal["place", "process", "revision"]
DOINGS: tuple[Doing, ...] = ("multiply", "add", "set")
HOLDS: tuple[Hold, ...] = ("place", "process", "revision")


@dataclass(frozen=True, slots=True)
class Effect:
    """One changed effect of the fleet. ``low`` to ``high`` is the range of magnitude, from mild to severe.

    ``onset`` None is the fault's own; ``after_seconds`` delays it. With ``of_capacity`` the value is a target share of
    the service's capacity. It becomes a factor of the request rate at the start, at least ``least``. ``since_process``
    counts the onset from the start of each slot's engine process, if that is later than the fault's.
    """

    group: str
    effect_name: str
    do: Doing
    low: float
    high: float
    onset: Onset | None = None
    after_seconds: float = 0.0
    of_capacity: bool = False
    least: float = 0.0
    since_process: bool = False

    def value(self, draw: float) -> float:
        """Returns the magnitude for a draw from 0 to 1."""
        return self.low + draw * (self.high - self.low)


@dataclass(frozen=True, slots=True)
class DeclaredAction:
    """A call of an action ``at_seconds`` after the start (None: at the end), repeated every ``every_seconds``.

    ``call`` is the function that ``do`` names. Its parameters are the fleet, the active fault and the arguments.
    """

    do: str
    call: Callable[..., Callable[..., None] | None]
    at_seconds: float | None
    every_seconds: float | None = None
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FaultDefinition:
    """A fault file. ``removes``: the entity and all its parts are absent while the fault lasts.

    ``cures`` are operations that end its effects, with the seconds after the start up to which they do.
    """

    fault: str
    kind: EntityKind
    layer: Layer | None
    negative: bool
    lasts: timedelta
    onset: Onset
    likely: str
    holds: Hold
    effects: tuple[Effect, ...]
    actions: tuple[DeclaredAction, ...]
    symptoms: tuple[str, ...]
    needs: tuple[str, ...] = ()
    excludes: tuple[str, ...] = ()
    removes: bool = False
    cures: Mapping[ActionKind, float] = field(default_factory=dict)

    @property
    def groups(self) -> frozenset[str]:
        """The effect groups that it changes."""
        return frozenset(effect.group for effect in self.effects)
