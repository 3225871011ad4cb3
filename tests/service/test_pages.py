"""Pages by hand: two of one name stand apart, and a page that is none is an error."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
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


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("command", [("collect", "once"), ("doctor",)])
@pytest.mark.parametrize(
    ("page", "said", "hint"),
    [
        ("tgi=a/metrics.txt", "no metric of tgi; it looks like vllm", "adapter vllm"),
        ("vllm=empty.txt", "the page is empty", "vLLM"),
        ("vllm=localhost:8000/metrics", "cannot be read", "vllm=http://localhost:8000/metrics"),
        ("vllm=10.0.0.7/metrics", "cannot be read", "vllm=http://10.0.0.7/metrics"),
        ("vllm=ftp://h/metrics", "cannot be read", "http://"),
        ("vllm=nowhere.txt", "cannot be read", "name a file"),
    ],
)
def test_what_is_wrong_with_a_page_is_said_with_what_to_do(
    pages: Path, command: tuple[str, ...], page: str, said: str, hint: str
) -> None:
    (pages / "empty.txt").write_text("", encoding="utf-8")
    error = run(*command, "--page", page).exception
    assert isinstance(error, UsageError)
    assert said in error.message
    assert hint in error.hint


@contextmanager
def answering(status: int, page: str = "") -> Iterator[str]:
    class Door(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(page.encode())

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Door)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}/metrics"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


@pytest.mark.parametrize(
    ("status", "hint"),
    [(401, "bearer_token_file"), (403, "right"), (404, "/metrics"), (500, "log"), (503, "not ready")],
)
@pytest.mark.usefixtures("pages")
def test_each_status_has_its_own_hint(status: int, hint: str) -> None:
    with answering(status) as url:
        error = run("collect", "once", "--page", f"vllm={url}").exception
    assert isinstance(error, UnavailableError)
    assert f"HTTP {status}" in error.message
    assert hint in error.hint


@pytest.mark.parametrize("command", [("collect", "once"), ("doctor",)])
def test_it_is_not_done_when_no_target_of_a_configuration_answered(pages: Path, command: tuple[str, ...]) -> None:
    def configured(*urls: str) -> None:
        targets = [
            {"name": f"t{n}", "adapter": "vllm", "url": url, "entity": {"kind": "replica", "name": f"t{n}"}}
            for n, url in enumerate(urls)
        ]
        (pages / "outrider.yaml").write_text(json.dumps({"collect": {"targets": targets}}), encoding="utf-8")

    down = "http://127.0.0.1:9/metrics"
    configured(down, down)
    error = run(*command).exception
    assert isinstance(error, UnavailableError)
    assert "none of 2 targets could be read: t0: " in error.message
    assert "; t1: " in error.message
    with answering(200, ENGINE) as url:
        configured(down, url)
        shown = json.loads(run(*command).stdout)
    assert [bool(one["error"]) for one in shown["targets"]] == [True, False]
