"""Calibrations from the store, from files of load testers and from load tests, as values to print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from outrider.errors import UsageError
from outrider.model import Calibration, EntityKind, EntityRef, Window
from outrider.ports import MetricStore
from outrider.topology import Topology
from planner.performance import loadtest_import
from planner.performance.calibrate import CalibrationRefusal, NoCalibration
from planner.performance.queueing import Slo
from planner.performance.saturation_point import Knee, LoadPoint, NoKnee, knee
from service.config import input_files
from service.config.service_settings import ServiceSettings, setting_of
from service.config.settings import Settings
from service.planning import planner_inputs

_DEGREES = ("tensor_parallel", "pipeline_parallel")
_GROUP_LABELS = ("model", "gpu_type", "version", *_DEGREES)


def of_store(
    settings: Settings,
    metrics: MetricStore,
    topology: Topology,
    now: datetime,
    *,
    service: str | None = None,
    namespace: str | None = None,
    span: timedelta | None = None,
) -> list[Calibration | NoCalibration]:
    """One calibration for each group of alike replicas (model, GPU type, version, TP and PP) of each service.

    Replicas of two versions, types of GPU or sizes are two groups: their mean is nobody's figure. (The plan counts a
    service's replicas as they run, all types together: its number is of that mixture.) ``span`` None reads what the
    plan reads: a day, and eight where that day showed no load worth measuring.
    """
    services = [found for found in topology.of_kind(EntityKind.SERVICE) if service in (None, found.name)]
    services = [found for found in services if namespace in (None, found.namespace)]
    if service is not None and not services:
        names = sorted(found.name for found in topology.of_kind(EntityKind.SERVICE))
        raise UsageError(f"no service is named {service!r}", hint=f"known services: {', '.join(names) or 'none yet'}")
    answers: list[Calibration | NoCalibration] = []
    for entity in services:
        setting = setting_of(settings.services, entity)
        found = []
        for labels, replicas in _groups(topology, entity, setting).items():
            told = dict(zip(_GROUP_LABELS, labels, strict=True))
            found.append(_of_group(metrics, entity, setting, told, replicas, now, span))
        answers += [one for one in found if not _is_silent(one)] or found
    return answers


def _is_silent(found: Calibration | NoCalibration) -> bool:
    """True of replicas that tell nothing: beside others that do they are gone, and say nothing of the service."""
    return isinstance(found, NoCalibration) and found.reason is CalibrationRefusal.NO_VALUES


def _of_group(
    metrics: MetricStore,
    service: EntityRef,
    setting: ServiceSettings,
    labels: Mapping[str, str],
    replicas: Sequence[EntityRef],
    now: datetime,
    span: timedelta | None,
) -> Calibration | NoCalibration:
    usual = (planner_inputs.CALIBRATION_SPAN, planner_inputs.LONGER_SPAN)
    found: list[Calibration | NoCalibration] = []
    for each in usual if span is None else (span,):
        window = planner_inputs.calibration_window(metrics, replicas, now, each)
        found.append(_one(window, service, setting, labels, now))
        if isinstance(found[-1], Calibration) and found[-1].origin == "measured":
            return found[-1]
    return found[0]


def of_file(path: Path, slo: Slo, *, tokens: float | None = None) -> tuple[str, Knee | NoKnee, list[LoadPoint]]:
    """The tool that wrote a file, and the knee of its steps. Raises UsageError for what cannot be read."""
    text = input_files.text_of(path, "give the file that the load tester wrote")
    tool, points = loadtest_import.load_points(text, str(path), tokens=tokens)
    return tool, knee(points, slo), points


def as_dict(found: Calibration) -> dict[str, Any]:
    """The keys of ``outrider capacity calibrate -o json``, of one calibration."""
    return {
        "service": found.service.name,
        "gpu_type": found.gpu_type,
        "tokens_per_request": found.tokens_per_request,
        "batch": found.batch,
        "tokens_per_second_per_sequence": found.tokens_per_second_per_sequence,
        "samples": found.samples,
        "intervals": {name: {"low": span.low, "high": span.high} for name, span in found.intervals.items()},
        "origin": found.origin,
        "model": found.model or None,
        "engine_version": found.engine_version or None,
        "tensor_parallel": found.tensor_parallel,
        "pipeline_parallel": found.pipeline_parallel,
        "startup_seconds": found.startup_seconds,
        "startup_source": found.startup_source,
        "reason": None,
    }


def refused(found: NoCalibration, gpu_type: str | None = None) -> dict[str, Any]:
    """The same keys where nothing could be measured, with the reason."""
    figures = ("tokens_per_request", "batch", "tokens_per_second_per_sequence")
    return {
        "service": found.service.name,
        "gpu_type": gpu_type,
        **dict.fromkeys(figures),
        "samples": found.samples,
        "intervals": {},
        "origin": None,
        "reason": found.reason.value,
    }


def point_dict(point: LoadPoint) -> dict[str, Any]:
    """One step of a load test as plain values."""
    found = {name: getattr(point, name) for name in LoadPoint.__slots__}
    spans = {name: {"low": span.low, "high": span.high} for name, span in point.intervals.items()}
    return found | {"intervals": spans}


def _groups(
    topology: Topology, service: EntityRef, setting: ServiceSettings
) -> Mapping[tuple[str, ...], Sequence[EntityRef]]:
    """Replicas by what the topology says of them; what it does not say is the service's own label."""
    groups: dict[tuple[str, ...], list[EntityRef]] = {}
    for replica in topology.below(service, EntityKind.REPLICA):
        labels = [_label(topology, (replica, service), label) for label in _GROUP_LABELS if label not in _DEGREES]
        labels += [_degree(topology.label(replica, name), setting, name) for name in _DEGREES]
        groups.setdefault(tuple(labels), []).append(replica)
    return groups or {("", "", "", *(_degree("", setting, name) for name in _DEGREES)): []}


def _degree(said: str, setting: ServiceSettings, name: str) -> str:
    """How a replica is split over GPUs: as configured, else as its engine's command line says, else not at all."""
    is_told = said.isdecimal() and int(said) > 0
    return str(int(said)) if is_told and name not in setting.model_fields_set else str(getattr(setting, name))


def _label(topology: Topology, entities: Iterable[EntityRef], label: str) -> str:
    for entity in entities:
        said = topology.label(entity, label) or (topology.label(entity, "image") if label == "version" else "")
        if said:
            return said
    return ""


def _one(
    window: Window, service: EntityRef, setting: ServiceSettings, labels: Mapping[str, str], now: datetime
) -> Calibration | NoCalibration:
    split = setting.model_copy(update={name: int(labels[name]) for name in _DEGREES})
    found = planner_inputs.calibrated(service, split, window, labels["gpu_type"] or setting.gpu_type)
    if isinstance(found, NoCalibration) or found.origin != "measured":
        return found
    return replace(found, model=labels["model"], engine_version=labels["version"], measured_at=now)
