"""What services promise and what bounds their replicas, gathered for the planner from configuration and store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal

from outrider.errors import UsageError
from outrider.model import Calibration, EntityKind, EntityRef
from outrider.ports import MetricStore
from outrider.topology import Topology
from planner.performance import measured, model_specs, prompts
from planner.performance.model_specs import ModelShape
from planner.performance.service_facts import Objective, ServiceFacts
from service.config import model_files
from service.config.service_settings import ServiceSettings
from service.config.slo_settings import SloSettings
from service.planning import planner_inputs, role_pools
from service.planning.planner_inputs import CALIBRATION_SPAN, HELD_STEP, PlannedFleet

_SLIS: Mapping[str, Literal["ttft", "tpot"]] = {"ttft": "ttft", "tpot": "tpot"}


@dataclass(frozen=True, slots=True)
class Asked:
    """What a command says in place of configuration and store; None where it says nothing.

    An objective given here takes the place of all configured ones of its kind.
    """

    objectives: tuple[Objective, ...] = ()
    shape: ModelShape | None = None
    prompt: float | None = None
    cached_ratio: float | None = None
    sequences: int | None = None
    bits: float | None = None


@dataclass(frozen=True, slots=True)
class Promises:
    """The configured SLOs of a cluster, and what a command says of them."""

    slos: Sequence[SloSettings] = ()
    cluster: str = ""
    asked: Asked = field(default_factory=Asked)

    def of(
        self,
        fleet: PlannedFleet,
        calibrations: Mapping[EntityRef, Calibration],
        topology: Topology,
        metrics: MetricStore,
        now: datetime,
    ) -> dict[EntityRef, ServiceFacts]:
        """What is known of every service with a calibration and a promise. Raises StoreUnavailableError."""
        found = {}
        for service, calibration in calibrations.items():
            parent = role_pools.parent_of(service, topology)
            objectives = self.objectives(service, parent)
            if not objectives:
                continue
            found[service] = self._known(
                service, fleet.setting_in(service, topology), calibration, objectives, topology, metrics, now
            )
        return found

    def objectives(self, service: EntityRef, parent: EntityRef | None = None) -> tuple[Objective, ...]:
        """TTFT and TPOT as promised for a service, or for the one that it is a pool of."""
        asked = {one.sli for one in self.asked.objectives}
        configured = []
        for slo in self.slos:
            sli = _SLIS.get(slo.sli)
            if sli is None or sli in asked or slo.limit is None:
                continue
            if any(self._about(slo, one) for one in (service, parent) if one is not None):
                configured.append(Objective(sli, slo.limit.total_seconds(), slo.objective, slo.name))
        return (*self.asked.objectives, *configured)

    def _about(self, slo: SloSettings, service: EntityRef) -> bool:
        if slo.service is None:
            return True
        here = (slo.cluster or self.cluster) == service.cluster
        return here and slo.service == service.name and slo.namespace in (None, service.namespace)

    def _known(
        self,
        service: EntityRef,
        setting: ServiceSettings,
        calibration: Calibration,
        objectives: tuple[Objective, ...],
        topology: Topology,
        metrics: MetricStore,
        now: datetime,
    ) -> ServiceFacts:
        replicas = topology.below(service, EntityKind.REPLICA)
        window = metrics.read_windows(
            EntityKind.REPLICA, prompts.KEYS, now - CALIBRATION_SPAN, now, HELD_STEP, replicas
        )
        seen = prompts.measure_prompts(window)
        runs = planner_inputs.running_of(service, setting, topology).model
        # what weights are quantised to stands in the name that engines say; a configured name may be the plain one
        said = (measured.bits_of(one) for one in (runs or calibration.model, setting.model or ""))
        name = setting.model or runs or calibration.model
        shape, why = self._shape(setting, name)
        asked = self.asked
        return ServiceFacts(
            objectives,
            model=name,
            shape=shape,
            no_shape=why,
            prompt=_first(asked.prompt, setting.prompt_tokens, seen.tokens),
            cached_ratio=seen.cached_ratio if asked.cached_ratio is None else asked.cached_ratio,
            kv_tokens=seen.kv_tokens,
            sequences=asked.sequences or setting.max_sequences,
            bits=_first(asked.bits, *said) or 16.0,
            pool=topology.label(service, role_pools.ROLE)
            if role_pools.parent_of(service, topology) is not None
            else "",
            as_run=asked.prompt is None and asked.cached_ratio is None,
        )

    def _shape(self, setting: ServiceSettings, name: str) -> tuple[ModelShape | None, str]:
        """The shape of a service's model; without one, why."""
        if self.asked.shape is not None:
            return self.asked.shape, ""
        try:
            if setting.config_json is not None:
                return model_files.shape_of(setting.config_json, name), ""
            return (model_specs.model(name), "") if name else (None, "")
        except UsageError as error:
            return None, error.message


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
