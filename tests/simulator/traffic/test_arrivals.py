from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from functools import cache

import numpy as np
import pytest

from outrider.errors import UsageError
from simulator.effects import ServiceEffects
from simulator.engine.engine import EngineBank
from simulator.fleet import Fleet
from simulator.spec.fleets import TenantSpec, TrafficSpec, default_spec
from simulator.traffic.arrivals import Traffic, rates, with_load

SPEC = default_spec()
CHAT = SPEC.service("chat-70b")
WEDNESDAY = datetime(2026, 11, 18, tzinfo=UTC).timestamp()
DAY = WEDNESDAY + np.arange(0, 86400, 300.0)


def test_a_day_has_its_peak_in_the_afternoon_and_stays_inside_capacity() -> None:
    result = rates(CHAT, DAY, 7)
    hour = (DAY[np.argmax(result)] % 86400) / 3600
    assert 11 < hour < 18
    assert 0.55 < result.max() / CHAT.capacity_per_second() < 0.8
    assert result.min() < 0.5 * result.max()


def test_weekends_are_quieter() -> None:
    saturday = DAY + 3 * 86400
    assert rates(CHAT, saturday, 7).mean() < 0.9 * rates(CHAT, DAY, 7).mean()


def test_rates_are_a_function_of_seed_and_time_alone() -> None:
    assert np.array_equal(rates(CHAT, DAY, 7), rates(CHAT, DAY, 7))
    assert np.array_equal(rates(CHAT, DAY[100:101], 7), rates(CHAT, DAY, 7)[100:101])
    assert not np.array_equal(rates(CHAT, DAY, 7), rates(CHAT, DAY, 8))


def test_noise_is_slow() -> None:
    minutes = WEDNESDAY + 43200 + np.arange(0, 3600, 60.0)
    result = rates(CHAT, minutes, 7)
    assert np.abs(np.diff(result) / result[:-1]).max() < 0.02


def test_arrivals_follow_the_rate() -> None:
    traffic = Traffic(SPEC, 1)
    wanted = np.array([40.0, 10.0])
    drawn = [traffic.draw(WEDNESDAY + second, 1.0, wanted) for second in range(200)]
    counts = np.sum([np.bincount(arrivals.service, minlength=2) for arrivals in drawn], axis=0) / 200
    assert np.allclose(counts, wanted, rtol=0.1)
    for arrivals in drawn[:20]:
        assert (np.diff(arrivals.at) >= 0).all()
        assert (arrivals.computed >= 1).all()
        assert (arrivals.computed <= arrivals.prompt).all()
    prompts = np.concatenate([arrivals.prompt[arrivals.service == 0] for arrivals in drawn])
    assert abs(prompts.mean() / CHAT.lengths.prompt_mean - 1) < 0.1


def test_zero_load_has_no_arrivals() -> None:
    assert len(Traffic(SPEC, 1).draw(WEDNESDAY, 1.0, np.zeros(2))) == 0


@cache
def warmed() -> Fleet:
    load = TrafficSpec(shape="steady", peak_ratio=0.3)
    services = tuple(replace(service, replicas=2, ceiling=2, traffic=load) for service in SPEC.services)
    return Fleet(replace(SPEC, services=services, slice_seconds=5.0, tick_seconds=5.0), seed=3)


def quiet_fleet() -> Fleet:
    return deepcopy(warmed())


class Bent:
    """An injection that sets effects of the services."""

    def __init__(self, **effects: float) -> None:
        self._levers = effects

    def advance(self, fleet: Fleet) -> bool:
        for name, value in self._levers.items():
            fleet.effects.adjust("services", name)[0] = value
        return False


def bent(fleet: Fleet, **effects: float) -> Fleet:
    fleet.injections.append(Bent(**effects))  # type: ignore[arg-type]
    return fleet


def grown(fleet: Fleet, seconds: float = 40.0) -> dict[str, np.ndarray]:
    names = ("requests", "answered_2xx", "answered_4xx", "answered_5xx", "disconnects", "retries")
    before = {name: np.array(getattr(fleet.traffic.edge, name)) for name in names}
    fleet.step(timedelta(seconds=seconds))
    edge = fleet.traffic.edge
    return {name: getattr(edge, name) - before[name] for name in names}


def test_a_healthy_gateway_answers_every_request() -> None:
    fleet = quiet_fleet()
    arrived = fleet.bank.totals.finished
    seen = grown(fleet)
    assert seen["answered_2xx"].sum() == fleet.bank.totals.finished - arrived > 100
    assert np.array_equal(seen["requests"], seen["answered_2xx"])


def test_bad_requests_gateway_errors_and_disconnects_are_counted_separately() -> None:
    fleet = bent(quiet_fleet(), bad_request_ratio=0.2, gateway_error_ratio=0.1, abort_ratio=0.3, rate_factor=1.2)
    grown(fleet, 20.0)
    seen = grown(fleet, 160.0)
    shares = {name: values[0] / seen["requests"][0] for name, values in seen.items()}
    assert shares["answered_5xx"] == pytest.approx(0.1, abs=0.04)
    assert shares["answered_4xx"] == pytest.approx(0.18, abs=0.05)
    assert shares["disconnects"] == pytest.approx(0.1, abs=0.04)  # the others have their response before they leave
    assert seen["answered_5xx"][1] == seen["answered_4xx"][1] == seen["disconnects"][1] == 0


