"""Degrade levels of services over time, from the performed actions."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta

from outrider.model import Action, ActionKind, ActionStatus, EntityRef

KINDS = (ActionKind.DEGRADE_SERVICE, ActionKind.RESTORE_SERVICE)


@dataclass(frozen=True, slots=True)
class LevelPeriod:
    """Time that a service spent at one level. ``until`` None: it is still there. ``because`` is an incident id."""

    service: EntityRef
    level: int
    name: str
    since: datetime
    until: datetime | None
    because: str

    @property
    def duration(self) -> timedelta | None:
        """Time at the level; None if it is not over."""
        return None if self.until is None else self.until - self.since


def periods(actions: Iterable[Action]) -> tuple[LevelPeriod, ...]:
    """Returns the time of each service at each level above 0, oldest first."""
    changes: dict[EntityRef, list[Action]] = {}
    for action in sorted(filter(_took_effect, actions), key=_at):
        changes.setdefault(action.target, []).append(action)
    found = [
        LevelPeriod(
            service=service,
            level=int(action.params["level"]),
            name=str(action.params.get("name", "")),
            since=_at(action),
            until=_at(following) if following is not None else None,
            because=action.because,
        )
        for service, own in changes.items()
        for action, following in zip(own, [*own[1:], None], strict=True)
        if int(action.params["level"]) > 0
    ]
    return tuple(sorted(found, key=lambda period: (period.since, period.service.key)))


def current(actions: Iterable[Action]) -> dict[EntityRef, LevelPeriod]:
    """Returns the present level of each degraded service."""
    return {period.service: period for period in periods(actions) if period.until is None}


def _took_effect(action: Action) -> bool:
    done = action.status is ActionStatus.DONE and not action.dry_run
    return done and action.kind in KINDS and isinstance(action.params.get("level"), int)


def _at(action: Action) -> datetime:
    return action.ended_at or action.decided_at
