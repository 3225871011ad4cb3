"""A simulated fleet's pages, scrape by scrape, and real servers that contain them as if scraped.

Prometheus gets them as blocks of its database, VictoriaMetrics through its import. Every sample has the time of its
scrape, or the timestamp of its line.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from math import isnan
from pathlib import Path

from collectors.exposition.parser import Parser, Series
from collectors.mapping.target import Target, targets_of
from collectors.scrape.result import Scrape
from outrider.model import EntityKind
from simulator.exporters.targets import Pages, targets
from simulator.fleet import Fleet
from simulator.spec.fleets import default_spec
from tests.support.ports import free_port
from tests.support.waiting import until

STEP = timedelta(seconds=15)
START = datetime(2026, 3, 4, 12, tzinfo=UTC)
TARGET_LABELS = ("node", "pod", "service", "gpu_type", "model", "version")
_SECONDS = 0.003


@dataclass(frozen=True, slots=True)
class RecordedScrapes:
    """All scrapes in time order, each with a body."""

    scrapes: tuple[Scrape, ...]

    @property
    def instants(self) -> list[datetime]:
        """Returns the times of the cycles."""
        return sorted({scrape.at for scrape in self.scrapes})

    def round(self, at: datetime) -> list[Scrape]:
        """Returns the scrapes of one cycle."""
        return [scrape for scrape in self.scrapes if scrape.at == at]


def kept_fleet(rounds: int) -> RecordedScrapes:
    """Records some minutes of a small fleet with every exporter, under load."""
    spec = default_spec()
    services = tuple(replace(one, replicas=2, ceiling=3) for one in spec.services)
    fleet = Fleet(replace(spec, services=services), seed=5, start=START)
    pages, scrapes = Pages(fleet), list[Scrape]()
    for _ in range(rounds):
        listed = targets(fleet)
        documents = [one.as_config("http://fleet.invalid/metrics") for one in listed]
        known = {one.name: one for one in targets_of(fleet.spec.cluster, documents)}
        for simulated in listed:
            body = pages.answer(simulated).body
            if body is not None:
                scrapes.append(Scrape(known[simulated.name], fleet.now, body, None, _SECONDS))
        fleet.step(STEP)
    return RecordedScrapes(tuple(scrapes))


def lines(kept: RecordedScrapes) -> Iterator[tuple[str, float, float]]:
    """Yields (series, value, unix seconds) as stored by Prometheus, including its own series."""
    parser = Parser()
    for scrape in kept.scrapes:
        at, own = scrape.at.timestamp(), labels_of(scrape.target)
        assert scrape.body is not None
        page = parser.parse(scrape.body, source=scrape.target.name)
        for name, value in (
            ("up", 1.0),
            ("scrape_duration_seconds", _SECONDS),
            ("scrape_samples_scraped", float(page.samples)),
        ):
            yield _written(Series(name, {}), own), value, at
        for series, value, stamp in zip(page.series, page.values, page.timestamps, strict=True):
            yield _written(series, own), float(value), at if isnan(stamp) else float(stamp)


def labels_of(target: Target) -> dict[str, str]:
    """Returns the labels that Prometheus adds to each series of a target."""
    known = {name: target.labels[name] for name in TARGET_LABELS if target.labels.get(name)}
    entity = target.entity
    if entity.namespace:
        known["namespace"] = entity.namespace
    if entity.kind is EntityKind.SERVICE:
        known["service"] = entity.name
    return {"job": target.adapter, "instance": target.name, **known}


def _written(series: Series, own: dict[str, str]) -> str:
    labels = {f"exported_{name}" if name in own else name: value for name, value in series.labels.items()} | own
    inside = ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items())
    return f"{series.name}{{{inside}}}"


def _escaped(text: str) -> str:
    return re.sub(r'(["\\])', r"\\\1", text).replace("\n", "\\n")


@contextmanager
def prometheus(folder: Path, kept: RecordedScrapes) -> Iterator[str]:
    """Runs a Prometheus with these pages; yields its URL."""
    text = "".join(f"{series} {value!r} {at:.3f}\n" for series, value, at in lines(kept))
    (folder / "all.txt").write_text(text + "# EOF\n", encoding="utf-8")
    data = str(folder / "data")
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", str(folder / "all.txt"), data]
    subprocess.run(command, check=True, capture_output=True)
    (folder / "prometheus.yml").write_text("{}", encoding="utf-8")
    port = free_port()
    options = [
        f"--config.file={folder}/prometheus.yml",
        f"--storage.tsdb.path={data}",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
    ]
    with _running(["prometheus", *options], f"http://127.0.0.1:{port}/-/ready"):
        yield f"http://127.0.0.1:{port}"


@contextmanager
def victoria(folder: Path, kept: RecordedScrapes) -> Iterator[str]:
    """Runs a VictoriaMetrics with these pages; yields the URL of its Prometheus API."""
    port = free_port()
    options = [
        f"-storageDataPath={folder}/victoria",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=100y",
        "-search.maxStalenessInterval=5m",
        "-maxLabelsPerTimeseries=100",  # vllm:cache_config_info has more than the default of 30
    ]
    url = f"http://127.0.0.1:{port}"
    with _running(["victoria-metrics", *options], f"{url}/health"):
        text = "".join(f"{series} {value!r} {round(at * 1000)}\n" for series, value, at in lines(kept))
        urllib.request.urlopen(f"{url}/api/v1/import/prometheus", data=text.encode(), timeout=60).close()
        urllib.request.urlopen(f"{url}/internal/force_flush", timeout=60).close()
        yield url


def missing(programs: Sequence[str]) -> str | None:
    """Returns why a test cannot run here, None if it can."""
    lacking = [one for one in programs if shutil.which(one) is None]
    return f"missing: {', '.join(lacking)} (Debian packages of these names)" if lacking else None


@contextmanager
def _running(command: list[str], ready: str) -> Iterator[None]:
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        until(lambda: _responds(ready, process), f"{command[0]} responds")
        yield
    finally:
        process.terminate()
        process.wait()


def _responds(url: str, process: subprocess.Popen[bytes]) -> bool:
    """Returns True if a server responds. Raises AssertionError if it has exited."""
    assert process.poll() is None, f"the server of {url} has exited"
    try:
        urllib.request.urlopen(url, timeout=1).close()
    except (urllib.error.URLError, ConnectionError, TimeoutError):
        return False
    return True
