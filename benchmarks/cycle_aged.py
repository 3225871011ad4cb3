"""A full cycle on a store with a year of data, compared with the same cycle on an empty store.

The fleet has 1,000 GPUs and 1,000 replicas, as in ``benchmarks.cycle``. The store has 48 h of raw values, 30 days of
ten-minute values and a year of hourly values (``benchmarks.aged``); the target for its size is 5 GB. Measuring starts
after the first plan, which runs in its own thread and reads much from a full store. ``seconds_while_planning`` is the
median of the cycles during that plan.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path

import sqlalchemy as sa

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.aged import aged, copy_into
from benchmarks.common import Result, main, print_progress, result
from benchmarks.cycle import START, CycleTimings, measure
from benchmarks.engines import Engine, engines
from outrider import log
from store.factory import urls_of
from store.schema import metadata
from store.sql.database import Database
from tests.store.killing import size

TARGET_SECONDS, TARGET_BYTES = 4.0, 5e9
SAME = 1.15  # ratio between two runs on the same empty store


def _tiers(engine: Engine) -> dict[str, float]:
    """Returns the payload gigabytes of each tier, without database overhead, indices and wide tables."""
    assert engine.url is not None
    database, table = Database(urls_of(engine.url)[1], "metrics"), metadata.block
    try:
        with database.reading() as connection:
            query = sa.select(table.c.tier, sa.func.sum(sa.func.length(table.c.payload))).group_by(table.c.tier)
            return {tier: round(int(size) / 1e9, 3) for tier, size in connection.execute(query)}
    finally:
        database.close()


@dataclass(frozen=True, slots=True)
class _StoreSize:
    """Size of a store before the cycles: total bytes, gigabytes of the payloads by tier."""

    all: int = 0
    tiers: dict[str, float] = field(default_factory=dict)


def _on(engine: Engine, year: Path | None) -> tuple[CycleTimings, _StoreSize]:
    """Measures the cycles on an engine's store, filled with a year of data or empty."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert engine.url is not None
        store_size = _StoreSize()
        if year is not None:
            copy_into(year, engine)
            store_size = _StoreSize(size(engine.url), _tiers(engine))
            print_progress(f"{engine.name}: {store_size.all / 1e9:.2f} GB of metrics, payloads {store_size.tiers}")
        return measure(folder, engine.url), store_size


def _lines(engine: Engine, empty: Sequence[CycleTimings], full: CycleTimings, store_size: _StoreSize) -> list[Result]:
    seconds, peer = statistics.median(full.seconds), statistics.median(chain(*(one.seconds for one in empty)))
    more = {
        "slowest": round(max(full.seconds), 3),
        "processor_seconds": round(statistics.median(full.worked), 3),
        "processor_seconds_empty": round(statistics.median(chain(*(one.worked for one in empty))), 3),
        "seconds_while_planning": round(statistics.median(full.planning), 3) if full.planning else None,
        "stages": full.stages.medians(),
        "stages_empty": empty[-1].stages.medians(),
    }
    name = f"cycle_aged{engine.suffix}"
    holds = seconds <= TARGET_SECONDS and seconds <= SAME * peer
    bytes_name = f"store_of_a_year{engine.suffix}"
    return [
        result(name, seconds, "s", TARGET_SECONDS, holds, "on an empty store", peer, peer / seconds, **more),
        result(
            bytes_name, float(store_size.all), "bytes", TARGET_BYTES, store_size.all <= TARGET_BYTES,
            payload_gigabytes_by_tier=store_size.tiers,
        ),
    ]  # fmt: skip


def _empty(folder: Path) -> dict[str, CycleTimings]:
    """Measures the cycles on the empty store of each available engine."""
    folder.mkdir()
    with engines(folder) as results:
        return {engine.name: _on(engine, None)[0] for engine in results if engine.url}


def run() -> list[Result]:
    """Returns the seconds of a cycle on a store with a year of data; ``holds`` also requires the speed of an empty one.

    The empty store is measured before and after, because the speed of a shared host varies by the minute.
    """
    log.configure(level="error")
    year, lines = aged(START), []
    full: dict[str, tuple[CycleTimings, _StoreSize]] = {}
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        before = _empty(folder / "before")
        (folder / "full").mkdir()
        with engines(folder / "full") as results:
            for engine in results:
                if engine.url is not None:
                    full[engine.name] = _on(engine, year)
        after = _empty(folder / "after")
        for engine in results:
            if engine.name not in full:
                lines.append(engine.skipped("cycle_aged", "s", TARGET_SECONDS))
                continue
            lines += _lines(engine, (before[engine.name], after[engine.name]), *full[engine.name])
    return lines


if __name__ == "__main__":
    main(run)
