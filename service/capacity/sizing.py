"""Calibrations from the store, from load tester files and from load tests, as values to print."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from outrider.model import Calibration, EntityKind, EntityRef, Window
from outrider.ports import MetricStore
from outrider.text.unknown_names import no_such
from outrider.topology import Topology
from planner.performance import loadtest_import
from planner.performance.calibrate import CalibrationRefusal, NoCalibration
from planner.performance.queueing import Slo
from planner.performance.saturation_point import LoadPoint, NoSaturationPoint, SaturationPoint, saturation_point
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
    """Returns one calibration per group of equal replicas (model, GPU type, version, TP and PP) of each service.

    A mean over different groups would fit none of them. The plan, however, calibrates all replicas of a service
    together. ``span`` None reads one day as the plan does, and eight days if its load was too low.
    """
    services = [entity for entity in topology.of_kind(EntityKind.SERVICE) if service in (None, entity.name)]
    services = [entity for entity in services if namespace in (None, entity.namespace)]
    if service is not None and not services:
        names = sorted(entity.name for entity in topology.of_kind(EntityKind.SERVICE))
        raise no_such("service", service, names)
    results: list[Calibration | NoCalibration] = []
    for entity in services:
        setting = setting_of(settings.services, entity)
        groups = []
        for values, replicas in _groups(topology, entity, setting).items():
            labels = dict(zip(_GROUP_LABELS, values, strict=True))
            groups.append(_of_group(metrics, entity, setting, labels, replicas, now, span))
        results += [group for group in groups if not _is_silent(group)] or groups
    return results


def _is_silent(result: Calibration | NoCalibration) -> bool:
    """True for replicas without values; beside other groups they are gone and are left out."""
    return isinstance(result, NoCalibration) and result.reason is CalibrationRefusal.NO_VALUES


def _of_group(
    metrics: MetricStore,
    service: EntityRef,
    setting: ServiceSettings,
    labels: Mapping[str, str],
    replicas: Sequence[EntityRef],
    now: datetime,
    span: timedelta | None,
) -> Calibration | NoCalibration:
    default_spans = (planner_inputs.CALIBRATION_SPAN, planner_inputs.LONGER_SPAN)
    results: list[Calibration | NoCalibration] = []
    for length in default_spans if span is None else (span,):
        window = planner_inputs.calibration_window(metrics, replicas, now, length)
        results.append(_calibrate(window, service, setting, labels, now))
        if isinstance(results[-1], Calibration) and results[-1].origin == "measured":
            return results[-1]
    return results[0]


def of_file(
    path: Path, slo: Slo, *, tokens: float | None = None
) -> tuple[str, SaturationPoint | NoSaturationPoint, list[LoadPoint]]:
    """Returns the tool that wrote a file, and the saturation point of its steps. Raises UsageError."""
    text = input_files.text_of(path, "give the file that the load tester wrote")
    tool, points = loadtest_import.load_points(text, str(path), tokens=tokens)
    return tool, saturation_point(points, slo), points


def as_dict(calibration: Calibration) -> dict[str, Any]:
    """The keys of ``outrider capacity calibrate -o json``, for one calibration."""
    return {
        "service": calibration.service.name,
        "gpu_type": calibration.gpu_type,
        "tokens_per_request": calibration.tokens_per_request,
        "batch": calibration.batch,
        "tokens_per_second_per_sequence": calibration.tokens_per_second_per_sequence,
        "samples": calibration.samples,
        "intervals": {name: {"low": span.low, "high": span.high} for name, span in calibration.intervals.items()},
        "origin": calibration.origin,
        "model": calibration.model or None,
        "engine_version": calibration.engine_version or None,
        "tensor_parallel": calibration.tensor_parallel,
        "pipeline_parallel": calibration.pipeline_parallel,
        "startup_seconds": calibration.startup_seconds,
        "startup_source": calibration.startup_source,
        "reason": None,
    }


def refused(refusal: NoCalibration, gpu_type: str | None = None) -> dict[str, Any]:
    """The same keys without a calibration, with the reason."""
    figures = ("tokens_per_request", "batch", "tokens_per_second_per_sequence")
    return {
        "service": refusal.service.name,
        "gpu_type": gpu_type,
        **dict.fromkeys(figures),
        "samples": refusal.samples,
        "intervals": {},
        "origin": None,
        "reason": refusal.reason.value,
    }


def point_dict(point: LoadPoint) -> dict[str, Any]:
    """Returns one step of a load test as plain values."""
    fields = {name: getattr(point, name) for name in LoadPoint.__slots__}
    spans = {name: {"low": span.low, "high": span.high} for name, span in point.intervals.items()}
    return fields | {"intervals": spans}


def _groups(
    topology: Topology, service: EntityRef, setting: ServiceSettings
) -> Mapping[tuple[str, ...], Sequence[EntityRef]]:
    """Groups replicas by their labels in the topology; a missing label is that of the service."""
    groups: dict[tuple[str, ...], list[EntityRef]] = {}
    for replica in topology.below(service, EntityKind.REPLICA):
        labels = [_label(topology, (replica, service), label) for label in _GROUP_LABELS if label not in _DEGREES]
        labels += [_degree(topology.label(replica, name), setting, name) for name in _DEGREES]
        groups.setdefault(tuple(labels), []).append(replica)
    return groups or {("", "", "", *(_degree("", setting, name) for name in _DEGREES)): []}


def _degree(label: str, setting: ServiceSettings, name: str) -> str:
    """Returns TP or PP of a replica: as configured, else from its engine's command line, else 1."""
    is_known = label.isdecimal() and int(label) > 0
    return str(int(label)) if is_known and name not in setting.model_fields_set else str(getattr(setting, name))


def _label(topology: Topology, entities: Iterable[EntityRef], label: str) -> str:
    for entity in entities:
        value = topology.label(entity, label) or (topology.label(entity, "image") if label == "version" else "")
        if value:
            return value
    return ""


def _calibrate(
    window: Window, service: EntityRef, setting: ServiceSettings, labels: Mapping[str, str], now: datetime
) -> Calibration | NoCalibration:
    split = setting.model_copy(update={name: int(labels[name]) for name in _DEGREES})
    result = planner_inputs.calibrated(service, split, window, labels["gpu_type"] or setting.gpu_type)
    if isinstance(result, NoCalibration) or result.origin != "measured":
        return result
    return replace(result, model=labels["model"], engine_version=labels["version"], measured_at=now)
