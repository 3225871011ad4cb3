"""Parse rate of a warm exposition page: a recorded vLLM page padded to 600 samples, one core.

Its numbers differ from page to page, as between scrapes. The peer is prometheus_client's text parser on the same
pages.
"""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prometheus_client.parser import text_string_to_metric_families

from benchmarks.common import Result, best_of, main, result
from benchmarks.fleet_pages import SAMPLES, filled
from collectors.exposition.parser import Parser

TARGET, TARGET_RATIO = 1.5e6, 40.0  # samples/s, and ratio to the peer
RECORDING = Path(__file__).resolve().parent.parent / "tests/recordings/c_ramp.metrics.jsonl.gz"
PAGES, TURNS, REPEATS = 100, 3, 7


def recorded() -> list[bytes]:
    """Returns the pages of one server, scrape by scrape."""
    with gzip.open(RECORDING, "rt", encoding="utf-8") as lines:
        texts = [text.encode() for line in lines if (text := json.loads(line).get("text"))]
    return [filled(text) for text in texts[-PAGES:]]


def run() -> list[Result]:
    """Returns samples/s of a warm page, with the ratio to prometheus_client."""
    pages = recorded()
    parser = Parser()
    counts = {parser.parse(page, source="one server").samples for page in pages}
    assert counts == {SAMPLES}, counts

    def ours() -> None:
        for _ in range(TURNS):
            for page in pages:
                parser.parse(page, source="one server")

    texts = [page.decode() for page in pages[:10]]

    def theirs() -> None:
        for text in texts:
            for _ in text_string_to_metric_families(text):
                pass

    speed = TURNS * len(pages) * SAMPLES / best_of(REPEATS, ours)
    peer = len(texts) * SAMPLES / best_of(3, theirs)
    ratio, unit, name = speed / peer, "samples/s", "prometheus_client"
    return [
        result("parse", speed, unit, TARGET, speed >= TARGET, name, peer, ratio),
        result("parse_ratio", ratio, "x", TARGET_RATIO, ratio >= TARGET_RATIO, name, 1.0, ratio),
    ]


if __name__ == "__main__":
    main(run)
