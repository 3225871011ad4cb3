"""Real, empty metric servers on free loopback ports, for the remote store."""

from __future__ import annotations

import shutil
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.ports import free_port
from tests.support.waiting import until


@dataclass(slots=True)
class MetricServer:
    """A running server. ``stop`` and ``start`` keep its port and its data."""

    command: tuple[str, ...]
    port: int
    ready: str
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        """Starts the server and waits until it responds."""
        self.process = subprocess.Popen(self.command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        until(self.answers, f"{self.command[0]} responds")

    def answers(self) -> bool:
        """Returns True if the server is ready. Raises AssertionError if it has exited."""
        assert self.process is not None
        assert self.process.poll() is None, f"{self.command[0]} has exited"
        try:
            self.get(self.ready)
        except (urllib.error.URLError, ConnectionError, TimeoutError):
            return False
        return True

    def stop(self) -> None:
        """Terminates the server and waits."""
        if self.process is not None:
            self.process.terminate()
            self.process.wait()

    def kill(self) -> None:
        """Kills the server, as in a crash."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def get(self, path: str) -> bytes:
        """Returns the response body of a path."""
        with urllib.request.urlopen(f"{self.url}{path}", timeout=30) as answer:
            return bytes(answer.read())

    def flush(self) -> None:
        """Makes accepted samples of VictoriaMetrics searchable at once."""
        self.get("/internal/force_flush")


def missing(programs: Sequence[str]) -> str | None:
    """Returns why a test cannot run here, None if it can."""
    lacking = [one for one in programs if shutil.which(one) is None]
    return f"missing: {', '.join(lacking)} (Debian packages of these names)" if lacking else None


@contextmanager
def victoria(folder: Path) -> Iterator[MetricServer]:
    """Runs a VictoriaMetrics without retention limit, with the recommended deduplication."""
    port = free_port()
    options = (
        f"-storageDataPath={folder}/victoria",
        f"-httpListenAddr=127.0.0.1:{port}",
        "-retentionPeriod=100y",
        "-dedup.minScrapeInterval=1ms",
    )
    with _running(MetricServer(("victoria-metrics", *options), port, "/health")) as running:
        yield running


@contextmanager
def prometheus(folder: Path, *, out_of_order: str = "10y", rules: Sequence[str] = ()) -> Iterator[MetricServer]:
    """Runs a Prometheus that accepts remote write, also of old samples, with rule files of the folder."""
    port = free_port()
    file = folder / "prometheus.yml"
    storage = f"storage: {{tsdb: {{out_of_order_time_window: {out_of_order}}}}}\n"
    file.write_text(f"{storage}rule_files: [{', '.join(rules)}]\n", encoding="utf-8")
    options = (
        f"--config.file={file}",
        f"--storage.tsdb.path={folder}/prometheus",
        "--storage.tsdb.retention.time=100y",
        f"--web.listen-address=127.0.0.1:{port}",
        "--web.enable-remote-write-receiver",
    )
    with _running(MetricServer(("prometheus", *options), port, "/-/ready")) as running:
        yield running


@contextmanager
def _running(server: MetricServer) -> Iterator[MetricServer]:
    server.start()
    try:
        yield server
    finally:
        server.stop()
