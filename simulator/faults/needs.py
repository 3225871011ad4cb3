"""What must be there before a fault can be injected: the words of ``needs`` in fault files."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from simulator.faults.places import Places

if TYPE_CHECKING:
    from simulator.fleet import Fleet


def _traffic(fleet: Fleet, here: Places) -> str:
    """The services get requests: what multiplies nothing changes nothing."""
    if here.services.size and (fleet.traffic.rates(fleet.at)[here.services] > 0).any():
        return ""
    return "gets no requests now, so there is no traffic to change"


def _pods(fleet: Fleet, here: Places) -> str:
    """A pod is on it: what breaks or starts one needs one."""
    del fleet
    return "" if here.slots.size else "has no pod on it now, so nothing would show"


def _redundant(fleet: Fleet, here: Places) -> str:
    """Two pods serve: a rolling update of one would be an outage by itself."""
    ready = sum(fleet.pods.pods[slot].ready for slot in here.slots.tolist())
    return "" if ready > 1 else "has fewer than two pods that serve, so a rolling update would be an outage by itself"


NEEDS: dict[str, Callable[[Fleet, Places], str]] = {"traffic": _traffic, "pods": _pods, "redundant": _redundant}


def unmet(fleet: Fleet, needs: tuple[str, ...], here: Places) -> str:
    """Why the first unmet need of a fault forbids it here, empty when all are met."""
    return next((why for need in needs if (why := NEEDS[need](fleet, here))), "")
