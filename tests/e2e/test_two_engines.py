"""Two engines on one PostgreSQL: one works, one stands by; a killed one is replaced, an absent server survived.

The tests of this file share both engines and run in their order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
import yaml

from outrider.model import EntityKind, SignalKey
from service.config import settings as settings_file
from service.config.settings import Settings
from service.wiring import stores as wiring_stores
from tests.support import postgres

ROOT = Path(__file__).parents[2]
PATIENCE = 60.0
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
SECOND = timedelta(seconds=1)


@dataclass(slots=True)
class Engine:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def says(self, word: str) -> bool:
        return word in self.log.read_text()

    def has_cycled(self) -> bool:
        return "cycle=" in self.log.read_text() or '"cycle"' in self.log.read_text()


@dataclass(slots=True)
class Scene:
    folder: Path
    settings: Settings
    server: postgres.Server
    engines: list[Engine]

    def start(self, name: str) -> Engine:
        log = self.folder / f"{name}.log"
        command = [sys.executable, "-m", "service.cli", "run-engine", "--config", str(self.folder / "outrider.yaml")]
        with log.open("wb") as file:
            process = subprocess.Popen(command, cwd=self.folder, env=ENVIRONMENT, stdout=file, stderr=file)
        self.engines.append(Engine(name, process, log))
        return self.engines[-1]

    def cycles(self) -> list[str]:
        with wiring_stores.state_reader(self.settings) as state:
            return [one.id for one in state.cycles(limit=10_000)]


def until(ask: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if ask():
            return
        time.sleep(0.1)
    pytest.fail(f"waited {PATIENCE:.0f} s in vain until {what}")


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("engines")
    try:
        with postgres.server(*postgres.UNSYNCED) as server, server.database() as url:
            target = {
                "name": "gone", "adapter": "dcgm", "url": "http://127.0.0.1:1/metrics",
                "entity": {"kind": "node", "name": "node-1"},
            }  # fmt: skip
            written = {"store": {"url": url}, "collect": {"interval": "1s", "targets": [target]}}
            (folder / "outrider.yaml").write_text(yaml.safe_dump(written))
            found = Scene(folder, settings_file.load(folder / "outrider.yaml"), server, [])
            try:
                yield found
            finally:
                for engine in found.engines:
                    engine.process.kill()
                    engine.process.wait()
    except postgres.MissingError as error:
        pytest.skip(f"missing: {error}")


@pytest.mark.slow
def test_the_second_one_stands_by_and_says_for_whom(scene: Scene) -> None:
    first = scene.start("first")
    until(lambda: first.says("engine_started"), "the first engine works")
    second = scene.start("second")
    until(lambda: second.says("standing_by"), "the second one stands by")
    assert second.says("another engine (session")
    until(lambda: len(scene.cycles()) >= 3, "three cycles have run")
    assert not second.says("engine_started")


@pytest.mark.slow
def test_an_absent_server_costs_no_values(scene: Scene) -> None:
    began = datetime.now(UTC)
    scene.server.stop("immediate")
    time.sleep(6)
    back = datetime.now(UTC)
    scene.server.start()
    until(lambda: scene.engines[0].says("leadership_regained"), "the same engine leads again")
    before = len(scene.cycles())
    until(lambda: len(scene.cycles()) >= before + 3, "cycles run again")
    assert scene.engines[0].process.poll() is None
    assert not scene.engines[1].says("engine_started")
    with wiring_stores.stores(scene.settings) as (_, metrics):
        window = metrics.read_windows(EntityKind.NODE, [SignalKey("target_up")], began, back, SECOND)
    seen = (window.values[0, :, 0] == 0.0).sum()
    assert seen >= 4, "the cycles of the outage were kept and written later"
    assert not list((scene.folder / ".outrider" / "spool").glob("*.cycle"))


@pytest.mark.slow
def test_a_killed_engine_is_replaced_by_the_one_that_stands_by(scene: Scene) -> None:
    first, second = scene.engines
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    until(lambda: second.says("took_over"), "the second one took over")
    before = len(scene.cycles())
    until(lambda: len(scene.cycles()) >= before + 3, "cycles run again")
    assert second.process.poll() is None


@pytest.mark.slow
def test_where_it_may_not_stand_by_it_refuses(scene: Scene) -> None:
    written = yaml.safe_load((scene.folder / "outrider.yaml").read_text())
    written["store"]["stand_by"] = False
    config = scene.folder / "strict.yaml"
    config.write_text(yaml.safe_dump(written))
    command = [sys.executable, "-m", "service.cli", "run-engine", "--config", str(config), "-o", "json"]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=scene.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "another engine (session" in done.stdout
    assert "Traceback" not in done.stderr
