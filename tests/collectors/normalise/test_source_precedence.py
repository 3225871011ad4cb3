"""Several exposition pages of one service."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import numpy as np
import pytest

from collectors.mapping.registry import ADAPTERS
from collectors.mapping.target import target_of, targets_of
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from outrider.model import CellStatus, EntityKind, SignalKey
from simulator.exporters.targets import Pages, every_target
from simulator.fleet import Fleet
from simulator.spec.fleets import default_spec

START = datetime(2026, 3, 1, tzinfo=UTC)
STEP = timedelta(seconds=15)
ISTIO = (
    'istio_requests_total{{reporter="destination",destination_service_name="chat",'
    'destination_service_namespace="n",response_code="{code}"}} {count}\n'
)
VLLM = (
    'http_requests_total{{handler="/v1/chat/completions",status="2xx"}} {0}\n'
    'vllm:request_success_total{{finished_reason="stop"}} {0}\n'
    "vllm:num_requests_waiting 3\nvllm:num_requests_running 1\n"
)


def reported(*pages: tuple[str, str, str]) -> dict[tuple[str, str], float]:
    """(service, signal) -> value after two scrapes of pages (adapter, before, after); one batch per cell."""
    targets = []
    for number, (adapter, _, _) in enumerate(pages):
        kind = "replica" if adapter in {"vllm", "ray_serve"} else "service"
        entity = {"kind": kind, "name": f"target-{number}", "namespace": "n"}
        document = {"name": f"t{number}", "adapter": adapter, "entity": entity, "labels": {"service": "chat"}}
        targets.append(target_of("test", document))
    collector = ScrapeManager(targets)
    for turn in (1, 2):
        at = START + turn * STEP
        bodies = [page[turn].encode() for page in pages]
        scrapes = [Scrape(target, at, body, None, 0.0) for target, body in zip(targets, bodies, strict=True)]
        collected = collector.absorb(scrapes, at)
    cells: dict[tuple[str, str], float] = {}
    for batch in (one for one in collected.batches if one.kind is EntityKind.SERVICE):
        for row, column in np.argwhere(batch.status == CellStatus.PRESENT):
            key = batch.entities[row].name, str(batch.keys[column])
            assert key not in cells, f"two batches speak of {key}"
            cells[key] = float(batch.values[row, column])
    return cells


def istio(answered: int, failed: int) -> tuple[str, str, str]:
    pages = [
        ISTIO.format(code=200, count=turn * answered) + ISTIO.format(code=500, count=turn * failed) for turn in (0, 1)
    ]
    return "istio", pages[0], pages[1]


def vllm(requests: int) -> tuple[str, str, str]:
    return "vllm", VLLM.format(0), VLLM.format(requests)


def test_parts_of_the_traffic_are_added_up() -> None:
    cells = reported(istio(60, 0), istio(20, 20))
    assert cells["chat", "svc_requests_per_second"] == pytest.approx(100 / 15)
    assert cells["chat", "svc_success_ratio"] == pytest.approx(0.8)
    assert cells["chat", "svc_failed_total"] == 20


def test_gateway_values_precede_replica_values() -> None:
    coroot = 'container_http_requests_total{{destination="chat",status="200"}} {0}\n'
    kernel = ("coroot", coroot.format(0), coroot.format(15))
    assert reported(vllm(30), istio(60, 0))["chat", "svc_requests_per_second"] == 4
    # what no gateway tells is still derived
    assert reported(vllm(30), istio(60, 0))["chat", "svc_queue_requests"] == 3
    assert reported(vllm(30))["chat", "svc_requests_per_second"] == 2
    assert reported(kernel)["chat", "svc_requests_per_second"] == 1


def test_buckets_of_several_gateways_are_merged_and_members_are_not() -> None:
    page = (
        'envoy_cluster_upstream_rq_time_bucket{{envoy_cluster_name="chat",le="1000"}} {0}\n'
        'envoy_cluster_upstream_rq_time_bucket{{envoy_cluster_name="chat",le="+Inf"}} {0}\n'
        'envoy_cluster_membership_healthy{{envoy_cluster_name="chat"}} {1}\n'
        'envoy_cluster_upstream_rq_active{{envoy_cluster_name="chat"}} 5\n'
    )
    cells = reported(*(("envoy", page.format(0, members), page.format(8, members)) for members in (4, 3)))
    assert cells["chat", "svc_latency_seconds#3"] == 16
    assert cells["chat", "svc_ready_backends"] == 4
    assert cells["chat", "svc_inflight_requests"] == 10


def test_a_mean_is_weighted_by_the_requests_of_its_page() -> None:
    page = 'vllm:num_incoming_requests_total {0}\nvllm:avg_itl{{server="s"}} {1}\n'
    cells = reported(
        *(("vllm_router", page.format(0, mean), page.format(count, mean)) for count, mean in ((30, 0.1), (10, 0.5)))
    )
    assert {service for service, _ in cells} == {"target-0", "target-1"}  # two routers, two services
    assert cells["target-0", "svc_tpot_seconds"] == 0.1


def test_replicas_without_an_up_signal_are_not_down() -> None:
    page = (
        'ray_serve_replica_processing_queries{application="chat",deployment="LLM",replica="r1"} 1\n'
        'ray_serve_deployment_replica_healthy{application="chat",deployment="LLM",replica="r1"} 1\n'
        'ray_serve_deployment_replica_healthy{application="chat",deployment="LLM",replica="r2"} 1\n'
    )
    assert reported(("ray_serve", page, page))["chat", "svc_ready_backends"] == 2


@pytest.mark.slow
def test_a_fleet_gateway_reports_only_known_services() -> None:
    """Pages of a simulated fleet with two engine types: all are read with consistent names."""
    spec = default_spec()
    kinds = zip(spec.services, ("sglang", "tgi"), strict=True)
    services = tuple(replace(service, engine_kind=kind) for service, kind in kinds)
    fleet = Fleet(replace(spec, services=services), 3, START)
    pages, collector = Pages(fleet), ScrapeManager(())
    for turn in range(1, 4):
        fleet.step(STEP)
        simulated = list(every_target(fleet))
        assert {one.adapter for one in simulated} <= set(ADAPTERS)
        collector.set_targets(
            targets_of("demo", [one.as_config(f"http://fleet.invalid{one.path}") for one in simulated])
        )
        answers = [(target, pages.page(one)) for target, one in zip(collector.targets, simulated, strict=True)]
        at = START + turn * STEP
        collected = collector.absorb([Scrape(target, at, body, None, 0.0) for target, body in answers if body], at)
    reported = [batch for batch in collected.batches if batch.kind is EntityKind.SERVICE]
    gateway = next(batch for batch in reported if batch.source == "istio-gateway")
    derived = next(batch for batch in reported if batch.source == "services")
    assert set(gateway.entities) == set(derived.entities)
    for name, batch, other in (
        ("svc_requests_per_second", gateway, derived),
        ("svc_tokens_per_second", derived, gateway),
    ):
        assert (batch.values[:, batch.keys.index(SignalKey(name))] > 0).all()
        if SignalKey(name) in other.keys:
            assert (other.status[:, other.keys.index(SignalKey(name))] == CellStatus.ABSENT).all()
