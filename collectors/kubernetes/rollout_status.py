"""How changes of workloads end: rolled out, failed, rolled back, superseded. Read from the workloads' own status."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from collectors.kubernetes.api import Json, items, mapping, text
from outrider.records.change_log import ChangeEnd, Ended

_MOST_TEXT = 300


def standing(found: Json) -> tuple[Ended, str] | None:
    """How the newest change of a workload stands, by its status; None while it is under way.

    Deployment: https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#complete-deployment;
    stateful sets and LeaderWorkerSets tell the same with other counters.
    """
    meta, spec, status = (mapping(found.get(part)) for part in ("metadata", "spec", "status"))
    for one in items(status.get("conditions")):
        if one.get("type") == "Progressing" and text(one.get("reason")) == "ProgressDeadlineExceeded":
            return Ended.FAILED, text(one.get("message"))[:_MOST_TEXT] or "the progress deadline was exceeded"
    generation, observed = _count(meta.get("generation")), _count(status.get("observedGeneration"))
    if generation is not None and (observed is None or observed < generation) and "observedGeneration" in status:
        return None
    if generation is not None and observed is None and not status:
        return None
    wanted = _count(spec.get("replicas"))
    wanted = 1 if wanted is None else wanted
    there = _count(status.get("availableReplicas"))
    there = _count(status.get("readyReplicas")) if there is None else there
    new, running = _count(status.get("updatedReplicas")) or 0, _count(status.get("replicas")) or 0
    if (there or 0) >= wanted and new >= wanted and running == wanted:
        return Ended.SUCCEEDED, f"{wanted} of {wanted} replicas are new and ready"
    return None


@dataclass(slots=True)
class _Open:
    change: str
    is_template: bool


@dataclass(slots=True)
class Endings:
    """Changes whose end is awaited, by the workload's uid."""

    open: dict[str, list[_Open]] = field(default_factory=dict)
    newest: dict[str, str] = field(default_factory=dict)  # the last change of the template

    def note(self, uid: str, change: str, code: str, at: datetime) -> Iterator[ChangeEnd]:
        """A change was seen: it is awaited, and ends what it undoes or overtakes."""
        is_template = code != "scale"
        waiting = self.open.setdefault(uid, [])
        if is_template and code == "rollback" and self.newest.get(uid, change) != change:
            undone = self.newest[uid]
            waiting[:] = [one for one in waiting if one.change != undone]
            yield ChangeEnd(undone, Ended.ROLLED_BACK, at, "what was before came back")
        overtaken = [one for one in waiting if one.is_template == is_template and one.change != change]
        for one in overtaken:
            waiting.remove(one)
            yield ChangeEnd(one.change, Ended.SUPERSEDED, at, "the next change came before it was done")
        if not any(one.change == change for one in waiting):
            waiting.append(_Open(change, is_template))
        if is_template:
            self.newest[uid] = change

    def look(self, uid: str, found: Json, at: datetime) -> Iterator[ChangeEnd]:
        """The workload was told anew: the changes that are over by now."""
        waiting = self.open.get(uid)
        told = standing(found) if waiting else None
        if waiting and told is not None:
            self.open[uid] = []
            for one in waiting:
                yield ChangeEnd(one.change, told[0], at, told[1])

    def gone(self, uid: str, at: datetime) -> Iterator[ChangeEnd]:
        """The workload was deleted."""
        self.newest.pop(uid, None)
        for one in self.open.pop(uid, []):
            yield ChangeEnd(one.change, Ended.SUPERSEDED, at, "the workload was deleted")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
