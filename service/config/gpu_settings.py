"""GPUs that can be had: where, under which contract, at what price."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import timedelta
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, model_validator

from outrider.errors import ConfigProblem, UsageError
from outrider.text import yaml_file
from planner.cost.offers import DEFAULT_CURRENCY, Offer
from planner.performance.gpu_catalog import gpu
from service.config.settings_base import Duration, Section


def _known(name: str) -> str:
    try:
        return gpu(name).name
    except UsageError as error:
        raise ValueError(f"{error.message}; {error.hint}") from error


def types_doubted(value: Mapping[str, Any], document: yaml_file.Document) -> list[ConfigProblem]:
    """GPU types of services that no data sheet is known of: the plan counts them, and no promise bounds it there."""
    found = []
    services = value.get("services")
    for index, service in enumerate(services if isinstance(services, list) else ()):
        name = service.get("gpu_type") if isinstance(service, dict) else None
        if isinstance(name, str) and name.strip() not in ("", "unknown"):
            try:
                gpu(name)
            except UsageError as error:
                said = f"{error.message}, so no data sheet counts for it; {error.hint}"
                found.append(document.problem(("services", index, "gpu_type"), said))
    return found


class GpuOfferSettings(Section):
    """GPUs of one type in one place under one contract."""

    type: Annotated[str, AfterValidator(_known)] = Field(description="such as H100")
    purchase: Literal["on_demand", "spot", "reserved", "owned"] = Field("on_demand", description="contract")
    price_per_gpu_hour: Annotated[float, Field(ge=0)] | None = Field(
        None, description="price of one GPU and hour; a prior when not given"
    )
    currency: str = Field(DEFAULT_CURRENCY, description="of the price; one for all offers")
    quota: Annotated[int, Field(ge=0)] | None = Field(
        None, description="most GPUs of it, 0 is none; no limit when not given"
    )
    region: str = Field("", description="where they are, for the region that data may go to")
    latency: Duration = Field(timedelta(0), description="added to each answer by the way there")
    lead_time: Duration | None = Field(None, description="from order to use; a prior of the contract when not given")

    @model_validator(mode="after")
    def _currency_of_a_price(self) -> Self:
        if self.price_per_gpu_hour is None and self.currency != DEFAULT_CURRENCY:
            raise ValueError(
                f"a price in {self.currency} is missing: give price_per_gpu_hour, the prior is in {DEFAULT_CURRENCY}"
            )
        return self

    def offer(self) -> Offer:
        """What the planner counts with."""
        return Offer(
            gpu=gpu(self.type),
            purchase=self.purchase,
            price=self.price_per_gpu_hour,
            currency=self.currency,
            quota=self.quota,
            region=self.region,
            latency=self.latency.total_seconds(),
            lead_seconds=None if self.lead_time is None else self.lead_time.total_seconds(),
        )
