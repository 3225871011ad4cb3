"""Slices and shares of GPUs as offers: sizes, prices and shared quotas."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from outrider.errors import UsageError
from outrider.model import Calibration, EntityKind, EntityRef
from outrider.text.i18n import LANGUAGES
from planner.cost import cost_text, offers, optimizer
from planner.cost.milp import Demand, Mix, NoMix, Option, Pool, cheapest
from planner.cost.optimizer import CostRequest, Offer, Refusal, compare
from planner.performance import measured, roofline
from planner.performance.gpu_catalog import gpu, gpus
from planner.performance.memory_fit import Fit, Setup, fit
from planner.performance.model_specs import model
from planner.performance.queueing import Slo, Work

MIG, MPS = frozenset({"mig"}), frozenset({"mps"})
SMALL = CostRequest(model("Llama-3.1-8B"), Work(600, 250), 1.0, Slo(2.0, 0.06), setup=Setup(bits=4), cuts=MIG)


@pytest.mark.parametrize(
    ("name", "profiles"),
    [
        ("A30", "1g.6gb 2g.12gb 4g.24gb"),
        ("A100", "1g.10gb 1g.20gb 2g.20gb 3g.40gb 7g.80gb"),
        ("H100", "1g.10gb 1g.20gb 2g.20gb 3g.40gb 7g.80gb"),
        ("H200", "1g.18gb 1g.35gb 2g.35gb 3g.71gb 7g.141gb"),
        ("B200", "1g.23gb 1g.45gb 2g.45gb 3g.90gb 7g.180gb"),
    ],
)
def test_profiles_match_nvidias_names(name, profiles):
    spec = gpu(name)
    assert " ".join(cut.name for cut in spec.slices) == profiles
    for cut in spec.slices:
        part = spec.part(cut)
        assert (part.name, part.whole, part.parts, part.cut) == (f"{name} {cut.name}", name, cut.most, "mig")
        assert part.memory_bytes == cut.memory_bytes
        assert part.price == pytest.approx(spec.price / cut.most)
        assert part.fp16 == pytest.approx(spec.fp16 * cut.compute_ratio)
        assert part.bandwidth * cut.most <= spec.bandwidth * 1.01
        assert part.link == 0
        assert gpu(part.name) == part


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100 1G.10GB", "H100 1g.10gb"),
        ("NVIDIA-H100-80GB-HBM3-MIG-1g.20gb", "H100 1g.20gb"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", "A100 3g.40gb"),
        ("H100", "H100"),
    ],
)
def test_a_slice_is_found_by_its_names_in_tools(text, name):
    assert gpu(text).name == name


@pytest.mark.parametrize(
    ("text", "message", "hint"),
    [
        ("H100 9g.99gb", "H100 has no MIG profile '9g.99gb'", "1g.10gb"),
        ("A100 80GB 1g.5gb", "A100 has no MIG profile '1g.5gb'", "1g.10gb"),  # of the A100 with 40 GB
        ("H100 1g.10gb+me", "H100 has no MIG profile '1g.10gb+me'", "1g.10gb"),
        ("L40S 1g.10gb", "L40S has no MIG profile", "has no MIG"),
        ("1g.10gb", "has no name", "H100"),
        ("V9000 1g.10gb", "unknown GPU type", "H100"),
        ("H10O", "unknown GPU type 'H10O'; did you mean \"H100\"?", "H100"),
    ],
)
def test_an_unknown_profile_is_refused_with_the_known_ones(text, message, hint):
    with pytest.raises(UsageError) as caught:
        gpu(text)
    assert message in caught.value.message
    assert hint in caught.value.hint


def test_mps_shares_whole_nvidia_gpus_only():
    half = gpu("L40S").share(2)
    assert (half.name, half.whole, half.parts, half.cut) == ("L40S MPS 1/2", "L40S", 2, "mps")
    assert (half.price, half.memory_bytes) == (gpu("L40S").price / 2, gpu("L40S").memory_bytes / 2)
    for spec, count in ((gpu("MI300X"), 2), (gpu("Ascend 910B"), 2), (gpu("H100"), 1), (gpu("H100 1g.10gb"), 2)):
        with pytest.raises(UsageError, match="cannot be shared"):
            spec.share(count)


def test_a_small_load_of_a_small_model_is_cheapest_on_a_slice():
    whole = compare(replace(SMALL, cuts=frozenset()), [Offer(gpu("H100"))]).cheapest
    answer = compare(SMALL, [Offer(gpu("H100"))])
    mix = answer.cheapest
    ((index, count),) = mix.replicas.items()
    option = answer.options[index]
    assert (option.offer.name, count, option.setup.gpus) == ("H100 1g.10gb on_demand", mix.slices[option.offer.name], 1)
    assert mix.cost_per_hour == pytest.approx(count * gpu("H100").price / 7)
    assert mix.cost_per_hour < whole.cost_per_hour
    assert mix.gpus == {option.offer.name: 1}, "whole GPUs, of which slices are cut"
    shown = optimizer.describe(SMALL, answer, mix)
    assert shown["slices"] == {"H100 1g.10gb on_demand": count}
    (replica,) = shown["replicas"]
    assert (replica["gpu_type"], replica["cut_from"], replica["parts_per_gpu"]) == ("H100 1g.10gb", "H100", 7)
    assert isinstance(fit(SMALL.shape, option.offer.gpu, option.setup, context=851), Fit)
    for language in LANGUAGES:
        lines = cost_text.lines(SMALL, answer, language)
        assert any("H100 1g.10gb" in line for line in lines)
        assert sum("MIG" in line for line in lines) == 1
        assert not [line for line in lines if "{" in line or line.startswith("capacity.")]


def test_slices_that_do_not_fit_are_omitted_without_a_reason():
    large = replace(SMALL, shape=model("Llama-3.1-70B"), setup=Setup(bits=16), slo=Slo())
    answer = compare(large, [Offer(gpu("H100"))])
    assert not [option for option in answer.options if option.offer.gpu.whole]
    assert answer.refused == ()


def test_a_slice_that_is_too_slow_is_refused_with_the_reason():
    answer = compare(replace(SMALL, slo=Slo(tpot=0.004)), [Offer(gpu("A30")), Offer(gpu("B200"))])
    slow = {name for name, reason, _ in answer.refused if reason is Refusal.SLO}
    assert any(name.startswith("B200 1g.") for name in slow)


def test_slices_form_no_group():
    assert {option.setup.gpus for option in compare(SMALL, [Offer(gpu("H100"))]).options if option.offer.cut} == {1}
    grouped = compare(replace(SMALL, groups=(2,)), [Offer(gpu("H100"))])
    assert not [option for option in grouped.options if option.offer.cut]


def test_a_quota_counts_whole_gpus_for_all_their_parts():
    busy = replace(SMALL, qps=400.0, slo=Slo())
    offers = [Offer(gpu("H100"), quota=2)]
    answer = compare(busy, offers)
    assert answer.nothing.most > 0
    for qps in (5.0, 15.0, 30.0):
        mix = compare(replace(busy, qps=qps), offers).cheapest
        assert mix is None or sum(mix.gpus.values()) <= 2
    none = compare(SMALL, [Offer(gpu("H100"), quota=0)])
    assert none.refused == (("H100 on_demand", Refusal.QUOTA, "0"),)
    assert none.options == ()


def test_a_given_price_is_shared_out_and_a_slice_of_its_own_keeps_its_price():
    answer = compare(SMALL, [Offer(gpu("H100"), price=70.0), Offer(gpu("H100 1g.10gb"), price=3.0, quota=5)])
    prices = {option.offer.name: option.offer.hourly for option in answer.options}
    assert prices["H100 1g.10gb on_demand"] == 3.0
    assert prices["H100 2g.20gb on_demand"] == pytest.approx(70 / 3)
    own = next(option.offer for option in answer.options if option.offer.name == "H100 1g.10gb on_demand")
    assert (own.cut, own.quota) == (False, 5)
    few = compare(replace(SMALL, qps=1e4), [own])
    assert few.nothing.most == pytest.approx(5 * max(option.rate for option in few.options)), "its quota counts slices"


def test_whole_nodes_of_slices_cost_whole_nodes():
    mix = compare(replace(SMALL, whole_nodes=True), [Offer(gpu("H100"))]).cheapest
    assert mix.cost_per_hour == pytest.approx(8 * gpu("H100").price)
    assert sum(mix.gpus.values()) == 8


def test_offers_by_name_are_cut_from_configured_offers():
    mine = [Offer(gpu("H100"), price=9.0, quota=4), Offer(gpu("A100"))]
    wanted = {"H100 1g.10gb": gpu("H100 1g.10gb"), "A30": gpu("A30")}
    first, second = offers.select_offers(mine, wanted)
    assert (first.name, first.cut, first.quota, first.hourly) == ("H100 1g.10gb on_demand", True, 4, 9.0 / 7)
    assert (second.name, second.price) == ("A30 on_demand", None)
    assert [one.name for one in offers.select_offers(mine, {"A100": gpu("A100")})] == ["A100 on_demand"]
    assert offers.cuts_of(mig=True, mps=True) == MIG | MPS


def test_every_part_of_every_device_is_offered_once():
    every = offers.with_parts(optimizer.default_offers(gpus()), MIG | MPS)
    assert len({one.name for one in every}) == len(every)
    assert not [one for one in every if one.gpu.cut == "mps" and one.gpu.whole in ("MI300X", "Ascend 910B")]
    assert {one.gpu.whole for one in every if one.gpu.cut == "mig"} >= {"A30", "A100", "H100", "H200", "B200"}
    assert not [one for one in every if one.gpu.cut and one.gpu.parts == 1], "7g is the whole GPU"


def test_a_measured_factor_of_a_device_is_taken_over_to_its_slices():
    shape, work, setup = model("Llama-3.1-8B"), Work(600, 250), Setup()
    entity = EntityRef("c", EntityKind.SERVICE, None, "chat")
    test = Calibration(entity, "H100", 250.0, 64.0, 20.0, 1, 1, 60.0, 9, "measured", model=shape.name)
    part = gpu("H100 2g.20gb")
    ratio = measured.factor(roofline.step_times(shape, gpu("H100"), setup), test, work)
    result = measured.step_times(shape, part, setup, work, [test])
    assert result.base == pytest.approx(ratio * roofline.step_times(shape, part, setup).base)
    assert "applied to H100 2g.20gb" in result.source
    own = replace(test, gpu_type="H100 2g.20gb", tokens_per_second_per_sequence=9.0)
    assert measured.nearest(part, setup, [test, own]) is own
    assert measured.nearest(gpu("H100"), setup, [own]) is None


POOLS = (
    Pool("whole", 6.0, quota=2, device="h"),
    Pool("halves", 3.0, quota=2, parts=2, device="h"),
    Pool("thirds", 2.0, quota=2, parts=3, device="h"),
    Pool("other", 5.0, quota=1),
)
_options = st.lists(
    st.builds(
        Option,
        st.just("o"),
        st.sampled_from([pool.name for pool in POOLS]),
        st.just(1),
        st.integers(1, 6).map(float),
        st.just(1.0),
    ),
    min_size=1,
    max_size=3,
)


def _taken(options, counts, pool):
    """The largest loss of a pool: a GPU full of the largest slices in use, but no more than exist."""
    mine = [(one.capacity, n) for one, n in zip(options, counts, strict=True) if one.pool == pool.name and n]
    if pool.parts == 1:
        return max((capacity for capacity, _ in mine), default=0.0)
    full = pool.parts * max((capacity for capacity, _ in mine), default=0.0)
    return min(full, sum(capacity * n for capacity, n in mine))


def test_a_lost_gpu_loses_its_slices():
    """Two slices on one GPU are both lost with it."""
    for cuts in (MIG, MPS):
        answer = compare(replace(SMALL, qps=2.0, cuts=cuts, losses=1), [Offer(gpu("H100"))])
        mix = answer.cheapest
        carried = {answer.options[index].offer: 0.0 for index in mix.replicas}
        largest = 0.0
        for index, count in mix.replicas.items():
            option = answer.options[index]
            carried[option.offer] += option.rate * count
            largest = max(largest, option.rate * min(count, option.offer.gpu.parts if option.offer.cut else 1))
        assert sum(carried.values()) - largest >= answer.need - 1e-9
        assert sum(mix.gpus.values()) >= 2


@settings(max_examples=80, deadline=None)
@given(_options, st.integers(1, 20).map(float), st.integers(0, 1))
def test_no_mix_within_the_shared_quota_is_cheaper(options, need, losses):
    costs = []
    for counts in product(range(7), repeat=len(options)):
        lost = losses * max((_taken(options, counts, pool) for pool in POOLS), default=0.0)
        if sum(one.capacity * count for one, count in zip(options, counts, strict=True)) - lost < need - 1e-9:
            continue
        held = {
            pool.name: sum(n for one, n in zip(options, counts, strict=True) if one.pool == pool.name) for pool in POOLS
        }
        opened = sum(-(-held[pool.name] // pool.parts) for pool in POOLS if pool.device == "h")
        if opened <= 2 and held["other"] <= 1:
            costs.append(sum(held[pool.name] * pool.price for pool in POOLS))
    result = cheapest(options, POOLS, Demand(need, losses))
    if isinstance(result, NoMix):
        assert not costs
        return
    assert isinstance(result, Mix)
    assert result.cost_per_hour == pytest.approx(min(costs))
    assert sum(count for name, count in result.gpus.items() if name != "other") <= 2
