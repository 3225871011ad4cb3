"""GPU offers: region, contract, price."""

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


def gpu_type_warnings(value: Mapping[str, Any], document: yaml_file.Document) -> list[ConfigProblem]:
    """Warns of GPU types without a data sheet: plans count them, but SLOs do not limit their number."""
    warnings = []
    services = value.get("services")
    for index, service in enumerate(services if isinstance(services, list) else ()):
        name = service.get("gpu_type") if isinstance(service, dict) else None
        if isinstance(name, str) and name.strip() not in ("", "unknown"):
            try:
                gpu(name)
            except UsageError as error:
                message = f"{error.message}, so plans use no data sheet; {error.hint}"
                warnings.append(document.problem(("services", index, "gpu_type"), message))
    return warnings


class GpuOfferSettings(Section):
    """GPUs of one type in one region under one contract."""

    type: Annotated[str, AfterValidator(_known)] = Field(description="GPU type, for example H100.")
    purchase: Literal["on_demand", "spot", "reserved", "owned"] = Field("on_demand", description="Contract.")
    price_per_gpu_hour: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Price per GPU-hour. Default: a prior."
    )
    currency: str = Field(DEFAULT_CURRENCY, description="Currency of the price; the same for all offers.")
    quota: Annotated[int, Field(ge=0)] | None = Field(
        None, description="Maximum number of GPUs; 0 means none. Default: no limit."
    )
    region: str = Field("", description="Region of the GPUs, for data residency.")
    latency: Duration = Field(timedelta(0), description="Network latency that this region adds to each response.")
    lead_time: Duration | None = Field(None, description="Time from order to use. Default: a prior of the contract.")

    @model_validator(mode="after")
    def _currency_of_a_price(self) -> Self:
        if self.price_per_gpu_hour is None and self.currency != DEFAULT_CURRENCY:
            raise ValueError(f"price_per_gpu_hour is missing for {self.currency}; the prior is in {DEFAULT_CURRENCY}")
        return self

    def offer(self) -> Offer:
        """The offer, for the planner."""
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
