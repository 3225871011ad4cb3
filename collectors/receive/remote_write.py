"""Decoder of Prometheus remote write, 1.0 and 2.0. Pure.

Names and labels are unchanged; ``job``, ``instance`` and ``metrics_path`` identify the target. Native histograms
become classic ones on the ladder of their signal; exemplars are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal

from google.protobuf.message import DecodeError

from collectors.receive.histogram import ExponentialHistogram, buckets, dense, ladders, le
from collectors.receive.protocol import (
    DecodedRequest,
    DropReason,
    IngestProtocol,
    ReceiveError,
    RejectionReason,
    Source,
    Stream,
    malformed,
)
from outrider.wire.remote_write import Request, WriteRequest

Version = Literal[1, 2]
MESSAGES: Mapping[str, Version] = {"prometheus.WriteRequest": 1, "io.prometheus.write.v2.Request": 2}
_CUSTOM_BUCKETS = -53
_SCALES = range(-11, 21)
# Distinguishes the two Prometheus of an HA pair: without it both send the same series.
_OF_PAIRS = ("prometheus_replica", "__replica__")
_OF_TARGETS = ("cluster", "namespace", "node", "pod", "service", "gpu_type")


def version_of(content_type: str) -> Version:
    """Message version of a Content-Type; 1.0 if it names none. Raises ReceiveError."""
    kind, *parameters = (part.strip() for part in content_type.split(";"))
    if kind.lower() != "application/x-protobuf":
        raise ReceiveError(
            f"the Content-Type {content_type!r} is not application/x-protobuf",
            reason=RejectionReason.UNSUPPORTED,
            hint="this endpoint accepts Prometheus remote write",
        )
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "proto":
            version = MESSAGES.get(value.strip().strip('"'))
            if version is None:
                raise ReceiveError(
                    f"unknown message type {value!r}",
                    reason=RejectionReason.UNSUPPORTED,
                    hint=f"valid types: {' and '.join(MESSAGES)}",
                )
            return version
    return 1


def decode(body: bytes, version: Version) -> DecodedRequest:
    """Series of one request. Raises ReceiveError for an invalid body."""
    decoded = DecodedRequest(IngestProtocol.REMOTE_WRITE)
    try:
        if version == 1:
            for series in WriteRequest.FromString(body).timeseries:
                _add(decoded, {label.name: label.value for label in series.labels}, series)
        else:
            request = Request.FromString(body)
            symbols = list(request.symbols)
            for series in request.timeseries:
                _add(decoded, _labels(symbols, series.labels_refs), series)
    except (DecodeError, UnicodeDecodeError, ValueError, IndexError) as error:
        raise malformed(f"remote-write {version}.0 request", error) from error
    return decoded


def _labels(symbols: Sequence[str], refs: Sequence[int]) -> dict[str, str]:
    if len(refs) % 2:
        raise ValueError("an odd number of label references")
    if refs and max(refs) >= len(symbols):
        raise ValueError(f"a label refers to symbol {max(refs)} of {len(symbols)}")
    return {symbols[refs[at]]: symbols[refs[at + 1]] for at in range(0, len(refs), 2)}


@lru_cache(maxsize=50_000)
def _source(job: str, instance: str, path: str) -> Source:
    """One object per source: it is looked up for every series."""
    return Source(job, instance, path)


def _add(decoded: DecodedRequest, labels: dict[str, str], series: Any) -> None:
    name = labels.pop("__name__", "")
    for label in _OF_PAIRS:
        labels.pop(label, None)
    samples, histograms = series.samples, series.histograms
    decoded.samples += len(samples)
    decoded.histograms += len(histograms)
    if not name:
        decoded.leave_out(DropReason.UNNAMED, "", len(samples) + len(histograms))
        return
    source = _source(labels.get("job", ""), labels.get("instance", ""), labels.get("metrics_path", ""))
    if samples:
        if len(samples) == 1:  # nearly always
            only = samples[0]
            stamps, values = (only.timestamp,), (only.value,)
        else:
            stamps, values = tuple(sample.timestamp for sample in samples), tuple(sample.value for sample in samples)
        decoded.streams.append(Stream(source, name, labels, stamps, values))
    if name == "up":
        decoded.about.setdefault(source, {}).update(labels)
    elif source not in decoded.about:  # no series about the target itself so far: facts from another series
        decoded.about[source] = {label: labels[label] for label in _OF_TARGETS if label in labels}
    if histograms:
        _add_histograms(decoded, source, name, labels, histograms)


def _add_histograms(
    decoded: DecodedRequest, source: Source, name: str, labels: Mapping[str, str], histograms: Sequence[Any]
) -> None:
    """Native histograms of one series, as the lines of a classic one."""
    lines: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    bounds = ladders().get(name)
    for histogram in histograms:
        if bounds is None and histogram.schema != _CUSTOM_BUCKETS:
            decoded.leave_out(DropReason.UNSUPPORTED, name, 1)
            continue
        for suffix, bound, value in _lines(histogram, bounds or ()):
            stamps, values = lines.setdefault((suffix, bound), ([], []))
            stamps.append(histogram.timestamp)
            values.append(value)
    for (suffix, bound), (stamps, values) in lines.items():
        all_labels = {**labels, "le": bound} if bound else labels
        decoded.streams.append(Stream(source, name + suffix, all_labels, tuple(stamps), tuple(values)))


def _lines(histogram: Any, bounds: Sequence[float]) -> list[tuple[str, str, float]]:
    total = float(histogram.count_int or histogram.count_float)
    counts = _counts(histogram.positive_deltas, histogram.positive_counts)
    first, run = dense([(span.offset, span.length) for span in histogram.positive_spans], counts)
    if histogram.schema == _CUSTOM_BUCKETS:
        if first < 0 or first + len(run) > len(histogram.custom_values) + 1:
            raise ValueError("a histogram has more buckets than bounds")
        padded = [0.0] * first + run + [0.0] * (len(histogram.custom_values) + 1 - first - len(run))
        summed = list(accumulate(padded))
        counted = [*zip(map(le, histogram.custom_values), summed, strict=False), ("+Inf", total)]
    else:
        if histogram.schema not in _SCALES:
            raise ValueError(f"a histogram of unknown schema {histogram.schema}")
        below = float(histogram.zero_count_int or histogram.zero_count_float)
        below += sum(_counts(histogram.negative_deltas, histogram.negative_counts))
        # A native bucket is identified by its upper bound, an OpenTelemetry one by its lower bound.
        counted = buckets(
            ExponentialHistogram(histogram.schema, first - 1, tuple(run), below, total, histogram.sum), bounds
        )
    return [
        *(("_bucket", bound, value) for bound, value in counted),
        ("_sum", "", histogram.sum),
        ("_count", "", total),
    ]


def _counts(deltas: Sequence[int], counts: Sequence[float]) -> list[float]:
    return [float(count) for count in accumulate(deltas)] if deltas else list(counts)
