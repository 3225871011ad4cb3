"""Peer: a real VictoriaMetrics on disk, written by remote write and read by PromQL (Debian package)."""

from __future__ import annotations

import http.client
import json
import shutil
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import urlencode

import numpy as np
from numpy.typing import NDArray

from benchmarks.fleet_values import Hour
from benchmarks.remote_write import Series
from outrider.model import EntityKind, EntityRef, Floats, SignalKey
from tests.support.metric_servers import MetricServer

MISSING = "VictoriaMetrics is not installed here (Debian package victoria-metrics)."
_PROGRAM = "victoria-metrics"
_SAMPLES = 240
_CYCLE = 1


def available() -> bool:
    """False if the program is missing."""
    return shutil.which(_PROGRAM) is not None


class Victoria:
    """A private server on a free loopback port. Values reach its disk within 5 s after acceptance."""

    name = "VictoriaMetrics, remote write"

    def __init__(self, folder: Path) -> None:
        """Starts the server and waits until it responds."""
        self._folder = folder / "victoria"
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = int(free.getsockname()[1])
        options = (
            f"-storageDataPath={self._folder}",
            f"-httpListenAddr=127.0.0.1:{port}",
            "-retentionPeriod=100y",
            "-search.maxQueryDuration=10m",
            "-search.maxUniqueTimeseries=1000000",
        )
        self._server = MetricServer((_PROGRAM, *options), port, "/health")
        self._server.start()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
        self._series: dict[tuple[EntityKind, int], Series] = {}

    def _get(self, path: str) -> bytes:
        self._connection.request("GET", path)
        return self._answer()

    def _answer(self) -> bytes:
        answer = self._connection.getresponse()
        body = answer.read()
        assert answer.status in {200, 204}, body[:200]
        return body

    def _of(self, kind: EntityKind, keys: Sequence[SignalKey], entities: Sequence[EntityRef], samples: int) -> Series:
        if (kind, samples) not in self._series:
            labels = [
                {"__name__": key.name, "entity": entity.name} | ({} if key.bucket is None else {"le": str(key.bucket)})
                for key in keys
                for entity in entities
            ]
            self._series[kind, samples] = Series(labels, samples)
        return self._series[kind, samples]

    def requests(
        self, kind: EntityKind, keys: Sequence[SignalKey], entities: Sequence[EntityRef], at: float, values: Floats
    ) -> list[bytes]:
        """Returns one cycle of one kind as requests: ``values`` of shape (keys, entities)."""
        return list(self._of(kind, keys, entities, _CYCLE).requests(np.array([at]), decimals(values.reshape(-1, 1))))

    def post(self, requests: Sequence[bytes]) -> None:
        """Sends the requests and makes their samples searchable."""
        for body in requests:
            headers = {"Content-Encoding": "snappy", "Content-Type": "application/x-protobuf"}
            self._connection.request("POST", "/api/v1/write", body, headers)
            self._answer()
        self._get("/internal/force_flush")

    def load(self, hour: Hour) -> None:
        """Writes an hour."""
        series = self._of(hour.kind, hour.keys, hour.entities, _SAMPLES)
        values = decimals(hour.values.reshape(-1, hour.times.size))
        self.post(list(series.requests(hour.times, values)))

    def read(self, start: float, last: Sequence[SignalKey], summed: Sequence[SignalKey], minutes: int) -> Floats:
        """Returns a matrix (entities, minutes, keys) from ``start`` on: last values, and sums of the increases."""
        queries = [key.name for key in last] + [f"sum_over_time({key.name}[1m])" for key in summed]
        columns = []
        for query in queries:
            span = {"start": f"{start + 59:.0f}", "end": f"{start + 60 * minutes - 1:.0f}", "step": "60"}
            body = self._get("/api/v1/query_range?" + urlencode({"query": query, "nocache": "1", **span}))
            result = sorted(json.loads(body)["data"]["result"], key=lambda one: str(one["metric"]["entity"]))
            columns.append(np.array([[float(value) for _, value in one["values"]] for one in result]))
        return np.stack(columns, axis=2)

    def size(self) -> int:
        """Returns the bytes on disk of values and index after merging."""
        self._get("/internal/force_merge")
        time.sleep(1.0)
        for _ in range(600):  # merging runs in the background
            if b"vm_active_merges" not in self._busy():
                break
            time.sleep(1.0)
        self.close()
        parts = (self._folder / "data", self._folder / "indexdb")
        return sum(path.stat().st_size for part in parts for path in part.rglob("*") if path.is_file())

    def _busy(self) -> bytes:
        lines = self._get("/metrics").splitlines()
        return b"\n".join(line for line in lines if line.startswith(b"vm_active_merges") and not line.endswith(b" 0"))

    def close(self) -> None:
        """Stops the server, which flushes its data."""
        self._connection.close()
        self._server.stop()


def decimals(values: NDArray[np.float32]) -> Floats:
    """Rounds float32 to the shortest exact decimals, as on pages: VictoriaMetrics compresses decimals."""
    wide = values.astype(np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        digits = 6 - np.floor(np.log10(np.abs(wide)))
        scale = np.power(10.0, np.clip(np.where(np.isfinite(digits), digits, 0.0), -30, 30))
        result = np.rint(wide * scale) / scale
    return np.where(np.isfinite(result), result, wide)
