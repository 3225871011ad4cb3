"""Duration of a cycle on a remote store: 1,000 GPUs and 1,000 replicas by remote write to a real VictoriaMetrics.

Our time runs from batches to the last acknowledgement: merging, cumulating buckets, packing, sending, and the sample
that marks the cycle as complete. The peer receives the same samples by its own text import
(``/api/v1/import/prometheus``); its text is built before the clock starts, which favours it. Each has its own server
that already knows every series. The result includes the CPU seconds of this process and of the server.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import isnan
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.common import Result, main, quick, result
from benchmarks.fleet_values import fleet_day
from benchmarks.peer_victoria import decimals
from outrider.model import EntityKind, SampleBatch
from store.remote.metric_store import PrometheusMetricStore, Remote
from store.remote.names import OWNER, name_of
from tests.support import metric_servers
from tests.support.metric_servers import MetricServer

KINDS = (EntityKind.GPU, EntityKind.REPLICA)
CYCLES, WARM_UP = 12, 2
PATIENCE = timedelta(minutes=2)  # the first cycle registers 256,000 series
_TICKS = 100  # clock ticks per second in /proc/PID/stat
Cycles = Sequence[tuple[datetime, Sequence[SampleBatch]]]


def _cycles() -> Cycles:
    """Cycles of the simulated day, rounded to the decimals of pages, which affect compression on servers."""
    count = WARM_UP + 2 if quick() else CYCLES
    return [
        (at, [replace(batch, values=decimals(batch.values.astype(np.float32))) for batch in batches])
        for at, batches in fleet_day().cycles(count, KINDS)
    ]


@dataclass(slots=True)
class Timing:
    """Duration of the cycles, without the first ones."""

    server: MetricServer
    seconds: list[float] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    ours: float = 0.0
    theirs: float = 0.0

    @contextmanager
    def cycle(self, number: int) -> Iterator[list[int]]:
        """Times one cycle; the caller appends its number of values to the list."""
        counts: list[int] = []
        own, other, begun = time.process_time(), self._server_seconds(), time.perf_counter()
        yield counts
        if number >= WARM_UP:
            self.seconds.append(time.perf_counter() - begun)
            self.values += counts
            self.ours += time.process_time() - own
            self.theirs += self._server_seconds() - other

    def _server_seconds(self) -> float:
        assert self.server.process is not None
        fields = Path(f"/proc/{self.server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def speed(self) -> float:
        """Values/s of the median cycle."""
        return statistics.fmean(self.values) / statistics.median(self.seconds)


def _ours(server: MetricServer, cycles: Cycles, folder: Path) -> Timing:
    remote = Remote(f"{server.url}/api/v1/write", server.url, "bench", timeout=PATIENCE)
    store, timing = PrometheusMetricStore(remote, f"sqlite:///{folder}/names.db"), Timing(server)
    try:
        for number, (at, batches) in enumerate(cycles):
            with timing.cycle(number) as counts:
                counts.append(store.write(at, batches))
    finally:
        store.close()
    return timing


def _peer(server: MetricServer, cycles: Cycles, _: Path) -> Timing:
    timing = Timing(server)
    for number, (at, batches) in enumerate(cycles):
        text = "".join(_lines(at, batches)).encode()
        with timing.cycle(number) as counts:
            urllib.request.urlopen(f"{server.url}/api/v1/import/prometheus", data=text, timeout=120).close()
            counts.append(text.count(b"\n"))
    return timing


def _lines(at: datetime, batches: Sequence[SampleBatch]) -> Iterator[str]:
    """Yields the same series and labels as text; bucket increments stay uncumulated."""
    stamp = round(at.timestamp() * 1000)
    for batch in batches:
        names = [name_of(key) for key in batch.keys]
        own = [(name.metric, "".join(f'{label}="{text}",' for label, text in name.labels)) for name in names]
        for entity, row in zip(batch.entities, batch.values.tolist(), strict=True):
            labels = f'cluster="{entity.cluster}",kind="{entity.kind}",name="{entity.name}",{OWNER}="bench"'
            for (metric, more), value in zip(own, row, strict=True):
                if not isnan(value):
                    yield f"{metric}{{{more}{labels}}} {value!r} {stamp}\n"


def run() -> Result:
    """Returns values/s from batches to the server's last acknowledgement."""
    unit, peer = "values/s", "VictoriaMetrics, import of prepared text"
    reason = metric_servers.missing(("victoria-metrics",))
    if reason is not None:
        return result("store_remote", None, unit, None, None, peer, note=reason)
    cycles = _cycles()
    ours, theirs = (_on_a_server(work, cycles) for work in (_ours, _peer))
    timed = len(ours.seconds)
    return result(
        "store_remote",
        ours.speed,
        unit,
        None,
        None,
        peer,
        theirs.speed,
        ours.speed / theirs.speed,
        seconds_per_cycle=round(statistics.median(ours.seconds), 3),
        processor_seconds_per_cycle=round(ours.ours / timed, 3),
        server_processor_seconds_per_cycle=round(ours.theirs / timed, 3),
        peer_processor_seconds_per_cycle=round(theirs.theirs / timed, 3),
    )


def _on_a_server(work: Callable[[MetricServer, Cycles, Path], Timing], cycles: Cycles) -> Timing:
    with tempfile.TemporaryDirectory() as name, metric_servers.victoria(Path(name)) as server:
        return work(server, cycles, Path(name))


if __name__ == "__main__":
    main(run)
