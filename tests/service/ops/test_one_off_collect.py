"""``collect once`` and ``doctor`` on pages: duplicate names, invalid pages, warnings and hints."""

from __future__ import annotations

import gzip
import http.server
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from collectors.exposition.parser import Page, Parser
from collectors.mapping.target import DEFAULT_LIMIT_SERIES
from outrider.errors import UnavailableError, UsageError
from service.cli.tree import app

ENGINE = 'vllm:num_requests_running{engine="0"} 3\n'
GPU = 'DCGM_FI_DEV_GPU_TEMP{UUID="GPU-a",gpu="0"} 41\n'


def run(*arguments: str, output: str = "json"):
    return CliRunner().invoke(app, [*arguments, "-o", output])


def table_of(*arguments: str) -> str:
    return CliRunner().invoke(app, [*arguments, "-o", "table"]).stdout


@pytest.fixture
def pages(tmp_path: Path, monkeypatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for folder, text in (("a", ENGINE), ("b", GPU)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "metrics.txt").write_text(text, encoding="utf-8")
    (tmp_path / "page.html").write_text("<html></html>", encoding="utf-8")
    return tmp_path


@pytest.mark.usefixtures("pages")
def test_two_files_with_the_same_name_are_two_targets() -> None:
    result = run("collect", "once", "--page", "vllm=a/metrics.txt", "--page", "dcgm=b/metrics.txt")
    shown = json.loads(result.stdout)
    assert [(target["target"], target["adapter"]) for target in shown["targets"]] == [
        ("metrics", "vllm"),
        ("metrics-2", "dcgm"),
    ]
    values = {row["signal"]: row["value"] for row in shown["signals"]}
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


def test_an_old_page_from_a_file_is_shown_with_a_warning(pages: Path) -> None:
    (pages / "old.txt").write_text(OLD, encoding="utf-8")
    shown = json.loads(run("collect", "once", "--page", "npu_exporter=old.txt", "--page", "dcgm=b/metrics.txt").stdout)
    assert {row["signal"]: row["value"] for row in shown["signals"]}["hw_accel_temperature_celsius"] == 41
    assert 43 in [row["value"] for row in shown["signals"]]
    old, dcgm = shown["targets"]
    assert "old: shown unchanged because this is a file" in old["warning"]
    assert dcgm["warning"] is None


def test_an_old_page_from_a_server_is_not_trusted(pages: Path) -> None:
    (pages / "metrics").write_text(OLD, encoding="utf-8")
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(pages))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        shown = json.loads(
            run("collect", "once", "--page", f"npu_exporter=http://127.0.0.1:{server.server_port}/metrics").stdout
        )
        server.shutdown()
    assert "old: rejected" in shown["targets"][0]["warning"]
    assert 43 not in [row["value"] for row in shown["signals"]]


def test_contradicting_types_of_a_metric_are_a_warning(pages: Path) -> None:
    kind = "# TYPE vllm:num_requests_running {}\n"
    (pages / "two.txt").write_text(kind.format("gauge") + kind.format("counter") + ENGINE, encoding="utf-8")
    shown = json.loads(run("collect", "once", "--page", "vllm=two.txt").stdout)
    assert shown["targets"][0]["warning"] == "contradicting types for vllm:num_requests_running (read as gauge)"


HISTOGRAM = "vllm:time_to_first_token_seconds"
WELL = f'{HISTOGRAM}_bucket{{{{engine="1",model_name="m",le="{{}}"}}}} {{}}\n'


