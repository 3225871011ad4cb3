"""SLO inputs of the planner: objectives and replica limits from configuration and store."""

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
from service.planning.planner_inputs import CALIBRATION_SPAN, ENGINE_LOAD_STEP, PlannedFleet

_SLIS: Mapping[str, Literal["ttft", "tpot"]] = {"ttft": "ttft", "tpot": "tpot"}


@dataclass(frozen=True, slots=True)
class PlanOverrides:
    """Command-line values that override configuration and store; None keeps the configured or measured value.

    An objective given here replaces all configured ones of its kind.
    """

    objectives: tuple[Objective, ...] = ()
    shape: ModelShape | None = None
    prompt: float | None = None
    cached_ratio: float | None = None
    sequences: int | None = None
    bits: float | None = None


@dataclass(frozen=True, slots=True)
class SloInputs:
    """Configured SLOs of a cluster, and the overrides of a command."""

    slos: Sequence[SloSettings] = ()
    cluster: str = ""
    overrides: PlanOverrides = field(default_factory=PlanOverrides)

    def of(
        self,
        fleet: PlannedFleet,
        calibrations: Mapping[EntityRef, Calibration],
        topology: Topology,
        metrics: MetricStore,
        now: datetime,
    ) -> dict[EntityRef, ServiceFacts]:
        """Returns the facts of every service with a calibration and an SLO. Raises StoreUnavailableError."""
        facts = {}
        for service, calibration in calibrations.items():
            parent = role_pools.parent_of(service, topology)
            objectives = self.objectives(service, parent)
            if not objectives:
                continue
            facts[service] = self._facts(
                service, fleet.setting_in(service, topology), calibration, objectives, topology, metrics, now
            )
        return facts

    def objectives(self, service: EntityRef, parent: EntityRef | None = None) -> tuple[Objective, ...]:
        """Returns the TTFT and TPOT objectives of a service, or of the service that a pool belongs to."""
        overridden = {objective.sli for objective in self.overrides.objectives}
        configured = []
        for slo in self.slos:
            sli = _SLIS.get(slo.sli)
            if sli is None or sli in overridden or slo.limit is None or slo.is_part:
                continue
            if any(self._applies(slo, entity) for entity in (service, parent) if entity is not None):
                configured.append(Objective(sli, slo.limit.total_seconds(), slo.objective, slo.name))
        return (*self.overrides.objectives, *configured)

    def _applies(self, slo: SloSettings, service: EntityRef) -> bool:
        if slo.service is None:
            return True
        same_cluster = (slo.cluster or self.cluster) == service.cluster
        return same_cluster and slo.service == service.name and slo.namespace in (None, service.namespace)

    def _facts(
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
            EntityKind.REPLICA, prompts.KEYS, now - CALIBRATION_SPAN, now, ENGINE_LOAD_STEP, replicas
        )
        measured_prompts = prompts.measure_prompts(window)
        running = planner_inputs.running_of(service, setting, topology).model
        # the engine's model name includes the quantization; a configured name may not
        bits = (measured.bits_of(model) for model in (running or calibration.model, setting.model or ""))
        name = setting.model or running or calibration.model
        shape, reason = self._shape(setting, name)
        overrides = self.overrides
        return ServiceFacts(
            objectives,
            model=name,
            shape=shape,
            no_shape=reason,
            prompt=_first(overrides.prompt, setting.prompt_tokens, measured_prompts.tokens),
            cached_ratio=measured_prompts.cached_ratio if overrides.cached_ratio is None else overrides.cached_ratio,
            kv_tokens=measured_prompts.kv_tokens,
            sequences=overrides.sequences or setting.max_sequences,
            bits=_first(overrides.bits, *bits) or 16.0,
            pool=topology.label(service, role_pools.ROLE)
            if role_pools.parent_of(service, topology) is not None
            else "",
            as_run=overrides.prompt is None and overrides.cached_ratio is None,
        )

    def _shape(self, setting: ServiceSettings, name: str) -> tuple[ModelShape | None, str]:
        """Returns the shape of a service's model, or None with the reason."""
        if self.overrides.shape is not None:
            return self.overrides.shape, ""
        try:
            if setting.config_json is not None:
                return model_files.shape_of(setting.config_json, name), ""
            return (model_specs.model(name), "") if name else (None, "")
        except UsageError as error:
            return None, error.message


def _first(*values: float | None) -> float | None:
    return next((value for value in values if value is not None), None)
