"""``outrider capacity what-if strategies`` on the services of a store."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from outrider.model import CellStatus, CycleRecord, EntityKind, EntityRef, SampleBatch, SignalKey
from outrider.ports import CycleCommit
from outrider.records.change_log import PhaseTime, StartPhase, Startup
from outrider.topology import Topology
from service.capacity import traces
from service.config.service_settings import ServiceSettings
from service.config.settings import Settings, StoreSettings
from service.wiring import stores as wiring_stores
from store import memory
from tests.service.cli.test_cli import answer, run

NOW = datetime(2026, 5, 20, 9, 0, tzinfo=UTC)
CHAT, FRESH, SILENT = (
    EntityRef("default", EntityKind.SERVICE, "serving", name) for name in ("chat", "fresh", "silent")
)
LOAD = SignalKey("svc_requests_per_second")
SLOTS = 144 * 5 + 72
STRATEGIES = ("capacity", "strategies")


def start(number: int, seconds: float) -> Startup:
    pod = EntityRef("default", EntityKind.POD, "serving", f"chat-{number}")
    begun = NOW - timedelta(hours=number + 1)
    phases = (PhaseTime(StartPhase.PULL, seconds, "event Pulled"),)
    return Startup(str(number), pod, begun, service="chat", phases=phases, ready_at=begun + timedelta(seconds=seconds))


def filled(metrics, slots: int = SLOTS) -> None:
    """A wave of ``chat`` for days, half a day of ``fresh``, and nothing of ``silent``; one value that cannot be."""
    for slot in range(slots):
        at = NOW - timedelta(minutes=10 * (slots - slot))
        wave = 40.0 + 30.0 * np.sin(2 * np.pi * slot / 144)
        known = slot >= slots - 72
        entities = (CHAT, FRESH) if known else (CHAT,)
        values = np.array([[-5.0 if slot == 300 else wave], [5.0]])[: len(entities)]
        status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
        metrics.write(at, [SampleBatch("t", at, EntityKind.SERVICE, (LOAD,), entities, values, status)])


@pytest.fixture(scope="module")
def stored(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("strategies")
    settings = Settings(store=StoreSettings(url=f"sqlite:///{folder}/s.db"))
    (folder / "outrider.yaml").write_text(
        f"store: {{url: 'sqlite:///{folder}/s.db'}}\nservices:\n  - {{name: chat, startup: 8m}}\n"
    )
    topology = Topology.build([], entities=[CHAT, FRESH, SILENT])
    with wiring_stores.stores(settings) as (state, metrics):
        filled(metrics)
        state.commit(CycleCommit(CycleRecord("c", NOW, 1.0, 3, 3, 0, 0, 0, 0), topology=topology))
    return folder


@pytest.fixture(scope="module")
def advised(stored: Path):
    return answer(*STRATEGIES, cwd=stored)


@pytest.mark.slow
def test_stored_services_get_advice_and_new_ones_a_reason(stored: Path, advised) -> None:
    (chat,) = advised["traces"]
    assert chat["name"] == "chat"
    assert chat["recommended"] in {each["name"] for each in chat["strategies"]}
    assert (chat["startup_seconds"], chat["startup_source"]) == (480, "configured")
    (fresh,) = advised["refused"]
    assert fresh["name"] == "fresh"
    assert "not enough to replay" in fresh["why"]
    done = run(*STRATEGIES, "--service", "fresh", "-o", "table", cwd=stored)
    assert done.returncode == 1
    assert "not enough to replay" in done.stdout


@pytest.mark.slow
def test_the_same_trace_is_advised_alike_from_a_file(advised, tmp_path: Path) -> None:
    begin = NOW - timedelta(minutes=10 * SLOTS)
    waves = [40.0 + 30.0 * np.sin(2 * np.pi * slot / 144) for slot in range(SLOTS)]
    lines = [
        f"{begin + timedelta(minutes=10 * slot):%Y-%m-%dT%H:%M:%SZ},{'' if slot == 300 else repr(float(value))}"
        for slot, value in enumerate(waves)
    ]
    (tmp_path / "chat.csv").write_text("\n".join(["time_utc,requests_per_second", *lines]))
    of_file = answer(*STRATEGIES, "chat.csv", "--startup", "8m", cwd=tmp_path)["traces"][0]
    of_store = advised["traces"][0]
    assert of_file["startup_source"] == "given"
    for row, same in zip(of_file["strategies"], of_store["strategies"], strict=True):
        assert row["gpu_hours_ratio"] == pytest.approx(same["gpu_hours_ratio"], rel=1e-3)


@pytest.mark.slow
def test_a_replay_shows_the_waiting_of_every_strategy_beside_its_cost(tmp_path: Path) -> None:
    begin = NOW - timedelta(days=5)
    waves = [40.0 + 30.0 * np.sin(2 * np.pi * slot / 144) for slot in range(5 * 144)]
    lines = [
        f"{begin + timedelta(minutes=10 * slot):%Y-%m-%dT%H:%M:%SZ},{value:.3f}" for slot, value in enumerate(waves)
    ]
    (tmp_path / "chat.csv").write_text("\n".join(["time_utc,requests_per_second", *lines]))
    command = ("capacity", "replay", "chat.csv", "--no-prophet", "-o", "table")
    output = run(*command, cwd=tmp_path).stdout
    rows = {line.split()[1]: line for line in output.splitlines() if line.startswith("chat ")}
    assert list(rows) == ["outrider", "keda", "hpa", "aws", "cron", "knative", "oracle"]
    assert all(len(re.findall(r"\d %", row)) == 2 for row in rows.values()), output
    assert "static" in output.splitlines()[0] + output.splitlines()[1]
    chinese = run(*command, "--lang", "zh", cwd=tmp_path).stdout
    assert "相对静态峰值" in chinese.replace(" ", "").replace("\n", "")
    assert "最优解" in chinese


def test_an_empty_store_and_invalid_options(stored: Path, tmp_path: Path) -> None:
    nothing = answer(*STRATEGIES, cwd=tmp_path, code=1)
    assert (nothing["traces"], nothing["refused"]) == ([], [])
    unknown = answer(*STRATEGIES, "--service", "silent", cwd=stored, code=2)["error"]
    assert "no service with traffic is named 'silent'" in unknown["message"]
    assert "chat, fresh" in unknown["hint"]
    both = answer(*STRATEGIES, "x.csv", "--service", "chat", cwd=stored, code=2)["error"]
    assert "exclude each other" in both["message"]
    before = answer(*STRATEGIES, "--at", "2026-05-17T00:00:00Z", "--service", "chat", cwd=stored, code=2)["error"]
    assert "no service with traffic is named 'chat'" in before["message"], "nothing was known then"


def test_the_start_up_time_is_that_of_the_services_own_starts() -> None:
    metrics = memory.MemoryMetricStore()
    filled(metrics, 20)
    topology = Topology.build([], entities=[CHAT, FRESH])
    settings = Settings(services=[ServiceSettings(name="chat", startup=timedelta(minutes=8))])
    starts = [start(number, 100.0 + number) for number in range(6)]
    chat, fresh = traces.of_store(settings, metrics, topology, NOW, starts)
    assert chat.startup == timedelta(seconds=105 * 1.1)
    assert chat.startup_source == "measured"
    assert (fresh.startup, fresh.startup_source) == (timedelta(minutes=5), "configured")
    pool = EntityRef("default", EntityKind.SERVICE, "serving", "chat-prefill")
    assert traces.startup_of(settings, pool, starts, CHAT) == (chat.startup, "measured")
    assert traces.startup_of(settings, pool, (), CHAT) == (timedelta(minutes=8), "configured")
    slow = traces.startup_of(settings, CHAT, [start(number, 9000.0) for number in range(6)])
    assert slow == (timedelta(hours=1), "measured")
    assert np.isfinite(chat.trace.values).sum() == chat.trace.values.size
