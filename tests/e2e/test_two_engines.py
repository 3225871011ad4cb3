"""Two engines on one PostgreSQL: a leader and a stand-by; failover, and an outage of the server.

The tests of this file share both engines and run in their order.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
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
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}
SECOND = timedelta(seconds=1)


@dataclass(slots=True)
class Engine:
    name: str
    process: subprocess.Popen[bytes]
    log: Path

    def has_logged(self, word: str) -> bool:
        return word in self.log.read_text()

    def has_cycled(self) -> bool:
        return "cycle=" in self.log.read_text() or '"cycle"' in self.log.read_text()


@dataclass(slots=True)
class EngineGroup:
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

    def buffered(self) -> list[Path]:
        """Returns the cycles that wait for the server."""
        return list((self.folder / ".outrider" / "spool").glob("*.cycle"))

    def cycles(self) -> list[str]:
        with wiring_stores.state_reader(self.settings) as state:
            return [cycle.id for cycle in state.cycles(limit=10_000)]


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EngineGroup]:
    folder = tmp_path_factory.mktemp("engines")
    try:
        with postgres.server(*postgres.UNSYNCED) as server, server.database() as url:
            target = {
                "name": "gone", "adapter": "dcgm", "url": "http://127.0.0.1:1/metrics",
                "entity": {"kind": "node", "name": "node-1"},
            }  # fmt: skip
            document = {"store": {"url": url}, "collect": {"interval": "1s", "targets": [target]}}
            (folder / "outrider.yaml").write_text(yaml.safe_dump(document))
            scene = EngineGroup(folder, settings_file.load(folder / "outrider.yaml"), server, [])
            try:
                yield scene
            finally:
                for engine in scene.engines:
                    engine.process.kill()
                    engine.process.wait()
    except postgres.MissingError as error:
        pytest.skip(f"missing: {error}")


def test_the_second_engine_stands_by_and_logs_the_leader(scene: EngineGroup) -> None:
    first = scene.start("first")
    until(lambda: first.has_logged("engine_started"), "the first engine works")
    second = scene.start("second")
    until(lambda: second.has_logged("standing_by"), "the second one stands by")
    assert second.has_logged("another engine (session")
    until(lambda: len(scene.cycles()) >= 3, "three cycles have run")
    assert not second.has_logged("engine_started")


def test_an_outage_of_the_server_loses_no_values(scene: EngineGroup) -> None:
    start = datetime.now(UTC)
    scene.server.stop("immediate")
    until(lambda: len(scene.buffered()) >= 5, "five cycles are in the write buffer")
    end = datetime.now(UTC)
    scene.server.start()
    until(lambda: scene.engines[0].has_logged("leadership_regained"), "the same engine leads again")
    before = len(scene.cycles())
    until(lambda: len(scene.cycles()) >= before + 3, "cycles run again")
    assert scene.engines[0].process.poll() is None
    assert not scene.engines[1].has_logged("engine_started")
    with wiring_stores.stores(scene.settings) as (_, metrics):
        window = metrics.read_windows(EntityKind.NODE, [SignalKey("target_up")], start, end, SECOND)
    down = (window.values[0, :, 0] == 0.0).sum()
    assert down >= 4, "cycles of the outage were buffered and written later"
    assert not scene.buffered()


def test_the_stand_by_replaces_a_killed_engine(scene: EngineGroup) -> None:
    first, second = scene.engines
    first.process.send_signal(signal.SIGKILL)
    first.process.wait()
    until(lambda: second.has_logged("leader_elected"), "the second one took over")
    before = len(scene.cycles())
    until(lambda: len(scene.cycles()) >= before + 3, "cycles run again")
    assert second.process.poll() is None


def test_without_stand_by_a_second_engine_refuses_to_start(scene: EngineGroup) -> None:
    written = yaml.safe_load((scene.folder / "outrider.yaml").read_text())
    written["store"]["stand_by"] = False
    config = scene.folder / "strict.yaml"
    config.write_text(yaml.safe_dump(written))
    command = [sys.executable, "-m", "service.cli", "run-engine", "--config", str(config), "-o", "json"]
    done = subprocess.run(command, env=ENVIRONMENT, cwd=scene.folder, capture_output=True, text=True, check=False)
    assert done.returncode == 3
    assert "another engine (session" in done.stdout
    assert "Traceback" not in done.stderr
