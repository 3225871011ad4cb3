"""Time at each degrade level, from performed actions."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

from outrider.model import Action, ActionKind, ActionStatus, EntityKind, EntityRef
from outrider.records.degrade_levels import current, periods
from tests.support.actions import claimed_action

T0 = datetime(2026, 11, 23, 12, tzinfo=UTC)
CHAT = EntityRef("c", EntityKind.SERVICE, "serving", "chat")
CODE = EntityRef("c", EntityKind.SERVICE, "serving", "code")


def change(minute: int, level: int, service: EntityRef = CHAT, status: ActionStatus = ActionStatus.DONE) -> Action:
    kind = ActionKind.DEGRADE_SERVICE if level else ActionKind.RESTORE_SERVICE
    at = T0 + timedelta(minutes=minute)
    action = claimed_action(kind, service, id_=f"act-{minute}-{service.name}", decided_at=at, level=level, name="x")
    return replace(action, status=status, ended_at=at + timedelta(seconds=30))


def test_each_level_lasts_until_the_next_change():
    found = periods([change(9, 0), change(0, 1), change(4, 3), change(1, 2, CODE)])
    assert [(period.service.name, period.level, period.duration) for period in found] == [
        ("chat", 1, timedelta(minutes=4)),
        ("code", 2, None),
        ("chat", 3, timedelta(minutes=5)),
    ]


def test_only_performed_changes_count():
    shown = replace(change(2, 2), dry_run=True)
    assert periods([change(0, 1, status=ActionStatus.FAILED), change(1, 1, status=ActionStatus.REFUSED), shown]) == ()


def test_the_present_level_is_the_last_one():
    now = current([change(0, 1), change(4, 3), change(5, 1, CODE), change(6, 0, CODE)])
    assert {service.name: (period.level, period.since) for service, period in now.items()} == {
        "chat": (3, T0 + timedelta(minutes=4, seconds=30))
    }
