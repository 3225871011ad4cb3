"""A whole cycle on a store that holds a year, beside the same cycle on an empty one.

1,000 GPUs and 1,000 replicas as in ``benchmarks.cycle``; the store has 48 h of raw values, 30 days of ten
minutes and a year of hours of the same entities (``benchmarks.aged``), and may take 5 GB. Measured once
the first plan is made: the planner works in a thread of its own, and on an aged store it has much to
read; ``seconds_while_planning`` is the median of the cycles beside it.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.aged import aged, copied
from benchmarks.common import Result, main, result, tell
from benchmarks.cycle import START, Measured, measure
from benchmarks.engines import Engine, engines
from outrider import log
from tests.store.killing import size

TARGET_SECONDS, TARGET_BYTES = 4.0, 5e9
SAME = 1.15  # two runs on one empty store differ by so much


def _on(engine: Engine, year: Path | None) -> tuple[Measured, int]:
    """The cycles on an engine's store, filled with a year or empty, and its bytes before them."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        assert engine.url is not None
        if year is not None:
            copied(year, engine)
            tell(f"{engine.name}: {size(engine.url) / 1e9:.2f} GB of metrics")
        held = size(engine.url) if year is not None else 0
        return measure(folder, engine.url), held


def _lines(engine: Engine, empty: Measured, full: Measured, held: int) -> list[Result]:
    seconds, peer = statistics.median(full.seconds), statistics.median(empty.seconds)
    more = {
        "slowest": round(max(full.seconds), 3),
        "processor_seconds": round(statistics.median(full.worked), 3),
        "processor_seconds_empty": round(statistics.median(empty.worked), 3),
        "seconds_while_planning": round(statistics.median(full.planning), 3) if full.planning else None,
        "stages": full.stages.medians(),
        "stages_empty": empty.stages.medians(),
    }
    name = f"cycle_aged{engine.suffix}"
    holds = seconds <= TARGET_SECONDS and seconds <= SAME * peer
    bytes_name = f"store_of_a_year{engine.suffix}"
    return [
        result(name, seconds, "s", TARGET_SECONDS, holds, "on an empty store", peer, peer / seconds, **more),
        result(bytes_name, float(held), "bytes", TARGET_BYTES, held <= TARGET_BYTES),
    ]


def run() -> list[Result]:
    """Seconds of a cycle on a store of a year; ``holds`` asks for the same as on an empty one, too."""
    log.configure(level="error")
    year, lines = aged(START), []
    with tempfile.TemporaryDirectory() as name:
        first, second = Path(name) / "empty", Path(name) / "full"
        first.mkdir()
        second.mkdir()
        with engines(first) as found:
            empty = {engine.name: _on(engine, None)[0] for engine in found if engine.url}
        with engines(second) as found:
            for engine in found:
                if engine.url is None:
                    lines.append(engine.skipped("cycle_aged", "s", TARGET_SECONDS))
                    continue
                lines += _lines(engine, empty[engine.name], *_on(engine, year))
    return lines


if __name__ == "__main__":
    main(run)
