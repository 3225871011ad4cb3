"""Data model of an adapter: how the metrics of one engine or exporter become canonical signals.

An adapter is data (``adapters/<name>.yaml``). ``loader`` reads and checks the file, ``compiler`` turns it into
row indices of a page.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from urllib.parse import urlsplit, urlunsplit

from outrider.model import EntityKind, EventKind, SignalKey
from outrider.vocabulary import catalog

HISTOGRAM_SUFFIXES = ("_bucket", "_sum", "_count")
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)  # quantiles kept from a summary
_OPTIONAL = re.compile(r"^~\(\?:[^)]*\)\?")
TARGET_KEYS = tuple(
    SignalKey(name) for name in ("target_up", "target_scrape_seconds", "target_samples", "target_failure_code")
)


class Section(StrEnum):
    """The number of a series that a term reads."""

    GAUGE = "gauge"  # the value on the page
    DELTA = "delta"  # increase since the last good scrape
    RATE = "rate"  # increase per second


class Aggregate(StrEnum):
    """Aggregation of several series of one entity into one number."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"


class Operator(StrEnum):
    """Combination of a rule's terms into one value."""

    TERM = "term"
    RATIO = "ratio"
    PRODUCT = "product"
    AT_LEAST = "at_least"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"
    COUNT = "count"


class Statistic(StrEnum):
    """The part of a distribution that a rule gives: buckets, quantiles computed by the source, or only the mean."""

    BUCKETS = "buckets"
    QUANTILES = "quantiles"
    MEAN = "mean"
    VALUE = "value"  # the signal is not a distribution


@dataclass(frozen=True, slots=True)
class Match:
    """A condition on one label; an absent label reads as ''. Regular expressions match the whole value."""

    label: str
    pattern: re.Pattern[str]
    wanted: bool = True

    def holds(self, labels: Mapping[str, str]) -> bool:
        """True if the label set meets the condition."""
        return (self.pattern.fullmatch(labels.get(self.label, "")) is not None) is self.wanted


