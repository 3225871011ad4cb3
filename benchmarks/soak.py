"""Soak test: a writer is killed 200 times on each database, an engine 100 times while it repairs, and while it pages.

``make soak`` (``ARGS="--kills 20 --engine sqlite --seed 3"``). Between two kills the writer simulates hours: cycles,
compaction, roll-ups, retention. Every other kill hits maintenance. On PostgreSQL every tenth kill hits the server,
which recovers from its WAL. After each kill the store must open without errors and contain every acknowledged cycle,
no partial cycle, and unchanged values of every hour since the start (``tests/store/killing.py``). A repair that was
killed must change the cluster exactly as an undisturbed one does (``tests/service/engine/killing.py``). A night on call
must lose no notification and repeat at most one of each channel a kill; on PostgreSQL its stand-by is killed as well
(``tests/service/engine/escalation_killing.py``). Results are saved in ``soak.json``.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from datetime import date
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import print_progress
from outrider.clock import SystemClock
from tests.service.engine import escalation_killing
from tests.service.engine import killing as repair_killing
from tests.store import killing
from tests.store.cycle_writer import AN_HOUR
from tests.support import postgres

RESULTS = Path(__file__).with_name("soak.json")
DATABASES = ("sqlite", "postgresql")
REPAIRS, ESCALATIONS, FAILOVERS = "repairs", "escalations", "failovers"
ENGINES = (*DATABASES, REPAIRS, ESCALATIONS, FAILOVERS)
KILLS, REPAIR_KILLS, SERVER_EVERY = 200, 100, 10
SoakResult = dict[str, Any]


def soak(engine: str, url: str, kills: int, seed: int, crash: Callable[[], None] | None = None) -> SoakResult:
    """Kills the writer ``kills`` times on one store. ``crash`` kills and restarts the server.

    The first failure stops the run: ``broken`` is the error and the number of the kill, None without a failure.
    """
    rng, begun, cycles = random.Random(seed), time.monotonic(), 0
    in_upkeep, crashes, sizes, done = 0, 0, [], 0
    broken: str | None = None
    try:
        for number in range(1, kills + 1):
            left = killing.kill(url, rng, cycles + 1)
            if crash is not None and number % SERVER_EVERY == 0:
                crash()
                left = killing.KillResult(killing.check(url, left.acknowledged), left.acknowledged, left.in_maintenance)
                crashes += 1
            assert left.cycles >= cycles, f"{cycles} cycles before the kill, {left.cycles} after it"
            done, cycles, in_upkeep = number, left.cycles, in_upkeep + left.in_maintenance
            if number % max(1, kills // 4) == 0:
                sizes.append(killing.size(url))
                print_progress(f"{engine}: {number} kills, {cycles} cycles, {sizes[-1] / 1e6:.1f} MB")
    except AssertionError as error:
        broken = f"after kill {done + 1}: {str(error).splitlines()[0]}"
    return {
        "name": "kill_9", "engine": engine, "seed": seed, "date": _today().isoformat(),
        "kills": done, "in_upkeep": in_upkeep, "server_crashes": crashes, "cycles": cycles,
        "hours_of_the_writer": cycles // AN_HOUR, "megabytes_at_each_quarter": [round(size / 1e6, 1) for size in sizes],
        "seconds": round(time.monotonic() - begun), "broken": broken,
    }  # fmt: skip


def soak_repairs(kills: int, seed: int) -> SoakResult:
    """Kills an engine at random times while it repairs faults."""
    begun, repairs, done = time.monotonic(), 0, 0
    broken: str | None = None
    try:
        repairs, done = repair_killing.kill_at_random(kills, seed)
    except AssertionError as error:
        broken = str(error).splitlines()[0]
    return {
        "name": "kill_9", "engine": REPAIRS, "seed": seed, "date": _today().isoformat(), "kills": done,
        "repairs": repairs, "seconds": round(time.monotonic() - begun), "broken": broken,
    }  # fmt: skip


def soak_nights(engine: str, kills: int, seed: int) -> SoakResult:
    """Kills an engine at random times during nights on call, with ``FAILOVERS`` it or its stand-by."""
    begun, nights, done = time.monotonic(), 0, 0
    broken: str | None = None
    try:
        if engine == FAILOVERS:
            with postgres.server() as server:
                nights, done = escalation_killing.kill_engine_or_standby(kills, seed, server.database)
        else:
            nights, done = escalation_killing.kill_at_random(kills, seed)
    except AssertionError as error:
        broken = str(error).splitlines()[0]
    return {
        "name": "kill_9", "engine": engine, "seed": seed, "date": _today().isoformat(), "kills": done,
        "nights": nights, "seconds": round(time.monotonic() - begun), "broken": broken,
    }  # fmt: skip


def run(engine: str, kills: int, seed: int) -> SoakResult:
    """Runs on an empty engine. Raises MissingError if PostgreSQL is not installed."""
    if engine == REPAIRS:
        return soak_repairs(min(kills, REPAIR_KILLS), seed)
    if engine in (ESCALATIONS, FAILOVERS):
        return soak_nights(engine, min(kills, REPAIR_KILLS), seed)
    if engine == "sqlite":
        with tempfile.TemporaryDirectory(prefix="outrider-soak-") as folder:
            return soak(engine, f"sqlite:///{folder}/store.db", kills, seed)
    with postgres.server() as server, server.database() as url:

        def crash() -> None:
            server.stop("immediate")
            server.start()

        return soak(engine, url, kills, seed, crash)


def save(runs: Sequence[SoakResult]) -> None:
    """Replaces the engine's previous results."""
    lines = {
        (line["name"], line["engine"]): line for line in (json.loads(RESULTS.read_text()) if RESULTS.exists() else [])
    }
    lines |= {(line["name"], line["engine"]): line for line in runs}
    RESULTS.write_text(json.dumps(list(lines.values()), indent=2) + "\n")


def _today() -> date:
    return SystemClock().now().date()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exits 1 after data loss or another failure, 3 if an engine is missing."""
    parser = argparse.ArgumentParser(description="Kill a writer repeatedly and check its store after each kill.")
    parser.add_argument("--engine", choices=ENGINES, action="append", help="default: all")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=int(_today().strftime("%Y%m%d")), help="default: the current date")
    options = parser.parse_args(arguments)
    result: list[SoakResult] = []
    for engine in options.engine or ENGINES:
        try:
            result.append(run(engine, options.kills, options.seed))
        except postgres.MissingError as error:
            print(f"soak: {error}", file=sys.stderr)
            return 3
        print(json.dumps(result[-1]))
    if options.kills >= KILLS:
        save(result)
    return int(any(line["broken"] for line in result))


if __name__ == "__main__":
    sys.exit(main())
