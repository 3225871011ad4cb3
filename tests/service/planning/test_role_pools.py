"""Prefill and decode replicas of one service are planned, limited and guarded separately."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from collectors.kubernetes.engine_args import engine_args
from outrider.model import CellStatus, EntityKind, EntityRef, Recommendation, SampleBatch, SignalKey
from outrider.topology import Topology
from service.config.service_settings import ServiceSettings
from service.config.settings import PlannerSettings
from service.config.slo_settings import SloSettings
from service.planning import role_pools
from service.planning.planning import Planning
from service.planning.slo_inputs import SloInputs
from store import memory
from tests.service.cli.test_cli import answer

NOW = datetime(2026, 11, 18, 17, tzinfo=UTC)
CHAT = EntityRef("c", EntityKind.SERVICE, "prod", "chat")
PREFILL, DECODE = (EntityRef("c", EntityKind.SERVICE, "prod", f"chat-{role}") for role in role_pools.ROLES)
REPLICAS = {
    role: [EntityRef("c", EntityKind.REPLICA, "prod", f"{role}-{number}") for number in range(2)]
    for role in role_pools.ROLES
}
TOPOLOGY = Topology.build(
    [(replica, CHAT) for replicas in REPLICAS.values() for replica in replicas],
    [CHAT],
    {replica: {"role": role, "tensor_parallel": tp, "gpu_type": "H100"}
     for role, tp in (("prefill", "2"), ("decode", "4")) for replica in REPLICAS[role]},
)  # fmt: skip
LOAD, INFLIGHT = SignalKey("svc_requests_per_second"), SignalKey("svc_inflight_requests")
ENGINE = tuple(
    SignalKey(name)
    for name in ("engine_requests_running", "engine_requests_waiting", "engine_generation_tokens_total",
                 "engine_requests_finished_total", "engine_kv_cache_usage_ratio")
)  # fmt: skip


@pytest.fixture
def metrics():
    """Two days of 20 requests/s. A prefill replica holds 4 prompts of .4 s each, a decode replica 40 answers of 4 s."""
    store = memory.MemoryMetricStore()
    count = 2 * 144
    for slot in range(count):
        at = NOW - timedelta(minutes=10) * (count - slot)
        values = np.array([[20.0, 88.0]])
        status = np.full(values.shape, CellStatus.PRESENT, dtype=np.uint8)
        service = SampleBatch("s", at, EntityKind.SERVICE, (LOAD, INFLIGHT), (CHAT,), values, status, 15.0)
        finished = 10.0 * 600.0
        engines = np.array(
            [[4.0, 1.0, finished, finished, 0.3]] * 2 + [[40.0, 0.0, finished * 100.0, finished, 0.8]] * 2
        )
        present = np.full(engines.shape, CellStatus.PRESENT, dtype=np.uint8)
        members = (*REPLICAS["prefill"], *REPLICAS["decode"])
        store.write(at, [service, SampleBatch("e", at, EntityKind.REPLICA, ENGINE, members, engines, present, 15.0)])
    return store


def planned(metrics, *services, slos=()):
    planning = Planning(
        metrics,
        PlannerSettings(),
        list(services),
        lambda service, known: (2, 2) if known else (0, 0),
        with_hindsight=False,
        slo_inputs=SloInputs(slos, "c"),
    )
    return {item.service.name: item for item in planning.plan_if_due(NOW, TOPOLOGY).recommendations}


def test_each_pool_is_sized_by_its_own_replicas(metrics):
    recommendations = planned(metrics)
    assert set(recommendations) == {"chat-prefill", "chat-decode"}
    prompts, answers = recommendations["chat-prefill"], recommendations["chat-decode"]
    assert isinstance(prompts, Recommendation)
    # prefill: one token a request, 4 at once at 2.5 tokens/s: 10 requests/s a replica; decode: 40 at once, 100 at 25/s
    assert prompts.derivation["inputs"]["tokens"]["value"] == pytest.approx(1.0)
    assert answers.derivation["inputs"]["tokens"]["value"] == pytest.approx(100.0)
    assert prompts.derivation["capacity_now"] == pytest.approx(2 * 10 / 1.25)
    assert answers.derivation["capacity_now"] == pytest.approx(2 * 10 / 1.25)
    assert prompts.gpus == 2 * prompts.target_replicas
    assert answers.gpus == 4 * answers.target_replicas
    # 88 in flight in the whole service do not count for the 4 seats of a prefill replica
    assert prompts.target_replicas <= 4


def test_a_pool_takes_its_own_settings_and_its_share_of_the_quota(metrics):
    whole = ServiceSettings(name="chat", namespace="prod", quota_gpus=12, floor=2, batch=99, tokens_per_request=7)
    own = ServiceSettings(name="chat-decode", namespace="prod", ceiling=2)
    recommendations = planned(metrics, whole, own)
    assert recommendations["chat-prefill"].floor == 2
    assert recommendations["chat-decode"].ceiling == 2
    assert recommendations["chat-prefill"].derivation["inputs"]["batch"]["value"] == pytest.approx(4.0)
    limits = {name: item.derivation["limits"]["quota_gpus"] for name, item in recommendations.items()}
    assert limits == {"chat-prefill": 4, "chat-decode": 8}


def test_each_pool_is_limited_by_its_own_part_of_the_slo(metrics):
    chat = ServiceSettings(name="chat", namespace="prod", model="Llama-3.1-8B", prompt_tokens=2000)
    slos = [
        SloSettings(name="first", service="chat", sli="ttft", limit="1s", objective=0.95),
        SloSettings(name="further", service="chat", sli="tpot", limit="39ms", objective=0.95),
    ]
    plain, recommendations = planned(metrics, chat), planned(metrics, chat, slos=slos)
    for name, sli in (("chat-prefill", "ttft"), ("chat-decode", "tpot")):
        facts = recommendations[name].derivation["slo"]
        assert (facts["verdict"], facts["binds"]["sli"]) == ("bounded", sli)
        assert 0.3 < facts["requests_per_second"] / facts["calibrated"]["requests_per_second"] < 1.0
        assert recommendations[name].target_replicas >= plain[name].target_replicas
        assert plain[name].derivation["slo"]["verdict"] == "no_objective"


def test_a_service_with_one_role_or_a_mixed_replica_stays_one_service():
    assert role_pools.planned(role_pools.with_pools(TOPOLOGY)) == (DECODE, PREFILL)
    both = EntityRef("c", EntityKind.REPLICA, "prod", "both-0")
    mixed = Topology.build([*TOPOLOGY.edges, (both, CHAT)], labels=TOPOLOGY.labels)
    assert role_pools.planned(role_pools.with_pools(mixed)) == (CHAT,)
    plain = Topology.build(TOPOLOGY.edges)
    assert role_pools.with_pools(plain) is plain
    there = Topology.build(TOPOLOGY.edges, [CHAT, DECODE], TOPOLOGY.labels)
    assert DECODE in role_pools.planned(role_pools.with_pools(there))


def test_the_role_is_read_from_engine_arguments():
    def role(*words):
        return engine_args({"args": list(words)}).facts(engine=True).get("role")

    assert role("vllm", "serve", "m", "--kv-transfer-config", '{"kv_role": "kv_producer"}') == "prefill"
    assert role('vllm serve m --kv-transfer-config \'{"kv_role":"kv_consumer"}\'') == "decode"
    assert role("vllm", "serve", "m", "--kv-transfer-config", '{"kv_role":"kv_both"}') is None
    assert role("python", "-m", "sglang.launch_server", "--disaggregation-mode", "decode") == "decode"
    assert role("vllm", "serve", "m") is None


def test_the_command_line_sizes_both_pools(tmp_path):
    command = ("capacity", "disaggregated", "--model", "Llama-3.1-8B", "--gpu", "H100", "--qps", "40",
               "--prompt", "2000", "--tokens", "200", "--prefill-tp", "1", "--decode-tp", "1")  # fmt: skip
    result = answer(*command, "--ttft", "1s", "--tpot", "40ms", cwd=tmp_path)
    assert result["kept"]
    assert result["gpus"] == result["prefill"]["gpus"] + result["decode"]["gpus"] > 2
    assert result["ttft_seconds"] <= 1.0
    assert len(result["derivation"]) == 8
    never = answer(*command, "--ttft", "1ms", cwd=tmp_path, code=1)
    assert (never["kept"], never["reason"]) == (False, "prompt")
    assert "s for 95 % of requests" in never["derivation"][0]
    assert answer(*command, "--ttft", "1us", cwd=tmp_path, code=1)["best_seconds"] == never["best_seconds"]
    links = [answer(*command, "--link", text, cwd=tmp_path)["inputs"]["link"] for text in ("50GB/s", "50e9", "50 MB/s")]
    assert links == [50e9, 50e9, 50e6]
    wrong = answer(*command, "--link", "50Gb/s", cwd=tmp_path, code=2)
    assert "--link: '50Gb/s' has a small b" in wrong["error"]["message"]
    wrong = answer(*command, "--link", "50", "--decode-gpu", "abacus", cwd=tmp_path, code=2)
    assert "abacus" in wrong["error"]["message"]
    wrong = answer(*command, "--link", "0", cwd=tmp_path, code=2)
    assert "--link must be above 0" in wrong["error"]["message"]
