"""State behind the ingest endpoints: limits, routing, buffer, own counters."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence

from prometheus_client import CollectorRegistry, Counter
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from collectors.receive import block as receive_block
from collectors.receive import kpi as receive_kpi
from collectors.receive.kpi import Kpi
from collectors.receive.protocol import (
    DecodedRequest,
    DropReason,
    IngestProtocol,
    ReceiveError,
    RejectionReason,
    Source,
    keep_times,
    too_large,
)
from collectors.receive.routing import AdapterRouter, RoutedSeries
from outrider import log
from outrider.clock import Clock
from outrider.records.ingest_buffer import IngestBuffer, PushedBlock
from outrider.text.i18n import fill
from service.api.ingest.allowance import SenderAllowances
from service.config.api_settings import IngestSettings

_log = log.get("receive")
RETRY_AFTER_SECONDS = 15
_MOST_LOGGED = 1_000
_MOST_KPIS = 100_000
UNUSED = (DropReason.NO_ADAPTER, DropReason.UNNAMED, DropReason.UNSUPPORTED, DropReason.FUTURE)
"""Reasons reported to the sender; samples of other reasons are dropped on purpose."""


class IngestEndpoints:
    """Writes decoded requests to the ingest buffer. Thread-safe."""

    def __init__(
        self, settings: IngestSettings, spool: IngestBuffer, clock: Clock, registry: CollectorRegistry
    ) -> None:
        """``registry`` receives the counters of accepted and dropped samples."""
        self.settings = settings
        self._spool = spool
        self._clock = clock
        self._lock = threading.Lock()
        self._matcher = AdapterRouter(settings.rules)
        self._allowances = SenderAllowances(clock, settings.samples_per_minute)
        self._logged: set[tuple[DropReason, str]] = set()
        self.newest_kpis: OrderedDict[tuple[str, str], float] = OrderedDict()
        self._requests = Counter(
            "outrider_received_requests", "Requests to the ingest endpoints.", ["door", "outcome"], registry=registry
        )
        self._samples = Counter("outrider_received_samples", "Accepted samples.", ["door"], registry=registry)
        self._left_out = Counter(
            "outrider_received_left_out_samples",
            "Samples dropped by the ingest endpoints, by reason.",
            ["door", "reason"],
            registry=registry,
        )

    def take(self, decoded: DecodedRequest, sender: str) -> int:
        """Buffers the samples that an adapter reads; returns their number. Raises ReceiveError, StoreError."""
        total = decoded.samples + decoded.histograms
        if total > self.settings.samples_per_request:
            raise ReceiveError(
                f"the request holds {total} samples, more than {self.settings.samples_per_request}",
                reason=RejectionReason.TOO_LARGE,
                hint="send smaller batches, or raise receive.samples_per_request",
            )
        keep_times(decoded, round(self._clock.now().timestamp() * 1000))
        with self._lock:
            assigned = self._matcher.assign(decoded)
        kept = sum(len(series.stream.stamps) for series in assigned)
        if assigned:
            self._check_rate(sender, kept)
            self._put(decoded.protocol, sender, kept, self._encode(decoded, assigned))
        self._count(decoded, kept)
        return kept

    def take_kpis(self, kpis: Sequence[Kpi], sender: str) -> None:
        """Buffers KPIs. Raises ReceiveError, StoreError."""
        self._check_rate(sender, len(kpis))
        self._put(IngestProtocol.KPI, sender, len(kpis), receive_kpi.encode(kpis))
        self._samples.labels(IngestProtocol.KPI.value).inc(len(kpis))
        with self._lock:
            for kpi in kpis:
                key = kpi.service, kpi.name
                if kpi.at is not None:
                    self.newest_kpis[key] = max(kpi.at, self.newest_kpis.pop(key, -math.inf))
            while len(self.newest_kpis) > _MOST_KPIS:
                self.newest_kpis.popitem(last=False)

    def answered(self, protocol: IngestProtocol, outcome: str) -> None:
        """Counts a request by its outcome."""
        self._requests.labels(protocol.value, outcome).inc()

    def refuse_kpis(self, count: int) -> None:
        """Counts rejected KPI entries."""
        self._left_out.labels(IngestProtocol.KPI.value, "refused").inc(count)

    def _encode(self, decoded: DecodedRequest, assigned: Sequence[RoutedSeries]) -> bytes:
        sources: set[Source] = {source.stream.source for source in assigned}
        return receive_block.encode(
            assigned, {source: decoded.about[source] for source in sources if source in decoded.about}
        )

    def _put(self, protocol: IngestProtocol, sender: str, samples: int, payload: bytes) -> None:
        block = PushedBlock(protocol.value, sender, self._clock.now(), samples, payload)
        if len(payload) > self.settings.buffer_bytes:
            raise too_large(self.settings.buffer_bytes)
        if not self._spool.put(block, self.settings.buffer_bytes):
            raise ReceiveError(
                "the buffer is full: the engine is too slow or not running",
                reason=RejectionReason.FULL,
                hint="see outrider_received_waiting_bytes; receive.buffer_limit_bytes bounds it",
            )

    def _check_rate(self, sender: str, samples: int) -> None:
        """Raises ReceiveError if the sender exceeds its rate."""
        if self._allowances.take(sender, samples):
            raise ReceiveError(
                f"{sender} sends more than {self.settings.samples_per_minute} samples a minute",
                reason=RejectionReason.TOO_FAST,
                hint="send less, or raise receive.samples_per_minute",
            )

    def _count(self, decoded: DecodedRequest, kept: int) -> None:
        self._samples.labels(decoded.protocol.value).inc(kept)
        for reason, count in decoded.left_out.items():
            self._left_out.labels(decoded.protocol.value, reason.value).inc(count)
        if any(decoded.left_out[reason] for reason in UNUSED):
            self._log_unread(decoded)

    def _log_unread(self, decoded: DecodedRequest) -> None:
        """Logs each unread metric once, one line per request."""
        with self._lock:
            fresh = [name for name in decoded.unread if (DropReason.NO_ADAPTER, name) not in self._logged]
            self._logged.update(
                (DropReason.NO_ADAPTER, name) for name in fresh[: max(0, _MOST_LOGGED - len(self._logged))]
            )
            at_limit = len(self._logged) >= _MOST_LOGGED
        if fresh and not at_limit:
            shown = ", ".join(sorted(fresh)[:10])
            _log.warning("pushed_metrics_unread", protocol=decoded.protocol.value, metrics=len(fresh), such_as=shown)


def unused(decoded: DecodedRequest) -> tuple[int, str]:
    """Number of samples that no adapter reads, and a sentence about them; (0, "") if there are none."""
    count = sum(decoded.left_out[reason] for reason in UNUSED)
    if not count:
        return 0, ""
    names = ", ".join(sorted(decoded.unread)[:5])
    text = "{n} [sample|samples] of {metrics} [metric|metrics] cannot be used here, such as {names}"
    message = fill(text, n=count, metrics=len(decoded.unread), names=names)
    if decoded.left_out[DropReason.FUTURE]:
        return count, f"{message}; some have timestamps in the future; check the sender's clock"
    return count, f"{message}; name an adapter under receive.rules, or send less"


class IngestBufferCollector(Collector):
    """Metrics of the ingest buffer and of samples the engine dropped, read from the store on request."""

    def __init__(self, spool: IngestBuffer) -> None:
        """``spool`` is read only."""
        self._spool = spool

    def describe(self) -> Iterable[Metric]:
        """Returns nothing: the store is not read before the first scrape."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Metric families of one scrape."""
        waiting = self._spool.waiting()
        for name, help_text, value in (
            ("blocks", "Requests that wait for the engine.", waiting.blocks),
            ("samples", "Samples that wait for the engine.", waiting.samples),
            ("bytes", "Bytes that wait for the engine.", waiting.bytes),
        ):
            family = GaugeMetricFamily(f"outrider_received_waiting_{name}", help_text)
            family.add_metric([], float(value))
            yield family
        left = CounterMetricFamily(
            "outrider_received_engine_left_out_samples", "Samples dropped by the engine, by reason.", labels=["reason"]
        )
        for reason, samples in sorted(self._spool.counted().items()):
            left.add_metric([reason], float(samples))
        yield left
