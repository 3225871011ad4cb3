"""Runs benchmarks by name: ``python benchmarks/run.py store_write store_read -o json``; no name runs all.

Each is a module with ``run() -> dict | list[dict]``. ``--save`` updates ``benchmarks/results.json``; use it only on an
otherwise idle host.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, add_options, show, use_data

BENCHMARKS = {
    "parse": "benchmarks.parse",
    "scrape": "benchmarks.scrape",
    "cycle": "benchmarks.cycle",
    "cycle_aged": "benchmarks.cycle_aged",
    "discover": "benchmarks.discover",
    "store_write": "benchmarks.store_write",
    "store_read": "benchmarks.store_read",
    "store_size": "benchmarks.store_size",
    "store_upkeep": "benchmarks.store_upkeep",
    "blob_formats": "benchmarks.blob_formats",
    "store_remote": "benchmarks.store_remote",
    "history_write": "benchmarks.history_write",
    "detect_tick": "benchmarks.detect_tick",
    "detect_servers": "benchmarks.detect_servers",
    "detect_slow": "benchmarks.detect_slow",
    "detect_nab": "benchmarks.detect_nab",
    "hard_faults": "benchmarks.hard_faults",
    "quiet_weeks": "benchmarks.quiet_weeks",
    "forecast_speed": "benchmarks.forecast_speed",
    "forecast_traces": "benchmarks.forecast_traces",
    "plan_answer": "benchmarks.plan_answer",
    "scaling_replay": "benchmarks.scaling_replay",
    "engine_fit": "benchmarks.engine_fit",
    "simulator_speed": "benchmarks.simulator_speed",
    "drill_score": "benchmarks.drill_score",
    "rootcause_petshop": "benchmarks.rootcause_petshop",
    "sdk_overhead": "benchmarks.sdk_overhead",
    "receive": "benchmarks.receive",
    "alerts_ingest": "benchmarks.alerts_ingest",
    "alerts_storm": "benchmarks.alerts_storm",
    "remediation_latency": "benchmarks.remediation_latency",
    "page_latency": "benchmarks.page_latency",
}
RESULTS = Path(__file__).with_name("results.json")


def run(names: Sequence[str]) -> list[Result]:
    """Returns the results of the named benchmarks, in that order."""
    result: list[Result] = []
    for name in names:
        print(f"running {name} ...", file=sys.stderr)
        lines = import_module(BENCHMARKS[name]).run()
        result += [lines] if isinstance(lines, dict) else lines
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs benchmarks, prints their results, and saves them with ``--save``. Exits 2 for an unknown name."""
    parser = argparse.ArgumentParser(description="Benchmarks: figure, target, peer, ratio.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(BENCHMARKS))
    parser.add_argument("--save", action="store_true", help=f"save the results to {RESULTS.name}")
    add_options(parser)
    options = parser.parse_args(arguments)
    unknown = [name for name in options.names if name not in BENCHMARKS]
    if unknown:
        print(f"Unknown benchmark {unknown[0]!r}. Benchmarks: {', '.join(BENCHMARKS)}.", file=sys.stderr)
        return 2
    use_data(options.data)
    result = run(options.names or list(BENCHMARKS))
    if options.save:
        by_name = {line["name"]: line for line in (json.loads(RESULTS.read_text()) if RESULTS.exists() else [])}
        by_name |= {line["name"]: line for line in result}
        RESULTS.write_text(json.dumps(list(by_name.values()), ensure_ascii=False, indent=2) + "\n")
    show(result[0] if len(result) == 1 else result, options.output)
    return 0


if __name__ == "__main__":
    sys.exit(main())
