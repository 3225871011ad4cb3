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
        raise UsageError(f"--service {service} is no service", hint="write name, or namespace/name")
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
    configured = [one.entity(settings.cluster) for one in settings.services]
    for known in (collected, configured):
        found = sorted({one for one in known if one.name == name and namespace in (None, one.namespace)}, key=str)
        if len(found) > 1:
            spaces = ", ".join(str(one.namespace) for one in found)
            hint = f"they are in {spaces}: write --service {found[0].namespace}/{name}"
            raise UsageError(f"{name} is the name of {len(found)} services", hint=hint)
        if found:
            return found[0]
    return EntityRef(settings.cluster, EntityKind.SERVICE, namespace, name)


def note_of(context: Context, gpu_type: str) -> str | None:
    """Note about a GPU type that ``capacity cost`` does not know. None for a known type."""
    known = known_gpu(gpu_type) is not None
    return None if known else translate("capacity.test_gpu_unknown", context.language, gpu_type=gpu_type)


def keep(context: Context, found: Calibration) -> None:
    """Stores a load test or a result file. The plan uses it while live engines have too little load."""
    with wiring_stores.stores(context.settings()) as (state, _):
        state.save_load_test(found)


def keep_test(context: Context, found: Calibration, points: Sequence[LoadPoint], slo: Slo) -> None:
    """Stores a finished load test, or writes it to a file if the store is unavailable. Raises StoreUnavailableError."""
    assert found.measured_at is not None
    assert found.valid_until is not None
    test = LoadTestRecord(
        service=found.service.name,
        namespace=found.service.namespace,
        gpu_type=found.gpu_type,
        tensor_parallel=found.tensor_parallel,
        pipeline_parallel=found.pipeline_parallel,
        model=found.model,
        engine_version=found.engine_version,
        source=found.source,
        measured_at=found.measured_at,
        valid=found.valid_until - found.measured_at,
        slo=slo,
        points=tuple(points),
    )
    pending_loadtests.store(context.settings(), test, found)


def show(context: Context, service: str | None, namespace: str | None = None) -> int | None:
    """Lists stored calibrations, live values first, with subject and expiry. Exits 1 if there are none."""
    now = SystemClock().now()
    with wiring_stores.state_reader(context.settings()) as state:
        kept = [one for one in (*state.baselines(), *state.load_tests()) if service in (None, one.service.name)]
    kept = [one for one in kept if namespace in (None, one.service.namespace)]
    shown = [
        sizing.as_dict(one)
        | {
            "namespace": one.service.namespace,
            "source": one.source,
            "measured_at": None if one.measured_at is None else rfc3339(one.measured_at),
            "valid_until": None if one.valid_until is None else rfc3339(one.valid_until),
            "valid": one.valid_until is None or now < one.valid_until,
        }
        for one in kept
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
    for one in shown:
        numbers = {
            name: f"{one[name]:.4g}" for name in ("tokens_per_request", "batch", "tokens_per_second_per_sequence")
        }
        spans = {
            name: f" ({span['low']:.4g}-{span['high']:.4g})" for name, span in one["intervals"].items() if span["low"]
        }
        until = one["valid_until"] or "-"
        key = "capacity.kept" if one["valid"] else "capacity.kept_over"
        told = {name: value + spans.get(name, "") for name, value in numbers.items()}
        lines.append(
            translate(
                key,
                context.language,
                service=one["service"],
                source=one["source"],
                at=one["measured_at"],
                until=until,
                engine=" ".join(filter(None, (one["model"], one["gpu_type"], one["engine_version"]))),
                tp=one["tensor_parallel"],
                pp=one["pipeline_parallel"],
                tokens=told["tokens_per_request"],
                batch=told["batch"],
                speed=told["tokens_per_second_per_sequence"],
                samples=one["samples"],
            )
        )
    return "\n".join(lines) or translate("capacity.kept_none", context.language)
