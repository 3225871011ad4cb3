"""The newest plan, computed as ``capacity plan`` computes it, so that all commands agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.model import Plan, Recommendation

if TYPE_CHECKING:
    from service.config.settings import Settings


def newest_plan(settings: Settings) -> Plan:
    """Plan at the newest cycle. Services that cannot be planned now keep the plan of the last cycle."""
    from service.wiring import planning as wiring_planning  # noqa: PLC0415 - not needed by --help
    from service.wiring import stores as wiring_stores  # noqa: PLC0415 - not needed by --help

    computed = wiring_planning.plan_now(settings, None)
    with wiring_stores.state_reader(settings) as state:
        stored = state.plan()
    planned = [item for item in computed.recommendations if isinstance(item, Recommendation)]
    known = {item.service for item in planned}
    older = [item for item in stored.recommendations if item.service not in known]
    covered = known | {item.service for item in older}
    forecast_entities = {item.entity for item in computed.forecasts}
    older_forecasts = [item for item in stored.forecasts if item.entity not in forecast_entities]
    return Plan(
        (*computed.forecasts, *older_forecasts),
        (*planned, *older, *(item for item in computed.recommendations if item.service not in covered)),
        computed.calibrations or stored.calibrations,
    )
