"""``outrider capacity calibrate|fit|cost|buy|balance``, with JSON output."""

import json
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from outrider.model import CellStatus, CycleRecord, EntityKind, EntityRef, SampleBatch, SignalKey
from outrider.ports import CycleCommit
from outrider.topology import Topology
from planner.capacity.lead_time import LeadSettings
from service.capacity import loadtest, sizing
from service.config.service_settings import ServiceSettings
from service.config.settings import Settings, StoreSettings
from service.planning.planner_inputs import PlannedFleet
from service.wiring import stores as wiring_stores
from store import memory
from tests.planner.performance.test_saturation_point import VLLM
from tests.service.cli.test_cli import answer, run

SERVICE = EntityRef("default", EntityKind.SERVICE, "serving", "chat")
NOW = datetime(2026, 5, 20, 9, 0, tzinfo=UTC)
KEYS = (
    "engine_requests_running",
    "engine_requests_waiting",
    "engine_generation_tokens_total",
    "engine_requests_finished_total",
    "engine_kv_cache_usage_ratio",
)
FIT = ("capacity", "fit", "--model", "Llama-3.1-8B", "--gpu")
COST = ("capacity", "cost", "--model", "Llama-3.1-8B", "--prompt", "600", "--tokens", "250", "--qps")


def replica(name):
    return EntityRef("default", EntityKind.REPLICA, "serving", name)


def fleet():
    """Two replicas on H100 at 25 tokens/s a sequence, one on A100 at 10, in one service."""
    edges, labels = [], {}
    for name, kind in (("h-0", "H100"), ("h-1", "H100"), ("a-0", "A100")):
        edges.append((replica(name), SERVICE))
        labels[replica(name)] = {"gpu_type": kind, "model": "m"}
    return Topology.build(edges, labels=labels)


def filled(metrics):
    keys = tuple(SignalKey(key) for key in KEYS)
    members = [replica("h-0"), replica("h-1"), replica("a-0")]
    speed = np.array([25.0, 25.0, 10.0])
    for minute in range(120):
        running = np.full(3, float(8 + minute % 25))
        tokens = running * speed * 60.0
        values = np.stack([running, np.where(running > 30, 4.0, 0.0), tokens, tokens / 300.0, running / 40.0], axis=1)
        status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
        at = NOW - timedelta(minutes=120 - minute)
        metrics.write(at, [SampleBatch("t", at, EntityKind.REPLICA, keys, tuple(members), values, status)])


def test_replicas_on_two_types_of_gpu_are_two_calibrations():
    metrics = memory.MemoryMetricStore()
    filled(metrics)
    found = sizing.of_store(Settings(), metrics, fleet(), NOW)
    by_type = {one.gpu_type: one for one in found}
    assert by_type["H100"].tokens_per_second_per_sequence == pytest.approx(25, rel=0.01)
    assert by_type["A100"].tokens_per_second_per_sequence == pytest.approx(10, rel=0.01)
    assert by_type["H100"].tokens_per_request == pytest.approx(300)
    shown = sizing.as_dict(by_type["H100"])
    span = shown["intervals"]["batch"]
    assert span["low"] <= shown["batch"] <= span["high"]
    assert {"service", "gpu_type", "tokens_per_request", "batch", "samples"} < set(shown)


def test_replicas_split_over_other_numbers_of_gpus_are_two_calibrations():
    metrics = memory.MemoryMetricStore()
    filled(metrics)
    labels = {replica(name): {"gpu_type": "H100", "model": "m", "tensor_parallel": degree, "pipeline_parallel": "1"}
              for name, degree in (("h-0", "4"), ("h-1", "4"), ("a-0", "2"))}  # fmt: skip
    topology = Topology.build([(one, SERVICE) for one in labels], labels=labels)
    found = {one.tensor_parallel: one for one in sizing.of_store(Settings(), metrics, topology, NOW)}
    assert found[4].tokens_per_second_per_sequence == pytest.approx(25, rel=0.01)
    assert found[2].tokens_per_second_per_sequence == pytest.approx(10, rel=0.01)
    configured = Settings(services=[ServiceSettings(name="chat", tensor_parallel=8)])
    (one,) = sizing.of_store(configured, metrics, topology, NOW)
    assert one.tensor_parallel == 8


