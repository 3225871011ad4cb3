"""On-call settings for tests: three people, two teams, one weekly rotation."""

from __future__ import annotations

from datetime import date
from typing import Any

from service.config.oncall_settings import OnCallSettings

PEOPLE = [
    {"name": "li", "phone": "+8613800000001", "email": "li@example.com"},
    {"name": "wang", "email": "wang@example.com"},
    {"name": "zhao"},
]
ROTATION = {"people": ["li", "wang"], "start": date(2026, 5, 4), "handover": "09:00"}
SCHEDULE = {"name": "model", "timezone": "Europe/Berlin", "rotations": [ROTATION]}
TEAMS = [
    {"name": "model", "members": ["li", "wang"], "lead": "zhao", "schedule": "model"},
    {"name": "hardware", "members": ["zhao"], "layers": ["hardware"]},
]


def settings(**changed: Any) -> OnCallSettings:
    """The settings, with some sections replaced."""
    document = {"people": PEOPLE, "teams": TEAMS, "schedules": [SCHEDULE], **changed}
    return OnCallSettings.model_validate(document)
