"""Write docs/reference/drills.md from faults and scenarios; with --check, say whether it is up to date."""

from __future__ import annotations

import sys
from pathlib import Path

from generated import write_or_check

from outrider.text.i18n import translate
from outrider.vocabulary.units import format_duration
from simulator import scenarios
from simulator.faults import FAULTS
from simulator.faults.declared import Declared
from simulator.scenarios import Scenario

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "drills.md"

HEAD = """\
# Faults and scenarios of drills

What `outrider drill` can break, and the scenarios that a score runs. How to drill is told in
[break it on purpose](../howto/run-drills.md), the rules of the score in
[the fault benchmark](../explanation/fault-benchmark.md).

This page is written by `scripts/drill_reference.py` from `simulator/faults/catalogue` and
`simulator/scenarios`.

"""
_HELD = (
    "They stay with a place (hardware, a node, a service), a process (a restart cures it) or a revision "
    "(a rollback does)."
)
_HARMLESS = "They look alarming; a platform that opens a P0-P2 incident for one is wrong."


def page() -> str:
    """The whole page."""
    faults = [declared for declared in FAULTS.values() if not declared.negative]
    states = [declared for declared in FAULTS.values() if declared.negative]
    listed = scenarios.load()
    parts = [
        f"## Faults ({len(faults)})\n\n{_HELD}\n\n",
        "| fault | strikes | lasts | onset | stays with | signals that move, in order |\n|---|---|---|---|---|---|\n",
        *sorted(_fault(declared) for declared in faults),
        f"\n## States that are no fault ({len(states)})\n\n{_HARMLESS}\n\n",
        "| state | strikes | lasts |\n|---|---|---|\n",
        *sorted(_state(declared) for declared in states),
        f"\n## Scenarios ({len(listed)})\n\n| scenario | faults | load | minutes | kind |\n|---|---|---|---|---|\n",
        *(_scenario(scenario) for scenario in listed),
    ]
    return HEAD + "".join(parts)


def _fault(declared: Declared) -> str:
    title = translate(f"faults.{declared.fault}.name")
    onset = declared.onset.shape
    moved = ", ".join(f"`{name}`" for name in declared.symptoms)
    row = f"| `{declared.fault}` {title} | {declared.kind.value} | {format_duration(declared.lasts)} | {onset} |"
    return f"{row} {declared.holds} | {moved} |\n"


def _state(declared: Declared) -> str:
    return f"| `{declared.fault}` | {declared.kind.value} | {format_duration(declared.lasts)} |\n"


def _scenario(scenario: Scenario) -> str:
    names = ", ".join(f"`{planned.fault}`" for planned in scenario.faults)
    kinds = [
        word
        for word, holds in (
            ("negative", scenario.negative),
            ("storm", scenario.storm),
            ("standby", scenario.world == "standby"),
        )
        if holds
    ]
    return f"| `{scenario.id}` | {names} | {scenario.load} | {scenario.minutes} | {', '.join(kinds)} |\n"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