def test_the_command_and_the_plan_count_with_the_same_figures():
    metrics = memory.MemoryMetricStore()
    filled(metrics)
    topology = Topology.build([(replica("h-0"), SERVICE), (replica("h-1"), SERVICE)])
    known = PlannedFleet(metrics, [], lambda *_: (2, 2), LeadSettings())
    _, planned = known.of([SERVICE], topology, NOW, lambda _: ())
    for span in (None, timedelta(hours=24), timedelta(hours=2)):
        (found,) = sizing.of_store(Settings(), metrics, topology, NOW, span=span)
        assert found.batch == planned[SERVICE].batch
        assert found.tokens_per_second_per_sequence == planned[SERVICE].tokens_per_second_per_sequence


def test_a_missing_calibration_has_a_reason():
    found = sizing.of_store(Settings(), memory.MemoryMetricStore(), fleet(), NOW)
    assert [sizing.refused(one)["reason"] for one in found] == ["no_values"] * 2
    configured = ServiceSettings(name="chat", tokens_per_request=1, batch=2, tokens_per_second_per_sequence=3)
    found = sizing.of_store(Settings(services=[configured]), memory.MemoryMetricStore(), fleet(), NOW)
    assert {one.origin for one in found} == {"configured"}


def test_a_file_of_another_tester_calibrates(tmp_path):
    steps = [{**VLLM, "max_concurrency": n, "output_throughput": t, "p99_ttft_ms": w, "failed": 0} for n, t, w in
             ((4, 300.0, 80.0), (16, 800.0, 120.0), (64, 820.0, 900.0))]  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps(steps))
    found = answer(
        "capacity", "calibrate", "--import", "bench.json", "--ttft", "500ms", "--gpu-type", "H100", cwd=tmp_path
    )
    assert (found["batch"], found["max_sequences"], found["knee"]) == (16, 16, "slo")
    assert found["tokens_per_second_per_sequence"] == 50
    assert (found["tokens_per_request"], found["samples"], found["gpu_type"]) == (200, 200, "H100")
    never = answer("capacity", "calibrate", "--import", "bench.json", "--ttft", "1ms", cwd=tmp_path, code=1)
    assert (never["batch"], never["reason"]) == (None, "slo_never")


def test_a_load_test_is_stored_with_its_interval_and_used_by_the_plan(tmp_path):
    steps = [{**VLLM, "max_concurrency": n, "output_throughput": t, "p99_ttft_ms": w, "failed": 0,
              "output_lens": [150, 250] * 10} for n, t, w in
             ((16, 790.0, 120.0), (16, 810.0, 125.0), (16, 800.0, 115.0), (64, 820.0, 900.0))]  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps(steps))
    command = (
        "capacity",
        "calibrate",
        "--import",
        "bench.json",
        "--ttft",
        "500ms",
        "--gpu-type",
        "H100",
        "--service",
        "chat",
    )
    found = answer(*command, "--model", "m", "--engine-version", "0.9", cwd=tmp_path)
    speed = found["intervals"]["tokens_per_second_per_sequence"]
    assert speed["low"] < found["tokens_per_second_per_sequence"] == 50 < speed["high"]
    assert found["intervals"]["batch"] == {"low": 16, "high": 64}
    assert found["kept"]
    (kept,) = answer("capacity", "calibrate", "--show", cwd=tmp_path)
    assert (kept["service"], kept["source"], kept["model"], kept["engine_version"]) == ("chat", "vllm", "m", "0.9")
    assert kept["valid"]
    assert kept["valid_until"] > kept["measured_at"]
    assert answer("capacity", "calibrate", "--show", "--service", "other", cwd=tmp_path, code=1) == []
    answer(*command, "--no-keep", "--tp", "2", cwd=tmp_path)
    assert len(answer("capacity", "calibrate", "--show", cwd=tmp_path)) == 1
    wrong = answer(*command, "--valid", "0s", cwd=tmp_path, code=2)
    assert "--valid" in wrong["error"]["message"]


def _steps(tmp_path):
    steps = [{**VLLM, "max_concurrency": n, "output_throughput": t, "p99_ttft_ms": w, "failed": 0} for n, t, w in
             ((4, 300.0, 80.0), (16, 800.0, 120.0), (64, 820.0, 900.0))]  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps(steps))
    return ("capacity", "calibrate", "--import", "bench.json", "--ttft", "500ms")


def _two_of_a_name(tmp_path):
    url = f"sqlite:///{tmp_path}/s.db"
    (tmp_path / "outrider.yaml").write_text(f"store: {{url: '{url}'}}\n")
    both = [EntityRef("default", EntityKind.SERVICE, space, "chat") for space in ("serving", "staging")]
    edges = [(EntityRef("default", EntityKind.REPLICA, one.namespace, "r-0"), one) for one in both]
    with wiring_stores.stores(Settings(store=StoreSettings(url=url))) as (state, _):
        state.commit(CycleCommit(CycleRecord("c", NOW, 1.0, 2, 2, 0, 0, 0, 0), topology=Topology.build(edges)))