def test_no_request_passes_a_broken_entry() -> None:
    fleet = bent(quiet_fleet(), entry_fails=1.0)
    fleet.step(timedelta(seconds=60))
    seen = grown(fleet)
    assert seen["requests"][0] == 0
    assert seen["requests"][1] > 20
    assert fleet.traffic.rates(fleet.at)[0] > 0  # clients keep trying


def test_a_restart_counts_its_lost_requests() -> None:
    fleet = quiet_fleet()
    fleet.step(timedelta(seconds=20))
    running = float(fleet.bank.in_flight[0])
    before = float(fleet.traffic.edge.answered_5xx[0])
    fleet.restart(0)
    assert running > 0
    assert fleet.traffic.edge.answered_5xx[0] - before == running
    assert (fleet.traffic.edge.requests >= 0).all()


def test_retries_only_follow_failed_or_late_requests() -> None:
    calm = bent(quiet_fleet(), retry_ratio=1.0)
    assert grown(calm)["retries"].sum() == 0
    storm = bent(quiet_fleet(), retry_ratio=1.0, gateway_error_ratio=0.3)
    seen = grown(storm)
    assert seen["retries"][0] == pytest.approx(seen["answered_5xx"][0], rel=0.5)
    assert seen["retries"][1] == 0
    late = bent(quiet_fleet(), retry_ratio=1.0, rate_factor=5.0)
    late.step(timedelta(seconds=90))
    seen = grown(late)
    assert seen["retries"][0] > 20
    assert seen["disconnects"][0] > 0


def test_lengths_follow_their_effects() -> None:
    traffic = Traffic(SPEC, 1)
    usual = traffic.draw(WEDNESDAY, 100.0, np.array([40.0, 0.0]))
    effects = ServiceEffects(2)
    effects.prompt_factor[0], effects.output_factor[0], effects.cached_factor[0] = 2.0, 0.5, 0.0
    traffic.attend(effects, EngineBank([CHAT.engine], 1, 60.0), np.array([0]))
    result = traffic.draw(WEDNESDAY, 100.0, np.array([40.0, 0.0]))
    assert result.prompt.mean() / usual.prompt.mean() == pytest.approx(2.0, rel=0.1)
    assert result.output.mean() / usual.output.mean() == pytest.approx(0.5, rel=0.1)
    assert result.computed.sum() == pytest.approx(result.prompt.sum(), rel=0.01)


def test_a_burst_of_one_tenant_lengthens_its_prompts_by_tokens_that_no_cache_has() -> None:
    tenants = (TenantSpec("web", 1.0), TenantSpec("documents", 3.0))
    traffic = Traffic(replace(SPEC, services=(replace(CHAT, tenants=tenants), SPEC.services[1])), 1)
    usual = traffic.draw(WEDNESDAY, 200.0, np.array([40.0, 10.0]))
    effects = ServiceEffects(2)
    effects.tenant_prompt_factor[:] = 2.5
    traffic.attend(effects, EngineBank([CHAT.engine], 1, 60.0), np.array([0]))
    burst = traffic.draw(WEDNESDAY, 200.0, np.array([40.0, 10.0]))
    for service in (0, 1):  # one without tenants too
        means = [drawn.prompt[drawn.service == service].mean() for drawn in (usual, burst)]
        assert means[1] / means[0] == pytest.approx(2.5, rel=0.12)
    web = [drawn.prompt[(drawn.service == 0) & (drawn.tenant == 0)].mean() for drawn in (usual, burst)]
    assert web[1] == pytest.approx(web[0], rel=0.1), "the other tenant sends what it always sends"
    cached = [(drawn.prompt - drawn.computed)[drawn.service == 0].mean() for drawn in (usual, burst)]
    assert cached[1] == pytest.approx(cached[0], rel=0.1)


def test_tenants_have_their_share_and_lengths_and_a_shift_moves_them() -> None:
    long = replace(CHAT.lengths, prompt_mean=4000.0)
    tenants = (TenantSpec("web", 3.0), TenantSpec("documents", 1.0, long))
    service = replace(CHAT, tenants=tenants, traffic=TrafficSpec(shape="mix-shift", event_at=WEDNESDAY))
    traffic = Traffic(replace(SPEC, services=(service, SPEC.services[1])), 1)
    drawn = traffic.draw(WEDNESDAY - 60, 100.0, np.array([40.0, 10.0]))
    mine = drawn.service == 0
    assert drawn.tenant[mine].mean() == pytest.approx(0.25, abs=0.03)
    assert (drawn.tenant[~mine] == 0).all()
    assert drawn.prompt[mine & (drawn.tenant == 1)].mean() == pytest.approx(4000, rel=0.15)
    traffic.rates(WEDNESDAY + 7200)
    shifted = traffic.draw(WEDNESDAY + 7200, 100.0, np.array([40.0, 10.0]))
    assert shifted.tenant[shifted.service == 0].mean() == pytest.approx(0.25 * 0.4 + 0.6, abs=0.04)


def test_with_load_sets_the_shape_of_every_service() -> None:
    spec = with_load(SPEC, "holiday", WEDNESDAY)
    noon = np.array([WEDNESDAY + 43200.0])
    for usual, changed in zip(SPEC.services, spec.services, strict=True):
        assert changed.traffic.peak_ratio == usual.traffic.peak_ratio
        assert rates(changed, noon, 7)[0] < 0.6 * rates(usual, noon, 7)[0]
    with pytest.raises(UsageError, match="zigzag"):
        with_load(SPEC, "zigzag")
