"""Pause and kill switch, for actions that a person starts from the command line."""

from __future__ import annotations

from outrider.errors import UsageError
from outrider.ports import StateStore
from service.config.settings import Settings
from service.engine.kill_switch import KillSwitch


def check_not_stopped(settings: Settings, state: StateStore) -> None:
    """Raises UsageError while remediation is paused or its kill switch is on."""
    if state.paused():
        raise UsageError("remediation is paused", hint="outrider remediate resume")
    switch = KillSwitch(settings.remediation.kill_switch_file)
    if switch.is_on():
        raise UsageError("the kill switch is on", hint=f"remove {switch.file}")
