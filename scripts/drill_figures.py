"""Write docs/reference/drill-figures.md and the table of README.md from the last saved benchmarks; --check compares."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from generated import write_or_check

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "reference" / "drill-figures.md"
README = ROOT / "README.md"
BEGIN = "<!-- drill figures: written by scripts/drill_figures.py -->\n"
END = "<!-- end of drill figures -->"
RIVALS = ("static thresholds", "z-score per metric", "pooled isolation forest", "shipped Prometheus rules")
FIGURES = {
    "precision": "precision",
    "recall": "recall",
    "median_delay_seconds": "median delay",
    "p95_delay_seconds": "delay, 95 %",
    "ac1": "AC@1",
    "ac3": "AC@3",
    "right_abstention": "right abstention",
    "folding_ratio": "folding",
    "pairwise_f1": "grouping, pairwise F1",
    "pairwise_precision": "grouping, pairwise precision",
    "pairwise_recall": "grouping, pairwise recall",
    "remediated_ratio": "remediated",
    "distinct_incidents_lost": "distinct incidents lost",
    "false_pages": "false pages",
    "false_pages_per_target_day_upper95": "false pages a target-day, 95 % bound",
}
OF_A_STORM = {
    "alerts": "alerts",
    "pages": "pages",
    "folding_ratio": "folding",
    "pairwise_precision": "pairwise precision",
    "pairwise_recall": "pairwise recall",
    "pairwise_f1": "pairwise F1",
}
OF_A_FAULT = ("fault", "events", "detected", "median delay", "AC@1", "AC@3", "named instead", "remediated")

HEAD = """\
# Figures of the fault benchmark

What the last saved run of `benchmarks/drill_score.py` and `benchmarks/quiet_weeks.py` gave. How it is run and scored
is told in [the fault benchmark](../explanation/fault-benchmark.md). A goal that is missed stays in the table as a
miss. Rivals name no cause and repair nothing unless their rule says so.

This page is written by `scripts/drill_figures.py` from `benchmarks/results.json`.

"""


def page(results: dict[str, dict[str, Any]]) -> str:
    """The whole page."""
    took, watched = results["drill_seconds"], results["drill_target_days"]
    ran = f"{_ran(results)}; the slowest seed took {took['value']:.0f} s (limit {took['target']:.0f} s)."
    rows = [_row(title, found) for title, found in _figures(results)]
    table = (
        f"| figure | Outrider | goal | holds | {' | '.join(RIVALS)} |\n|{'---|' * (4 + len(RIVALS))}\n{''.join(rows)}"
    )
    by_fault = "".join(_fault(name, found) for name, found in sorted(watched["by_fault"].items()))
    head = f"| {' | '.join(OF_A_FAULT)} |\n|{'---|' * len(OF_A_FAULT)}\n"
    quiet = _quiet(results["quiet_weeks"]) + _believed(results.get("drill_calibration_error"))
    quiet += _stormy(results.get("drill_storms"))
    return f"{HEAD}## All scenarios\n\n{ran}\n\n{table}{quiet}\n## By fault\n\n{head}{by_fault}"


def _believed(found: dict[str, Any] | None) -> str:
    """The reliability curve of the confidences; nothing for a run that was saved before there was one."""
    if found is None:
        return ""
    rows = "".join(
        f"| {row['from']:g} - {row['to']:g} | {row['answers']} | {row['confidence']:.2f} | {row['right']:.2f} |\n"
        for row in found["curve"]
    )
    said = f"Expected calibration error {found['value']:.3f}, over every incident that named a cause."
    return f"\n## Confidences\n\n{said}\n\n| said | answers | mean | right |\n|---|---|---|---|\n{rows}"


def _figures(results: dict[str, dict[str, Any]]) -> list[tuple[str, dict[str, Any]]]:
    """The figures of the table by their titles; one that is younger than the last saved run is left out."""
    return [(title, found) for name, title in FIGURES.items() if (found := results.get(f"drill_{name}")) is not None]


def _stormy(found: dict[str, Any] | None) -> str:
    """How each storm was folded and grouped; nothing for a run that was saved before this was counted."""
    if found is None:
        return ""
    head = f"| {' | '.join(('storm', *OF_A_STORM.values()))} |\n|{'---|' * (1 + len(OF_A_STORM))}\n"
    rows = ""
    for storm, seen in sorted(found["by_storm"].items()):
        cells = [_said(seen[name], "count" if name in ("alerts", "pages") else "ratio") for name in OF_A_STORM]
        rows += f"| `{storm}` | {' | '.join(cells)} |\n"
    return f"\n## By storm\n\n{head}{rows}"


def readme(text: str, results: dict[str, dict[str, Any]]) -> str:
    """README.md with its table as the last run had it."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    rows = "".join(_row(title, found, ()) for title, found in _figures(results))
    table = f"| figure | Outrider | goal | holds |\n|---|---|---|---|\n{rows}"
    return f"{before}{BEGIN}The last saved run, {_ran(results)}:\n\n{table}\n{END}{after}"


def _ran(results: dict[str, dict[str, Any]]) -> str:
    took = results["drill_seconds"]
    seeds = ", ".join(map(str, took["seeds"]))
    days = results["drill_target_days"]["value"]
    return f"{took['scenarios']} runs with {took['events']} faults on seeds {seeds}, {days:g} target-days"


def _row(title: str, found: dict[str, Any], against: tuple[str, ...] = RIVALS) -> str:
    unit = found["unit"]
    goal = "" if found["target"] is None else _said(found["target"], unit)
    holds = {None: "", True: "yes", False: "**no**"}[found["holds"]]
    value = _said(found["value"], unit)
    if value == goal and found["holds"] is False:  # rounded, a miss would look as good as the goal
        value = f"{found['value']:.4f}"
    cells = (value, goal, holds, *(_said(found["rivals"].get(rival), unit) for rival in against))
    return f"| {title} | {' | '.join(cells)} |\n"


def _fault(name: str, found: dict[str, Any]) -> str:
    instead = ", ".join(f"`{other}` {times}" for other, times in found["named_instead"].items())
    cells = [
        f"`{name}`",
        str(found["events"]),
        str(found["detected"]),
        _said(found["median_delay_seconds"], "s"),
        _said(found["ac1"], "ratio"),
        _said(found["ac3"], "ratio"),
        instead,
        _said(found["remediated_ratio"], "ratio"),
    ]
    return f"| {' | '.join(cells)} |\n"


def _quiet(found: dict[str, Any]) -> str:
    bound = f"95 % bound {found['upper95']:.5f} a target-day"
    holds = "holds" if found["upper95_holds"] else "is missed"
    watched = f"{found['pages']} pages in {found['target_days']:,.0f} fault-free target-days"
    return (
        f"\n## Weeks without a fault\n\n{watched} with launches, holidays, restarts and rollouts;\n"
        f"{bound}, so the goal of {found['target']:g} {holds}. It took {found['seconds']:.0f} s.\n"
    )


def _said(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "ratio":
        return f"{value:.2f}"
    return f"{value:,.0f} s" if unit == "s" else f"{value:,.0f}" if value >= 10 else f"{value:.3g}"


def main() -> int:
    """Write both, or compare them."""
    listed = json.loads((ROOT / "benchmarks" / "results.json").read_text(encoding="utf-8"))
    results = {one["name"]: one for one in listed}
    text = readme(README.read_text(encoding="utf-8"), results)
    return write_or_check(PAGE, page(results)) | write_or_check(README, text)


if __name__ == "__main__":
    sys.exit(main())
