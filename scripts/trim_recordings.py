"""Writes the trimmed copies in tests/recordings/ from full recordings of a real vLLM server.

Usage: python scripts/trim_recordings.py FULL_FOLDER [OUT_FOLDER]

Lines that no adapter reads and that change all the time are dropped. Times, errors and engine probe responses stay.
``procs`` is ground truth about the processes, which detectors must not see, so it is dropped. The output is
deterministic.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import shutil
import sys
from pathlib import Path

KEPT = ("t", "text", "error", "dur", "health", "load")
SCRAPES = {
    "a_idle": 40,
    "b_steady": 40,
    "c_ramp": None,
    "f_prefix": 40,
    "g_sigkill": None,
    "i_hang": None,
    "l_sleep": None,
}
FLEETS = ("n_fleet_hang",)
# Client latencies, for replays through the engine model.
REQUESTS = ("c_ramp", "f_prefix")
REQUEST_COLUMNS = ("kind", "endpoint", "start", "ttft_s", "e2e_s", "prompt_tokens", "output_tokens", "status")
_DROPPED = re.compile(
    r"^(?:# HELP |(?:# TYPE )?(?:python_|vllm:kv_block_"
    r"|[a-zA-Z_:]*(?:_created|_size_bytes)(?:_sum|_count|_bucket)?[ {]))"
)


def trim_page(text: str) -> str:
    """Returns the page without the lines that no adapter reads."""
    return "".join(line for line in text.splitlines(keepends=True) if not _DROPPED.match(line))


def trim(source: Path, out: Path, scrapes: int | None) -> int:
    """Writes the trimmed copy of one recording and returns its size in bytes."""
    with gzip.open(source, "rt", encoding="utf-8") as lines:
        result = [json.loads(line) for line in lines][:scrapes]
    scrapes_kept = [{key: scrape[key] for key in KEPT if key in scrape} for scrape in result]
    for scrape in scrapes_kept:
        if "text" in scrape:
            scrape["text"] = trim_page(scrape["text"])
    return write(out, "".join(json.dumps(scrape, ensure_ascii=False) + "\n" for scrape in scrapes_kept))


def trim_requests(source: Path, out: Path) -> int:
    """Writes the columns of one request file that a replay needs and returns its size in bytes."""
    with source.open(newline="", encoding="utf-8") as rows:
        kept = [[row[column] for column in REQUEST_COLUMNS] for row in csv.DictReader(rows)]
    return write(out, "".join(",".join(row) + "\n" for row in [list(REQUEST_COLUMNS), *kept]))


def write(out: Path, text: str) -> int:
    """Writes a text with deterministic compression and returns its size in bytes."""
    buffer = io.BytesIO()
    with gzip.GzipFile(filename="", fileobj=buffer, mode="wb", compresslevel=9, mtime=0) as packed:
        packed.write(text.encode())
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_bytes(buffer.getvalue())
    return out.stat().st_size


def main() -> int:
    """Trims all recordings."""
    if len(sys.argv) < 2:
        print("usage: python scripts/trim_recordings.py FULL_FOLDER [OUT_FOLDER]", file=sys.stderr)
        return 2
    full = Path(sys.argv[1])
    out = Path(sys.argv[2]) if len(sys.argv) > 2 else Path("tests/recordings")
    total = 0
    for name, scrapes in SCRAPES.items():
        file = f"{name}.metrics.jsonl.gz"
        total += trim(full / file, out / file, scrapes)
    for name in REQUESTS:
        total += trim_requests(full / f"{name}.requests.csv", out / f"{name}.requests.csv.gz")
    for fleet in FLEETS:
        for source in sorted((full / fleet).glob("*.metrics.jsonl.gz")):
            total += trim(source, out / fleet / source.name, None)
        shutil.copyfile(full / fleet / "targets.yaml", out / fleet / "targets.yaml")
        (out / fleet / "targets.yaml").chmod(0o644)
    print(f"{total} bytes in {out}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
