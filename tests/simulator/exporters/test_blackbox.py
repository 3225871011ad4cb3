"""Blackbox probes and SDK counters, from pages through collectors to signals of the service."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families

from collectors.mapping import target as configured
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from outrider.errors import CollectError, CollectReason
from outrider.model import CellStatus, EntityKind, EntityRef, SignalKey
from simulator.exporters.blackbox import CERTIFICATE_SECONDS, PATIENCE_SECONDS, IngressProbe, SdkCounters
from simulator.exporters.targets import Pages, targets
from simulator.fleet import Fleet
from simulator.spec.fleets import PoolSpec, default_spec, drill_spec

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
STEP = timedelta(seconds=15)


class Bent:
    """Sets effects of all slots or services until it is removed."""

    def __init__(self, fleet: Fleet, **effects: float) -> None:
        self.effects = effects
        fleet.injections.append(self)

    def advance(self, fleet: Fleet) -> bool:
        for name, value in self.effects.items():
            group, effects = name.split("__")
            fleet.effects.adjust(group, effects)[:] = value
        return False


class Watched:
    """A fleet of one small service, read through pages and collectors."""

    def __init__(self, seed: int = 5) -> None:
        spec = default_spec()
        service = replace(spec.services[1], replicas=2, ceiling=3)
        pool = PoolSpec("h100", spec.pools[0].gpu_type, 1)
        self.fleet = Fleet(
            replace(spec, pools=(pool,), services=(service,), slice_seconds=2.5, tick_seconds=5.0), seed, START
        )
        self.entity = self.fleet.entity(EntityKind.SERVICE, service.name, service.namespace)
        self.pages, self.collector = Pages(self.fleet), ScrapeManager([])
        self.collect()

    def collect(self, times: int = 1) -> dict[str, float]:
        """Returns the newest signals of the service after ``times`` cycles, without absent ones."""
        for _ in range(times):
            self.fleet.step(STEP)
            listed = [target for target in targets(self.fleet) if target.adapter in ("probe", "sdk")]
            documents = [one.as_config("http://fleet.invalid/metrics") for one in listed]
            known = configured.targets_of(self.fleet.spec.cluster, documents)
            if known != self.collector.targets:
                self.collector.set_targets(known)
            scrapes = []
            for target, simulated in zip(known, listed, strict=True):
                body = self.pages.page(simulated)
                error = None if body is not None else CollectError("gone", reason=CollectReason.TIMEOUT)
                scrapes.append(Scrape(target, self.fleet.now, body, error, 0.01))
            collected = self.collector.absorb(scrapes, self.fleet.now)
        return {
            key.name: float(batch.values[row, column])
            for batch in collected.batches
            for row, entity in enumerate(batch.entities)
            for column, key in enumerate(batch.keys)
            if entity == self.entity and batch.status[row, column] == CellStatus.PRESENT
        }


def test_a_healthy_service() -> None:
    seen = Watched().collect(3)
    assert seen["probe_success"] == 1.0
    assert 0.01 < seen["probe_ttft_seconds"] < 2.0
    assert 0.001 < seen["probe_itl_seconds"] < 0.2
    assert seen["probe_e2e_seconds"] > seen["probe_ttft_seconds"] + 10 * seen["probe_itl_seconds"]
    assert 29 * 86400 < seen["probe_cert_expiry_seconds"] <= CERTIFICATE_SECONDS
    assert 0.0 <= seen["svc_output_invalid_ratio"] < 0.02
    assert seen["svc_feedback_up_per_second"] > seen["svc_feedback_down_per_second"]
    assert 0.5 < seen["svc_kpi_value"] < 0.7


def test_both_pages_parse() -> None:
    watched = Watched()
    for target in targets(watched.fleet, ("probe", "sdk")):
        page = watched.pages.page(target)
        assert page is not None
        families = {family.name: family for family in text_string_to_metric_families(page.decode())}
        assert len(families) == {"probe": 8, "sdk": 5}[target.adapter]
        assert target.entity == watched.entity


def test_the_owner_of_a_service_counts_prompt_tokens_by_tenant() -> None:
    pages = Pages(Fleet(drill_spec(), seed=2))
    (chat, code) = targets(pages.fleet, ("sdk",))
    for target, tenants in ((chat, {"consumer", "enterprise", "internal"}), (code, {"none"})):
        page = pages.page(target)
        assert page is not None
        families = {family.name: family for family in text_string_to_metric_families(page.decode())}
        tokens = {one.labels["tenant"]: one.value for one in families["outrider_sdk_tokens"].samples}
        assert tokens.keys() == tenants
        assert all(value > 0 for value in tokens.values())


def test_invalid_answers_show_in_the_ratio_the_votes_and_the_kpi() -> None:
    watched = Watched()
    before = watched.collect(2)
    Bent(watched.fleet, slots__invalid_output_ratio=0.5)
    seen = watched.collect(3)
    assert seen["svc_output_invalid_ratio"] == pytest.approx(0.5, abs=0.1)
    assert seen["svc_feedback_down_per_second"] > 3 * before["svc_feedback_down_per_second"]
    assert seen["svc_kpi_value"] < 0.6 * before["svc_kpi_value"]
    assert seen["probe_success"] == 1.0


def test_a_kpi_may_fall_alone() -> None:
    watched = Watched()
    before = watched.collect(2)
    Bent(watched.fleet, services__kpi_factor=0.5)
    seen = watched.collect(2)
    assert seen["svc_kpi_value"] == pytest.approx(0.5 * before["svc_kpi_value"], rel=0.1)
    assert seen["svc_output_invalid_ratio"] < 0.02


def test_a_failing_entry_has_an_expired_certificate() -> None:
    watched = Watched()
    Bent(watched.fleet, services__entry_fails=1.0)
    seen = watched.collect()
    assert seen["probe_success"] == 0.0
    assert "probe_ttft_seconds" not in seen
    assert seen.get("probe_cert_expiry_seconds", -1.0) < 0
    endings = set()
    for seed in range(8):
        watched.fleet.seed = seed
        result = IngressProbe(watched.fleet).probe()
        assert result.success[0] == result.status[0] == 0.0
        endings.add(bool(result.expiry_seconds[0] < 0))
    assert endings == {True, False}


def test_a_failing_gateway_fails_its_share_of_probes() -> None:
    watched = Watched()
    Bent(watched.fleet, services__gateway_error_ratio=0.5)
    result = [watched.collect()["probe_success"] for _ in range(16)]
    assert 2 <= sum(result) <= 14


def test_a_probe_of_hung_engines_times_out() -> None:
    watched = Watched()
    Bent(watched.fleet, slots__hung=1.0)
    seen = watched.collect(2)
    assert seen["probe_success"] == 0.0
    assert seen["probe_e2e_seconds"] == PATIENCE_SECONDS


def test_probes_survive_a_lost_cluster_and_sdk_counters_do_not() -> None:
    watched = Watched()
    Bent(watched.fleet, cluster__alive=0.0)
    seen = watched.collect(2)
    assert seen["probe_success"] == 0.0
    assert "svc_kpi_value" not in seen
    key = SignalKey("target_up")
    by_name = {
        entity.name: float(batch.values[row, batch.keys.index(key)])
        for batch in watched.collector.absorb([], watched.fleet.now).batches
        for row, entity in enumerate(batch.entities)
        if entity.kind is EntityKind.WORKLOAD and key in batch.keys
    }
    assert by_name in ({}, {"probe-code-14b": 1.0, "sdk-code-14b": 0.0})


def test_a_service_without_replicas_returns_503_and_loses_its_kpi() -> None:
    watched = Watched()
    watched.fleet.scale("code-14b", 0)
    probe, owners = IngressProbe(watched.fleet), SdkCounters(watched.fleet)
    owners.update()
    watched.fleet.step(timedelta(minutes=6))
    owners.update()
    result = probe.probe()
    assert result.status[0] == 503.0
    assert owners.kpi[0] == 0.0


def test_two_probes_at_one_time_agree() -> None:
    watched = Watched()
    one, other = IngressProbe(watched.fleet), IngressProbe(watched.fleet)
    for _ in range(3):
        first, again, second = one.probe(), one.probe(), other.probe()
        assert first is again
        for name in ("success", "status", "ttft", "itl", "e2e", "expiry_seconds"):
            assert np.array_equal(getattr(first, name), getattr(second, name), equal_nan=True)
        watched.fleet.step(STEP)


def test_entities_are_services_of_the_cluster() -> None:
    watched = Watched()
    listed = targets(watched.fleet, ("probe", "sdk"))
    assert {one.entity for one in listed} == {EntityRef("demo", EntityKind.SERVICE, "serving", "code-14b")}
    assert [one.name for one in listed] == ["probe-code-14b", "sdk-code-14b"]
