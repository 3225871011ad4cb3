"""Fault injection over HTTP: known faults, active faults and how to end them.

The responses contain the ground truth. They are for drills only; a platform under test must not request them.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from outrider.clock import from_unix, rfc3339
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from simulator.faults import FAULTS, inject, injections_of
from simulator.fleet import Fleet
from simulator.scoring.recovery import Recovery


class FaultEndpoint:
    """Injects faults into served fleets and follows the impact of each."""

    def __init__(self, fleets: Sequence[Fleet]) -> None:
        self._fleets = {fleet.spec.cluster: fleet for fleet in fleets}
        self._watched: dict[str, Recovery] = {}

    def known(self) -> list[dict[str, Any]]:
        """Returns every fault and state by id, with the kind of entity that it affects."""
        return [
            {
                "id": name,
                "kind": declared.kind.value,
                "layer": declared.layer.value if declared.layer else None,
                "negative": declared.negative,
                "lasts_seconds": declared.lasts.total_seconds(),
            }
            for name, declared in sorted(FAULTS.items())
        ]

    def start(
        self,
        fault: str,
        entity: EntityRef | str | None = None,
        *,
        lasts: timedelta | None = None,
        after: timedelta = timedelta(0),
        seed: int = 0,
        cluster: str | None = None,
    ) -> dict[str, Any]:
        """Injects a fault, now or later, and returns its ground truth.

        Raises UsageError for an unknown fault or entity, and for a conflict with another fault.
        """
        wanted = entity.cluster if isinstance(entity, EntityRef) else cluster
        fleet = self._fleet(wanted)
        inject(fleet, fault, entity, start=fleet.now + after, duration=lasts, seed=seed)
        recovery = Recovery(fleet, injections_of(fleet)[-1])
        name = f"{fault}@{int(fleet.at)}-{len(self._watched)}"
        self._watched[name] = recovery
        return _describe(name, recovery)

    def stop(self, name: str) -> dict[str, Any]:
        """Ends a fault early and undoes its actions. Raises UsageError for an unknown id."""
        recovery = self._watched.get(name)
        if recovery is None:
            raise UsageError(f"no active fault has the id {name!r}", hint="GET /control/faults lists them")
        recovery.injection.stop(recovery.fleet)
        return _describe(name, recovery)

    def listed(self) -> list[dict[str, Any]]:
        """Returns every fault injected through this endpoint, newest first."""
        return [_describe(name, recovery) for name, recovery in reversed(self._watched.items())]

    def update(self) -> None:
        """Follows the impact of each fault; called once per step."""
        for recovery in self._watched.values():
            recovery.update()

    def _fleet(self, cluster: str | None) -> Fleet:
        if cluster is None:
            return next(iter(self._fleets.values()))
        if cluster not in self._fleets:
            raise UsageError(f"no cluster is named {cluster!r}", hint=f"clusters: {', '.join(self._fleets)}")
        return self._fleets[cluster]


def _describe(name: str, recovery: Recovery) -> dict[str, Any]:
    truth = recovery.injection.truth
    return {
        "id": name,
        "fault": truth.fault,
        "entity": entity_json(truth.entity),
        "start": rfc3339(truth.start),
        "end": rfc3339(truth.end),
        "symptoms": list(truth.symptoms),
        "touches": [entity_json(touche) for touche in truth.touches],
        "negative": truth.negative,
        "running": recovery.injection in recovery.fleet.injections,
        "recovered_at": _instant(recovery.at),
        "pod_created_at": _instant(recovery.pod_created_at),
        "newest_pod_at": _instant(recovery.newest_pod_at),
        "harmed": recovery.harmed,
    }


def _instant(seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(from_unix(seconds))


def entity_json(entity: EntityRef) -> dict[str, Any]:
    """Returns an entity as the control endpoints write it."""
    return {
        "cluster": entity.cluster,
        "kind": EntityKind(entity.kind).value,
        "namespace": entity.namespace,
        "name": entity.name,
    }
