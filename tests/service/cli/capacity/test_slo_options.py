"""SLOs of the configuration and of options, in ``capacity plan`` and ``explain``."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

from outrider.errors import ConfigError
from outrider.model import CellStatus, CycleRecord, EntityKind, EntityRef, SampleBatch, SignalKey
from outrider.ports import CycleCommit
from outrider.topology import Topology
from planner.performance import calibrate, prompts
from planner.performance.service_facts import Objective
from service.config import settings
from service.config.service_settings import ServiceSettings
from service.config.settings import Settings, StoreSettings
from service.config.slo_settings import SloSettings
from service.planning import node_sizes
from service.planning.slo_inputs import PlanOverrides, SloInputs
from service.wiring import stores as wiring_stores
from tests.planner.performance.test_memory_fit import LLAMA
from tests.service.cli.test_cli import answer, run

NOW = datetime(2026, 5, 20, 9, 0, tzinfo=UTC)
CHAT, OTHER = (EntityRef("default", EntityKind.SERVICE, "serving", name) for name in ("chat", "other"))
REPLICAS = [EntityRef("default", EntityKind.REPLICA, "serving", f"chat-{n}") for n in range(2)]
NODES = [EntityRef("default", EntityKind.NODE, None, f"n{n}") for n in range(3)]
GPUS = [EntityRef("default", EntityKind.GPU, None, f"g{n}") for n in range(11)]
LOAD = SignalKey("svc_requests_per_second")
ENGINE = (
    calibrate.RUNNING, calibrate.WAITING, calibrate.TOKENS, calibrate.FINISHED, calibrate.KV_USED,
    prompts.PROMPTS, prompts.HITS, prompts.KV_TOKENS,
)  # fmt: skip
PLAN = ("capacity", "plan", "--service", "chat")
EXPLAIN = ("capacity", "explain", "--service", "chat")
CONFIGURED = """
services:
  - {name: chat, namespace: serving, gpu_type: H100, tensor_parallel: 4, ceiling: 60}
slos:
  - {name: first-token, service: chat, sli: ttft, limit: 1s, objective: 0.99}
  - {name: answers, sli: success}
  - {name: somebody-else, service: other, sli: tpot, limit: 25ms, objective: 0.9}
