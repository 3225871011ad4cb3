"""``outrider capacity what-if split|spares`` and the loss of prefix caches, with JSON output."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from outrider.model import (
    BacktestScore,
    CellStatus,
    CycleRecord,
    EntityKind,
    EntityRef,
    Forecast,
    NoPlanReason,
    NoRecommendation,
    Plan,
    PlanReason,
    Recommendation,
    SampleBatch,
)
from outrider.ports import CycleCommit
from outrider.topology import Topology
from outrider.vocabulary import catalog
from planner.capacity.redundancy import with_spares
from service.config.settings import Settings, StoreSettings
from service.wiring import stores as wiring_stores
from tests.service.cli.test_cli import answer, run

NOW = datetime(2026, 5, 20, 9, 0, tzinfo=UTC)
SERVICE = EntityRef("default", EntityKind.SERVICE, "serving", "chat")
OTHER = EntityRef("default", EntityKind.SERVICE, "serving", "embed")


def message(*arguments: str, cwd: Path) -> str:
    return str(answer(*arguments, cwd=cwd, code=2)["error"]["message"])


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    """A service of two replicas on three nodes in two zones, a plan of ten replicas, and a histogram of prompts."""
    replicas = [EntityRef("default", EntityKind.REPLICA, "serving", f"r-{number}") for number in range(2)]
    nodes = [EntityRef("default", EntityKind.NODE, None, f"n-{number}") for number in range(3)]
    edges = [(replicas[0], SERVICE), (replicas[1], SERVICE), (nodes[0], replicas[0])]
    edges += [(nodes[1], replicas[1]), (nodes[2], replicas[1])]
    labels = {node: {"zone": f"z-{number % 2}"} for number, node in enumerate(nodes)}
    topology = Topology.build(edges, entities=[OTHER], labels=labels)
    planned = Recommendation(
        service=SERVICE, gpu_type="H100", current_replicas=2, target_replicas=10, gpus=40, floor=1, ceiling=20,
        binding="load", need_at=None, needed_by=None, lead_time=timedelta(minutes=8), cost_per_hour=None,
        currency="USD", derivation={}, reason=PlanReason.FORECAST_PEAK, made_at=NOW,
    )  # fmt: skip
    nothing = NoRecommendation(OTHER, NoPlanReason.NO_HISTORY, NOW)
    signal = catalog.signal("engine_prompt_length_tokens")
    keys = signal.bucket_keys[:-1]
    counts = np.zeros((2, len(keys)))
    counts[:, list(signal.bounds).index(100.0) if 100.0 in signal.bounds else 3] = 90.0
    counts[:, -3] = 1.0
    status = np.full(counts.shape, CellStatus.PRESENT, dtype=np.uint8)
    at = NOW - timedelta(minutes=30)
    settings = Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/s.db"))
    (tmp_path / "outrider.yaml").write_text(f"store: {{url: 'sqlite:///{tmp_path}/s.db'}}\n")
    with wiring_stores.stores(settings) as (state, metrics):
        metrics.write(at, [SampleBatch("t", at, EntityKind.REPLICA, keys, tuple(replicas), counts, status)])
        plan = Plan(recommendations=(planned, nothing))
        state.commit(CycleCommit(CycleRecord("c", NOW, 1.0, 3, 3, 0, 0, 0, 0), topology=topology, plan=plan))
    return tmp_path


def test_prompts_of_a_file_are_split_by_their_tokens(tmp_path: Path) -> None:
    (tmp_path / "lengths.txt").write_text("\n".join(["100"] * 90 + ["1000"] * 10 + [""]))
    found = answer("capacity", "split", "--prompts", "lengths.txt", "--long-ratio", "50%", cwd=tmp_path)
    assert found["split_tokens"] == 1000
    assert found["long_requests_ratio"] == pytest.approx(0.1)
    assert found["long_tokens_ratio"] == pytest.approx(10 / 19)
    assert (found["requests"], found["source"], found["reason"]) == (100, "lengths.txt", None)
    (tmp_path / "trace.csv").write_text("at,ContextTokens\n1,100\n2,1000\n3,\n")
    command = ("capacity", "split", "--prompts", "trace.csv", "--long-ratio", ".5")
    assert answer(*command, "--column", "ContextTokens", cwd=tmp_path)["split_tokens"] == 1000
    assert "has no column 'prompt_tokens'" in message(*command, cwd=tmp_path)
    output = run(*command, "--column", "ContextTokens", "-o", "table", cwd=tmp_path).stdout
    assert "prompts of 1,000 tokens or more" in output


def test_prompts_of_the_store_are_split_by_their_histogram(stored: Path) -> None:
    found = answer("capacity", "split", "--service", "chat", "--long-ratio", ".5", cwd=stored)
    assert found["requests"] == pytest.approx(182)
    bounds = catalog.signal("engine_prompt_length_tokens").bounds
    assert bounds[-3] <= found["split_tokens"] <= bounds[-1]
    assert found["long_requests_ratio"] == pytest.approx(1 / 91, rel=0.6)
    nothing = answer("capacity", "split", "--service", "embed", "--long-ratio", ".5", cwd=stored, code=1)
    assert (nothing["split_tokens"], nothing["reason"]) == (None, "no_prompts")


def test_an_impossible_split_names_the_reason(tmp_path: Path) -> None:
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "words.txt").write_text("12\nmany\n")
    split = ("capacity", "split", "--long-ratio", ".5")
    assert answer(*split, "--prompts", "empty.txt", cwd=tmp_path, code=1)["reason"] == "no_prompts"
    assert "words.txt:2: 'many' is not a number of tokens" in message(*split, "--prompts", "words.txt", cwd=tmp_path)
    assert "missing.txt cannot be read" in message(*split, "--prompts", "missing.txt", cwd=tmp_path)
    assert "no prompt lengths given" in message(*split, cwd=tmp_path)
    assert "no service is named 'x'" in message(*split, "--service", "x", cwd=tmp_path)
    (tmp_path / "one.txt").write_text("5\n")
    wrong = ("capacity", "split", "--prompts", "one.txt", "--long-ratio")
    assert "long prompts: 1" in message(*wrong, "1", cwd=tmp_path)
    assert "long prompts: 0" in message(*wrong, "0", cwd=tmp_path)


def test_spares_cover_the_need_and_count_whole_nodes(tmp_path: Path) -> None:
    spares = ("capacity", "spares", "--needed", "12", "--domains", "4")
    found = answer(*spares, "--losses", "1", "--gpus-per-replica", "4", "--gpus-per-node", "8", cwd=tmp_path)
    assert (found["replicas"], found["spare"], found["largest"]) == (16, 4, 4)
    nodes = found["nodes"]
    assert (nodes["nodes"], nodes["gpus"], nodes["idle_gpus"], nodes["replicas_per_node"]) == (8, 64, 0, 2.0)
    assert len(found["derivation"]) == 2
    assert "none would be left" in message(*spares, "--losses", "4", cwd=tmp_path)
    assert "--gpus-per-replica" in message(*spares, "--gpus-per-node", "8", cwd=tmp_path)
    assert "number of replicas not given" in message("capacity", "spares", "--domains", "3", cwd=tmp_path)
    assert "failure domains" in message("capacity", "spares", "--needed", "3", cwd=tmp_path)


def test_spares_count_one_in_the_singular(tmp_path: Path) -> None:
    found = answer("capacity", "spares", "--needed", "1", "--domains", "1", "--losses", "0", cwd=tmp_path)
    (line,) = found["derivation"]
    assert line == "1 replica must survive the loss of 0 of 1 failure domain, each with at most 1: 1 replica in total"
    two = answer("capacity", "spares", "--needed", "2", "--domains", "4", cwd=tmp_path)["derivation"][0]
    assert two.startswith("2 replicas must survive the loss of 1 of 4 failure domains")


def test_spares_of_a_service_follow_its_plan_and_failure_domains(stored: Path) -> None:
    spares = ("capacity", "spares", "--service", "chat")
    by_node = answer(*spares, "--gpus-per-node", "8", cwd=stored)
    assert (by_node["needed"], by_node["domains"], by_node["replicas"]) == (10, 3, 15)
    assert by_node["nodes"]["gpus"] == 64
    by_zone = answer(*spares, "--domain", "zone", cwd=stored)
    assert (by_zone["domains"], by_zone["replicas"]) == (2, 20)
    assert "has the label 'rack'" in message(*spares, "--domain", "rack", cwd=stored)
    assert "embed has no plan" in message("capacity", "spares", "--service", "embed", cwd=stored)


@pytest.mark.parametrize(("needed", "domains", "losses"), [(1, 2, 1), (7, 3, 2), (10, 7, 3), (0, 1, 1), (13, 5, 4)])
def test_spares_are_minimal(needed: int, domains: int, losses: int) -> None:
    found = with_spares(needed, domains=domains, losses=losses)
    left = [total - losses * -(-total // domains) for total in range(found.replicas)]
    assert all(one < needed for one in left)
    assert found.replicas - losses * found.largest >= needed


def test_very_many_replicas_are_counted_at_once() -> None:
    assert with_spares(10**12, domains=100, losses=99).replicas == 10**14


def test_leaving_warm_caches_is_reported_with_its_cost(tmp_path: Path) -> None:
    warm = {"name": "warm", "queued_tokens": 9000, "tokens_per_second": 1000, "cached_ratio": 0.9}
    cold = {"name": "cold", "queued_tokens": 0, "tokens_per_second": 1000}
    (tmp_path / "r.json").write_text(json.dumps([warm, cold]))
    command = ("capacity", "balance", "--file", "r.json", "--arriving", "1500")
    assert answer(*command, cwd=tmp_path)["affinity_loss_seconds"] == 0
    found = answer(*command, "--prefill", "2s", cwd=tmp_path)
    assert found["affinity_loss_seconds"] > 0
    output = run(*command, "--prefill", "2s", "-o", "table", cwd=tmp_path).stdout
    assert f"costs {found['affinity_loss_seconds'] * 1000:.1f} ms of prefill per request" in output


FORMULA = ("capacity", "formula", "--qps", "40", "--tokens", "300", "--batch", "32", "--tokens-per-second", "25")


def test_the_formula_takes_a_buffer_that_was_measured(tmp_path: Path) -> None:
    usual = answer(*FORMULA, cwd=tmp_path)
    assert usual["units_raw"] == 18.75
    assert (usual["buffer"]["value"], usual["buffer"]["source"]) == (0.25, "configured")
    (tmp_path / "errors.txt").write_text("\n".join(str(number / 100) for number in range(41)))
    measured = answer(*FORMULA, "--errors", "errors.txt", cwd=tmp_path)
    assert measured["buffer"] == {
        "value": pytest.approx(0.38), "source": "measured", "measured": pytest.approx(0.38), "lead_seconds": None,
        "wanted_seconds": None, "bounded": False,
    }  # fmt: skip
    assert measured["units_raw"] == pytest.approx(15 * 1.38)
    (tmp_path / "calm.txt").write_text("\n".join(["-0.1"] * 40))
    calm = answer(*FORMULA, "--errors", "calm.txt", cwd=tmp_path)["buffer"]
    assert (calm["value"], calm["bounded"]) == (0.05, True)
    assert "0.38" in run(*FORMULA, "--errors", "errors.txt", "-o", "table", cwd=tmp_path).stdout


def test_the_formula_takes_the_buffer_of_a_service(stored: Path) -> None:
    assert "not known yet" in message(*FORMULA, "--buffer-of", "chat", cwd=stored)
    assert "no service is named 'x'" in message(*FORMULA, "--buffer-of", "x", cwd=stored)
    settings = Settings(store=StoreSettings(url=f"sqlite:///{stored}/s.db"))
    with wiring_stores.stores(settings) as (state, _):
        plan = state.plan()
        times = NOW.timestamp() + 600.0 * np.arange(3)
        forecast = Forecast(
            "svc_requests_per_second", SERVICE, NOW, timedelta(minutes=10), times, {0.5: np.ones(3)}, "wave",
            BacktestScore(None, None, None, 0), buffers={600.0: 0.31, 1200.0: 0.4},
        )  # fmt: skip
        later = NOW + timedelta(minutes=10)
        state.commit(
            CycleCommit(CycleRecord("d", later, 1.0, 3, 3, 0, 0, 0, 0), plan=replace(plan, forecasts=(forecast,)))
        )
    found = answer(*FORMULA, "--buffer-of", "chat", cwd=stored)["buffer"]
    assert (found["value"], found["source"]) == (pytest.approx(0.31), "measured")


def test_invalid_errors_and_two_buffers_are_rejected(tmp_path: Path) -> None:
    (tmp_path / "few.txt").write_text("0.1\n0.2\n")
    (tmp_path / "word.txt").write_text("0.1\nlarge\n")
    assert "holds 2 errors, too few" in message(*FORMULA, "--errors", "few.txt", cwd=tmp_path)
    assert "word.txt:2: 'large' is not a forecast error" in message(*FORMULA, "--errors", "word.txt", cwd=tmp_path)
    both = message(*FORMULA, "--errors", "few.txt", "--buffer", ".3", cwd=tmp_path)
    assert both == "--buffer and --errors exclude each other"