def histogram(**counts: str) -> str:
    """Buckets of one histogram: ``b01`` is le 0.1, ``b1`` le 1, ``inf`` +Inf."""
    bounds = {"b01": "0.1", "b1": "1", "inf": "+Inf"}
    return "".join(WELL.format(bounds[name], count) for name, count in counts.items())


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (histogram(b01="5", b1="3", inf="9"), 'falls: 3 at le="1" after 5 at le="0.1"'),
        (histogram(b01="5", b1="7", inf="6"), 'falls: 6 at le="+Inf" after 7 at le="1"'),
        (histogram(b01="-5", b1="7", inf="9"), 'falls: -5 at le="0.1" after nothing below'),
        (histogram(b01="5", b1="NaN", inf="9"), 'counts nan at le="1"'),
        (histogram(b01="5", b1="7"), 'has no bucket le="+Inf" and no _count'),
        (histogram(b01="5", b1="7") + f'{HISTOGRAM}_count{{engine="1",model_name="m"}} 6\n', "falls: 6 at"),
    ],
)
def test_invalid_histograms_have_no_quantile_and_a_warning(pages: Path, text: str, reason: str) -> None:
    (pages / "odd.txt").write_text(ENGINE + text, encoding="utf-8")
    shown = json.loads(run("collect", "once", "--page", "vllm=odd.txt").stdout)
    warning = f'rejected histograms: {HISTOGRAM}{{engine="1",model_name="m"}} {reason}'
    assert shown["targets"][0]["warning"].startswith(warning)
    (row,) = [row for row in shown["signals"] if row["signal"] == "engine_ttft_seconds"]
    assert (row["value"], row["reason"], row["unit"]) == (None, "untrusted", "seconds")
    assert json.loads(run("doctor", "--page", "vllm=odd.txt").stdout)["targets"][0]["warning"].startswith(warning)


@pytest.mark.parametrize(
    "text",
    [
        histogram(b01="2", b1="7", inf="9"),
        histogram(b01="2", b1="7") + f'{HISTOGRAM}_count{{engine="1",model_name="m"}} 9\n',
    ],
)
def test_valid_histograms_have_quantiles(pages: Path, text: str) -> None:
    (pages / "sound.txt").write_text(ENGINE + text, encoding="utf-8")
    shown = json.loads(run("collect", "once", "--page", "vllm=sound.txt").stdout)
    assert shown["targets"][0]["warning"] is None
    rows = [row for row in shown["signals"] if row["signal"] == "engine_ttft_seconds"]
    assert rows[0]["value"] == pytest.approx(0.55)  # rank 4.5: halfway from 2 to 7, so halfway from 0.1 to 1
    assert all(row.get("reason") is None for row in rows)


def test_an_untrusted_value_is_a_row_without_a_value(pages: Path) -> None:
    text = 'vllm:num_requests_running{engine="0"} +Inf\nvllm:num_requests_waiting{engine="0"} -3\n'
    (pages / "inf.txt").write_text(text, encoding="utf-8")
    shown = json.loads(run("collect", "once", "--page", "vllm=inf.txt").stdout)
    rows = {row["signal"]: row for row in shown["signals"] if row["entity"]["kind"] == "replica"}
    for name in ("engine_requests_running", "engine_requests_waiting"):
        assert (rows[name]["value"], rows[name]["reason"], rows[name]["unit"]) == (None, "untrusted", "requests")
    assert "not trusted" in run("collect", "once", "--page", "vllm=inf.txt", output="table").stdout
    assert len({(str(row["entity"]), row["signal"]) for row in shown["signals"]}) == len(shown["signals"])


def test_a_repeated_series_is_a_warning_with_its_values(pages: Path) -> None:
    line = 'vllm:num_requests_running{model_name="m",engine="0"}'
    (pages / "dup.txt").write_text(f"{line} 1\n{line} 7\nother 2\nother 2\n", encoding="utf-8")
    warning = (
        'repeated series, the first line counts: vllm:num_requests_running{engine="0",model_name="m"} (1, 7), other'
    )
    for command in (("collect", "once"), ("doctor",)):
        (target,) = json.loads(run(*command, "--page", "vllm=dup.txt").stdout)["targets"]
        assert (target["error"], target["warning"]) == (None, warning)
        assert warning in " ".join(run(*command, "--page", "vllm=dup.txt", output="table").stdout.split())


def test_a_page_above_the_series_limit_has_a_warning(pages: Path) -> None:
    paths = "".join(f'http_seconds{{path="/{number}"}} 1\n' for number in range(100_000))
    (pages / "large.txt").write_text(paths + ENGINE, encoding="utf-8")
    for command in (("collect", "once"), ("doctor",)):
        (target,) = json.loads(run(*command, "--page", "vllm=large.txt").stdout)["targets"]
        assert (
            "series are read (limit 100000); 100000 of them are http_seconds, most by label path" in (target["warning"])
        )


