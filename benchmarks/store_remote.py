"""How fast a cycle is on a server: 1,000 GPUs and 1,000 replicas through remote write to a real VictoriaMetrics.

Ours is the whole way from batches to the last acknowledgement: merging, cumulating buckets, packing, sending, and the
sample that makes the cycle count. The peer takes the same samples by its own text import
(``/api/v1/import/prometheus``); its text is made before the clock starts, which favours it. Each has a server of its
own that has seen every series before. Processor seconds of this process and of the server stand beside the figures.
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
PATIENCE = timedelta(minutes=2)  # the first cycle makes the server know 256,000 series
_TICKS = 100  # of /proc/PID/stat, a second
Cycles = Sequence[tuple[datetime, Sequence[SampleBatch]]]


def _cycles() -> Cycles:
    """Cycles of the simulated day, with the decimals that pages have: what servers pack depends on them."""
    count = WARM_UP + 2 if quick() else CYCLES
    return [
        (at, [replace(batch, values=decimals(batch.values.astype(np.float32))) for batch in batches])
        for at, batches in fleet_day().cycles(count, KINDS)
    ]


@dataclass(slots=True)
class Timing:
    """What the cycles took, the first ones left out."""

    server: MetricServer
    seconds: list[float] = field(default_factory=list)
    values: list[int] = field(default_factory=list)
    ours: float = 0.0
    theirs: float = 0.0

    @contextmanager
    def cycle(self, number: int) -> Iterator[list[int]]:
        """Time one cycle; its number of values is put into the list."""
        told: list[int] = []
        own, other, begun = time.process_time(), self._server_seconds(), time.perf_counter()
        yield told
        if number >= WARM_UP:
            self.seconds.append(time.perf_counter() - begun)
            self.values += told
            self.ours += time.process_time() - own
            self.theirs += self._server_seconds() - other

    def _server_seconds(self) -> float:
        assert self.server.process is not None
        fields = Path(f"/proc/{self.server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    @property
    def speed(self) -> float:
        """Values a second of the median cycle."""
        return statistics.fmean(self.values) / statistics.median(self.seconds)


def _ours(server: MetricServer, cycles: Cycles, folder: Path) -> Timing:
    remote = Remote(f"{server.url}/api/v1/write", server.url, "bench", timeout=PATIENCE)
    store, timing = PrometheusMetricStore(remote, f"sqlite:///{folder}/names.db"), Timing(server)
    try:
        for number, (at, batches) in enumerate(cycles):
            with timing.cycle(number) as told:
                told.append(store.write(at, batches))
    finally:
        store.close()
    return timing


def _peer(server: MetricServer, cycles: Cycles, _: Path) -> Timing:
    timing = Timing(server)
    for number, (at, batches) in enumerate(cycles):
        text = "".join(_lines(at, batches)).encode()
        with timing.cycle(number) as told:
            urllib.request.urlopen(f"{server.url}/api/v1/import/prometheus", data=text, timeout=120).close()
            told.append(text.count(b"\n"))
    return timing


def _lines(at: datetime, batches: Sequence[SampleBatch]) -> Iterator[str]:
    """The same series with the same labels as text; increments of buckets as they are."""
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
    """Values a second from batches to the server's last acknowledgement."""
    unit, peer = "values/s", "VictoriaMetrics, import of text that was made before"
    why = metric_servers.missing(("victoria-metrics",))
    if why is not None:
        return result("store_remote", None, unit, None, None, peer, note=why)
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
