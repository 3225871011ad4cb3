from __future__ import annotations

import pytest

from outrider.errors import UsageError
from outrider.text.i18n import LANGUAGES
from planner.cost import cost_text, optimizer
from planner.cost.milp import NoMixReason
from planner.cost.optimizer import CostRequest, Offer, Refusal, compare, cost_per_1k_tokens
from planner.performance import roofline
from planner.performance.gpu_catalog import gpu, gpus, source_text
from planner.performance.memory_fit import Setup
from planner.performance.model_specs import model
from planner.performance.queueing import Slo, Work

SLO = Slo(2.0, 0.06)
CHAT = CostRequest(model("Llama-3.1-8B"), Work(600, 250), 40.0, SLO)


def test_the_front_trades_cost_for_latency_and_every_point_carries_the_need():
    answer = compare(CHAT, optimizer.default_offers(gpus()))
    assert answer.slo_kept
    assert answer.need == 50.0
    assert len(answer.front) > 3
    costs, latencies = zip(*((mix.cost_per_hour, mix.latency) for mix in answer.front), strict=True)
    assert list(costs) == sorted(costs)
    assert list(latencies) == sorted(latencies, reverse=True)
    for mix in answer.front:
        assert sum(answer.options[index].rate * count for index, count in mix.replicas.items()) >= 50 * (1 - 1e-9)
    for language in LANGUAGES:
        lines = cost_text.lines(CHAT, answer, language)
        sources = {source_text(spec.price_source, language) for spec in gpus().values()}
        sources |= {roofline.source_in(language, tp) for tp in (1, 8)}
        facts = [line for line in lines if any(source in line for source in sources)]
        assert 2 <= len(facts) <= 6
        assert len(lines) == 1 + len(answer.front) + len(answer.refused) + len(facts)
        assert not [line for line in lines if line.startswith("capacity.") or "{" in line]


def test_refused_offers_have_a_reason():
    offers = [
        Offer(gpu("T4"), quota=0),
        Offer(gpu("H100"), region="far"),
        Offer(gpu("A100"), "reserved", region="here"),
        Offer(gpu("L40S"), region="here"),
    ]
    answer = compare(
        optimizer.CostRequest(**{**_fields(CHAT), "regions": frozenset({"here", ""}), "within": 3600.0}), offers
    )
    assert {name.split()[0]: reason for name, reason, _ in answer.refused} == {
        "T4": Refusal.QUOTA,
        "H100": Refusal.REGION,
        "A100": Refusal.LEAD,
    }
    assert set(answer.cheapest.gpus) == {"L40S on_demand here"}


def test_an_slo_that_no_offer_meets_is_a_warning_and_not_a_size():
    answer = compare(CostRequest(**{**_fields(CHAT), "slo": Slo(tpot=1e-4)}), [Offer(gpu("T4"))])
    assert not answer.slo_kept
    assert [reason for _, reason, _ in answer.refused] == [Refusal.SLO]
    assert "Do not size by it" in cost_text.lines(CHAT, answer)[1]


def test_a_model_too_large_for_every_offer_serves_nothing():
    answer = compare(CostRequest(model("DeepSeek-V3"), Work(600, 250), 1.0), [Offer(gpu("T4"))])
    assert answer.nothing.reason is NoMixReason.NOTHING_SERVES
    assert answer.front == ()


def test_a_zero_quota_leaves_no_option():
    answer = compare(CHAT, [Offer(gpu("H100"), quota=0)])
    assert answer.nothing.reason is NoMixReason.NOTHING_SERVES
    assert answer.refused == (("H100 on_demand", Refusal.QUOTA, "0"),)


def test_a_quota_that_is_too_small_reports_its_capacity():
    answer = compare(CostRequest(**{**_fields(CHAT), "qps": 4000.0}), [Offer(gpu("H100"), quota=4)])
    assert answer.nothing.reason is NoMixReason.QUOTA
    assert 0 < answer.nothing.most < 4000


def test_spot_is_cheaper_and_bounded():
    offers = [Offer(gpu("H100")), Offer(gpu("H100"), "spot")]
    free = compare(CHAT, offers).cheapest
    bounded = compare(CostRequest(**{**_fields(CHAT), "spot_ratio": 0.0}), offers).cheapest
    assert set(free.gpus) == {"H100 spot"}
    assert set(bounded.gpus) == {"H100 on_demand"}
    assert free.cost_per_hour < bounded.cost_per_hour


def test_whole_nodes_are_paid_whole():
    mix = compare(CostRequest(**{**_fields(CHAT), "whole_nodes": True}), [Offer(gpu("H100"))]).cheapest
    assert mix.gpus == {"H100 on_demand": 8}