@dataclass(frozen=True, slots=True)
class Metrics:
    """The metric names that a term reads.

    ``first`` are spellings of one metric; the first one on the page wins. ``every`` must all be on the page, and are
    read together with those of ``maybe``. Of ``some`` at least one must be on the page. A name that begins with ``~``
    is a regular expression, for metrics with an index in their name.
    """

    first: tuple[str, ...] = ()
    every: tuple[str, ...] = ()
    maybe: tuple[str, ...] = ()
    some: tuple[str, ...] = ()

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that may be read."""
        return (*self.first, *self.every, *self.maybe, *self.some)

    @property
    def shown(self) -> tuple[str, ...]:
        """The names for display: without an optional prefix."""
        return tuple(_OPTIONAL.sub("", name) for name in self.names)

    def on(self, page_names: Mapping[str, object], suffix: str = "") -> tuple[str, ...]:
        """Returns the names to read from a page with these names; empty if the page lacks the metric."""
        for name in self.first:
            present = matching_names(name, page_names, suffix)
            if present:
                return present
        every = [matching_names(name, page_names, suffix) for name in self.every]
        if every and all(every):
            names = [*every, *(matching_names(name, page_names, suffix) for name in self.maybe)]
            return tuple(name for present in names for name in present)
        return tuple(name for pattern in self.some for name in matching_names(pattern, page_names, suffix))


def matching_names(name: str, page_names: Mapping[str, object], suffix: str = "") -> tuple[str, ...]:
    """Metrics of a page that match a name of an adapter: the name itself, or all that match the pattern after ``~``."""
    if not name.startswith("~"):
        return (name,) if name + suffix in page_names else ()
    pattern = re.compile(f"({name[1:]}){suffix}")
    return tuple(match[1] for page_name in page_names if (match := pattern.fullmatch(page_name)))


@dataclass(frozen=True, slots=True)
class Codes:
    """Maps a one-hot family to a number: each series counts with the code of its label value."""

    label: str
    values: Mapping[str, float]
    other: float | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """One number per entity, read from the page. ``beside``: 0 for an entity that has that metric.

    Of the spellings in ``beside`` the first one on the page is used, limited to series that match ``beside_where``.
    """

    section: Section
    metrics: Metrics
    where: tuple[Match, ...] = ()
    aggregate: Aggregate = Aggregate.SUM
    weigh_by: tuple[str, ...] = ()
    codes: Codes | None = None
    beside: Metrics = Metrics()
    beside_where: tuple[Match, ...] = ()


@dataclass(frozen=True, slots=True)
class Rule:
    """One alternative for computing a signal.

    ``terms``: one for TERM (two with ``minus``), two for RATIO, PRODUCT and AT_LEAST.

    The result is ``value * scale + offset``; ``equals`` then makes it 1 or 0. ``per`` are labels within which a
    number is computed before ``aggregate`` combines those of one entity. ``statistic`` is the part of a histogram
    signal that the rule gives; ``scale`` converts bounds and sums to the signal's unit. ``old``: spelling of former
    releases.
    """

    signal: str
    operator: Operator
    terms: tuple[Term, ...]
    minus: bool = False
    scale: float = 1.0
    offset: float = 0.0
    equals: float | None = None
    absolute: bool = False
    per: tuple[str, ...] = ()
    aggregate: Aggregate = Aggregate.SUM
    distinct: tuple[str, ...] = ()
    type: str | None = None
    statistic: Statistic = Statistic.VALUE
    old: bool = False

    @property
    def needs_two(self) -> bool:
        """True if one page alone cannot give a value."""
        return self.operator is Operator.HISTOGRAM or any(term.section is not Section.GAUGE for term in self.terms)

    @property
    def names(self) -> tuple[str, ...]:
        """Every metric name that the rule may read, histograms by their family name."""
        return tuple(name for term in self.terms for name in term.metrics.names)

    @property
    def shown(self) -> tuple[str, ...]:
        """The same for display."""
        return tuple(name for term in self.terms for name in term.metrics.shown)


@dataclass(frozen=True, slots=True)
class EntitySpec:
    """Identification of the entities of one kind by labels.

    ``parts`` are joined by "/". Each part lists label spellings; ``("@target",)`` is the name of the target's entity.
    A series without any of the labels is dropped, or belongs to the target if a spelling of the part is ``@target``.
    ``target``: the entity that the target represents. ``split`` names labels that divide it, if the page has more
    than one value of them. ``otherwise`` are the parts of a name for series without those labels. ``instance`` is the
    label of a part of the entity (a MIG instance of a GPU). Such series belong to the part, named
    ``<entity>/<instance>``, and to the whole.
    """

    kind: EntityKind
    target: bool = False
    parts: tuple[tuple[str, ...], ...] = ()
    otherwise: tuple[tuple[str, ...], ...] = ()
    namespace: tuple[str, ...] = ()
    split: tuple[str, ...] = ()
    instance: str | None = None


@dataclass(frozen=True, slots=True)
class EdgeSpec:
    """Series of the first present metric state that ``upper`` rests on ``lower``."""

    lower: EntityKind
    upper: EntityKind
    metrics: tuple[str, ...]
    where: tuple[Match, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelSpec:
    """Series of the first present metric carry facts about an entity: fact name -> label spellings."""

    kind: EntityKind
    metrics: tuple[str, ...]
    facts: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class EventSpec:
    """A change of a code, or an increase of a count per code, is an event. ``metrics`` are spellings."""

    kind: EventKind
    entity: EntityKind
    metrics: tuple[str, ...]
    code_label: str | None
    attributes: Mapping[str, tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class EngineEndpoints:
    """Endpoints of an engine beside its metrics page: HTTP paths, "" for none.

    ``page`` is the usual path of the metrics, which is removed from the target's URL. ``port`` is the port of the
    endpoints if it differs from the page's; it is used if the page is on ``page_port``. ``load_as`` lists the paths
    of the requests in flight in the response of ``load``, newest spelling first
    (``collectors.mapping.load_endpoint``).
    """

    health: str = "/health"
    load: str = ""
    load_as: tuple[str, ...] = ()
    page: str = "/metrics"
    port: int | None = None
    page_port: int | None = None

    def url(self, page_url: str, path: str) -> str:
        """URL of a path on the engine of this page; "" if it cannot be derived."""
        parts = urlsplit(page_url)
        if not path:
            return ""
        base = parts.path.removesuffix(self.page) if parts.path.endswith(self.page) else parts.path.rpartition("/")[0]
        full_path, _, query = f"{base}{path}".partition("?")
        netloc = parts.netloc
        if self.port is not None:
            if parts.port != self.page_port:
                return ""
            netloc = f"{netloc.rpartition(':')[0]}:{self.port}"
        return urlunsplit((parts.scheme, netloc, full_path, query, ""))


@dataclass(frozen=True, slots=True)
class Fixes:
    """Remedies for missing signals: i18n keys ``collect.fix.<name>`` by signal, and a default.

    ``means`` is the one for distributions of which only the mean is published. ``lines`` holds, for a metric, the
    line of the exporter's configuration that publishes it.
    """

    default: str = ""
    means: str = ""
    signals: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Counters that move on every newly generated page, however idle the system is.

    If all of them stand still for ``within_seconds``, the page is stale.
    """

    metrics: Metrics
    within_seconds: float