@pytest.mark.parametrize("service", [("--service", "staging/chat"), ("--service", "chat", "--namespace", "staging")])
def test_the_namespace_distinguishes_two_services_of_one_name(tmp_path, service):
    _two_of_a_name(tmp_path)
    command = (*_steps(tmp_path), "--gpu-type", "H100")
    error = answer(*command, "--service", "chat", cwd=tmp_path, code=2)["error"]
    assert "the name of 2 services" in error["message"]
    assert "--service serving/chat" in error["hint"]
    assert answer(*command, *service, cwd=tmp_path)["kept"]
    (kept,) = answer("capacity", "calibrate", "--show", *service, cwd=tmp_path)
    assert kept["namespace"] == "staging"
    assert answer("capacity", "calibrate", "--show", "--service", "serving/chat", cwd=tmp_path, code=1) == []
    for wrong in ("/chat", "staging/", "a/b/c"):
        assert "is not a service name" in answer(*command, "--service", wrong, cwd=tmp_path, code=2)["error"]["message"]


def test_an_unstorable_load_test_is_rejected_before_it_runs(tmp_path, monkeypatch):
    ran = []

    def run_it(plan, _tell):
        ran.append(plan.url)
        return sizing.of_file(tmp_path / "bench.json", plan.slo)[1:]

    monkeypatch.setattr(loadtest, "run", run_it)
    _steps(tmp_path)
    (tmp_path / "outrider.yaml").write_text("store: {url: 'postgresql://127.0.0.1:9/x'}\n")
    command = ("capacity", "calibrate", "--endpoint", "http://127.0.0.1:9", "--ttft", "500ms", "--service", "chat")
    assert answer(*command, cwd=tmp_path, code=3)["error"]
    assert ran == []
    found = answer(*command, "--no-keep", cwd=tmp_path)
    assert ran == ["http://127.0.0.1:9"]
    assert (found["service"], found["kept"], found["max_sequences"]) == ("chat", False, 16)


def test_a_load_test_on_an_unknown_gpu_notes_that_cost_ignores_it(tmp_path):
    command = (*_steps(tmp_path), "--no-keep")
    assert "--gpu-type" in answer(*command, cwd=tmp_path)["note"]
    assert "不会采用" in run(*command, "--lang", "zh", "-o", "table", cwd=tmp_path).stdout
    assert answer(*command, "--gpu-type", "NVIDIA H100 80GB HBM3", cwd=tmp_path)["note"] is None
    assert not (tmp_path / "outrider.db").exists()


def test_an_empty_store_calibrates_nothing_and_exits_with_1(tmp_path):
    found = answer("capacity", "calibrate", "--from-store", cwd=tmp_path, code=1)
    assert (found["tokens_per_request"], found["reason"], found["calibrations"]) == (None, "nothing_collected", [])


def test_fit_exits_with_0_or_1(tmp_path):
    found = answer(*FIT, "H100", "--context", "8192", cwd=tmp_path)
    assert found["fits"]
    assert found["largest"]["concurrency"] > 10
    found = answer(*FIT, "T4", "--context", "8192", cwd=tmp_path, code=1)
    assert (found["fits"], found["reason"]) == (False, "weights")
    assert "TP 2" in found["remedies"]


def test_cost_shows_the_front_and_names_priors(tmp_path):
    found = answer(*COST, "40", "--ttft", "2s", "--tpot", "60ms", "--gpu", "H100", "--gpu", "A100", cwd=tmp_path)
    assert found["slo_kept"]
    assert found["front"][0]["cost_per_1k_tokens"] > 0
    assert all(one["price_source"].startswith("prior") for one in found["front"][0]["replicas"])
    assert all(one["source"].startswith("prior") for one in found["front"][0]["replicas"])
    no_unit = answer(*COST, "40", "--tpot", "1parsec", "--gpu", "H100", cwd=tmp_path, code=2)
    assert "--tpot" in no_unit["error"]["message"]
    no_engine = answer(*COST, "40", "--tpot", "1us", "--gpu", "H100", cwd=tmp_path, code=1)
    assert not no_engine["slo_kept"]
    out_of_reach = answer(*COST, "40", "--tpot", "0.1ms", "--gpu", "H100", cwd=tmp_path, code=1)
    assert not out_of_reach["slo_kept"]


