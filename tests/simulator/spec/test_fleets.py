from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from outrider.errors import UsageError
from simulator.fleet import Fleet
from simulator.spec.devices import GPU_TYPES, gpu_type
from simulator.spec.fleets import FleetSpec, PoolSpec, TrafficSpec, default_spec, drill_spec, spec_of, standby_spec

SMALL = default_spec()
CHAT = SMALL.services[0]
H100, A100 = "NVIDIA H100 80GB HBM3", "NVIDIA A100-SXM4-80GB"


@pytest.mark.parametrize("gpus", [8, 20, 64, 256, 1000, 10_000])
def test_a_fleet_of_any_size_has_exactly_its_gpus_and_some_spare(gpus: int) -> None:
    spec = spec_of(gpus)
    used = sum(service.replicas * service.tensor_parallel for service in spec.services)
    assert spec.gpus == gpus
    assert 0.4 * gpus <= used < gpus
    assert all(service.gpu_type in {pool.gpu_type for pool in spec.pools} for service in spec.services)


def test_a_large_fleet_mixes_types_and_engines() -> None:
    spec = spec_of(10_000)
    assert {pool.gpu_type for pool in spec.pools} == set(GPU_TYPES)
    assert {service.engine_kind for service in spec.services} == {"vllm", "sglang", "tgi", "triton", "mindie"}
    assert sum(service.replicas for service in spec.services) >= 1000


def test_the_seed_varies_the_load_and_nothing_else() -> None:
    one, same, other = spec_of(64, seed=1), spec_of(64, seed=1), spec_of(64, seed=2)
    assert one == same
    assert one.pools == other.pools
    assert one.services[0].traffic != other.services[0].traffic


def test_the_same_model_is_slower_on_a_slower_device() -> None:
    fast, slow = CHAT.engine.on("H100"), CHAT.engine.on("A30")
    assert fast == CHAT.engine
    assert slow.step_seconds == pytest.approx(fast.step_seconds / gpu_type("A30").decode_speed)
    assert slow.prefill_per_token_seconds > fast.prefill_per_token_seconds
    assert replace(CHAT, engine=slow).capacity_per_second() < CHAT.capacity_per_second()


def test_drills_have_spare_devices_racks_and_a_standby_like_them() -> None:
    drill, standby = drill_spec(), standby_spec()
    fleet = Fleet(replace(drill, slice_seconds=5.0, tick_seconds=5.0))
    assert int(fleet.pods.free_gpus().sum()) >= 16
    assert sorted(set(fleet.nodes.switch)) == ["rack-0", "rack-1"]
    assert set(fleet.nodes.storage) == {"models-0"}
    assert standby.services == drill.services
    assert (standby.cluster, standby.prefix) == ("standby", "standby-")


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: spec_of(0), "0 GPUs"),
        (lambda: FleetSpec("x", (), (CHAT,)), "no GPUs"),
        (lambda: FleetSpec("x", SMALL.pools, ()), "no services"),
        (lambda: PoolSpec("p", "B9000", 2), "unknown type 'B9000'"),
        (lambda: PoolSpec("p", H100, 0), "no GPUs"),
        (lambda: TrafficSpec(peak_ratio=0.0), "peak_ratio 0 is not above 0"),
        (lambda: replace(CHAT, replicas=0), "0 replicas"),
        (lambda: replace(CHAT, ceiling=3), "ceiling of 3"),
        (lambda: replace(CHAT, engine_kind="abacus"), "'abacus'"),
        (lambda: replace(SMALL, services=(replace(CHAT, tensor_parallel=16, replicas=1),)), "groups of 16 GPUs"),
        (lambda: replace(SMALL, services=(replace(CHAT, replicas=17, ceiling=17),)), "need 68"),
        (lambda: replace(SMALL, services=(CHAT, CHAT)), "two services called chat-70b"),
        (lambda: replace(SMALL, services=(replace(CHAT, gpu_type=A100),)), "no pool"),
        (lambda: replace(SMALL, pools=(*SMALL.pools, PoolSpec("a", A100, 1))), "has several GPU types"),
        (lambda: gpu_type("H900"), "unknown GPU type"),
    ],
)
def test_invalid_specifications_are_refused_in_a_sentence(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence) as refused:
        make()
    assert refused.value.hint


def test_groups_that_fit_on_no_node_are_refused() -> None:
    pools = (PoolSpec("p", H100, 2, gpus_per_node=6),)
    service = replace(CHAT, replicas=3, ceiling=3)
    with pytest.raises(UsageError, match="no node with 4 free GPUs"):
        Fleet(replace(SMALL, pools=pools, services=(service,)))


def test_services_are_placed_on_devices_of_their_own_type() -> None:
    spec = spec_of(256)
    fleet = Fleet(replace(spec, slice_seconds=5.0, tick_seconds=5.0))
    for pod in fleet.pods.pods:
        assert all(fleet.gpus.type_name[gpu] == pod.service.gpu_type for gpu in pod.gpus)
