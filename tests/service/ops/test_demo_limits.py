"""The file with the limits of the demo: what it changes, and when it is read again."""

from __future__ import annotations

import pytest

from outrider.errors import ConfigError
from outrider.model import ActionKind
from service.config.settings import Settings
from service.ops.demo_limits import LimitsFile

OF_THE_FLEET = Settings.model_validate(
    {"remediation": {"autonomy": "act", "dry_run": False, "actuator": "simulated", "control_url": "http://fleet"}}
)


@pytest.fixture
def file(tmp_path):
    return tmp_path / "practice.yaml"


def test_levels_and_approvals_replace_those_of_the_demo(file):
    file.write_text("remediation: {autonomy: approve, two_person: [drain], approval_expires: 5m}\n")
    limits = LimitsFile(file, "demo").changed()
    changed = limits.over(OF_THE_FLEET).remediation
    assert (changed.autonomy, changed.two_person) == ("approve", [ActionKind.DRAIN])
    assert limits.written == {"autonomy": "approve", "two_person": ["drain"], "approval_expires": "5m"}


def test_what_the_file_does_not_name_stays(file):
    file.write_text("remediation: {two_person: [drain]}\n")
    changed = LimitsFile(file, "demo").changed().over(OF_THE_FLEET).remediation
    assert (changed.autonomy, changed.dry_run) == ("act", False)


def test_the_simulated_fleet_performs_whatever_performer_the_file_names(file):
    text = "{actuator: kubernetes, kubernetes: {url: 'https://k'}, actuators: {scale: autoscalers}, autonomy: approve}"
    emit = "services: [{name: chat}]\nplanner: {scaling: {emit: [{service: chat, type: hpa}]}}\n"
    file.write_text(f"remediation: {text}\n{emit}")
    changed = LimitsFile(file, "demo").changed().over(OF_THE_FLEET).remediation
    assert (changed.actuator, changed.actuators, changed.kubernetes.url) == ("simulated", {}, None)
    assert changed.autonomy == "approve"


def test_a_file_is_read_again_only_after_a_change(file):
    file.write_text("remediation: {autonomy: approve}\n")
    limits = LimitsFile(file, "demo")
    assert limits.changed()
    assert limits.changed() is None
    file.write_text("remediation: {autonomy: observe}\n")
    assert limits.changed().written == {"autonomy": "observe"}


def test_a_mistake_is_reported_once_with_its_line(file):
    file.write_text("remediation: {autonomy: approve}\n")
    limits = LimitsFile(file, "demo")
    limits.changed()
    file.write_text("remediation:\n  autonomy: aprove\n")
    with pytest.raises(ConfigError, match=r"practice\.yaml:2: remediation\.autonomy"):
        limits.changed()
    assert limits.changed() is None
    file.unlink()
    with pytest.raises(ConfigError, match="does not exist"):
        limits.changed()
    assert limits.changed() is None


def test_a_file_with_game_days_only_changes_no_limit(file):
    file.write_text("game_days: [{name: weekly, faults: [gpu-lost]}]\n")
    limits = LimitsFile(file, "demo").changed()
    assert (limits.written, limits.values) == ({}, {})
