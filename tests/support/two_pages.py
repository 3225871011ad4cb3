"""Two consecutive pages of a system from one file, and a Prometheus that has scraped them.

A line of ``tests/collectors/pages/<adapter>.txt`` is ``series before after``; a histogram is one line
``series | bounds | counts before | counts after | sum before, sum after``, counts not cumulated.
"""

from __future__ import annotations

import json
import math
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.support.waiting import until

INTERVAL_SECONDS = 15
FIRST_UNIX = 1_772_366_400  # 2026-03-01T12:00:00Z
APART_SECONDS = 3600  # between two systems, so that none sees the other's samples


def pages(path: Path) -> tuple[str, str]:
    """Returns the page before and the page after."""
    before, after = [], []
    for line in path.read_text(encoding="utf-8").splitlines():
        if line.startswith("#"):
            before.append(line)
            after.append(line)
        elif "|" in line:
            series, bounds, counts, later, sums = (part.strip() for part in line.rsplit("|", 4))
            first, second = sums.split()
            before += _histogram(series, bounds.split(), counts.split(), first)
            after += _histogram(series, bounds.split(), later.split(), second)
        elif line:
            series, first, second = line.rsplit(" ", 2)
            before.append(f"{series} {first}")
            after.append(f"{series} {second}")
    return "\n".join(before) + "\n", "\n".join(after) + "\n"


def _histogram(series: str, bounds: Sequence[str], counts: Sequence[str], total: str) -> Iterator[str]:
    name, _, labels = series.rstrip("}").partition("{")
    more = f"{labels}," if labels else ""
    counted = 0.0
    for bound, count in zip((*bounds, "+Inf"), counts, strict=True):
        counted += float(count)
        yield f'{name}_bucket{{{more}le="{bound}"}} {counted:g}'
    end = f"{{{labels}}}" if labels else ""
    yield f"{name}_sum{end} {total}"
    yield f"{name}_count{end} {counted:g}"


def stamped(page: str, at: float) -> str:
    """Returns the page with a timestamp on each line, as some exporters do."""
    lines = page.splitlines()
    return "".join(f"{line}\n" if line.startswith("#") else f"{line} {at * 1000:.0f}\n" for line in lines)


class SystemsPrometheus:
    """A running Prometheus with the pages of several systems, each at its own time."""

    def __init__(self, url: str, systems: Sequence[str]) -> None:
        self._url = url
        self._systems = tuple(systems)

    def after(self, system: str) -> int:
        """Returns the time of the second scrape of a system, unix seconds."""
        return FIRST_UNIX + self._systems.index(system) * APART_SECONDS + INTERVAL_SECONDS

    def vector(self, system: str, expression: str, *, before: bool = False) -> dict[tuple[tuple[str, str], ...], float]:
        """Runs an instant query at the second scrape, or the first: labels -> value, without NaN."""
        at = self.after(system) - (INTERVAL_SECONDS if before else 0)
        body = urllib.parse.urlencode({"query": expression, "time": at}).encode()
        try:
            with urllib.request.urlopen(f"{self._url}/api/v1/query", data=body, timeout=10) as answer:
                result = json.load(answer)["data"]["result"]
        except urllib.error.HTTPError as error:
            raise AssertionError(f"{expression}: {error.read().decode()}") from error
        values = {tuple(sorted(one["metric"].items())): float(one["value"][1]) for one in result}
        return {labels: value for labels, value in values.items() if not math.isnan(value)}

    def values(self, system: str, expression: str) -> list[float]:
        """Returns the values at the second scrape, sorted."""
        return sorted(self.vector(system, expression).values())


@contextmanager
def prometheus_with(folder: Path, systems: dict[str, Path]) -> Iterator[SystemsPrometheus]:
    """Writes the pages into a Prometheus database and serves it on a free port."""
    text = []
    for number, path in enumerate(systems.values()):
        for page, at in zip(pages(path), (0, INTERVAL_SECONDS), strict=True):
            stamp = FIRST_UNIX + number * APART_SECONDS + at
            text += [f"{line} {stamp}" for line in page.splitlines() if not line.startswith("#")]
    (folder / "all.txt").write_text("\n".join(text) + "\n# EOF\n", encoding="utf-8")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "all.txt"), str(folder / "data")]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "prometheus.yml").write_text("{}", encoding="utf-8")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen(
        [
            "prometheus",
            f"--config.file={folder}/prometheus.yml",
            f"--storage.tsdb.path={folder}/data",
            "--storage.tsdb.retention.time=100y",
            f"--web.listen-address=127.0.0.1:{port}",
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        url = f"http://127.0.0.1:{port}"
        until(lambda: _is_ready(url, process), "Prometheus is ready")
        yield SystemsPrometheus(url, tuple(systems))
    finally:
        process.terminate()
        process.wait()


def _is_ready(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Returns True if a Prometheus is ready. Raises AssertionError if it has exited."""
    assert process.poll() is None, f"Prometheus exited with {process.returncode}"
    try:
        with urllib.request.urlopen(f"{url}/-/ready", timeout=5):
            return True
    except OSError:
        return False