"""

NO_SLO = CONFIGURED.split("slos:", maxsplit=1)[0]


def filled(metrics, model_tokens: float = 300.0) -> None:
    """Five days of 40 requests/s. Two replicas run 24 to 32 sequences at 25 tokens/s, their queue begins at 31."""
    for slot in range(5 * 144):
        at = NOW - timedelta(minutes=10 * (5 * 144 - slot))
        load, there = np.array([[40.0], [40.0]]), np.full((2, 1), CellStatus.PRESENT, dtype=np.uint8)
        metrics.write(at, [SampleBatch("t", at, EntityKind.SERVICE, (LOAD,), (CHAT, OTHER), load, there)])
        if slot < 4 * 144:
            continue
        running = 24.0 + slot % 9
        tokens = running * 25.0 * 600.0
        finished = tokens / model_tokens
        row = [running, 4.0 if running > 30 else 0.0, tokens, finished, running / 40.0, finished * 900.0, 0.25, 150e3]
        values = np.array([row] * 2)
        status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
        keys = tuple(SignalKey(name) for name in ENGINE)
        metrics.write(at, [SampleBatch("e", at, EntityKind.REPLICA, keys, tuple(REPLICAS), values, status)])


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    url = f"sqlite:///{tmp_path_factory.mktemp('slo')}/s.db"
    labels = {replica: {"model": "meta-llama/Llama-3.1-70B-Instruct"} for replica in REPLICAS}
    edges = [(replica, CHAT) for replica in REPLICAS]
    with wiring_stores.stores(Settings(store=StoreSettings(url=url))) as (state, metrics):
        filled(metrics)
        topology = Topology.build(edges, [OTHER], labels)
        state.commit(CycleCommit(CycleRecord("c", NOW, 1.0, 2, 2, 0, 0, 0, 0), topology=topology))
    return url


@pytest.fixture
def folder(store: str, tmp_path: Path):
    def written(text: str = CONFIGURED) -> Path:
        (tmp_path / "outrider.yaml").write_text(f"store: {{url: '{store}'}}\n{text}")
        return tmp_path

    return written


@pytest.mark.slow
def test_an_objective_of_the_configuration_bounds_the_plan_and_explain_shows_it(folder):
    where = folder()
    (found,) = answer(*PLAN, cwd=where)
    facts = found["derivation"]["slo"]
    assert (facts["verdict"], facts["refines"], facts["binds"]["name"]) == ("bounded", True, "first-token")
    assert [one["name"] for one in facts["objectives"]] == ["first-token"]
    assert facts["prompt"] == pytest.approx(900.0)
    assert facts["cached_ratio"] == pytest.approx(0.25)
    assert (facts["kv_tokens"], facts["kv_source"], facts["model"]) == (150e3, "page", "Llama-3.1-70B")
    before = facts["calibrated"]
    (without,) = answer(*PLAN, cwd=folder(NO_SLO))
    inputs = without["derivation"]["inputs"]
    assert without["derivation"]["slo"]["verdict"] == "no_objective"
    assert before["batch"] == inputs["batch"]["value"] > facts["batch"]
    assert found["derivation"]["units_raw"] > without["derivation"]["units_raw"]
    folder()
    for language, expected in (
        ("en", "SLO: TTFT within 1 s for 99 % of requests"),
        ("zh", "99 % 的请求 TTFT 不超过 1 秒"),
    ):
        output = run(*EXPLAIN, "--lang", language, "-o", "table", cwd=where).stdout
        assert expected in output
        assert f"{facts['requests_per_second']:.4g}" in output


@pytest.mark.slow
def test_an_slo_option_replaces_the_configured_slo(folder):
    where = folder()
    (configured,) = answer(*PLAN, cwd=where)
    (harder,) = answer(*PLAN, "--ttft", "800ms", "--quantile", "99%", cwd=where)
    assert [one["name"] for one in harder["derivation"]["slo"]["objectives"]] == ["--ttft"]
    assert harder["derivation"]["slo"]["binds"]["quantile"] == pytest.approx(0.99)
    rates = [one["derivation"]["slo"]["requests_per_second"] for one in (harder, configured)]
    assert rates[0] < rates[1]
    (both,) = answer(*PLAN, "--tpot", "2", cwd=where)
    assert [one["sli"] for one in both["derivation"]["slo"]["objectives"]] == ["tpot", "ttft"]
    options = ("--prompt", "4 ktok", "--cached", "0")
    assert answer(*PLAN, *options, cwd=where, code=2)["error"]["message"].startswith("--prompt")
    (longer,) = answer(*PLAN, "--prompt", "4000", "--cached", "0%", cwd=where)
    assert longer["derivation"]["slo"]["prompt"] == 4000


def test_an_unreachable_slo_warns_under_the_plan_and_limits_nothing(folder):
    where = folder()
    options = ("--tpot", "1ms")
    (found,) = answer(*PLAN, *options, cwd=where)
    (plain,) = answer(*PLAN, cwd=folder(NO_SLO))
    assert found["target_replicas"] == plain["target_replicas"]
    assert found["derivation"]["cautions"][-1]["code"] == "slo_out_of_reach"
    assert (
        "chat: no number of replicas achieves TPOT within 0.001 s"
        in run(*PLAN, *options, "-o", "table", cwd=where).stdout
    )
    assert "chat：无论多少副本" in run(*PLAN, *options, "-o", "table", "--lang", "zh", cwd=where).stdout


def test_missing_model_facts_are_named(folder):
    where = folder(CONFIGURED.replace("gpu_type: H100", "gpu_type: H100, model: own-model"))
    (found,) = answer(*PLAN, cwd=where)
    assert found["derivation"]["slo"]["verdict"] == "no_shape"
    output = run(*EXPLAIN, "-o", "table", cwd=where).stdout
    assert "'own-model'" in output
    (named,) = answer(*PLAN, "--model", "Llama-3.1-70B", cwd=where)
    assert named["derivation"]["slo"]["verdict"] == "bounded"
    (where / "config.json").write_text(json.dumps({**LLAMA, "num_hidden_layers": 80, "hidden_size": 8192}))
    text = CONFIGURED.replace("gpu_type: H100", f"gpu_type: H100, model: own-model, config_json: {where}/config.json")
    (planned,) = answer(*PLAN, cwd=folder(text))
    assert planned["derivation"]["slo"]["model"] == "own-model"
    unknown = folder(CONFIGURED.replace("gpu_type: H100, ", ""))
    (found,) = answer(*PLAN, cwd=unknown)
    assert found["derivation"]["slo"]["verdict"] == "no_gpu"
    assert "whole nodes: the number of" in run(*EXPLAIN, "-o", "table", cwd=unknown).stdout


def test_the_plan_has_whole_nodes(folder):
    where = folder()
    (found,) = answer(*PLAN, cwd=where)
    assert found["nodes"]["gpus_per_node"] == 8
    assert found["nodes"]["gpus"] == 8 * found["nodes"]["nodes"] >= found["gpus"]
    output = run(*PLAN, "-o", "table", cwd=where).stdout
    assert f"({found['nodes']['gpus']} GPUs, {found['nodes']['idle_gpus']}" in output
    text = CONFIGURED.replace("ceiling: 60", "ceiling: 60, gpus_per_node: 6")
    (six,) = answer(*PLAN, cwd=folder(text))
    assert six["nodes"]["stranded_gpus"] == 2 * six["nodes"]["nodes"]
    assert (six["nodes"]["source"], six["target_replicas"]) == ("configured", found["target_replicas"])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (("--ttft", "0"), "--ttft must be above 0"),
        (("--ttft", "1 token"), "--ttft"),
        (("--tpot", "nan"), "--tpot"),
        (("--quantile", "0.9"), "--quantile requires"),
        (("--ttft", "1s", "--quantile", "95"), "--quantile is a share"),
        (("--ttft", "1s", "--quantile", "0"), "--quantile is a share"),
        (("--prompt", "0"), "--prompt must be"),
        (("--cached", "1"), "--cached is a share"),
        (("--bits", "1"), "--bits must be"),
        (("--model", "GPT-9"), "unknown model"),
        (("--config-json", "none.json"), "none.json"),
    ],
)
@pytest.mark.parametrize("command", [PLAN, EXPLAIN])
def test_meaningless_options_are_rejected_by_name(folder, command, options, expected):
    assert expected in answer(*command, *options, cwd=folder(), code=2)["error"]["message"]


def test_options_of_one_service_need_its_name(folder):
    for option, value in (("--model", "Llama-3.1-70B"), ("--prompt", "900"), ("--max-sequences", "32")):
        error = answer("capacity", "plan", option, value, cwd=folder(), code=2)["error"]
        assert (error["message"], error["hint"]) == (
            f"{option} applies to one service",
            "name the service with --service",
        )


@pytest.mark.parametrize(
    ("line", "key", "expected"),
    [
        ("gpus_per_node: 0", "gpus_per_node", "at least 1"),
        ("prompt_tokens: 0", "prompt_tokens", "at least 1"),
        ("prompt_tokens: 4 gpus", "prompt_tokens", "gpu"),
        ("max_sequences: none", "max_sequences", "whole number"),
        ("config_json: missing.json", "config_json", "missing.json"),
    ],
)
def test_meaningless_settings_are_rejected_with_their_line(tmp_path, line, key, expected):
    (tmp_path / "outrider.yaml").write_text(f"services:\n  - name: chat\n    {line}\n")
    with pytest.raises(ConfigError) as caught:
        settings.load(tmp_path / "outrider.yaml")
    (problem,) = caught.value.problems
    assert (problem.line, problem.key) == (3, f"services[0].{key}")
    assert expected in problem.message


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{", "not valid JSON"),
        ("[]", "is not a JSON object"),
        ("{}", "num_hidden_layers"),
        (json.dumps({**LLAMA, "head_dim": "wide"}), "unexpected type"),
        (json.dumps({**LLAMA, "num_attention_heads": 0}), "num_attention_heads"),
    ],
)
def test_an_invalid_config_json_is_rejected_with_the_configuration(tmp_path, text, expected):
    (tmp_path / "config.json").write_text(text)
    (tmp_path / "outrider.yaml").write_text(f"services:\n  - name: chat\n    config_json: {tmp_path}/config.json\n")
    with pytest.raises(ConfigError) as caught:
        settings.load(tmp_path / "outrider.yaml")
    assert expected in caught.value.problems[0].message


def test_objectives_are_those_of_the_service_its_namespace_and_its_cluster():
    def slo(**changes):
        return SloSettings.model_validate({"name": "x", "sli": "ttft", "limit": "1s", "objective": 0.9, **changes})

    def about(service, *slos, **options):
        return [one.sli for one in SloInputs(slos, "default", PlanOverrides(**options)).objectives(service)]

    assert about(CHAT, slo()) == ["ttft"]
    assert about(CHAT, slo(service="chat"), slo(service="chat", namespace="serving")) == ["ttft", "ttft"]
    assert about(CHAT, slo(service="other"), slo(service="chat", namespace="else")) == []
    assert about(CHAT, slo(service="chat", cluster="far"), slo(sli="latency"), slo(sli="success", limit=None)) == []
    options = (Objective("ttft", 2.0),)
    assert about(CHAT, slo(), slo(sli="tpot", limit="50ms"), objectives=options) == ["ttft", "tpot"]
    pool = EntityRef("default", EntityKind.SERVICE, "serving", "chat-decode")
    assert [one.name for one in SloInputs([slo(service="chat")], "default").objectives(pool, CHAT)] == ["x"]


def test_node_sizes_are_the_most_common_of_each_type():
    edges = [(NODES[place // 4], one) for place, one in enumerate(GPUS)]  # 4, 4, and 3 where one is lost
    labels = {one: {"gpu_type": "NVIDIA H100 80GB HBM3"} for one in GPUS}
    sizes = node_sizes.node_sizes(Topology.build(edges, labels=labels))
    assert sizes == {"H100": 4, "": 4}
    bare = ServiceSettings(name="chat")
    assert node_sizes.node_of("H100", bare, sizes) == (4, "topology")
    assert node_sizes.node_of("unknown", bare, sizes) == (4, "topology")
    assert node_sizes.node_of("A100", bare, sizes) == (None, "")
    assert node_sizes.node_of("H100", ServiceSettings(name="chat", gpus_per_node=2), sizes) == (2, "configured")
    labels = {NODES[0]: {"gpu_type": "A30", "gpu_count": "2"}, NODES[1]: {"gpu_count": "many"}}
    assert node_sizes.node_sizes(Topology.build([], NODES, labels)) == {"A30": 2, "": 2}
    assert node_sizes.node_sizes(Topology()) == {}
