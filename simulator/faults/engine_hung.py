"""engine-hung: the engine core stands still while the HTTP server in front of it answers."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING

from outrider.model import EntityKind, EntityRef
from simulator.faults.base import Injection, replicas_of

if TYPE_CHECKING:
    from simulator.fleet import Fleet


class EngineHung(Injection):
    """/health says 200, every ``vllm:`` value is frozen, requests in flight and open files grow.

    Restarting the pod cures it; at the end the core goes on and works its queue off.
    """

    fault = "engine-hung"
    kind = EntityKind.REPLICA
    lasts = timedelta(minutes=12)
    symptoms = ("engine_generation_tokens_total", "engine_iterations_total", "engine_inflight_requests")

    @classmethod
    def candidates(cls, fleet: Fleet) -> Sequence[EntityRef]:
        """Replicas that exist."""
        return replicas_of(fleet, ready=False)

    @classmethod
    def likely(cls, fleet: Fleet) -> Sequence[EntityRef]:
        """Replicas that serve and are not hung already."""
        return [
            ref
            for ref in replicas_of(fleet, ready=True)
            if (pod := fleet.pod_named(ref.name)) is not None and not fleet.hung[pod.slot]
        ]

    def begin(self, fleet: Fleet) -> None:
        """Stop the core."""
        pod = fleet.pod_named(self.truth.entity.name)
        self._hit = None
        if pod is not None and pod.ready:
            self._hit = (pod.slot, pod.generation)
            fleet.hang(pod.slot)

    def finish(self, fleet: Fleet) -> None:
        """Let the core go on, unless a new pod has taken its place."""
        if self._hit is not None and fleet.pods.pods[self._hit[0]].generation == self._hit[1]:
            fleet.unhang(self._hit[0])