def test_commands_refuse_a_page_that_the_engine_refuses(pages: Path) -> None:
    own = "".join(f'vllm:num_requests_running{{user="{number}"}} 1\n' for number in range(100_001))
    (pages / "own.txt").write_text(own, encoding="utf-8")
    for command in (("collect", "once"), ("doctor",)):
        result = run(*command, "--page", "vllm=own.txt")
        assert isinstance(result.exception, UsageError)
        assert "100001 of them are vllm:num_requests_running, most by label user" in result.exception.message


@pytest.mark.parametrize("command", [("collect", "once"), ("doctor",)])
@pytest.mark.parametrize("body", ["[" * 200_000, '{"status": "success", "data": []}', "null"], ids=len)
def test_a_prometheus_with_an_invalid_response_is_unavailable(pages: Path, command: tuple[str, ...], body: str) -> None:
    with responding(200, body) as url:
        settings = f"collect: {{prometheus: {{url: '{url}'}}}}\n"
        (pages / "nonsense.yaml").write_text(settings, encoding="utf-8")
        result = run(*command, "--config", "nonsense.yaml")
    assert isinstance(result.exception, UnavailableError)  # exit code 3
    assert result.exception.message.startswith("Prometheus at http://127.0.0.1:")


@pytest.mark.parametrize("name", ["page.gz", "page.txt"])
@pytest.mark.parametrize("command", [("collect", "once"), ("doctor",)])
def test_a_gzipped_page_is_read_with_any_file_name(pages: Path, command: tuple[str, ...], name: str) -> None:
    (pages / name).write_bytes(gzip.compress(ENGINE.encode()))
    shown = json.loads(run(*command, "--page", f"vllm={name}").stdout)
    assert shown["targets"][0]["target"] == "page"
    assert "engine_requests_running" in json.dumps(shown.get("signals") or shown["targets"][0]["present"])


def test_a_broken_gzip_file_is_an_error(pages: Path) -> None:
    (pages / "cut.gz").write_bytes(gzip.compress(ENGINE.encode() * 1000)[:-12])
    result = run("collect", "once", "--page", "vllm=cut.gz")
    assert isinstance(result.exception, UsageError)
    assert "cut.gz is a broken gzip file" in result.exception.message


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("command", [("collect", "once"), ("doctor",)])
def test_without_targets_the_error_has_a_hint(command: tuple[str, ...]) -> None:
    result = run(*command)
    assert isinstance(result.exception, UsageError)
    assert "--page vllm=http" in result.exception.hint


@pytest.mark.usefixtures("pages")
@pytest.mark.parametrize("command", [("collect", "once"), ("doctor",)])
@pytest.mark.parametrize(
    ("page", "message", "hint"),
    [
        ("tgi=a/metrics.txt", "no metric of tgi; it matches vllm", "adapter vllm"),
        ("vllm=empty.txt", "the metrics page is empty", "vLLM"),
        ("vllm=localhost:8000/metrics", "cannot be read", "vllm=http://localhost:8000/metrics"),
        ("vllm=10.0.0.7/metrics", "cannot be read", "vllm=http://10.0.0.7/metrics"),
        ("vllm=ftp://h/metrics", "cannot be read", "http://"),
        ("vllm=nowhere.txt", "cannot be read", "name a file"),
    ],
)
def test_a_wrong_page_is_an_error_with_a_hint(
    pages: Path, command: tuple[str, ...], page: str, message: str, hint: str
) -> None:
    (pages / "empty.txt").write_text("", encoding="utf-8")
    error = run(*command, "--page", page).exception
    assert isinstance(error, UsageError)
    assert message in error.message
    assert hint in error.hint


