"""Pages by hand: two of one name stand apart, and a page that is none is an error."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from outrider.errors import UnavailableError, UsageError
from service.cli.tree import app

ENGINE = 'vllm:num_requests_running{engine="0"} 3\n'
GPU = 'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-a",gpu="0"} 41\n'


def run(*arguments: str):
    return CliRunner().invoke(app, [*arguments, "-o", "json"])


@pytest.fixture
def pages(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for folder, text in (("a", ENGINE), ("b", GPU)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "metrics.txt").write_text(text, encoding="utf-8")
    (tmp_path / "page.html").write_text("<html></html>", encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("pages")
def test_two_files_of_one_name_are_two_targets() -> None:
    found = run("collect", "once", "--page", "vllm=a/metrics.txt", "--page", "dcgm=b/metrics.txt")
    shown = json.loads(found.stdout)
    assert [(one["target"], one["adapter"]) for one in shown["targets"]] == [
        ("metrics", "vllm"),
        ("metrics-2", "dcgm"),
    ]
    values = {one["signal"]: one["value"] for one in shown["signals"]}
    assert values["engine_requests_running"] == 3
    assert values["hw_accel_temperature_celsius"] == 41


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("command", [("collect", "once"), ("doctor",)])
@pytest.mark.parametrize(
    ("page", "error"), [("vllm=page.html", UsageError), ("vllm=http://127.0.0.1:9/metrics", UnavailableError)]
)
def test_a_page_that_cannot_be_read_is_an_error(command: tuple[str, ...], page: str, error: type[Exception]) -> None:
    assert isinstance(run(*command, "--page", page).exception, error)
