"""Planning facts of model services."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field

from outrider.errors import ConfigProblem, UsageError
from outrider.model import EntityKind, EntityRef
from outrider.text import yaml_file
from outrider.text.i18n import fill
from service.config import model_files
from service.config.settings_base import Duration, Section, amount_in


class ServiceSettings(Section):
    """Planning facts of a model service."""

    name: str = Field(description="Service name, as in the service label of targets.")
    namespace: str | None = Field(None, description="Kubernetes namespace.")
    gpu_type: str = Field("unknown", description="GPU type, for example H100.")
    tensor_parallel: Annotated[int, Field(ge=1)] = Field(
        1, description="Tensor parallel size. Default: as the engines report."
    )
    pipeline_parallel: Annotated[int, Field(ge=1)] = Field(
        1, description="Pipeline parallel size. Default: as the engines report."
    )
    floor: Annotated[int, Field(ge=0)] = Field(1, description="Minimum replicas.")
    ceiling: Annotated[int, Field(ge=0)] = Field(1000, description="Maximum replicas.")
    quota_gpus: Annotated[int, Field(ge=0)] | None = Field(None, description="GPU quota of the service. Default: none.")
    tokens_per_request: Annotated[float, Field(gt=0), amount_in("token/request")] | None = Field(
        None, description="Tokens generated per request. Default: measured."
    )
    batch: Annotated[float, Field(gt=0), amount_in("sequence/replica")] | None = Field(
        None, description="Sequences running at once in one replica. Default: measured."
    )
    tokens_per_second_per_sequence: Annotated[float, Field(gt=0), amount_in("token/(second*sequence)")] | None = Field(
        None, description="Tokens per second of one sequence. Default: measured."
    )
    model: str | None = Field(
        None, description="Model, for example Llama-3.1-70B, for the queueing model. Default: as the engines report."
    )
    config_json: Path | None = Field(
        None, description="Path of the model's config.json, for models that are not in the catalog."
    )
    prompt_tokens: Annotated[float, Field(ge=1), amount_in("token/request")] | None = Field(
        None, description="Tokens of a prompt, for the queueing model. Default: measured."
    )
    max_sequences: Annotated[int, Field(ge=1)] | None = Field(
        None, description="Maximum sequences of the engine, for the queueing model. Default: the batch size."
    )
    gpus_per_node: Annotated[int, Field(ge=1)] | None = Field(
        None, description="GPUs per node, to count whole nodes. Default: as seen in the fleet, else a common server."
    )
    startup: Duration = Field(
        timedelta(minutes=5),
        description=(
            "Time from trigger to first served request, p95. Default: a prior until measured (vLLM pods "
            "take 2-8 min including the image pull)."
        ),
    )
    price_per_gpu_hour: Annotated[float, Field(ge=0)] | None = Field(
        None, description="Price per GPU-hour, for cost. Default: unknown."
    )
    currency: str = Field("USD", description="Currency of the price.")

    @property
    def gpus_per_replica(self) -> int:
        """GPUs of one replica."""
        return self.tensor_parallel * self.pipeline_parallel

    def entity(self, cluster: str) -> EntityRef:
        """The service as an entity."""
        return EntityRef(cluster, EntityKind.SERVICE, self.namespace, self.name)


def setting_of(services: Iterable[ServiceSettings], service: EntityRef) -> ServiceSettings:
    """Returns the settings of a service; an entry without a namespace applies to every namespace."""
    for setting in services:
        if setting.name == service.name and setting.namespace in (None, service.namespace):
            return setting
    return ServiceSettings(name=service.name, namespace=service.namespace)


def service_problems(services: Sequence[ServiceSettings], document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Checks that limits do not contradict each other, names are unique, and models can be read."""
    for index, service in enumerate(services):
        if service.floor > service.ceiling:
            yield document.problem(("services", index, "floor"), "is above the ceiling")
        group = service.gpus_per_replica
        if service.quota_gpus is not None and service.quota_gpus < service.floor * group:
            floor = fill("{n} [replica|replicas] of {group} GPUs", n=service.floor, group=group)
            floor = floor if group > 1 else f"{service.floor}"
            message = (
                f"is not enough for the floor of {floor}; expected {service.floor * group} or more, or a lower floor"
            )
            yield document.problem(("services", index, "quota_gpus"), message)
        if any(service.name == other.name and service.namespace == other.namespace for other in services[:index]):
            yield document.problem(("services", index, "name"), f"duplicate service name {service.name!r}")
        if service.config_json is not None:
            try:
                model_files.shape_of(service.config_json, service.model)
            except UsageError as error:
                yield document.problem(("services", index, "config_json"), f"{error.message}; {error.hint}")
