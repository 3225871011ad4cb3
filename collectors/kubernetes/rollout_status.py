"""Outcome of workload changes: succeeded, failed, rolled back, superseded. Read from the workloads' own status."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime

from collectors.kubernetes.api import Json, items, mapping, text
from outrider.records.change_log import ChangeEnd, ChangeStatus
from outrider.text.i18n import fill

_MOST_TEXT = 300


def rollout_status(workload: Json) -> tuple[ChangeStatus, str] | None:
    """Outcome of the newest change of a workload by its status; None while it is in progress.

    Deployment: https://kubernetes.io/docs/concepts/workloads/controllers/deployment/#complete-deployment; stateful
    sets and LeaderWorkerSets have the same with other counters.
    """
    meta, spec, status = (mapping(workload.get(part)) for part in ("metadata", "spec", "status"))
    for condition in items(status.get("conditions")):
        if condition.get("type") == "Progressing" and text(condition.get("reason")) == "ProgressDeadlineExceeded":
            return ChangeStatus.FAILED, text(condition.get("message"))[
                :_MOST_TEXT
            ] or "the progress deadline was exceeded"
    generation, observed = _count(meta.get("generation")), _count(status.get("observedGeneration"))
    if generation is not None and (observed is None or observed < generation) and "observedGeneration" in status:
        return None
    if generation is not None and observed is None and not status:
        return None
    desired = _count(spec.get("replicas"))
    desired = 1 if desired is None else desired
    available = _count(status.get("availableReplicas"))
    available = _count(status.get("readyReplicas")) if available is None else available
    new, running = _count(status.get("updatedReplicas")) or 0, _count(status.get("replicas")) or 0
    if (available or 0) >= desired and new >= desired and running == desired:
        return ChangeStatus.SUCCEEDED, fill("{n} of {all} [replica|replicas] new and ready", n=desired, all=desired)
    return None


@dataclass(slots=True)
class _Open:
    change: str
    is_template: bool


@dataclass(slots=True)
class PendingRollouts:
    """Changes with a pending outcome, by the workload's uid."""

    open: dict[str, list[_Open]] = field(default_factory=dict)
    newest: dict[str, str] = field(default_factory=dict)  # last change of the template

    def note(self, uid: str, change: str, code: str, at: datetime) -> Iterator[ChangeEnd]:
        """Adds a change as pending, and ends the changes that it reverts or supersedes."""
        is_template = code != "scale"
        waiting = self.open.setdefault(uid, [])
        if is_template and code == "rollback" and self.newest.get(uid, change) != change:
            undone = self.newest[uid]
            waiting[:] = [pending for pending in waiting if pending.change != undone]
            yield ChangeEnd(undone, ChangeStatus.ROLLED_BACK, at, "reverted to the previous template")
        overtaken = [pending for pending in waiting if pending.is_template == is_template and pending.change != change]
        for pending in overtaken:
            waiting.remove(pending)
            yield ChangeEnd(
                pending.change, ChangeStatus.SUPERSEDED, at, "superseded by the next change before it completed"
            )
        if not any(pending.change == change for pending in waiting):
            waiting.append(_Open(change, is_template))
        if is_template:
            self.newest[uid] = change

    def update(self, uid: str, workload: Json, at: datetime) -> Iterator[ChangeEnd]:
        """Ends the pending changes that a new status of the workload completes."""
        waiting = self.open.get(uid)
        outcome = rollout_status(workload) if waiting else None
        if waiting and outcome is not None:
            self.open[uid] = []
            for pending in waiting:
                yield ChangeEnd(pending.change, outcome[0], at, outcome[1])

    def deleted(self, uid: str, at: datetime) -> Iterator[ChangeEnd]:
        """Ends the pending changes of a deleted workload."""
        self.newest.pop(uid, None)
        for pending in self.open.pop(uid, []):
            yield ChangeEnd(pending.change, ChangeStatus.SUPERSEDED, at, "the workload was deleted")


def _count(value: object) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) else None