@contextmanager
def responding(status: int, page: str = "") -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(status)
            self.end_headers()
            self.wfile.write(page.encode())

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def log_message(self, *_: object) -> None:
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
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
    [(401, "bearer_token_file"), (403, "permission"), (404, "/metrics"), (500, "log"), (503, "not ready")],
)
@pytest.mark.usefixtures("pages")
def test_each_http_status_has_its_own_hint(status: int, hint: str) -> None:
    with responding(status) as url:
        error = run("collect", "once", "--page", f"vllm={url}").exception
    assert isinstance(error, UnavailableError)
    assert f"HTTP {status}" in error.message
    assert hint in error.hint


@pytest.mark.parametrize("command", [("collect", "once"), ("doctor",)])
def test_it_is_an_error_if_no_configured_target_responds(pages: Path, command: tuple[str, ...]) -> None:
    def configure(*urls: str) -> None:
        targets = [
            {"name": f"t{n}", "adapter": "vllm", "url": url, "entity": {"kind": "replica", "name": f"t{n}"}}
            for n, url in enumerate(urls)
        ]
        (pages / "outrider.yaml").write_text(json.dumps({"collect": {"targets": targets}}), encoding="utf-8")

    down = "http://127.0.0.1:9/metrics"
    configure(down, down)
    error = run(*command).exception
    assert isinstance(error, UnavailableError)
    assert "none of 2 targets could be read: t0: " in error.message
    assert "; t1: " in error.message
    with responding(200, ENGINE) as url:
        configure(down, url)
        shown = json.loads(run(*command).stdout)
    assert [bool(target["error"]) for target in shown["targets"]] == [True, False]


@pytest.mark.parametrize("command", [("collect", "once"), ("doctor",)])
def test_an_error_names_its_target(pages: Path, command: tuple[str, ...]) -> None:
    (pages / "broken.txt").write_text("vllm:num_requests_running{ 1\n", encoding="utf-8")
    shown = json.loads(run(*command, "--page", "vllm=broken.txt", "--page", "vllm=a/metrics.txt").stdout)
    broken, whole = shown["targets"]
    assert broken["error"].startswith("broken: ")
    assert whole["error"] is None
    alone = run(*command, "--page", "vllm=broken.txt").exception
    assert isinstance(alone, UsageError)
    assert alone.message == broken["error"]
    if command == ("doctor",):
        table = table_of(*command, "--page", "vllm=broken.txt", "--page", "vllm=a/metrics.txt")
        assert f"broken (vllm): {broken['error'].removeprefix('broken: ')}" in table


@pytest.mark.parametrize("command", [("collect", "once"), ("doctor",)])
def test_a_page_above_the_series_limit_is_parsed_in_part(
    pages: Path, command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    parse = Parser.parse

    def counting(self: Parser, body: bytes, **named: Any) -> Page:
        parsed.append(body.count(b"\n"))
        return parse(self, body, **named)

    monkeypatch.setattr(Parser, "parse", counting)
    noise = "".join(f'requests{{path="/{number}"}} 1\n' for number in range(DEFAULT_LIMIT_SERIES))
    (pages / "many.txt").write_text(ENGINE + noise, encoding="utf-8")
    shown = json.loads(run(*command, "--page", "vllm=many.txt").stdout)
    assert max(parsed) < 100
    (target,) = shown["targets"]
    if command == ("doctor",):
        assert "engine_requests_running" in target["present"]
        assert target["unknown_metrics"] is None
        assert f"are read (limit {DEFAULT_LIMIT_SERIES})" in target["warning"]
        assert target["warning"] in table_of(*command, "--page", "vllm=many.txt")
    else:
        assert target["samples"] > DEFAULT_LIMIT_SERIES
        assert {row["signal"]: row["value"] for row in shown["signals"]}["engine_requests_running"] == 3
    (pages / "all.txt").write_text(
        "".join(f'vllm:num_requests_running{{path="{number}"}} 1\n' for number in range(DEFAULT_LIMIT_SERIES + 1)),
        encoding="utf-8",
    )
    refused = run(*command, "--page", "vllm=all.txt").exception
    assert isinstance(refused, UsageError)
    assert refused.message.startswith("all: the page has 100001 series")
