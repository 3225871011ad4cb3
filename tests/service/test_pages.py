"""Pages by hand: two of one name stand apart, and a page that is none is an error."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from functools import partial
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


OLD = 'npu_chip_info_temperature{id="0",vdie_id="A"} 43 1676000000000\n'


def test_an_old_page_from_a_file_shows_its_values_and_says_that_it_is_old(pages: Path) -> None:
    (pages / "old.txt").write_text(OLD, encoding="utf-8")
    shown = json.loads(run("collect", "once", "--page", "npu_exporter=old.txt", "--page", "dcgm=b/metrics.txt").stdout)
    assert {one["signal"]: one["value"] for one in shown["signals"]}["hw_accel_temperature_celsius"] == 41
    assert 43 in [one["value"] for one in shown["signals"]]
    old, dcgm = shown["targets"]
    assert "old: shown as they are, since this is a file" in old["warning"]
    assert dcgm["warning"] is None


def test_an_old_page_of_a_server_is_not_believed(pages: Path) -> None:
    (pages / "metrics").write_text(OLD, encoding="utf-8")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(pages))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shown = json.loads(
            run("collect", "once", "--page", f"npu_exporter=http://127.0.0.1:{server.server_port}/metrics").stdout
        )
        server.shutdown()
    assert "old: not believed" in shown["targets"][0]["warning"]
    assert 43 not in [one["value"] for one in shown["signals"]]


def test_two_types_of_a_metric_are_named(pages: Path) -> None:
    kind = "# TYPE vllm:num_requests_running {}\n"
    (pages / "two.txt").write_text(kind.format("gauge") + kind.format("counter") + ENGINE, encoding="utf-8")
    shown = json.loads(run("collect", "once", "--page", "vllm=two.txt").stdout)
    assert shown["targets"][0]["warning"] == "two types are given of vllm:num_requests_running (read as gauge)"


@pytest.mark.parametrize("name", ["page.gz", "page.txt"])
@pytest.mark.parametrize("command", [("collect", "once"), ("doctor",)])
def test_a_gzipped_page_is_read_whatever_it_is_called(pages: Path, command: tuple[str, ...], name: str) -> None:
    (pages / name).write_bytes(gzip.compress(ENGINE.encode()))
    shown = json.loads(run(*command, "--page", f"vllm={name}").stdout)
    assert shown["targets"][0]["target"] == "page"
    assert "engine_requests_running" in json.dumps(shown.get("signals") or shown["targets"][0]["present"])


def test_a_broken_gzip_file_is_named(pages: Path) -> None:
    (pages / "cut.gz").write_bytes(gzip.compress(ENGINE.encode() * 1000)[:-12])
    found = run("collect", "once", "--page", "vllm=cut.gz")
    assert isinstance(found.exception, UsageError)
    assert "cut.gz is a broken gzip file" in found.exception.message


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("command", [("collect", "once"), ("doctor",)])
def test_without_targets_a_hint_says_what_to_do(command: tuple[str, ...]) -> None:
    found = run(*command)
    assert isinstance(found.exception, UsageError)
    assert "--page vllm=http" in found.exception.hint