def test_cost_has_reasons_and_sources_in_chinese(tmp_path):
    command = (*COST, "40", "--gpu", "H100", "--gpu", "T4", "--tp", "1", "--pp", "1", "--lang", "zh")
    found = answer(*command, cwd=tmp_path)
    assert [one["offer"] for one in found["refused"]] == ["T4 on_demand"]
    output = "\n".join(found["derivation"])
    assert "先验：数据手册" in output
    assert "先验：docs.runpod.io" in output
    assert "权重与开销需要" in output
    assert "Weights" not in output
    assert "prior" not in output
    steps = (*_steps(tmp_path), "--service", "chat", "--model", "Llama-3.1-8B", "--gpu-type", "H100")
    answer(*steps, cwd=tmp_path)
    assert "实测：chat 的 vllm" in "\n".join(answer(*command, cwd=tmp_path)["derivation"])


def test_cost_creates_no_store(tmp_path):
    assert answer(*COST, "40", "--gpu", "H100", "--tp", "1", cwd=tmp_path)["measured"] == []
    assert list(tmp_path.iterdir()) == []


def test_cost_uses_the_configured_offers(tmp_path):
    (tmp_path / "outrider.yaml").write_text(
        "gpus:\n  - {type: A100, price_per_gpu_hour: 9, quota: 8}\n  - {type: H100, quota: 0}\n"
    )
    found = answer(*COST, "40", "--tpot", "60ms", cwd=tmp_path)
    assert found["front"][0]["replicas"][0]["price_source"] == "given"
    assert [one["reason"] for one in found["refused"]] == ["quota"]


def test_a_requested_type_without_configuration_comes_from_the_catalog(tmp_path):
    (tmp_path / "outrider.yaml").write_text("gpus:\n  - {type: A100, price_per_gpu_hour: 9, quota: 0}\n")
    found = answer(*COST, "40", "--tpot", "60ms", "--gpu", "A100", "--gpu", "h100", cwd=tmp_path)
    assert {one["cut_from"] or one["gpu_type"] for point in found["front"] for one in point["replicas"]} == {"H100"}
    assert [one["reason"] for one in found["refused"]] == ["quota"]


def test_an_unknown_gpu_and_a_wrong_unit_are_rejected_with_their_line(tmp_path):
    (tmp_path / "outrider.yaml").write_text(
        "gpus:\n  - {type: V9000}\nservices:\n  - name: chat\n    tokens_per_second_per_sequence: 25 gpus\n"
    )
    done = run("config", "check", "outrider.yaml", cwd=tmp_path)
    errors = json.loads(done.stdout)["errors"]
    assert [(error["line"], error["key"]) for error in errors] == [
        (2, "gpus[0].type"),
        (5, "services[0].tokens_per_second_per_sequence"),
    ]
    assert "gpu" in errors[1]["message"]
    assert "token/(second*sequence)" in errors[1]["message"]


def test_buy_plans_from_a_file(tmp_path):
    begin = datetime(2026, 5, 4, tzinfo=UTC)
    rows = [f"{begin + timedelta(hours=n):%Y-%m-%dT%H:%M:%SZ},{80 if 8 <= n % 24 < 20 else 20}" for n in range(336)]
    (tmp_path / "load.csv").write_text("time_utc,requests_per_second\n" + "\n".join(rows))
    command = ("capacity", "buy", "--csv", "load.csv", "--per-gpu", "2", "--burst-price", "2", "--lead", "1h")
    found = answer(*command, "--held-price", "0.9", cwd=tmp_path)
    assert (found["held_gpus"], found["burst_gpus"]) == (40, 40)
    assert found["cost"]["low"] <= found["cost"]["value"] <= found["cost"]["high"]
    assert found["offline_gpu_hours"] > 0
    assert "--per-gpu" in answer(*command[:4], "--held-price", "1", cwd=tmp_path, code=2)["error"]["message"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a,b\n1,2", "are missing"),
        ("time_utc,requests_per_second\nsoon,1", "load.csv:2"),
        ("time_utc,requests_per_second\n2026-05-04T00:00:00Z,-1", "load.csv:2"),
        ("time_utc,requests_per_second\n2026-05-04T00:00:00Z,x", "load.csv:2"),
        ("time_utc,requests_per_second\n", "has no load values"),
        ("time_utc,requests_per_second\n2026-05-04T00:00:00Z,1", "less than a week"),
    ],
)
def test_invalid_loads_name_their_line(tmp_path, text, expected):
    (tmp_path / "load.csv").write_text(text)
    found = answer("capacity", "buy", "--csv", "load.csv", "--per-gpu", "2", "--gpu", "H100", cwd=tmp_path, code=2)
    assert expected in found["error"]["message"]


