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
    existed before an action recovered without it. ``newest_pod_at`` is the creation of the newest pod that served then,
    of the services that had an impact.
    """

    def __init__(self, fleet: Fleet, injection: Injection) -> None:
        self.fleet = fleet
        self.injection = injection
        self.at: float | None = None
        self.pod_created_at: float | None = None
        self.newest_pod_at: float | None = None
        self._starting = np.zeros(fleet.bank.size, dtype=bool)
        self._ill = False
        self._held = np.zeros(fleet.bank.size, dtype=bool)
        self._impacted = np.zeros(fleet.bank.size, dtype=bool)
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
                self._well_since = now
                self.pod_created_at = self._created_at(self._starting)
                self.newest_pod_at = self._created_at(self._serving())
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
        if not self._impacted.any():
            result |= self._held
        return np.asarray(result & pods.existing & ~pods.ready)

    def _serving(self) -> np.ndarray:
        """Returns the ready slots of the services that had an impact, bool by slot."""
        pods = self.fleet.pods
        hit = np.unique(pods.service_of_slot[self._impacted])
        return np.asarray(pods.ready & np.isin(pods.service_of_slot, hit))

    def _created_at(self, slots: np.ndarray) -> float | None:
        pods = self.fleet.pods.pods
        return max((pods[slot].created_at for slot in np.flatnonzero(slots).tolist()), default=None)

    def _at_work(self) -> bool:
        """Returns True if it has an impact, or (like a leak) none yet but still affects a process or revision.

        A fault that was cured before any impact is over once all of its former scope serves again.
        """
        impacted = self.injection.impact(self.fleet)
        self._impacted[impacted] = True
        if self._impacted.any() or self.injection.declared.holds == "place":
            return bool(impacted.size)
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
