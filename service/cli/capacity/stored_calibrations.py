"""Stored calibrations: load tests are written to the store, ``capacity calibrate --show`` lists them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

from outrider.clock import SystemClock, rfc3339
from outrider.errors import UsageError
from outrider.model import Calibration, EntityKind, EntityRef
from outrider.text.i18n import translate
from planner.performance.gpu_catalog import known_gpu
from planner.performance.loadtest_record import LoadTestRecord
from planner.performance.queueing import Slo
from planner.performance.saturation_point import LoadPoint
from service.capacity import pending_loadtests, sizing
from service.cli.core.common import NO, Context
from service.wiring import stores as wiring_stores


def named(service: str | None, namespace: str | None) -> tuple[str | None, str | None]:
    """Namespace and name from ``--service`` and ``--namespace``; ``namespace/name`` gives both.

    Raises UsageError if the two disagree or a part is missing.
    """
    if service is None or "/" not in service:
        return namespace, service
    space, _, name = service.partition("/")
    if not space or not name or "/" in name or namespace not in (None, space):
        raise UsageError(f"--service {service} is not a service name", hint="write name, or namespace/name")
    return space, name


def entity_of(context: Context, name: str, namespace: str | None, *, stored: bool) -> EntityRef:
    """The service of that name, from collected topology or from the configuration.

    The store is read only if ``stored``, and created if missing, so that a failure shows before the test runs.
    Raises UsageError if the name exists in several namespaces, StoreUnavailableError.
    """
    settings = context.settings()
    collected: list[EntityRef] = []
    if stored:
        with wiring_stores.state_reader(settings) as state:
            collected = list(state.topology().of_kind(EntityKind.SERVICE))
    configured = [service.entity(settings.cluster) for service in settings.services]
    for known in (collected, configured):
        matches = sorted(
            {service for service in known if service.name == name and namespace in (None, service.namespace)}, key=str
        )
        if len(matches) > 1:
            spaces = ", ".join(str(service.namespace) for service in matches)
            hint = f"they are in {spaces}: write --service {matches[0].namespace}/{name}"
            raise UsageError(f"{name} is the name of {len(matches)} services", hint=hint)
        if matches:
            return matches[0]
    return EntityRef(settings.cluster, EntityKind.SERVICE, namespace, name)


def note_of(context: Context, gpu_type: str) -> str | None:
    """Note about a GPU type that ``capacity cost`` does not know. None for a known type."""
    known = known_gpu(gpu_type) is not None
    return None if known else translate("capacity.test_gpu_unknown", context.language, gpu_type=gpu_type)


def keep(context: Context, calibration: Calibration) -> None:
    """Stores a load test or a result file. The plan uses it while live engines have too little load."""
    with wiring_stores.stores(context.settings()) as (state, _):
        state.save_load_test(calibration)


def keep_test(context: Context, calibration: Calibration, points: Sequence[LoadPoint], slo: Slo) -> None:
    """Stores a finished load test, or writes it to a file if the store is unavailable. Raises StoreUnavailableError."""
    assert calibration.measured_at is not None
    assert calibration.valid_until is not None
    test = LoadTestRecord(
        service=calibration.service.name,
        namespace=calibration.service.namespace,
        gpu_type=calibration.gpu_type,
        tensor_parallel=calibration.tensor_parallel,
        pipeline_parallel=calibration.pipeline_parallel,
        model=calibration.model,
        engine_version=calibration.engine_version,
        source=calibration.source,
        measured_at=calibration.measured_at,
        valid=calibration.valid_until - calibration.measured_at,
        slo=slo,
        points=tuple(points),
    )
    pending_loadtests.store(context.settings(), test, calibration)


def show(context: Context, service: str | None, namespace: str | None = None) -> int | None:
    """Lists stored calibrations, live values first, with subject and expiry. Exits 1 if there are none."""
    now = SystemClock().now()
    with wiring_stores.state_reader(context.settings()) as state:
        stored = [item for item in (*state.baselines(), *state.load_tests()) if service in (None, item.service.name)]
    stored = [item for item in stored if namespace in (None, item.service.namespace)]
    shown = [
        sizing.as_dict(item)
        | {
            "namespace": item.service.namespace,
            "source": item.source,
            "measured_at": None if item.measured_at is None else rfc3339(item.measured_at),
            "valid_until": None if item.valid_until is None else rfc3339(item.valid_until),
            "valid": item.valid_until is None or now < item.valid_until,
        }
        for item in stored
    ]
    context.show(shown, lambda _: _table(context, shown))
    return None if shown else NO


def valid_for(span: timedelta) -> timedelta:
    """Validity of a load test. Raises UsageError for a duration of 0."""
    if span <= timedelta(0):
        raise UsageError("--valid must be longer than 0", hint="the default is 30d")
    return span


def _table(context: Context, shown: list[dict[str, Any]]) -> str:
    lines = []
    for row in shown:
        numbers = {
            name: f"{row[name]:.4g}" for name in ("tokens_per_request", "batch", "tokens_per_second_per_sequence")
        }
        spans = {
            name: f" ({span['low']:.4g}-{span['high']:.4g})" for name, span in row["intervals"].items() if span["low"]
        }
        until = row["valid_until"] or "-"
        key = "capacity.kept" if row["valid"] else "capacity.kept_over"
        cells = {name: value + spans.get(name, "") for name, value in numbers.items()}
        lines.append(
            translate(
                key,
                context.language,
                service=row["service"],
                source=row["source"],
                at=row["measured_at"],
                until=until,
                engine=" ".join(filter(None, (row["model"], row["gpu_type"], row["engine_version"]))),
                tp=row["tensor_parallel"],
                pp=row["pipeline_parallel"],
                tokens=cells["tokens_per_request"],
                batch=cells["batch"],
                speed=cells["tokens_per_second_per_sequence"],
                samples=row["samples"],
            )
        )
    return "\n".join(lines) or translate("capacity.kept_none", context.language)
