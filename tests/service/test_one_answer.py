"""Commands that use the plan agree with it: spares, buying, the buffer of the formula."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from outrider.model import CycleRecord, EntityKind, EntityRef, Plan, PlanReason, Recommendation, SignalKey
from outrider.ports import CycleCommit
from outrider.topology import Topology
from planner.performance import calibrate
from service.config.settings import Settings, StoreSettings
from service.wiring import stores as wiring_stores
from tests.service.cli.test_cli import answer, run

NOW = datetime(2026, 5, 20, 9, 0, tzinfo=UTC)
CHAT = EntityRef("default", EntityKind.SERVICE, "serving", "chat")
REPLICAS = [EntityRef("default", EntityKind.REPLICA, "serving", f"chat-{n}") for n in range(8)]
NODES = [EntityRef("default", EntityKind.NODE, None, f"n{n}") for n in range(4)]
ENGINE = (calibrate.RUNNING, calibrate.WAITING, calibrate.TOKENS, calibrate.FINISHED, calibrate.KV_USED)
SERVICES = "services:\n  - {name: chat, namespace: serving, gpu_type: H100, ceiling: 60"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Fifteen days of a daily wave; eight replicas of four GPUs at 25 tokens/s a sequence, and a plan of yesterday."""
    url = f"sqlite:///{tmp_path_factory.mktemp('one')}/s.db"
    times = NOW.timestamp() - 600.0 * np.arange(15 * 144, 0, -1)
    load = 20.0 + 12.0 * np.sin(times / 86400.0 * 2 * np.pi) + np.random.default_rng(4).normal(0.0, 1.5, times.size)
    running = 26.0 + 8.0 * np.sin(times / 86400.0 * 2 * np.pi)
    tokens = running * 25.0 * 600.0
    engine = np.stack([running, np.where(running > 31, 2.0, 0.0), tokens, tokens / 300.0, running / 40.0], axis=-1)
    labels = {replica: {"tensor_parallel": "4", "gpu_type": "H100"} for replica in REPLICAS}
    edges = [(replica, CHAT) for replica in REPLICAS]
    edges += [(NODES[place // 2], replica) for place, replica in enumerate(REPLICAS)]
    older = Recommendation(
        service=CHAT, gpu_type="H100", current_replicas=8, target_replicas=3, gpus=12, floor=1, ceiling=60,
        binding="load", need_at=None, needed_by=None, lead_time=timedelta(minutes=5), cost_per_hour=None,
        currency="USD", derivation={}, reason=PlanReason.ENOUGH, made_at=NOW - timedelta(days=1),
    )  # fmt: skip
    with wiring_stores.stores(Settings(store=StoreSettings(url=url))) as (state, metrics):
        metrics.write_block(
            EntityKind.SERVICE, times, [SignalKey("svc_requests_per_second")], [CHAT], load[None, :, None]
        )
        keys = [SignalKey(name) for name in ENGINE]
        metrics.write_block(EntityKind.REPLICA, times, keys, REPLICAS, np.stack([engine] * len(REPLICAS)))
        record = CycleRecord("c", NOW, 1.0, 2, 2, 0, 0, 0, 0)
        topology = Topology.build(edges, labels=labels)
        state.commit(CycleCommit(record, topology=topology, plan=Plan(recommendations=(older,))))
    return url


@pytest.fixture
def folder(store: str, tmp_path: Path):
    def written(more: str = "") -> Path:
        (tmp_path / "outrider.yaml").write_text(f"store: {{url: '{store}'}}\n{SERVICES}{more}}}\n")
        return tmp_path

    return written


def test_spares_keep_the_replicas_of_the_current_plan(folder):
    where = folder()
    (planned,) = answer("capacity", "plan", cwd=where)
    found = answer("capacity", "spares", "--service", "chat", cwd=where)
    assert found["needed"] == planned["target_replicas"] != 3
    assert found["domains"] == 4
    nodes = planned["derivation"]["nodes"]
    assert found["nodes"]["nodes"] == -(-found["replicas"] * 4 // nodes["gpus_per_node"])
    other = answer("capacity", "spares", "--service", "chat", "--gpus-per-node", "4", cwd=where)
    assert other["nodes"]["nodes"] == other["replicas"]


def test_spares_report_a_limit_below_the_need(folder):
    where = folder().joinpath("outrider.yaml")
    where.write_text(where.read_text().replace("ceiling: 60", "ceiling: 5"))
    (planned,) = answer("capacity", "plan", cwd=where.parent)
    needs = max(planned["derivation"][name] or 0 for name in ("need_now", "need_forecast"))
    found = answer("capacity", "spares", "--service", "chat", cwd=where.parent)
    assert needs > found["needed"]
    assert f"the load of chat needs {needs} replicas" in found["derivation"][-1]


def test_the_formula_uses_the_buffer_of_the_plan(folder):
    where = folder()
    (planned,) = answer("capacity", "plan", cwd=where)
    command_line = ("capacity", "formula", "--qps", "1", "--tokens", "1", "--batch", "1", "--tokens-per-second", "1")
    found = answer(*command_line, "--buffer-of", "chat", cwd=where)["buffer"]
    counted = planned["derivation"]["buffer"]
    assert counted["source"] == "measured"
    assert found == counted
    assert counted["wanted_seconds"] == planned["lead_time_seconds"] + 600.0
    assert counted["lead_seconds"] >= counted["wanted_seconds"]
    output = run("capacity", "explain", "-o", "table", cwd=where).stdout
    assert "ahead (the first horizon beyond the 15m of lead time plus one scaling step)" in output


def test_errors_of_a_file_have_no_lead_time(tmp_path):
    (tmp_path / "errors.txt").write_text("\n".join(["0.1"] * 40))
    command_line = ("capacity", "formula", "--qps", "1", "--tokens", "1", "--batch", "1", "--tokens-per-second", "1")
    for language in ("en", "zh"):
        output = run(*command_line, "--errors", "errors.txt", "--lang", language, "-o", "table", cwd=tmp_path).stdout
        assert "0s" not in output
        assert ("1 in 20 of the given errors" in output) == (language == "en")
    assert answer(*command_line, "--errors", "errors.txt", cwd=tmp_path)["buffer"]["lead_seconds"] is None


def test_buying_counts_whole_replicas_with_the_throughput_of_the_plan(folder):
    where = folder()
    (planned,) = answer("capacity", "plan", cwd=where)
    inputs = {name: entry["value"] for name, entry in planned["derivation"]["inputs"].items()}
    found = answer("capacity", "buy", "--service", "chat", cwd=where)
    buffer = planned["derivation"]["buffer"]["value"]
    each = inputs["batch"] * inputs["tokens_per_second"] / inputs["tokens"] / (1 + buffer) / 4
    assert found["load"]["gpus_per_replica"] == inputs["tp"] == 4
    assert found["load"]["requests_per_second_per_gpu"] == pytest.approx(each)
    assert found["burst_gpus"] >= found["load"]["peak_requests_per_second"] / each
    assert found["held_gpus"] % 4 == found["burst_gpus"] % 4 == 0


def test_buying_uses_configured_prices_and_states_the_currency(folder):
    where = folder(", price_per_gpu_hour: 2.5, currency: EUR")
    found = answer("capacity", "buy", "--service", "chat", cwd=where)["prices"]
    assert (found["burst"], found["currency"]) == (2.5, "EUR")
    assert found["held"] == pytest.approx(2.5 * 0.65)
    assert "configured" in found["source"]
    output = run("capacity", "buy", "--service", "chat", "-o", "table", cwd=where).stdout
    assert "2.5 EUR on demand" in output
    text = where.joinpath("outrider.yaml").read_text()
    offers = (
        "gpus:\n  - {type: H100, price_per_gpu_hour: 4}\n  - {type: H100, purchase: reserved, price_per_gpu_hour: 1}"
    )
    where.joinpath("outrider.yaml").write_text(f"{text}{offers}\n")
    found = answer("capacity", "buy", "--service", "chat", cwd=where)["prices"]
    assert (found["held"], found["burst"], found["source"]) == (1, 4, "configured")
    given = answer("capacity", "buy", "--service", "chat", "--held-price", "3", "--burst-price", "5", cwd=where)[
        "prices"
    ]
    assert (given["held"], given["burst"], given["source"]) == (3, 5, "given")


def test_a_plan_states_replicas_and_its_as_of_time(folder):
    where = folder()
    (planned,) = answer("capacity", "plan", cwd=where)
    assert planned["made_at"] == "2026-05-20T09:00:00Z"
    assert planned["age_seconds"] > 86400
    day = planned["derivation"]["next_24h"]
    output = " ".join(run("capacity", "plan", "-o", "table", cwd=where).stdout.split())
    assert f"{day['replicas']} ({day['gpus']})" in output
    assert "as of 2026-05-20T09:00:00Z" in output
    assert "no data collected since" in output
    assert "needed from" in output
    assert "needed by" not in output
    for language, sentence in (("en", f"needs {day['replicas']} replicas"), ("zh", f"需要 {day['replicas']} 个副本")):
        output = run("capacity", "explain", "--lang", language, "-o", "table", cwd=where).stdout
        (line,) = (
            line for line in output.splitlines() if "24" in line and str(day["gpus"]) in line and sentence in line
        )
        assert sentence in line
    then = run("capacity", "plan", "--at", "2026-05-20T09:00:00Z", "-o", "table", cwd=where).stdout
    assert "no data collected since" not in then


def test_a_time_without_data_is_refused_with_the_known_range(folder):
    where = folder()
    for command in ("plan", "explain"):
        future = answer("capacity", command, "--at", "2126-01-01T00:00:00Z", cwd=where, code=2)["error"]
        assert "is in the future" in future["message"]
        assert "2026-05-20T09:00:00Z" in future["message"]
        before = answer("capacity", command, "--at", "2026-05-10T00:00:00Z", cwd=where, code=2)["error"]
        assert "begins at 2026-05-20T09:00:00Z" in before["message"]
        assert "history" in before["hint"]


def test_the_known_range_of_services_is_reported(tmp_path):
    """The history of cycles reaches further back than the stored topology."""
    url = f"sqlite:///{tmp_path}/s.db"
    (tmp_path / "outrider.yaml").write_text(f"store: {{url: '{url}'}}\n{SERVICES}}}\n")
    with wiring_stores.stores(Settings(store=StoreSettings(url=url))) as (state, _):
        for number, hours in enumerate((30, 20, 10, 0)):
            record = CycleRecord(f"c{number}", NOW - timedelta(hours=hours), 1.0, 2, 2, 0, 0, 0, 0)
            known = Topology.build([(REPLICAS[0], CHAT)]) if hours <= 10 else None
            state.commit(CycleCommit(record, topology=known))
    found = answer("capacity", "plan", "--at", "2026-05-19T20:00:00Z", cwd=tmp_path, code=2)["error"]
    assert "begins at 2026-05-19T23:00:00Z" in found["message"]


def test_without_configuration_and_store_nothing_is_created_and_a_hint_explains(tmp_path):
    assert answer("capacity", "plan", cwd=tmp_path) == []
    for command in ("plan", "explain"):
        output = run("capacity", command, "-o", "table", cwd=tmp_path).stdout
        assert "outrider config init" in output
    assert list(tmp_path.iterdir()) == []
