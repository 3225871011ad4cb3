"""The buffer of ``outrider capacity formula``: given, or measured from forecast errors."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from pathlib import Path

from outrider.errors import UsageError
from outrider.model import NoRecommendation, Plan, Recommendation
from outrider.text.i18n import fill
from outrider.text.unknown_names import no_such
from planner.capacity import formula
from planner.capacity.formula import Buffer
from planner.performance.headroom import buffer_from_errors
from service.cli.capacity.newest_plan import newest_plan
from service.cli.core.common import Context
from service.config import input_files

USUAL = 0.25
_HINT = "one ratio per line: (observed load - forecast peak) / forecast peak"


def buffer_of(context: Context, given: float | None, errors: Path | None, service: str | None) -> Buffer:
    """Buffer chosen by at most one of three options; 0.25 by default.

    Raises UsageError if two are given, or if there are too few forecast errors to measure one.
    """
    options = [
        name
        for name, value in (("--buffer", given), ("--errors", errors), ("--buffer-of", service))
        if value is not None
    ]
    if len(options) > 1:
        raise UsageError(f"{' and '.join(options)} exclude each other", hint="give only one of them")
    if errors is not None:
        return _of_file(errors)
    return Buffer(USUAL if given is None else given) if service is None else _of_service(context, service)


def _of_file(path: Path) -> Buffer:
    errors = []
    for number, line in enumerate(input_files.text_of(path, _HINT).splitlines(), start=1):
        text = line.strip()
        if not text:
            continue
        try:
            value = float(text)
        except ValueError:
            value = float("nan")
        if not isfinite(value):
            raise UsageError(f"{path}:{number}: {text!r} is not a forecast error", hint=_HINT)
        errors.append(value)
    measured = buffer_from_errors(errors)
    if measured is None:
        raise UsageError(
            fill("{path} holds {n} [error|errors], too few for a buffer", path=path, n=len(errors)),
            hint="at least 30 errors are required; or give --buffer",
        )
    return formula.bounded_buffer(measured)


def _of_service(context: Context, service: str) -> Buffer:
    plan = newest_plan(context.settings())
    known = {item.service.name: item for item in plan.recommendations}
    if service not in known:
        raise no_such("service", service, sorted(known))
    item = known[service]
    buffer = _counted(item) or _at_lead(item, plan)
    if buffer.source != "measured":
        raise UsageError(
            f"the error of {service}'s forecast is not known yet",
            hint="a few days of history are required; or give --buffer",
        )
    return buffer


def _counted(item: Recommendation | NoRecommendation) -> Buffer | None:
    """Buffer used by the plan. None if the plan was written by a version without it."""
    stored = item.derivation.get("buffer") if isinstance(item, Recommendation) else None
    if not isinstance(stored, Mapping):
        return None
    return Buffer(
        stored["value"], stored["source"], stored["measured"], stored["lead_seconds"], stored.get("wanted_seconds")
    )


def _at_lead(item: Recommendation | NoRecommendation, plan: Plan) -> Buffer:
    forecast = next((forecast for forecast in plan.forecasts if forecast.entity == item.service), None)
    lead = item.lead_time.total_seconds() if isinstance(item, Recommendation) else 0.0
    return formula.buffer_for({} if forecast is None else forecast.buffers, lead, USUAL)
