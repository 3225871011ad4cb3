"""The configuration of the degrade ladder and of the cluster switch."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.errors import ConfigError
from outrider.model import ActionKind
from service.config.settings import Settings, load, review


def problems(folder: Path, text: str) -> dict[str, str]:
    file = folder / "outrider.yaml"
    file.write_text(text)
    return {problem.key: problem.message for problem in review(file)[1]}


def test_services_get_their_options_and_start_up_time():
    settings = Settings.model_validate(
        {
            "services": [{"name": "chat", "startup": "3m"}, {"name": "code", "startup": "1m"}],
            "remediation": {"degrade": {"services": {"chat": {"classes": ["vip", "standard"]}}}},
        }
    )
    startups = {service.name: service.startup for service in settings.services}
    ladders = settings.remediation.degrade.ladders(startups)
    assert ladders.options("chat").startup.total_seconds() == 180
    assert ladders.options("chat").classes == {"vip", "standard"}
    assert ladders.options("code").startup.total_seconds() == 60


def test_a_disabled_ladder_degrades_nothing():
    settings = Settings.model_validate({"remediation": {"degrade": {"enabled": False}}})
    assert settings.remediation.degrade.ladders({}).of("chat") is None
    off = Settings.model_validate({"remediation": {"cluster_switch": {"enabled": False}}})
    assert off.remediation.cluster_switch.procedure() is None


def test_an_own_ladder_is_checked_with_its_own_lines(tmp_path):
    own = tmp_path / "ladder.yaml"
    own.write_text("version: 1\ndegrade:\n  faults: [no-such]\n")
    found = problems(tmp_path, f"remediation:\n  degrade:\n    file: {own}\n")
    assert "degrade.faults[0]" in found
    with pytest.raises(ConfigError, match=r"ladder\.yaml:2"):
        load(tmp_path / "outrider.yaml")


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("remediation:\n  degrade:\n    file: none.yaml\n", "remediation.degrade.file"),
        ("remediation:\n  degrade:\n    webhook_secret_file: s\n", "remediation.degrade.webhook_secret_file"),
        ("remediation:\n  cluster_switch:\n    standby: {a: a}\n", "remediation.cluster_switch.standby.a"),
        ("remediation:\n  degrade:\n    services: {chat: {classes: [gold]}}\n",
         "remediation.degrade.services.chat.classes[0]"),
    ],
)  # fmt: skip
def test_mistakes_are_named(tmp_path, text, key):
    assert key in problems(tmp_path, text)


def test_on_kubernetes_levels_have_their_own_performer():
    settings = Settings.model_validate({"remediation": {"actuator": "kubernetes"}})
    assert settings.remediation.performer(ActionKind.DEGRADE_SERVICE) == "degrade"
    assert settings.remediation.performer(ActionKind.CORDON) == "kubernetes"