def test_balance_weighs_replicas_of_a_file(tmp_path):
    rows = [
        {"name": "a", "queued_tokens": 9000, "tokens_per_second": 1000},
        {"name": "b", "queued_tokens": 0, "tokens_per_second": 1000},
        {"name": "c", "queued_tokens": 0, "tokens_per_second": 1000, "kv_ratio": 0.97},
    ]
    (tmp_path / "r.json").write_text(json.dumps(rows))
    found = answer("capacity", "balance", "--file", "r.json", cwd=tmp_path)
    assert found["weights"]["b"] > found["weights"]["a"]
    assert found["closed"] == ["c"]
    assert found["p95_wait_seconds"] < found["p95_wait_even_seconds"]
    (tmp_path / "r.json").write_text(json.dumps([{"name": "a", "speed": 3}]))
    assert (
        "queued_tokens" in answer("capacity", "balance", "--file", "r.json", cwd=tmp_path, code=2)["error"]["message"]
    )


def test_balance_keeps_even_weights_that_a_replay_does_not_beat(tmp_path):
    rows = [
        {"name": name, "queued_tokens": queued, "tokens_per_second": 1000} for name, queued in (("a", 200), ("b", 0))
    ]
    (tmp_path / "r.json").write_text(json.dumps(rows))
    found = answer("capacity", "balance", "--file", "r.json", "--arriving", "100", cwd=tmp_path)
    assert (found["reason"], found["weights"]) == ("no_gain", {"a": 50, "b": 50})
    assert found["p95_wait_seconds"] == found["p95_wait_even_seconds"]
    output = run("capacity", "balance", "--file", "r.json", "--arriving", "100", "-o", "table", cwd=tmp_path).stdout
    assert "keep equal weights" in output


def test_a_store_with_a_calibrated_service_plans_and_weighs(tmp_path):
    settings = Settings(store=StoreSettings(url=f"sqlite:///{tmp_path}/s.db"))
    (tmp_path / "outrider.yaml").write_text(f"store: {{url: 'sqlite:///{tmp_path}/s.db'}}\n")
    with wiring_stores.stores(settings) as (state, metrics):
        filled(metrics)
        state.commit(CycleCommit(CycleRecord("c", NOW, 1.0, 3, 3, 0, 0, 0, 0), topology=fleet()))
    found = answer("capacity", "calibrate", "--service", "chat", cwd=tmp_path)
    assert found["service"] == "chat"
    assert {one["gpu_type"] for one in found["calibrations"]} == {"H100", "A100"}
    weights = answer("capacity", "balance", "--service", "chat", "--arriving", "1000", cwd=tmp_path)["weights"]
    assert weights["a-0"] < weights["h-0"]
    assert "nobody" in answer("capacity", "balance", "--service", "nobody", cwd=tmp_path, code=2)["error"]["message"]


@pytest.mark.slow
def test_cost_counts_with_the_load_tests_of_the_store(tmp_path):
    steps = [{**VLLM, "max_concurrency": n, "output_throughput": t, "p99_ttft_ms": w, "failed": 0} for n, t, w in
             ((4, 300.0, 80.0), (16, 800.0, 120.0), (64, 820.0, 900.0))]  # fmt: skip
    (tmp_path / "bench.json").write_text(json.dumps(steps))
    tested = ("capacity", "calibrate", "--import", "bench.json", "--ttft", "500ms", "--gpu-type", "H100")
    answer(*tested, "--service", "chat", "--model", "Llama-3.1-8B", cwd=tmp_path)
    command = (*COST, "200", "--gpu", "H100", "--tp", "1", "--tp", "2", "--pp", "1")
    found = answer(*command, cwd=tmp_path)
    (test,) = found["measured"]
    assert (test["service"], test["source"], test["gpu_type"], test["tp"]) == ("chat", "vllm", "H100", 1)
    sources = {one["source"] for point in found["front"] for one in point["replicas"]}
    assert all(source.startswith("measured: vllm of chat") for source in sources)
    assert any("step times of H100" in line for line in found["derivation"])
    without = answer(*command, "--no-measured", cwd=tmp_path)
    assert without["measured"] == []
    assert without["front"][0]["cost_per_hour"] < found["front"][0]["cost_per_hour"]
    groups = {(one["tp"], one["pp"]) for point in without["front"] for one in point["replicas"]}
    assert groups <= {(1, 1), (2, 1)}
    (tmp_path / "away.yaml").write_text("store: {url: 'postgresql://127.0.0.1:9/x'}\n")
    away = answer(*command, "--config", "away.yaml", cwd=tmp_path)
    assert away["measured"] == []
