"""Write docs/reference/measures.md from outrider/vocabulary/indicators.py; with --check, say whether it is up to date."""

from __future__ import annotations

import inspect
import sys
from pathlib import Path

from generated import write_or_check

from outrider.vocabulary import indicators
from outrider.vocabulary.units import format_duration

PAGE = Path(__file__).resolve().parent.parent / "docs" / "reference" / "measures.md"

FUNCTIONS = {
    "availability": indicators.availability_time,
    "success": indicators.success_ratio,
    "sla_attainment": indicators.sla_attainment,
    "ttft_p99": indicators.latency_quantiles,
    "tpot_p99": indicators.latency_quantiles,
    "e2e_p99": indicators.latency_quantiles,
    "output_validity": indicators.output_validity,
    "error_budget": indicators.error_budget_left,
    "burn_rate": indicators.burn_rate,
    "mttd": indicators.mttd,
    "mtta": indicators.mtta,
    "mttr": indicators.mttr,
    "noops": indicators.noops_share,
    "cost_per_1k_tokens": indicators.cost_per_1k_tokens,
    "tokens_per_watt_hour": indicators.tokens_per_watt_hour,
    "gpu_utilisation": indicators.gpu_utilisation,
    "gpu_hours_idle": indicators.gpu_hours_idle,
    "gpu_hours_lost": indicators.gpu_hours_lost,
    "prefix_hit": indicators.prefix_hit_ratio,
    "scale_out": indicators.mean_duration,
    "forecast_error": indicators.wape,
    "folded": indicators.folded_share,
    "grouping": indicators.pairwise_f1,
    "pages_per_incident": indicators.pages_per_incident,
    "page_precision": indicators.page_precision,
}

HEAD = """\
# Measures

Each measure has one formula and one function in `outrider/vocabulary/indicators.py`; rules, dashboard, reports and
benchmarks call the same one. Ratios are 0-1, durations seconds. What cannot be measured has no value: it
never counts as good. Targets are defaults for display and reports; a burn-rate alert exists only for an
SLO that the configuration names.

This page is written by `scripts/measures_reference.py`.

| measure | formula | default target | function |
|---|---|---|---|
"""


def page() -> str:
    """The whole page."""
    rows = [
        f"| {row.title()} | {row.formula()} | {_target(row)} | `{FUNCTIONS[name].__name__}` |"
        for name, row in indicators.MEASURES.items()
    ]
    told = {function.__name__: function for function in (*FUNCTIONS.values(), indicators.memory_rule)}
    texts = [f"## `{name}`\n\n{inspect.getdoc(function)}\n" for name, function in told.items()]
    return HEAD + "\n".join(rows) + "\n\n" + "\n".join(texts)


def _target(row: indicators.Measure) -> str:
    if row.target is None:
        return "none"
    sign = ">=" if row.good == "higher" else "<="
    if row.unit == "ratio":
        return f"{sign} {row.target * 100:g} %"
    return f"{sign} {format_duration(row.target) if row.unit == 'seconds' else f'{row.target:g}'}"


if __name__ == "__main__":
    sys.exit(write_or_check(PAGE, page()))
