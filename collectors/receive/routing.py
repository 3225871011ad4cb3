"""Assigns adapters to pushed series: by configured rules, then by the names of the metrics.

A name that only one adapter reads identifies its target; names shared by many programs (``process_*``, ``http_*``,
``up``) follow their target. Metrics that the target's adapter does not read are dropped here, so that a Prometheus
that sends everything costs no more than one that sends only what is used.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collectors.mapping import registry
from collectors.mapping.model import Adapter
from collectors.mapping.signatures import adapter_of_metric, carrier_among
from collectors.receive.protocol import META, DecodedRequest, DropReason, Source, Stream
from outrider.model import EntityKind

MOST_SOURCES, MOST_NAMES = 50_000, 50_000


@dataclass(frozen=True, slots=True)
class EntityTemplate:
    """The entity that a pushed target represents; ``{label}`` in a text is replaced by the label."""

    kind: EntityKind
    name: str
    namespace: str | None = None
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class ReceiveRule:
    """Series whose labels all match are read by ``adapter``, or dropped without one.

    ``match`` are regular expressions for whole values; ``__name__`` is the name, an absent label is "". ``entity``
    None uses the labels of the target. ``labels`` are added to the target.
    """

    match: Mapping[str, re.Pattern[str]]
    adapter: str | None
    entity: EntityTemplate | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def holds(self, labels: Mapping[str, str]) -> bool:
        """True if every condition is met."""
        return all(pattern.fullmatch(labels.get(name, "")) for name, pattern in self.match.items())


@dataclass(frozen=True, slots=True)
class RoutedSeries:
    """A series, its adapter, and the rule that chose it (None: its name)."""

    stream: Stream
    adapter: str
    rule: int | None


class _ReadMetrics:
    """Metrics that an adapter reads; each name is checked once."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._known: dict[str, bool] = {}

    def __contains__(self, name: str) -> bool:
        is_read = self._known.get(name)
        if is_read is None:
            if len(self._known) >= MOST_NAMES:
                self._known.clear()
            is_read = self._known[name] = self._adapter.reads(name)
        return is_read


class AdapterRouter:
    """Assigns series to adapters; remembers the adapter of each source. Not thread-safe."""

    def __init__(self, rules: Sequence[ReceiveRule] = (), most_sources: int = MOST_SOURCES) -> None:
        """The first matching rule applies."""
        self._rules = tuple(rules)
        self._most = most_sources
        self._reads = {name: _ReadMetrics(registry.adapter(name)) for name in registry.ADAPTERS}
        self._known: OrderedDict[Source, dict[tuple[str, int | None], None]] = OrderedDict()

    def assign(self, decoded: DecodedRequest) -> list[RoutedSeries]:
        """Every series that an adapter reads; dropped ones are counted on ``decoded``."""
        ruled = [self._rule_of(stream, decoded) for stream in decoded.streams]
        for stream, rule in zip(decoded.streams, ruled, strict=True):
            adapter = adapter_of_metric(stream.name) if rule is None else self._rules[rule].adapter
            if adapter is not None:
                self._note(stream.source, adapter, rule)
        routed: list[RoutedSeries] = []
        for stream, rule in zip(decoded.streams, ruled, strict=True):
            routed.extend(self._of(stream, rule, decoded))
        return routed

    def _of(self, stream: Stream, rule: int | None, decoded: DecodedRequest) -> Sequence[RoutedSeries]:
        if rule is not None and self._rules[rule].adapter is None:
            decoded.left_out[DropReason.BY_RULE] += len(stream.stamps)
            return []
        adapters = self._known.get(stream.source)
        if adapters is None:
            decoded.leave_out(DropReason.NO_ADAPTER, stream.name, len(stream.stamps))
            return []
        readers: list[tuple[str, int | None]]
        if rule is None and len(adapters) == 1:  # nearly always one adapter per target
            ((adapter, by),) = adapters
            if stream.name in self._reads[adapter] or stream.name in META:
                return (RoutedSeries(stream, adapter, by),)
            decoded.left_out[DropReason.NOT_READ] += len(stream.stamps)
            return ()
        if rule is not None:
            readers = [(str(self._rules[rule].adapter), rule)]
        else:
            readers = [reader for reader in adapters if stream.name in META or stream.name in self._reads[reader[0]]]
        routed = [
            RoutedSeries(stream, adapter, by)
            for adapter, by in readers
            if stream.name in META or stream.name in self._reads[adapter]
        ]
        if not routed:
            decoded.left_out[DropReason.NOT_READ] += len(stream.stamps)
        return routed

    def _rule_of(self, stream: Stream, decoded: DecodedRequest) -> int | None:
        if not self._rules:
            return None
        source = stream.source
        labels = {
            **decoded.about.get(source, {}),
            "job": source.job,
            "instance": source.instance,
            "metrics_path": source.path,
            **stream.labels,
            "__name__": stream.name,
        }
        return next((number for number, rule in enumerate(self._rules) if rule.holds(labels)), None)

    def _note(self, source: Source, adapter: str, rule: int | None) -> None:
        adapters = self._known.get(source)
        if adapters is not None:
            self._known.move_to_end(source)
            if (adapter, rule) in adapters:
                return
        elif len(self._known) >= self._most:
            self._known.popitem(last=False)
        adapters = self._known.setdefault(source, {})
        adapters[adapter, rule] = None
        carrier = carrier_among([name for name, by in adapters if by is None])
        for name in [name for name, by in adapters if by is None and carrier not in {None, name}]:
            del adapters[name, None]
