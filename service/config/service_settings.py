"""What is known of a model service beside its metrics."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Annotated

from pydantic import Field

from outrider.errors import ConfigProblem, UsageError
from outrider.model import EntityKind, EntityRef
from outrider.text import yaml_file
from service.config import model_files
from service.config.settings_base import Duration, Section, amount_in


class ServiceSettings(Section):
    """What is known of a model service beside its metrics."""

    name: str = Field(description="name of the service, as the targets' service label says it")
    namespace: str | None = Field(None, description="Kubernetes namespace")
    gpu_type: str = Field("unknown", description="such as H100")
    tensor_parallel: Annotated[int, Field(ge=1)] = Field(
        1, description="GPUs of one replica that share each layer (TP); what its engines say when not given"
    )
    pipeline_parallel: Annotated[int, Field(ge=1)] = Field(
        1, description="stages of one replica (PP); what its engines say when not given"
    )
    floor: Annotated[int, Field(ge=0)] = Field(1, description="replicas never gone below")
    ceiling: Annotated[int, Field(ge=0)] = Field(1000, description="replicas never gone above")
    quota_gpus: Annotated[int, Field(ge=0)] | None = Field(
        None, description="GPUs that it may hold at most; no quota when not given"
    )
    tokens_per_request: Annotated[float, Field(gt=0), amount_in("token/request")] | None = Field(
        None, description="measured when not given"
    )
    batch: Annotated[float, Field(gt=0), amount_in("sequence/replica")] | None = Field(
        None, description="sequences running at once in one replica; measured when not given"
    )
    tokens_per_second_per_sequence: Annotated[float, Field(gt=0), amount_in("token/(second*sequence)")] | None = Field(
        None, description="measured when not given"
    )
    model: str | None = Field(
        None, description="such as Llama-3.1-70B, for the queueing model; what its engines say when not given"
    )
    config_json: Path | None = Field(
        None, description="the model's own config.json, of one that is not known by its name; as its publisher has it"
    )
    prompt_tokens: Annotated[float, Field(ge=1), amount_in("token/request")] | None = Field(
        None, description="of a prompt, for the queueing model; measured when not given"
    )
    max_sequences: Annotated[int, Field(ge=1)] | None = Field(
        None, description="the engine's own limit, for the queueing model; the batch when not given"
    )
    gpus_per_node: Annotated[int, Field(ge=1)] | None = Field(
        None, description="to count whole nodes; what the fleet shows, else a usual server, when not given"
    )
    startup: Duration = Field(
        timedelta(minutes=5),
        description="trigger to first served request, p95; a prior until measured (vLLM pods take 2-8 min with pull)",
    )
    price_per_gpu_hour: Annotated[float, Field(ge=0)] | None = Field(
        None, description="for cost; unknown when not given"
    )
    currency: str = Field("USD", description="of the price")

    def entity(self, cluster: str) -> EntityRef:
        """The service as an entity."""
        return EntityRef(cluster, EntityKind.SERVICE, self.namespace, self.name)


def setting_of(services: Iterable[ServiceSettings], service: EntityRef) -> ServiceSettings:
    """What the configuration says of a service; an entry without a namespace speaks for every namespace."""
    for setting in services:
        if setting.name == service.name and setting.namespace in (None, service.namespace):
            return setting
    return ServiceSettings(name=service.name, namespace=service.namespace)


def services_usable(services: Sequence[ServiceSettings], document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Limits that do not contradict each other, names that are named once, and models that can be read."""
    for index, service in enumerate(services):
        if service.floor > service.ceiling:
            yield document.problem(("services", index, "floor"), "is above the ceiling")
        group = service.tensor_parallel * service.pipeline_parallel
        if service.quota_gpus is not None and service.quota_gpus < service.floor * group:
            wanted = f"{service.floor} replicas of {group} GPUs" if group > 1 else f"{service.floor}"
            said = (
                f"is not enough for the floor of {wanted}; expected {service.floor * group} or more, or a lower floor"
            )
            yield document.problem(("services", index, "quota_gpus"), said)
        if any(service.name == one.name and service.namespace == one.namespace for one in services[:index]):
            said = f"{service.name} is listed twice; name it once"
            yield document.problem(("services", index, "name"), said)
        if service.config_json is not None:
            try:
                model_files.shape_of(service.config_json, service.model)
            except UsageError as error:
                yield document.problem(("services", index, "config_json"), f"{error.message}; {error.hint}")
