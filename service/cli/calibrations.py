"""Calibrations that are kept: what a load test found goes into the store, ``capacity calibrate --show`` lists them."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from outrider.clock import SystemClock, rfc3339
from outrider.errors import UsageError
from outrider.i18n import translate
from outrider.model import Calibration, EntityKind, EntityRef
from outrider.topology import Topology
from service import sizing, wiring
from service.cli.common import NO, Context


def entity_of(context: Context, name: str) -> EntityRef:
    """The service of that name as live collection knows it, else as the configuration does.

    Raises UsageError where several namespaces have one.
    """
    settings = context.settings()
    with wiring.state_reader(settings) as state:
        topology: Topology = state.topology()
    known = [one for one in topology.of_kind(EntityKind.SERVICE) if one.name == name]
    known = known or [one.entity(settings.cluster) for one in settings.services if one.name == name]
    if len(known) > 1:
        spaces = ", ".join(str(one.namespace) for one in known)
        raise UsageError(f"{name} is the name of {len(known)} services", hint=f"they are in {spaces}: name one apart")
    return known[0] if known else EntityRef(settings.cluster, EntityKind.SERVICE, None, name)


def keep(context: Context, found: Calibration) -> None:
    """Store what a load test or a result says: the plan counts with it where live engines are under too little load."""
    with wiring.stores(context.settings()) as (state, _):
        state.save_load_test(found)


def show(context: Context, service: str | None) -> int | None:
    """List what is stored, live figures first, with what they are of and until when they count; exit 1 for nothing."""
    now = SystemClock().now()
    with wiring.state_reader(context.settings()) as state:
        kept = [one for one in (*state.baselines(), *state.load_tests()) if service in (None, one.service.name)]
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
    """How long a load test counts. Raises UsageError for no time at all."""
    if span <= timedelta(0):
        raise UsageError("--valid must be longer than 0", hint="30d is the default")
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
