"""Which adapter reads what was pushed: rules of the configuration, then the names of the metrics.

A name that one adapter alone reads says what its target is; names that many programs have (``process_*``,
``http_*``, ``up``) follow their target. What the adapter of a target does not look at is left out here, so
that a Prometheus that sends everything costs no more than one that sends what is used.
"""

from __future__ import annotations

import re
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from collectors.mapping import registry
from collectors.mapping.model import Adapter
from collectors.mapping.signatures import adapter_of_metric, carrier_among
from collectors.receive.protocol import META, Decoded, DropReason, Source, Stream
from outrider.model import EntityKind

MOST_SOURCES, MOST_NAMES = 50_000, 50_000


@dataclass(frozen=True, slots=True)
class EntityTemplate:
    """The component a pushed target stands for; ``{label}`` in a text is replaced by the label."""

    kind: EntityKind
    name: str
    namespace: str | None = None
    cluster: str | None = None


@dataclass(frozen=True, slots=True)
class ReceiveRule:
    """Series whose labels all match are read by ``adapter``, or left out when there is none.

    ``match`` are regular expressions for whole values; ``__name__`` is the name, an absent label is "".
    ``entity`` None means: by the labels of the target. ``labels`` are those of the target.
    """

    match: Mapping[str, re.Pattern[str]]
    adapter: str | None
    entity: EntityTemplate | None = None
    labels: Mapping[str, str] = field(default_factory=dict)

    def holds(self, labels: Mapping[str, str]) -> bool:
        """True when every condition is met."""
        return all(pattern.fullmatch(labels.get(name, "")) for name, pattern in self.match.items())


@dataclass(frozen=True, slots=True)
class RoutedSeries:
    """A series, who reads it, and by which rule (None: by its name)."""

    stream: Stream
    adapter: str
    rule: int | None


class _ReadMetrics:
    """The metrics that an adapter has a use for; a name is looked at once."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._known: dict[str, bool] = {}

    def __contains__(self, name: str) -> bool:
        known = self._known.get(name)
        if known is None:
            if len(self._known) >= MOST_NAMES:
                self._known.clear()
            known = self._known[name] = self._adapter.reads(name)
        return known


class AdapterRouter:
    """Assigns series to adapters; remembers what each source is. Not for two threads at a time."""

    def __init__(self, rules: Sequence[ReceiveRule] = (), most_sources: int = MOST_SOURCES) -> None:
        """The first rule that holds counts."""
        self._rules = tuple(rules)
        self._most = most_sources
        self._reads = {name: _ReadMetrics(registry.adapter(name)) for name in registry.ADAPTERS}
        self._known: OrderedDict[Source, dict[tuple[str, int | None], None]] = OrderedDict()

    def assign(self, decoded: Decoded) -> list[RoutedSeries]:
        """Every series that something reads; the rest is counted on ``decoded``."""
        ruled = [self._rule_of(stream, decoded) for stream in decoded.streams]
        for stream, rule in zip(decoded.streams, ruled, strict=True):
            adapter = adapter_of_metric(stream.name) if rule is None else self._rules[rule].adapter
            if adapter is not None:
                self._note(stream.source, adapter, rule)
        found: list[RoutedSeries] = []
        for stream, rule in zip(decoded.streams, ruled, strict=True):
            found.extend(self._of(stream, rule, decoded))
        return found

    def _of(self, stream: Stream, rule: int | None, decoded: Decoded) -> Sequence[RoutedSeries]:
        if rule is not None and self._rules[rule].adapter is None:
            decoded.left_out[DropReason.BY_RULE] += len(stream.stamps)
            return []
        known = self._known.get(stream.source)
        if known is None:
            decoded.leave_out(DropReason.NO_ADAPTER, stream.name, len(stream.stamps))
            return []
        readers: list[tuple[str, int | None]]
        if rule is None and len(known) == 1:  # nearly always: one target, one adapter
            ((adapter, by),) = known
            if stream.name in self._reads[adapter] or stream.name in META:
                return (RoutedSeries(stream, adapter, by),)
            decoded.left_out[DropReason.NOT_READ] += len(stream.stamps)
            return ()
        if rule is not None:
            readers = [(str(self._rules[rule].adapter), rule)]
        else:
            readers = [reader for reader in known if stream.name in META or stream.name in self._reads[reader[0]]]
        found = [
            RoutedSeries(stream, adapter, by)
            for adapter, by in readers
            if stream.name in META or stream.name in self._reads[adapter]
        ]
        if not found:
            decoded.left_out[DropReason.NOT_READ] += len(stream.stamps)
        return found

    def _rule_of(self, stream: Stream, decoded: Decoded) -> int | None:
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
        known = self._known.get(source)
        if known is not None:
            self._known.move_to_end(source)
            if (adapter, rule) in known:
                return
        elif len(self._known) >= self._most:
            self._known.popitem(last=False)
        known = self._known.setdefault(source, {})
        known[adapter, rule] = None
        carrier = carrier_among([name for name, by in known if by is None])
        for name in [name for name, by in known if by is None and carrier not in {None, name}]:
            del known[name, None]