@dataclass(frozen=True)
class Adapter:
    """One engine or exporter. ``rules`` maps a signal to its alternatives, best first.

    ``up``, ``health``, ``load`` name the signals that a scrape itself gives. ``seen`` is the signal that states for
    each entity of a kind whether a whole page had it. ``no_value`` is the number by which the exporter marks a value
    that it could not read. ``title`` is the display name of the system.
    """

    name: str
    target: EntityKind
    entities: Mapping[EntityKind, EntitySpec]
    rules: Mapping[str, tuple[Rule, ...]]
    probe: EngineEndpoints | None = None
    up: str | None = None
    health: str | None = None
    load: str | None = None
    start_time: str | None = None
    heartbeat: Heartbeat | None = None
    from_zero: bool = False
    no_value: float | None = None
    fixes: Fixes = Fixes()
    title: str = ""
    seen: Mapping[EntityKind, str] = field(default_factory=dict)
    edges: tuple[EdgeSpec, ...] = ()
    labels: tuple[LabelSpec, ...] = ()
    events: tuple[EventSpec, ...] = ()
    file: str = field(default="", compare=False)

    @cached_property
    def keys(self) -> Mapping[EntityKind, tuple[SignalKey, ...]]:
        """Columns of this adapter's batches by kind of entity; the same for every page."""
        columns_by_kind: dict[EntityKind, list[SignalKey]] = {}
        for name in self.rules:
            columns_by_kind.setdefault(catalog.signal(name).entity, []).extend(self._columns_of(name))
        for kind, name in self.seen.items():
            columns_by_kind.setdefault(kind, []).append(SignalKey(name))
        probes = [SignalKey(name) for name in (self.up, self.health, self.load) if name]
        columns_by_kind.setdefault(self.target, []).extend([*probes, *TARGET_KEYS])
        return {kind: tuple(columns) for kind, columns in columns_by_kind.items()}

    def _columns_of(self, name: str) -> Iterator[SignalKey]:
        """Columns of a signal: for a histogram those of each statistic that one of its rules gives."""
        statistics = {rule.statistic for rule in self.rules[name]}
        if Statistic.BUCKETS in statistics:
            yield from catalog.signal(name).bucket_keys
        if Statistic.QUANTILES in statistics:
            yield from (SignalKey(name, quantile=quantile) for quantile in QUANTILES)
        if statistics & {Statistic.MEAN, Statistic.VALUE}:
            yield SignalKey(name)

    @cached_property
    def columns(self) -> Mapping[EntityKind, Mapping[SignalKey, int]]:
        """Column number of each key within its kind."""
        return {kind: {key: column for column, key in enumerate(keys)} for kind, keys in self.keys.items()}

    @cached_property
    def counts(self) -> tuple[SignalKey, ...]:
        """Signals that count entities of the target itself: 0 once the page has lost them all."""
        counted = (name for name, rules in self.rules.items() if any(rule.operator is Operator.COUNT for rule in rules))
        return tuple(SignalKey(name) for name in counted if catalog.signal(name).entity is self.target)

    @cached_property
    def metric_names(self) -> frozenset[str]:
        """Every name on a page that this adapter may read, histograms with suffixes; some are patterns."""
        return frozenset(name.removeprefix("~") for name in self._names())

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(sorted(self.metric_names)))

    def reads(self, metric: str) -> bool:
        """True if the adapter uses this name."""
        return self._pattern.fullmatch(metric) is not None

    def _names(self) -> Iterator[str]:
        for rules in self.rules.values():
            for rule in rules:
                for name in rule.names:
                    if rule.operator is Operator.HISTOGRAM:
                        yield from (name + suffix for suffix in HISTOGRAM_SUFFIXES)
                    elif rule.operator is Operator.SUMMARY:
                        yield from (name, name + "_sum", name + "_count")
                    else:
                        yield name
                for term in rule.terms:
                    yield from term.beside.names
        for edge in self.edges:
            yield from edge.metrics
        for label in self.labels:
            yield from label.metrics
        for event in self.events:
            yield from event.metrics
        if self.start_time:
            yield self.start_time
        if self.heartbeat:
            yield from self.heartbeat.metrics.names
