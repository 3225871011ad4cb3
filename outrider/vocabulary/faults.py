"""The fault catalog: every fault id with its layer, entity kind, priorities and look-alikes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml

from outrider.model import EntityKind, Layer, Priority

ALL, SYMPTOMS = "all", "symptoms"
"""Names in ``Consequences`` of every alert, and of every alert without a fault."""


@dataclass(frozen=True, slots=True)
class Consequences:
    """Alerts that a fault explains: on dependents of its component, and on dependencies of its service.

    Each is the id of a fault, the name of a rule for an alert without a fault, ``ALL`` or ``SYMPTOMS``: every alert
    without a fault on a service or what serves it, unless another monitor reported it.
    """

    dependents: frozenset[str] = frozenset()
    dependencies: frozenset[str] = frozenset()

    @staticmethod
    def of(entry: Mapping[str, Sequence[str]]) -> Consequences:
        """Reads the field ``inhibits``."""
        return Consequences(frozenset(entry.get("dependents", ())), frozenset(entry.get("dependencies", ())))

    def __bool__(self) -> bool:
        """True if there are any."""
        return bool(self.dependents or self.dependencies)


@dataclass(frozen=True, slots=True)
class Fault:
    """One kind of fault. ``burning`` is its priority while redundancy is lost or the error budget burns."""

    id: str
    layer: Layer
    entity: EntityKind
    burning: Priority
    otherwise: Priority
    confusable: tuple[str, ...]
    moves: str
    remedy: str
    inhibits: Consequences = Consequences()


@cache
def faults() -> dict[str, Fault]:
    """Every fault by id."""
    text = resources.files("outrider.vocabulary").joinpath("faults.yaml").read_text(encoding="utf-8")
    return {
        fault_id: Fault(
            id=fault_id,
            layer=Layer(entry["layer"]),
            entity=EntityKind(entry["entity"]),
            burning=Priority(entry["priority"][0]),
            otherwise=Priority(entry["priority"][-1]),
            confusable=tuple(entry["confusable"]),
            moves=entry["moves"],
            remedy=entry["remedy"],
            inhibits=Consequences.of(entry.get("inhibits", {})),
        )
        for fault_id, entry in yaml.safe_load(text)["faults"].items()
    }


def fault(fault_id: str) -> Fault:
    """The fault with that id. Raises KeyError with the id if there is none."""
    return faults()[fault_id]


def layer_of(fault_id: str | None) -> Layer | None:
    """The layer of a fault; None for an unknown fault, such as one of another release."""
    known = faults().get(fault_id or "")
    return known.layer if known else None
