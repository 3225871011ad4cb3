"""Prometheus remote write, 1.0 and 2.0, decoded. Pure.

Names and labels are taken as they stand; ``job``, ``instance`` and ``metrics_path`` say which target told
them. Native histograms become classic ones on the ladder of their signal; exemplars are not read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate
from typing import Any, Literal

from google.protobuf.message import DecodeError

from collectors.receive.histogram import ExponentialHistogram, buckets, dense, ladders, le
from collectors.receive.protocol import (
    Decoded,
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
# What tells the two Prometheus of a pair apart: without it both speak of the same series.
_OF_PAIRS = ("prometheus_replica", "__replica__")
_OF_TARGETS = ("cluster", "namespace", "node", "pod", "service", "gpu_type")


def version_of(content_type: str) -> Version:
    """Which message a Content-Type announces; 1.0 when it names none. Raises ReceiveError."""
    kind, *parameters = (part.strip() for part in content_type.split(";"))
    if kind.lower() != "application/x-protobuf":
        raise ReceiveError(
            f"the Content-Type {content_type!r} is not application/x-protobuf",
            reason=RejectionReason.UNSUPPORTED,
            hint="this is the door for Prometheus remote write",
        )
    for parameter in parameters:
        name, _, value = parameter.partition("=")
        if name.strip().lower() == "proto":
            found = MESSAGES.get(value.strip().strip('"'))
            if found is None:
                raise ReceiveError(
                    f"there is no message {value!r}",
                    reason=RejectionReason.UNSUPPORTED,
                    hint=f"known are {' and '.join(MESSAGES)}",
                )
            return found
    return 1


def decode(body: bytes, version: Version) -> Decoded:
    """The series of one request. Raises ReceiveError for a body that is none."""
    found = Decoded(IngestProtocol.REMOTE_WRITE)
    try:
        if version == 1:
            for series in WriteRequest.FromString(body).timeseries:
                _add(found, {label.name: label.value for label in series.labels}, series)
        else:
            request = Request.FromString(body)
            symbols = list(request.symbols)
            for series in request.timeseries:
                _add(found, _labels(symbols, series.labels_refs), series)
    except (DecodeError, UnicodeDecodeError, ValueError, IndexError) as error:
        raise malformed(f"remote-write {version}.0 request", error) from error
    return found


def _labels(symbols: Sequence[str], refs: Sequence[int]) -> dict[str, str]:
    if len(refs) % 2:
        raise ValueError("an odd number of label references")
    if refs and max(refs) >= len(symbols):
        raise ValueError(f"a label refers to symbol {max(refs)} of {len(symbols)}")
    return {symbols[refs[at]]: symbols[refs[at + 1]] for at in range(0, len(refs), 2)}


@lru_cache(maxsize=50_000)
def _source(job: str, instance: str, path: str) -> Source:
    """One object for one source: it is looked up for every series."""
    return Source(job, instance, path)


def _add(found: Decoded, labels: dict[str, str], series: Any) -> None:
    name = labels.pop("__name__", "")
    for label in _OF_PAIRS:
        labels.pop(label, None)
    samples, histograms = series.samples, series.histograms
    found.samples += len(samples)
    found.histograms += len(histograms)
    if not name:
        found.leave_out(DropReason.UNNAMED, "", len(samples) + len(histograms))
        return
    source = _source(labels.get("job", ""), labels.get("instance", ""), labels.get("metrics_path", ""))
    if samples:
        if len(samples) == 1:  # nearly always
            only = samples[0]
            stamps, values = (only.timestamp,), (only.value,)
        else:
            stamps, values = tuple(one.timestamp for one in samples), tuple(one.value for one in samples)
        found.streams.append(Stream(source, name, labels, stamps, values))
    if name == "up":
        found.about.setdefault(source, {}).update(labels)
    elif source not in found.about:  # no series of the target itself so far: what another says of it
        found.about[source] = {label: labels[label] for label in _OF_TARGETS if label in labels}
    if histograms:
        _add_histograms(found, source, name, labels, histograms)


def _add_histograms(
    found: Decoded, source: Source, name: str, labels: Mapping[str, str], histograms: Sequence[Any]
) -> None:
    """Native histograms of one series, as the lines of a classic one."""
    lines: dict[tuple[str, str], tuple[list[int], list[float]]] = {}
    bounds = ladders().get(name)
    for one in histograms:
        if bounds is None and one.schema != _CUSTOM_BUCKETS:
            found.leave_out(DropReason.UNSUPPORTED, name, 1)
            continue
        for suffix, bound, value in _lines(one, bounds or ()):
            stamps, values = lines.setdefault((suffix, bound), ([], []))
            stamps.append(one.timestamp)
            values.append(value)
    for (suffix, bound), (stamps, values) in lines.items():
        all_labels = {**labels, "le": bound} if bound else labels
        found.streams.append(Stream(source, name + suffix, all_labels, tuple(stamps), tuple(values)))


def _lines(one: Any, bounds: Sequence[float]) -> list[tuple[str, str, float]]:
    total = float(one.count_int or one.count_float)
    counts = _counts(one.positive_deltas, one.positive_counts)
    first, run = dense([(span.offset, span.length) for span in one.positive_spans], counts)
    if one.schema == _CUSTOM_BUCKETS:
        if first < 0 or first + len(run) > len(one.custom_values) + 1:
            raise ValueError("a histogram has more buckets than bounds")
        padded = [0.0] * first + run + [0.0] * (len(one.custom_values) + 1 - first - len(run))
        summed = list(accumulate(padded))
        found = [*zip(map(le, one.custom_values), summed, strict=False), ("+Inf", total)]
    else:
        if one.schema not in _SCALES:
            raise ValueError(f"a histogram of unknown schema {one.schema}")
        below = float(one.zero_count_int or one.zero_count_float)
        below += sum(_counts(one.negative_deltas, one.negative_counts))
        # A native bucket is named by its upper bound, one of OpenTelemetry's by its lower one.
        found = buckets(ExponentialHistogram(one.schema, first - 1, tuple(run), below, total, one.sum), bounds)
    return [*(("_bucket", bound, value) for bound, value in found), ("_sum", "", one.sum), ("_count", "", total)]


def _counts(deltas: Sequence[int], counts: Sequence[float]) -> list[float]:
    return [float(found) for found in accumulate(deltas)] if deltas else list(counts)
