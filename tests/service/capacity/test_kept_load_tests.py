"""A load test is not lost when the store goes while it runs."""

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
    """One of its own: it is stopped."""
    try:
        with postgres.server(*postgres.UNSYNCED) as found:
            yield found
    except postgres.MissingError as error:
        pytest.skip(f"missing: {error}")


def kept_path(error: dict[str, Any]) -> Path:
    """What the hint tells to import, as a shell would read it."""
    words = shlex.split(error["hint"].partition("outrider ")[2])
    assert words[:3] == ["capacity", "calibrate", "--import"]
    return Path(words[3])


def test_a_test_during_which_the_database_stops_is_kept_and_imported(
    engine: tuple[str, Any], server: postgres.Server, tmp_path: Path
) -> None:
    url, kind = engine
    with server.database() as store:
        (tmp_path / "outrider.yaml").write_text(f"store: {{url: '{store}'}}\n")
        real = kind.do_POST

        def stopping(handler: Any) -> None:
            """The database goes with the first request that is answered."""
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
        assert path.exists(), "an import that fails takes nothing away"
        server.start()
        found = answer(*imported, cwd=tmp_path)
        assert (found["service"], found["gpu_type"], found["tensor_parallel"]) == ("chat", "H100", 2)
        assert found["kept"]
        (shown,) = answer("capacity", "calibrate", "--show", cwd=tmp_path)
        assert (shown["namespace"], shown["source"], shown["engine_version"]) == ("serving", "load_test", "0.11")
        assert shown["batch"] == found["batch"]
        assert shown["measured_at"] < shown["valid_until"]


def test_a_test_that_the_store_took_leaves_no_file(engine: tuple[str, Any], tmp_path: Path) -> None:
    url, _ = engine
    found = answer("capacity", "calibrate", "--endpoint", url, *LOAD, cwd=tmp_path)
    assert found["kept"]
    assert not list((tmp_path / ".outrider" / "load-tests").iterdir())
    (shown,) = answer("capacity", "calibrate", "--show", cwd=tmp_path)
    assert shown["source"] == "load_test"


def test_options_say_otherwise_than_the_file(tmp_path: Path) -> None:
    (tmp_path / "copy.json").write_text(planner_tests.text(TEST), encoding="utf-8")
    asked = ("capacity", "calibrate", "--import", "copy.json", "--no-keep")
    found = answer(*asked, cwd=tmp_path)
    assert (found["service"], found["batch"], found["knee"]) == (TEST.service, 4, "slo")
    found = answer(*asked, "--service", "other", "--gpu-type", "A100", cwd=tmp_path)
    assert (found["service"], found["gpu_type"], found["tensor_parallel"]) == ("other", "A100", 4)
    assert answer(*asked, "--ttft", "1ms", cwd=tmp_path, code=1)["reason"] == "slo_never"


def test_a_disk_that_takes_nothing_is_no_reason_to_lose_a_test(tmp_path: Path) -> None:
    (tmp_path / "load-tests").write_text("a file where the folder would be")
    settings = Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/s.db"))
    path = pending_loadtests._written(settings, TEST)
    try:
        assert path.parent == Path(tempfile.gettempdir())
        assert pending_loadtests.of_file(path) == TEST
    finally:
        path.unlink()
