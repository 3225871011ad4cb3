"""Fault knowledge of a site: the configured folder and its users."""

from __future__ import annotations

import pytest

from detectors.rca import fault_catalogue
from outrider.documents.summaries import signal_name
from outrider.errors import ConfigError
from outrider.testing.story import Story
from outrider.testing.trouble import INCIDENT
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.config import knowledge_overlay
from service.config import settings as settings_file
from service.config.api_settings import ApiSettings
from service.config.runbook_links import runbook_link
from service.config.settings import Settings
from service.wiring import alerting as wiring_alerting
from service.wiring.detectors import rules
from store import memory
from tests.service.api.test_api import Http
from tests.service.cli.test_cli import answer, run

PAGE = "https://wiki.example.org/gpu-lost"


@pytest.fixture
def configured(tmp_path):
    """Writes a configuration with a knowledge folder and one file in it."""

    def write(text, name="gpus.yaml"):
        folder = tmp_path / "known"
        folder.mkdir(exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
        file = tmp_path / "outrider.yaml"
        file.write_text(f"knowledge: {{folder: {folder}}}\nstore: {{url: 'sqlite:///{tmp_path}/o.db'}}\n")
        return file

    return write


def test_without_a_folder_the_catalog_is_the_packaged_one():
    assert knowledge_overlay.of(None) is fault_catalogue.load()


@pytest.mark.slow
def test_engine_api_and_command_line_use_the_folder(configured, tmp_path):
    file = configured(f"gpu-lost: {{runbook: '{PAGE}', checks: [node_ready]}}\n")
    settings = settings_file.load(file)
    known = knowledge_overlay.of(settings.knowledge.folder)
    assert known["gpu-lost"].runbook == PAGE

    state, metrics = memory.MemoryStateStore(), memory.MemoryMetricStore()
    Story(alerts=3).fill(state, metrics)
    http = Http(create_app(state, metrics, ApiSettings(), ApiExtras(knowledge=known)))
    assert PAGE in http.get("/api/v1/knowledge", params={"name": "gpu-lost"}).text
    assert PAGE in http.get(f"/api/v1/incidents/{INCIDENT}").text

    assert PAGE in str(answer("knowledge", "show", "gpu-lost", "--config", str(file), "-o", "json", cwd=tmp_path))
    say = wiring_alerting.messaging_of(settings).explain
    assert say is not None
    assert signal_name("node_ready", "en") in str(say(state.incident(INCIDENT), "en"))


def test_errors_have_file_line_and_key(configured, tmp_path):
    file = configured("gpu-lost:\n  remedy: [explode]\n")
    result = answer("config", "check", str(file), "-o", "json", cwd=tmp_path, code=1)
    (error,) = result["errors"]
    assert (error["line"], error["key"]) == (2, "gpu-lost.remedy[0]")
    with pytest.raises(ConfigError) as refused:
        settings_file.load(file)
    assert "gpus.yaml" in str(refused.value.problems[0])
    assert run("knowledge", "show", "gpu-lost", "--config", str(file), cwd=tmp_path).returncode == 2


def test_a_missing_or_empty_folder_is_refused(tmp_path):
    file = tmp_path / "outrider.yaml"
    file.write_text(f"knowledge:\n  folder: {tmp_path}/nowhere\n")
    _, problems, _ = settings_file.review(file)
    assert [(one.line, one.key) for one in problems] == [(2, "knowledge.folder")]
    (tmp_path / "nowhere").mkdir()
    _, problems, _ = settings_file.review(file)
    assert "contains no *.yaml file" in problems[0].message
    (tmp_path / "nowhere" / "x.yaml").write_bytes(b"gpu-lost: \xff")
    _, problems, _ = settings_file.review(file)
    assert "UTF-8" in problems[0].message


BASE = "https://git.example/outrider/blob/main/"


@pytest.mark.parametrize(
    ("path", "base", "link"),
    [
        ("docs/runbooks/gpu-lost.md", BASE, "https://git.example/outrider/blob/main/docs/runbooks/gpu-lost.md"),
        ("docs/runbooks/gpu-lost.md", None, "docs/runbooks/gpu-lost.md"),
        ("https://wiki.example/gpu", BASE, "https://wiki.example/gpu"),
        ("", BASE, ""),
    ],
)
def test_the_path_of_a_runbook_is_a_link_where_a_base_url_is_configured(path, base, link):
    assert runbook_link(path, base) == link


def test_rules_and_faults_have_links_to_their_runbooks():
    settings = Settings.model_validate({"knowledge": {"runbooks_url": BASE}})
    named = [rule.runbook for rule in rules(settings)]
    named += [known.runbook for known in settings.knowledge.catalog().values()]
    assert len(named) >= 100
    assert all(not link or link.startswith("https://") for link in named)
    assert any(not rule.runbook.startswith("https://") for rule in rules(Settings()))
