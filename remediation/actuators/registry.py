"""All kinds of actuators and their factories. A new one is a new row."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from outrider.ports import Actuator
from remediation.actuators import dry_run, simulated

ACTUATORS: dict[str, Callable[[Mapping[str, Any]], Actuator]] = {
    "dry_run": dry_run.from_settings,
    "simulated": simulated.from_settings,
}
