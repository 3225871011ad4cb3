"""Recovery of a service from a fault: the end of the impact, from the fleet's state and not from the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from simulator.faults.base import Injection
    from simulator.fleet import Fleet

WELL_FOR_SECONDS = 30.0


class Recovery:
    """Follows one injected fault. ``at`` is the time at which its impact ended before the fault, unix seconds.

    ``pod_created_at`` is the creation of the last pod that had to start for that, None if none had to. A pod that
    existed before an action recovered without it.
    """

    def __init__(self, fleet: Fleet, injection: Injection) -> None:
        self.fleet = fleet
        self.injection = injection
        self.at: float | None = None
        self.pod_created_at: float | None = None
        self._starting = np.zeros(fleet.bank.size, dtype=bool)
        self._harmed = self._ill = False
        self._held = np.zeros(fleet.bank.size, dtype=bool)
        self._well_since: float | None = None
        self._long_enough = WELL_FOR_SECONDS + _longest_pause(injection)

    def update(self) -> None:
        """Updates ``at``, once per step. An impact ended when it disappeared, if it stays absent long enough."""
        truth, now = self.injection.truth, self.fleet.at
        if not truth.start.timestamp() <= now < truth.end.timestamp():
            return
        if self._at_work():
            self._ill, self._well_since, self.at = True, None, None
            self._starting = self._waiting()
        elif self._ill:
            if self._well_since is None:
                self._well_since, self.pod_created_at = now, self._created_at()
            if now - self._well_since >= self._long_enough:
                self.at = self._well_since

    @property
    def harmed(self) -> bool:
        """True if it has had an impact."""
        return self._ill

    def _waiting(self) -> np.ndarray:
        """Returns the slots whose pods must become ready before the impact is over, bool by slot."""
        pods, result = self.fleet.pods, np.zeros(self.fleet.bank.size, dtype=bool)
        result[self.injection.impact(self.fleet)] = True
        if not self._harmed:
            result |= self._held
        return np.asarray(result & pods.existing & ~pods.ready)

    def _created_at(self) -> float | None:
        pods = self.fleet.pods.pods
        return max((pods[slot].created_at for slot in np.flatnonzero(self._starting).tolist()), default=None)

    def _at_work(self) -> bool:
        """Returns True if it has an impact, or (like a leak) none yet but still affects a process or revision.

        A fault that was cured before any impact is over once all of its former scope serves again.
        """
        harms = bool(self.injection.impact(self.fleet).size)
        self._harmed |= harms
        if self._harmed or self.injection.declared.holds == "place":
            return harms
        here = self.injection.here(self.fleet).slots
        self._held[here] = True
        pods = self.fleet.pods
        return bool(here.size or (self._held & pods.existing & ~pods.ready).any())


def _longest_pause(injection: Injection) -> float:
    """Returns the longest pause of an intermittent fault, in seconds."""
    declared, truth = injection.declared, injection.truth
    onsets = [declared.onset, *(effect.onset for effect in declared.effects if effect.onset is not None)]
    lasts = (truth.end - truth.start).total_seconds()
    return max(onset.off_seconds if onset.on_seconds + onset.off_seconds < lasts else 0.0 for onset in onsets)
