"""The return of a degraded service to normal, at a person's request."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import UsageError
from outrider.model import Action, EntityKind, EntityRef
from outrider.ports import CycleCommit, StateStore
from outrider.text.unknown_names import no_such
from remediation.decide import degrade
from remediation.decide.history import History
from service.engine import fleet_state
from service.engine.inputs import DECISIONS_WINDOW
from service.incidents import entity_lookup

_HINT = "outrider remediate list shows the changes of degrade levels"


def restore(state: StateStore, service: str, person: str, now: datetime, *, dry_run: bool = False) -> Action:
    """Intends the return of a service to level 0, and audits it.

    Raises UsageError if no such service is known, or if it is not degraded.
    """
    cycles = state.cycles(limit=1)
    known = fleet_state.weighed_actions(state, state.sessions(), now - DECISIONS_WINDOW)
    history = History(known)
    target = _named(history.degraded(), state.topology().of_kind(EntityKind.SERVICE), service)
    actions = degrade.restored_by_hand(history, target, person, now, dry_run=dry_run)
    intended = actions[-1]
    previous = str(intended.params["previous"])
    detail = {"action": intended.id, "previous": previous, "because": intended.because}
    record = AuditRecord(now, AuditEvent.SERVICE_RESTORED, str(target), intended.reason.value, by=person, detail=detail)
    state.commit(CycleCommit(cycles[0], actions=tuple(actions), audit=(record,), early=True))
    return intended


def _named(degraded: Iterable[EntityRef], known: Iterable[EntityRef], text: str) -> EntityRef:
    """Returns the degraded service of a key, ``kind/name``, ``namespace/name`` or name."""
    services = sorted(degraded, key=lambda service: service.key)
    matching = entity_lookup.named(services, text)
    if matching:
        return entity_lookup.only(matching, text, "services")
    others = {*services, *known}
    if not entity_lookup.named(others, text):
        raise no_such("service", text, sorted(service.name for service in others))
    names = ", ".join(service.name for service in services) or "none"
    raise UsageError(f"the service {text!r} is not degraded", hint=f"degraded services: {names}; {_HINT}")
