from __future__ import annotations

import pytest

from outrider.errors import UsageError
from outrider.i18n import LANGUAGES
from planner import cost, roofline
from planner.cost import Offer, Refusal, Request, compare, cost_per_1k_tokens
from planner.fit import Setup
from planner.gpus import gpu, gpus, source_text
from planner.mix import NoMixReason
from planner.queueing import Slo, Work
from planner.shapes import model

SLO = Slo(2.0, 0.06)
CHAT = Request(model("Llama-3.1-8B"), Work(600, 250), 40.0, SLO)


def test_the_front_trades_cost_for_latency_and_every_point_carries_the_need():
    answer = compare(CHAT, cost.default_offers(gpus()))
    assert answer.slo_kept
    assert answer.need == 50.0
    assert len(answer.front) > 3
    costs, latencies = zip(*((mix.cost_per_hour, mix.latency) for mix in answer.front), strict=True)
    assert list(costs) == sorted(costs)
    assert list(latencies) == sorted(latencies, reverse=True)
    for mix in answer.front:
        assert sum(answer.ways[place].rate * count for place, count in mix.replicas.items()) >= 50 * (1 - 1e-9)
    for language in LANGUAGES:
        said = cost.lines(CHAT, answer, language)
        sources = {source_text(spec.price_source, language) for spec in gpus().values()}
        sources |= {roofline.source_in(language, tp) for tp in (1, 8)}
        told = [line for line in said if any(source in line for source in sources)]
        assert 2 <= len(told) <= 4
        assert len(said) == 1 + len(answer.front) + len(answer.refused) + len(told)
        assert not [line for line in said if line.startswith("capacity.") or "{" in line]


def test_offers_that_may_not_be_used_say_why():
    offers = [
        Offer(gpu("T4"), quota=0),
        Offer(gpu("H100"), region="far"),
        Offer(gpu("A100"), "reserved", region="here"),
        Offer(gpu("L40S"), region="here"),
    ]
    answer = compare(cost.Request(**{**_fields(CHAT), "regions": frozenset({"here", ""}), "within": 3600.0}), offers)
    assert {name.split()[0]: why for name, why, _ in answer.refused} == {
        "T4": Refusal.QUOTA,
        "H100": Refusal.REGION,
        "A100": Refusal.LEAD,
    }
    assert set(answer.cheapest.gpus) == {"L40S on_demand here"}


def test_a_promise_that_nobody_keeps_is_a_warning_and_not_a_size():
    answer = compare(Request(**{**_fields(CHAT), "slo": Slo(tpot=1e-4)}), [Offer(gpu("T4"))])
    assert not answer.slo_kept
    assert [why for _, why, _ in answer.refused] == [Refusal.SLO]
    assert "do not size by it" in cost.lines(CHAT, answer)[1]


def test_a_model_too_large_for_every_offer_serves_nothing():
    answer = compare(Request(model("DeepSeek-V3"), Work(600, 250), 1.0), [Offer(gpu("T4"))])
    assert answer.nothing.reason is NoMixReason.NOTHING_SERVES
    assert answer.front == ()


def test_quotas_of_nothing_leave_nothing():
    answer = compare(CHAT, [Offer(gpu("H100"), quota=0)])
    assert answer.nothing.reason is NoMixReason.NOTHING_SERVES
    assert answer.refused == (("H100 on_demand", Refusal.QUOTA, "0"),)


def test_a_quota_too_small_says_what_it_carries():
    answer = compare(Request(**{**_fields(CHAT), "qps": 4000.0}), [Offer(gpu("H100"), quota=4)])
    assert answer.nothing.reason is NoMixReason.QUOTA
    assert 0 < answer.nothing.most < 4000


def test_spot_is_cheaper_and_bounded():
    offers = [Offer(gpu("H100")), Offer(gpu("H100"), "spot")]
    free = compare(CHAT, offers).cheapest
    bounded = compare(Request(**{**_fields(CHAT), "spot_ratio": 0.0}), offers).cheapest
    assert set(free.gpus) == {"H100 spot"}
    assert set(bounded.gpus) == {"H100 on_demand"}
    assert free.cost_per_hour < bounded.cost_per_hour


def test_whole_nodes_are_paid_whole():
    mix = compare(Request(**{**_fields(CHAT), "whole_nodes": True}), [Offer(gpu("H100"))]).cheapest
    assert mix.gpus == {"H100 on_demand": 8}


def test_a_thousand_tokens_cost_what_an_hour_costs_over_its_tokens():
    assert cost_per_1k_tokens(3.6, 1000.0) == pytest.approx(0.001)
    assert cost_per_1k_tokens(3.6, 0.0) is None


@pytest.mark.parametrize("wrong", [{"price": -1.0}, {"price": float("nan")}, {"quota": -1}])
def test_prices_and_quotas_that_nobody_has_are_refused(wrong):
    with pytest.raises(UsageError):
        Offer(gpu("H100"), **wrong)


def test_a_load_that_is_none_costs_nothing():
    assert compare(Request(**{**_fields(CHAT), "qps": 0.0}), [Offer(gpu("H100"))]).cheapest.cost_per_hour == 0
    with pytest.raises(UsageError):
        compare(Request(**{**_fields(CHAT), "qps": -1.0}), [Offer(gpu("H100"))])


def test_a_setup_that_no_engine_takes_is_refused():
    for wrong in ({"tp": 0}, {"utilisation": 1.5}, {"bits": 1}):
        with pytest.raises(UsageError):
            Setup(**wrong)


def _fields(request):
    return {name: getattr(request, name) for name in Request.__slots__}
