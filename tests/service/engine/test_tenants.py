"""A tenant with an alert belongs to the incident of its service."""

from __future__ import annotations

from datetime import timedelta

import numpy as np

from alerts.rules.context import ServiceContext
from collectors.pipeline.scrape_manager import ScrapeManager
from outrider.clock import ManualClock
from outrider.model import AlertState, CellStatus, EntityKind, EntityRef, SampleBatch, SignalKey
from outrider.ports import Collected
from outrider.testing.names import NOW
from outrider.topology import Topology
from outrider.vocabulary.tenants import tenant_of
from service.config.settings import Settings
from service.engine.tenant_edges import with_tenants
from service.wiring import platform

STEP = timedelta(seconds=15)
CHAT, CODE = (EntityRef("default", EntityKind.SERVICE, "llm", name) for name in ("chat", "code"))
ACME = tenant_of(CHAT, "acme")


def batch(kind, entity, at, **counts):
    keys = tuple(SignalKey(name) for name in counts)
    values = np.array([list(counts.values())], dtype=float)
    return SampleBatch("t", at, kind, keys, (entity,), values, np.full(values.shape, CellStatus.PRESENT, np.uint8))


def cycles(minutes, *, of_service=0.0, of_tenant=0.0):
    """The state after some minutes with failures of the service and of one of its tenants, of 100 requests each."""
    clock = ManualClock(NOW)
    settings = Settings.model_validate({"rules": {"enable": ["tenants"]}})
    cycle = platform.cycle_in_memory(settings, ScrapeManager([]), clock, interval=STEP)
    for _ in range(minutes * 4):
        now = clock.advance(STEP)
        service = batch(EntityKind.SERVICE, CHAT, now, svc_requests_total=100, svc_failed_total=of_service)
        tenant = batch(EntityKind.TENANT, ACME, now, tenant_requests_total=100, tenant_failed_total=of_tenant)
        topology = Topology.build([], [CHAT, CODE])
        cycle.run_stages(now, Collected((service, tenant), topology=topology))
    return cycle.parts.state


def test_failures_of_a_service_and_of_its_tenant_are_one_incident():
    state = cycles(8, of_service=20.0, of_tenant=20.0)
    firing = {alert.rule: alert for alert in state.alerts(states=[AlertState.FIRING])}
    assert {"availability-low", "tenant-failures-high"} <= set(firing)
    assert firing["tenant-failures-high"].entity == ACME
    assert firing["tenant-failures-high"].labels["services"] == str(CHAT)
    (incident,) = state.incidents(open_only=True)
    assert {alert.incident for alert in firing.values()} == {incident.id}


def test_failures_of_one_tenant_alone_are_an_incident_of_its_service():
    (incident,) = cycles(8, of_tenant=20.0).incidents(open_only=True)
    assert incident.services == ("chat",)
    assert incident.priority.value == "P2"


def test_only_tenants_with_an_alert_join_the_topology():
    topology = Topology.build([], [CHAT])
    assert with_tenants(topology, ()) is topology
    (alert,) = [one for one in cycles(8, of_tenant=20.0).alerts() if one.entity == ACME]
    extended = with_tenants(topology, [alert])
    assert extended.holds_up(CHAT) == (ACME,)
    assert extended.on_path(CHAT, ACME)


def test_a_tenant_concerns_its_service():
    context = ServiceContext(frozenset({CHAT}), frozenset(), lambda _: ())
    assert context.services(ACME) == (CHAT,)
    assert context.urgent(ACME)
