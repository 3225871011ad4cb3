"""Rolling updates: a service's pods are replaced by those of another revision, within its max_unavailable."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from simulator.cluster.pod import FIRST_REVISION
from simulator.cluster.pods import Pods
from simulator.journal import JournalEntry
from simulator.spec.parts import FleetSpec


class RolledOutFleet(Protocol):
    """The parts of a fleet that a rollout reads and changes."""

    spec: FleetSpec
    pods: Pods

    def restart(self, slot: int) -> None:
        """Deletes the pod of a slot; its controller creates a new one."""
        ...

    def entity(self, kind: EntityKind, name: str, namespace: str | None = None) -> EntityRef:
        """Returns an entity of the fleet's cluster."""
        ...

    def change(self, entity: EntityRef, code: str, text: str, **attributes: str) -> JournalEntry:
        """Writes a change to the journal."""
        ...


@dataclass(slots=True)
class _State:
    """State of one service: its revisions, the current one last; True while pods are being replaced."""

    revisions: list[str] = field(default_factory=lambda: [FIRST_REVISION])
    moving: bool = False
    instant: bool = False  # the current revision was applied in place
    paused: bool = False  # no further pods are replaced


class Rollouts:
    """The rollouts of every service of a fleet."""

    def __init__(self, fleet: RolledOutFleet) -> None:
        self._fleet = fleet
        self._states = {service.name: _State() for service in fleet.spec.services}

    def revision(self, service: str) -> str:
        """Returns the revision that the service's deployment specifies."""
        return self._states[service].revisions[-1]

    def moving(self, service: str) -> bool:
        """Returns True while pods of another revision must still be replaced."""
        return self._states[service].moving

    def begin(
        self,
        service: str,
        revision: str,
        *,
        text: str = "",
        instantly: bool = False,
        flags: tuple[str, str] | None = None,
    ) -> None:
        """Starts a rollout. ``instantly``: running processes take over the revision, as for a flag read at run time.

        ``flags`` are the flag before and after; the change is then logged as a flag change. Raises UsageError if it is
        the current revision.
        """
        state = self._states[service]
        before = state.revisions[-1]
        if revision == before:
            raise UsageError(f"{service} is already at revision {revision}", hint="choose another revision")
        if revision in state.revisions:
            state.revisions.remove(revision)
        state.revisions.append(revision)
        state.instant = instantly
        self._aim(service, instantly=instantly)
        message = text or f"{service} is rolled out to {revision}"
        if flags is None:
            self._log_change(service, "rollout", message, before, revision)
        else:
            self._log_change(service, "flags", message, *flags, revision=revision)

    def back(self, service: str, *, text: str = "") -> str | None:
        """Rolls back to the previous revision and returns its name, None if there is none. Ends a pause."""
        state = self._states[service]
        if len(state.revisions) < 2:
            return None
        before = state.revisions.pop()
        after = state.revisions[-1]
        self._aim(service, instantly=state.instant)
        state.instant = state.paused = False
        self._log_change(service, "rollback", text or f"{service} is rolled back to {after}", before, after)
        return after

    def pause(self, service: str, *, paused: bool) -> bool:
        """Stops a rollout where it is, or resumes it. Returns False if nothing changes."""
        state = self._states[service]
        changed = state.paused is not paused
        state.paused = paused
        return changed

    def reset(self) -> None:
        """Resets every service to its first revision, without history."""
        for name in self._states:
            self._states[name] = _State()
            self._aim(name, instantly=True)

    def advance(self) -> None:
        """Replaces the next pods, as the budgets allow; called every tick."""
        for name, state in self._states.items():
            if state.moving and not state.paused:
                self._replace(name, state)

    def _aim(self, service: str, *, instantly: bool) -> None:
        revision = self.revision(service)
        self._fleet.pods.revisions[service] = revision
        if instantly:
            for pod in self._fleet.pods.of_service(service):
                pod.revision = revision
        self._states[service].moving = not instantly

    def _replace(self, service: str, state: _State) -> None:
        fleet = self._fleet
        pods = [pod for pod in fleet.pods.of_service(service) if pod.exists]
        old = [pod for pod in pods if pod.revision != state.revisions[-1]]
        if not old:
            state.moving = False
            return
        # Pods that do not serve go first and do not count against the budget.
        idle = [pod for pod in old if not pod.ready]
        out = sum(not pod.ready for pod in pods)
        room = max(0, pods[0].service.max_unavailable - out)
        for pod in [*idle, *[pod for pod in old if pod.ready][:room]]:
            fleet.restart(pod.slot)

    def _log_change(self, service: str, code: str, text: str, before: str, after: str, **more: str) -> None:
        fleet = self._fleet
        where = fleet.entity(EntityKind.SERVICE, service, fleet.spec.service(service).namespace)
        fleet.change(where, code, text, **{"from": before, "to": after, **more})
