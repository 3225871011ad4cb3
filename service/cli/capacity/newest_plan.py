"""The newest plan, computed as ``capacity plan`` computes it, so that all commands agree."""

from __future__ import annotations

from typing import TYPE_CHECKING

from outrider.model import Plan, Recommendation

if TYPE_CHECKING:
    from service.config.settings import Settings


def newest_plan(settings: Settings) -> Plan:
    """Plan at the newest cycle. Services that cannot be planned now keep the plan of the last cycle."""
    from service.wiring import planning as wiring_planning  # noqa: PLC0415 - the store, which --help does without
    from service.wiring import stores as wiring_stores  # noqa: PLC0415 - the store, which --help does without

    made = wiring_planning.plan_now(settings, None)
    with wiring_stores.state_reader(settings) as state:
        kept = state.plan()
    planned = [item for item in made.recommendations if isinstance(item, Recommendation)]
    known = {item.service for item in planned}
    older = [item for item in kept.recommendations if item.service not in known]
    told = known | {item.service for item in older}
    spoken_of = {one.entity for one in made.forecasts}
    foreseen = [said for said in kept.forecasts if said.entity not in spoken_of]
    return Plan(
        (*made.forecasts, *foreseen),
        (*planned, *older, *(item for item in made.recommendations if item.service not in told)),
        made.calibrations or kept.calibrations,
    )
