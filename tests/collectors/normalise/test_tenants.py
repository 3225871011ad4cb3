"""Prompt tokens by tenant: a bounded number of names, added up over the pages of one adapter."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from collectors.mapping.target import Target
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from outrider.model import EntityKind, EntityRef
from outrider.vocabulary.tenants import name_of, service_of, tenant_of

START = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
CHAT = EntityRef("c", EntityKind.SERVICE, "llm", "chat")
GATEWAY = EntityRef("c", EntityKind.WORKLOAD, "llm", "gateway")


def litellm(name: str) -> Target:
    return Target(name, "litellm", "", GATEWAY)


def sdk(name: str = "sdk-chat") -> Target:
    return Target(name, "sdk", "", CHAT)


def litellm_page(tokens: dict[str, float], model: str = "chat") -> str:
    return "# TYPE litellm_input_tokens_metric_total counter\n" + "".join(
        f'litellm_input_tokens_metric_total{{requested_model="{model}",team="{team}",team_alias="{team}"}} {value}\n'
        for team, value in tokens.items()
    )


def sdk_page(tokens: dict[str, float]) -> str:
    return "# TYPE outrider_sdk_tokens_total counter\n" + "".join(
        f'outrider_sdk_tokens_total{{model="m",tenant="{tenant}",kind="input"}} {value}\n'
        for tenant, value in tokens.items()
    )


class Collecting:
    """Scrape rounds of some targets, 15 s apart."""

    def __init__(self, *targets: Target, most: int = 20) -> None:
        self.manager, self.targets, self.at = ScrapeManager(targets, most_tenants=most), targets, START
        self.collected = None

    def round(self, *pages: str | None) -> dict[str, float]:
        """The tokens of the tenants of ``chat`` in this round."""
        scrapes = [
            Scrape(target, self.at, page.encode() if page is not None else None, None, 0.01)
            for target, page in zip(self.targets, pages, strict=True)
        ]
        self.collected = self.manager.absorb(scrapes, self.at)
        self.at += timedelta(seconds=15)
        batches = [batch for batch in self.collected.batches if batch.kind is EntityKind.TENANT]
        assert len(batches) <= 1
        return {
            name_of(tenant): float(value)
            for batch in batches
            for tenant, value in zip(batch.entities, batch.values[:, 0], strict=True)
            if service_of(tenant) == CHAT
        }


def test_a_service_keeps_its_largest_tenants_and_sums_the_others() -> None:
    collecting = Collecting(litellm("gateway"), most=2)
    tokens = {f"team-{number}": 0.0 for number in range(500)} | {"None": 0.0}
    collecting.round(litellm_page(tokens))
    grown = {name: value + 1.0 for name, value in tokens.items()} | {"team-7": 900.0, "team-8": 500.0, "None": 40.0}
    found = collecting.round(litellm_page(grown))
    assert found == {"team-7": 900.0, "team-8": 500.0, "other": 498.0, "none": 40.0}


def test_the_pages_of_several_gateways_are_added_up() -> None:
    collecting = Collecting(litellm("a"), litellm("b"))
    collecting.round(litellm_page({"x": 0.0, "y": 0.0}), litellm_page({"x": 0.0}))
    assert collecting.round(litellm_page({"x": 10.0, "y": 5.0}), litellm_page({"x": 7.0})) == {"x": 17.0, "y": 5.0}


def test_the_same_tokens_at_the_gateway_and_in_the_service_count_once() -> None:
    collecting = Collecting(litellm("gateway"), sdk())
    collecting.round(litellm_page({"x": 0.0}), sdk_page({"x": 0.0}))
    assert collecting.round(litellm_page({"x": 10.0}), sdk_page({"x": 12.0})) == {"x": 10.0}
    assert collecting.round(None, sdk_page({"x": 20.0})) == {"x": 8.0}, "the other source, while the gateway is down"


def test_tenants_may_have_a_slash_in_their_name_and_belong_to_one_service() -> None:
    collecting = Collecting(litellm("gateway"))
    collecting.round(litellm_page({"a/b": 0.0}))
    assert collecting.round(litellm_page({"a/b": 4.0})) == {"a-b": 4.0}
    assert service_of(tenant_of(CHAT, "a-b")) == CHAT


def test_a_tenant_that_leaves_the_page_does_not_make_it_partial() -> None:
    collecting = Collecting(sdk())
    collecting.round(sdk_page({"x": 0.0, "y": 0.0}))
    assert collecting.round(sdk_page({"x": 3.0})) == {"x": 3.0}
    assert {batch.trust.value for batch in collecting.collected.batches} == {"fresh"}


@pytest.mark.parametrize("label", ["none", ""])
def test_requests_of_the_sdk_without_a_tenant_are_kept_apart(label: str) -> None:
    collecting = Collecting(sdk())
    collecting.round(sdk_page({label: 0.0}))
    assert collecting.round(sdk_page({label: 3.0})) == {"none": 3.0}
