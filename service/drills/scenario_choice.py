"""Selection of scenarios: all shipped ones, one by its id, or one for a single fault."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import cache

from outrider.errors import UsageError
from simulator import scenarios as shipped
from simulator.faults import FAULTS
from simulator.scenarios import PlannedFault, Scenario
from simulator.scenarios.loader import LEAD
from simulator.traffic.shapes import SHAPES


@cache
def scenarios() -> tuple[Scenario, ...]:
    """Returns every scenario of the simulator."""
    return shipped.load()


def find(name: str, load: str | None = None) -> Scenario:
    """Returns the scenario with this id, else one for the fault with this id. Raises UsageError with close matches."""
    by_id = {scenario.id: scenario for scenario in scenarios()}
    scenario = by_id.get(name)
    if scenario is None and name in FAULTS:
        planned = PlannedFault(name, LEAD, FAULTS[name].lasts)
        scenario = Scenario(name, (planned,), negative=FAULTS[name].negative)
    if scenario is None:
        near = _near(name, dict.fromkeys([*by_id, *FAULTS]))
        raise UsageError(
            f"no fault or scenario is named {name!r}", hint=near or f"outrider drill list shows all {len(by_id)}"
        )
    return scenario if load is None else replace(scenario, load=_shape(load))


def select(names: Sequence[str] | None) -> tuple[Scenario, ...]:
    """Returns the named scenarios, each once; all for None."""
    return scenarios() if not names else tuple(find(name) for name in dict.fromkeys(names))


def _shape(load: str) -> str:
    known = [name for name in SHAPES if name != "trace"]  # a trace needs a file
    shapes = f"load shapes are: {', '.join(known)}"
    if _is_zero(load):
        raise UsageError("a load of zero sends no requests", hint=shapes)
    if load not in known:
        raise UsageError(f"no load shape is named {load!r}", hint=_near(load, known) or shapes)
    return load


def _is_zero(load: str) -> bool:
    try:
        return float(load) == 0.0
    except ValueError:
        return False


def _near(word: str, known: Iterable[str]) -> str:
    """Suggests close names; empty without any."""
    close = difflib.get_close_matches(word, list(known), n=3, cutoff=0.5)
    return f"did you mean {' or '.join(close)}?" if close else ""
