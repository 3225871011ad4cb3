"""A load test is not lost if the store becomes unavailable while it runs."""

from __future__ import annotations

import json
import shlex
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from planner.performance import loadtest_record as planner_tests
from service.capacity import pending_loadtests
from service.config.settings import Settings, StoreSettings
from tests.planner.performance.test_loadtest_record import TEST
from tests.service.capacity.test_loadtest import TOKENS, engine
from tests.service.cli.test_cli import answer
from tests.support import postgres

__all__ = ["engine"]

LOAD = ("--steps", "1,2", "--step-time", "3s", "--tokens", str(TOKENS), "--prompt", "12", "--service", "serving/chat",
        "--gpu-type", "H100", "--tp", "2", "--engine-version", "0.11", "--valid", "7d", "--ttft", "5s")  # fmt: skip


@pytest.fixture
def server() -> Iterator[postgres.Server]:
    """A separate server, because the test stops it."""
    try:
        with postgres.server(*postgres.UNSYNCED) as running:
            yield running
    except postgres.MissingError as error:
        pytest.skip(f"missing: {error}")


def kept_path(error: dict[str, Any]) -> Path:
    """The path in the hint's command, parsed as a shell does."""
    words = shlex.split(error["hint"].partition("outrider ")[2])
    assert words[:3] == ["capacity", "calibrate", "--import"]
    return Path(words[3])


@pytest.mark.slow
def test_a_test_during_which_the_database_stops_is_kept_and_imported(
    engine: tuple[str, Any], server: postgres.Server, tmp_path: Path
) -> None:
    url, kind = engine
    with server.database() as store:
        (tmp_path / "outrider.yaml").write_text(f"store: {{url: '{store}'}}\n")
        real = kind.do_POST

        def stopping(handler: Any) -> None:
            """Stops the database at the first answered request."""
            kind.do_POST = real
            server.stop("immediate")
            real(handler)

        kind.do_POST = stopping
        command = ("capacity", "calibrate", "--endpoint", url, *LOAD)
        error = answer(*command, cwd=tmp_path, code=3)["error"]
        assert "chat was measured" in error["message"]
        path = kept_path(error)
        assert path.parent == (tmp_path / ".outrider" / "load-tests").resolve()
        steps = json.loads(path.read_text(encoding="utf-8"))["steps"]
        assert [step["concurrency"] for step in steps] == [1, 2]

        imported = ("capacity", "calibrate", "--import", str(path))
        assert "does not answer" in answer(*imported, cwd=tmp_path, code=3)["error"]["message"]
        assert path.exists(), "a failed import keeps the file"
        server.start()
        found = answer(*imported, cwd=tmp_path)
        assert (found["service"], found["gpu_type"], found["tensor_parallel"]) == ("chat", "H100", 2)
        assert found["kept"]
        (shown,) = answer("capacity", "calibrate", "--show", cwd=tmp_path)
        assert (shown["namespace"], shown["source"], shown["engine_version"]) == ("serving", "load_test", "0.11")
        assert shown["batch"] == found["batch"]
        assert shown["measured_at"] < shown["valid_until"]


@pytest.mark.slow
def test_a_stored_test_leaves_no_file(engine: tuple[str, Any], tmp_path: Path) -> None:
    url, _ = engine
    found = answer("capacity", "calibrate", "--endpoint", url, *LOAD, cwd=tmp_path)
    assert found["kept"]
    assert not list((tmp_path / ".outrider" / "load-tests").iterdir())
    (shown,) = answer("capacity", "calibrate", "--show", cwd=tmp_path)
    assert shown["source"] == "load_test"


def test_options_override_the_file(tmp_path: Path) -> None:
    (tmp_path / "copy.json").write_text(planner_tests.text(TEST), encoding="utf-8")
    command = ("capacity", "calibrate", "--import", "copy.json", "--no-keep")
    found = answer(*command, cwd=tmp_path)
    assert (found["service"], found["batch"], found["knee"]) == (TEST.service, 4, "slo")
    found = answer(*command, "--service", "other", "--gpu-type", "A100", cwd=tmp_path)
    assert (found["service"], found["gpu_type"], found["tensor_parallel"]) == ("other", "A100", 4)
    assert answer(*command, "--ttft", "1ms", cwd=tmp_path, code=1)["reason"] == "slo_never"


def test_a_test_is_written_to_the_temporary_folder_if_the_disk_is_not_writable(tmp_path: Path) -> None:
    (tmp_path / "load-tests").write_text("a file where the folder would be")
    settings = Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/s.db"))
    path = pending_loadtests._write(settings, TEST)
    try:
        assert path.parent == Path(tempfile.gettempdir())
        assert pending_loadtests.of_file(path) == TEST
    finally:
        path.unlink()
