"""engine-dead: the server process is killed and does not come up again by itself."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from outrider.model import EntityKind, EntityRef
from simulator.faults.base import Injection, replicas_of

if TYPE_CHECKING:
    from simulator.fleet import Fleet


class EngineDead(Injection):
    """Connections are refused from one moment to the next; the container is in CrashLoopBackOff.

    Deleting the pod cures it; so does the end, after which the kubelet's restart succeeds.
    """

    fault = "engine-dead"
    kind = EntityKind.REPLICA
    lasts = timedelta(minutes=15)
    symptoms = ("engine_up", "engine_health_ok", "svc_ready_backends", "pod_restarts")

    @classmethod
    def candidates(cls, fleet: Fleet) -> Sequence[EntityRef]:
        """Replicas that exist."""
        return replicas_of(fleet, ready=False)

    @classmethod
    def likely(cls, fleet: Fleet) -> Sequence[EntityRef]:
        """Replicas that serve."""
        return replicas_of(fleet, ready=True)

    def begin(self, fleet: Fleet) -> None:
        """Kill it."""
        pod = fleet.pod_named(self.truth.entity.name)
        self._hit = None
        if pod is not None and pod.ready:
            self._hit = (pod.slot, pod.generation)
            fleet.crash(pod.slot, self.fault)

    def finish(self, fleet: Fleet) -> None:
        """The next restart succeeds."""
        if self._hit is not None:
            fleet.pods.cure(*self._hit, self.fault, fleet.at)
