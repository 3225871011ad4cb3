"""Time to apply a changed list of 10,000 and of 100,000 targets.

A list in Prometheus' file_sd format is rewritten with one additional target. The figure covers everything from reading
the file to a collector with the new targets. The peer only parses the same list with PyYAML, the first step of a simple
file_sd reader.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import tempfile
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import yaml

from benchmarks.common import Result, main, result
from collectors.discovery.manager import Discovery
from collectors.discovery.relabeling import RelabelRules
from collectors.discovery.static_file_http_dns import FileSource
from collectors.pipeline.scrape_manager import ScrapeManager

SIZES = {"discover_10k": (10_000, 0.5), "discover_100k": (100_000, 5.0)}  # targets, seconds allowed
TURNS = 5
AT = datetime(2026, 11, 21, tzinfo=UTC)


def listed(count: int) -> list[dict[str, Any]]:
    """Returns a file_sd list of ``count`` engines, one group per pod."""
    return [
        {
            "targets": [f"10.{n // 62_500}.{n // 250 % 250}.{n % 250}:8000"],
            "labels": {"pod": f"chat-{n}", "namespace": "serving", "service": f"svc-{n % 50}", "node": f"n{n // 8}"},
        }
        for n in range(count)
    ]


async def changed(count: int) -> float:
    """Returns the shortest time of a few changes, in seconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "list.json"
        groups = listed(count)
        discovery = Discovery([(FileSource("file", [str(path)]), RelabelRules(adapter="vllm"))], "bench")
        collector = ScrapeManager(())
        times = []
        for turn in range(TURNS + 1):
            groups.append({"targets": [f"extra-{turn}:8000"], "labels": {"pod": f"extra-{turn}"}})
            path.write_text(json.dumps(groups), encoding="utf-8")
            os.utime(path, (turn, turn))
            begun = time.perf_counter()
            known = await discovery.refresh(AT + turn * timedelta(minutes=1))
            collector.set_targets(known.targets, known.edges, known.labels)
            times.append(time.perf_counter() - begun)
            assert len(collector.targets) == count + turn + 1
        await discovery.close()
        return min(times[1:])


def by_yaml(count: int) -> float:
    """Returns the seconds that PyYAML needs to parse the list."""
    text = yaml.safe_dump(listed(count), sort_keys=False)
    begun = time.perf_counter()
    yaml.safe_load(text)
    return time.perf_counter() - begun


def run() -> list[Result]:
    """Returns the seconds for each list size."""
    results = []
    for name, (count, allowed) in SIZES.items():
        seconds = asyncio.run(changed(count))
        peer = by_yaml(count // 10) * 10
        results.append(result(name, seconds, "s", allowed, seconds <= allowed, "PyYAML", peer, peer / seconds))
    return results


if __name__ == "__main__":
    main(run)
