"""Services in limits of remediation: a misspelt name is reported with file, line and key."""

from __future__ import annotations

from pathlib import Path

import pytest

from outrider.errors import ConfigError, ConfigProblem
from service.config import settings

SERVICES = "services: [{name: chat, namespace: llm}, {name: embed}]\n"
FREEZE = "freezes: [{name: f, timezone: UTC, start: '22:00', end: '23:00', services: [NAME]}]"
DISCOVERIES = [
    "collect: {discover: [{type: kubernetes, url: 'https://k'}]}\n",
    "collect: {prometheus: {url: 'http://p:9090'}}\n",
    "events: [{type: kubernetes, url: 'https://k'}]\n",
    "receive: {rules: [{match: {job: x}, adapter: vllm}]}\n",
    "collect: {targets: [{name: g, adapter: istio, url: 'http://g', entity: {kind: workload, name: g}}]}\n",
]


def reviewed(folder: Path, text: str) -> tuple[list[ConfigProblem], list[ConfigProblem]]:
    """Returns errors and warnings of ``config check``."""
    file = folder / "outrider.yaml"
    file.write_text(text, encoding="utf-8")
    _, errors, warnings = settings.review(file)
    return errors, warnings


@pytest.mark.parametrize(
    ("section", "key"),
    [
        (FREEZE, "freezes[0].services[0]"),
        (FREEZE.replace("freezes", "maintenance_windows"), "maintenance_windows[0].services[0]"),
        ("autonomy_for: {services: {NAME: observe}}", "autonomy_for.services.NAME"),
        ("service_minimum: {services: {NAME: 2}}", "service_minimum.services.NAME"),
        ("degrade: {services: {NAME: {enabled: false}}}", "degrade.services.NAME"),
    ],
)
def test_a_misspelt_service_is_reported_with_file_line_and_key(tmp_path: Path, section: str, key: str) -> None:
    text = f"{SERVICES}remediation:\n  {section}\n"
    ((error,), warnings) = reviewed(tmp_path, text.replace("NAME", "chta"))
    assert (error.line, error.key) == (3, f"remediation.{key}".replace("NAME", "chta"))
    assert error.message == "no service is named 'chta'; did you mean \"chat\"?"
    assert warnings == []
    with pytest.raises(ConfigError, match="no service is named 'zzz'; name it under services"):
        settings.load(_written(tmp_path, text.replace("NAME", "zzz")))
    assert reviewed(tmp_path, text.replace("NAME", "chat")) == ([], [])


def _written(folder: Path, text: str) -> Path:
    file = folder / "outrider.yaml"
    file.write_text(text, encoding="utf-8")
    return file


def test_each_name_of_a_list_has_its_own_line(tmp_path: Path) -> None:
    text = "freezes:\n  - name: f\n    start: '22:00'\n    end: '23:00'\n    services:\n    - chat\n    - embde\n"
    ((error,), _) = reviewed(tmp_path, f"{SERVICES}remediation:\n  {text}")
    assert (error.line, error.key) == (9, "remediation.freezes[0].services[1]")


@pytest.mark.parametrize("name", ["llm/chat", "embed", "any/embed", "chat-prefill", "llm/chat-decode"])
def test_names_with_a_namespace_and_names_of_pools_are_known(tmp_path: Path, name: str) -> None:
    assert reviewed(tmp_path, f"{SERVICES}remediation:\n  {FREEZE.replace('NAME', name)}\n") == ([], [])


def test_a_service_in_another_namespace_is_another_one(tmp_path: Path) -> None:
    ((error,), _) = reviewed(tmp_path, f"{SERVICES}remediation:\n  {FREEZE.replace('NAME', 'web/chat')}\n")
    assert error.message.startswith("no service is named 'web/chat'; did you mean ")


def test_a_ladder_is_named_without_a_namespace(tmp_path: Path) -> None:
    text = f"{SERVICES}remediation:\n  degrade: {{services: {{llm/chat: {{enabled: false}}}}}}\n"
    ((error,), _) = reviewed(tmp_path, text)
    assert error.message == "expected the name of a service without its namespace"


@pytest.mark.parametrize("discovery", DISCOVERIES)
def test_a_name_that_may_be_discovered_is_a_warning(tmp_path: Path, discovery: str) -> None:
    text = f"{SERVICES}{discovery}remediation:\n  {FREEZE}\n"
    errors, (warning,) = reviewed(tmp_path, text.replace("NAME", "chta"))
    assert (errors, warning.line, warning.key) == ([], 4, "remediation.freezes[0].services[0]")
    assert warning.message == "no configured service is named 'chta'; did you mean \"chat\"?"
    _, (other,) = reviewed(tmp_path, text.replace("NAME", "vision"))
    assert other.message.endswith("; it applies only if one of that name is discovered")


@pytest.mark.parametrize(
    "named",
    [
        (
            "collect: {targets: [{name: a, adapter: vllm, url: 'http://a', labels: {service: chat}, "
            "entity: {kind: replica, name: a, namespace: llm}}]}\n"
        ),
        "probes: [{type: http, service: chat, namespace: llm, url: 'http://chat'}]\n",
    ],
)
def test_services_of_targets_and_probes_are_known(tmp_path: Path, named: str) -> None:
    text = f"{named}remediation:\n  {FREEZE}\n"
    assert reviewed(tmp_path, text.replace("NAME", "chat"))[0] == []
    ((error,), _) = reviewed(tmp_path, text.replace("NAME", "chatt"))
    assert 'did you mean "chat"?' in error.message