def test_cost_per_thousand_tokens_is_hourly_cost_over_tokens():
    assert cost_per_1k_tokens(3.6, 1000.0) == pytest.approx(0.001)
    assert cost_per_1k_tokens(3.6, 0.0) is None


@pytest.mark.parametrize("wrong", [{"price": -1.0}, {"price": float("nan")}, {"quota": -1}])
def test_impossible_prices_and_quotas_are_refused(wrong):
    with pytest.raises(UsageError):
        Offer(gpu("H100"), **wrong)


def test_zero_load_costs_nothing():
    assert compare(CostRequest(**{**_fields(CHAT), "qps": 0.0}), [Offer(gpu("H100"))]).cheapest.cost_per_hour == 0
    with pytest.raises(UsageError):
        compare(CostRequest(**{**_fields(CHAT), "qps": -1.0}), [Offer(gpu("H100"))])


def test_an_impossible_setup_is_refused():
    for wrong in ({"tp": 0}, {"utilisation": 1.5}, {"bits": 1}):
        with pytest.raises(UsageError):
            Setup(**wrong)


@pytest.mark.parametrize("slo", [Slo(), Slo(tpot=60.0)])
def test_without_a_binding_objective_an_engine_is_loaded_below_saturation(slo):
    answer = compare(CostRequest(**{**_fields(CHAT), "slo": slo}), [Offer(gpu("H100"))])
    assert answer.slo_kept
    assert answer.cheapest.latency < 30
    assert {answer.options[index].binds for mix in answer.front for index in mix.replicas} == {"stability"}


def test_the_lines_have_gpus_currency_and_a_mark_for_assumed_prices():
    answer = compare(CHAT, [Offer(gpu("MI300X")), Offer(gpu("H100"), price=20.0)])
    assert set(answer.cheapest.gpus) == {"MI300X on_demand"}
    for language, words in (("en", "on demand"), ("zh", "按需")):
        lines = cost_text.lines(CHAT, answer, language)
        assert f"{sum(answer.cheapest.gpus.values())} " in lines[1]
        assert "USD" in lines[1]
        assert f"MI300X* {words}" in lines[1]
        assert [line for line in lines if line.startswith("* ") and "MI300X" in line]
        assert "on_demand" not in "".join(lines)
    yuan = [Offer(gpu("MI300X"), price=20.0, currency="CNY"), Offer(gpu("H100"), price=30.0, currency="CNY")]
    own = "".join(cost_text.lines(CHAT, compare(CHAT, yuan)))
    assert "CNY" in own
    assert "*" not in own
    with pytest.raises(UsageError, match="CNY and USD"):
        compare(CHAT, [yuan[0], Offer(gpu("H100"))])


def test_the_group_nearest_to_the_slo_is_quoted():
    request = CostRequest(**{**_fields(CHAT), "shape": model("Llama-3.1-70B"), "slo": Slo(tpot=0.001)})
    ((_, reason, text),) = compare(request, [Offer(gpu("B200"))]).refused
    assert reason is Refusal.SLO
    single = [compare(CostRequest(**{**_fields(request), "groups": (tp,), "pipelines": (pp,)}), [Offer(gpu("B200"))])
              for tp in (2, 4, 8) for pp in (1, 2, 4)]  # fmt: skip
    facts = [answer.refused[0][2] for answer in single]
    assert text == min(facts, key=lambda line: float(line.rsplit("TPOT ", 1)[1].removesuffix(" s")))


@pytest.mark.parametrize("name", ["H1000", "A1000", "RTX A3000", "T400", "B2000", "40900", "910"])
def test_a_name_that_only_begins_like_a_known_one_is_another_device(name):
    with pytest.raises(UsageError, match="unknown GPU type"):
        gpu(name)


@pytest.mark.parametrize(
    ("name", "known"),
    [
        ("NVIDIA-H100-80GB-HBM3", "H100"), ("gpu_1x_h100", "H100"), ("NVIDIA A10G", "A10"),
        ("Ascend910B2", "Ascend 910B"),
        ("910B", "Ascend 910B"), ("NVIDIA GeForce RTX 4090", "RTX 4090"), ("4090", "RTX 4090"),
        ("amd_mi300x_oam", "MI300X"), ("Tesla T4", "T4"), ("H20-3e", "H20"),
    ],
)  # fmt: skip
def test_a_device_is_found_by_its_names_in_exporters_and_clouds(name, known):
    assert gpu(name).name == known


def _fields(request):
    return {name: getattr(request, name) for name in CostRequest.__slots__}
