"""What an adapter says: how the metrics of one engine or exporter become canonical signals.

An adapter is data (``adapters/<name>.yaml``); this is its shape in memory. Reading and checking the
file is ``adapter_file``, turning it into row indices of a page is ``compile``.
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
QUANTILES = (0.5, 0.9, 0.95, 0.99, 0.999)  # those of a summary that are kept
_OPTIONAL = re.compile(r"^~\(\?:[^)]*\)\?")
TARGET_KEYS = tuple(
    SignalKey(name) for name in ("target_up", "target_scrape_seconds", "target_samples", "target_failure_code")
)


class Section(StrEnum):
    """Which number of a series a term looks at."""

    GAUGE = "gauge"  # the value on the page
    DELTA = "delta"  # its increase since the last good scrape
    RATE = "rate"  # that increase per second


class Aggregate(StrEnum):
    """How several series of one entity become one number."""

    SUM = "sum"
    MEAN = "mean"
    MAX = "max"
    MIN = "min"


class Operator(StrEnum):
    """How the terms of a rule become one value."""

    TERM = "term"
    RATIO = "ratio"
    PRODUCT = "product"
    AT_LEAST = "at_least"
    HISTOGRAM = "histogram"
    SUMMARY = "summary"
    COUNT = "count"


class Statistic(StrEnum):
    """What a rule tells of a distribution: buckets, quantiles the source worked out, or the mean alone."""

    BUCKETS = "buckets"
    QUANTILES = "quantiles"
    MEAN = "mean"
    VALUE = "value"  # the signal is no distribution


@dataclass(frozen=True, slots=True)
class Match:
    """A condition on one label; an absent label reads as ''. Regular expressions match the whole value."""

    label: str
    pattern: re.Pattern[str]
    wanted: bool = True

    def holds(self, labels: Mapping[str, str]) -> bool:
        """True when the label set meets the condition."""
        return (self.pattern.fullmatch(labels.get(self.label, "")) is not None) is self.wanted


@dataclass(frozen=True, slots=True)
class Metrics:
    """Which metric names a term reads.

    ``first`` are spellings of one metric, the first one on the page wins; ``every`` must all be
    there and are read together with those of ``maybe``; of ``some`` at least one must be there. A
    name that begins with ``~`` is a regular expression: such metrics bear an index in their name.
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
        """The names as people know them: without an optional prefix."""
        return tuple(_OPTIONAL.sub("", name) for name in self.names)

    def on(self, page_names: Mapping[str, object], suffix: str = "") -> tuple[str, ...]:
        """The names to read from a page that has these names; empty when the page lacks the metric."""
        for name in self.first:
            found = named(name, page_names, suffix)
            if found:
                return found
        every = [named(name, page_names, suffix) for name in self.every]
        if every and all(every):
            more = [*every, *(named(name, page_names, suffix) for name in self.maybe)]
            return tuple(name for found in more for name in found)
        return tuple(name for wanted in self.some for name in named(wanted, page_names, suffix))


def named(name: str, page_names: Mapping[str, object], suffix: str = "") -> tuple[str, ...]:
    """The metrics of a page that a name of an adapter means: itself, or all that match after ``~``."""
    if not name.startswith("~"):
        return (name,) if name + suffix in page_names else ()
    pattern = re.compile(f"({name[1:]}){suffix}")
    return tuple(found[1] for one in page_names if (found := pattern.fullmatch(one)))


@dataclass(frozen=True, slots=True)
class Codes:
    """Turns a one-hot family into a number: each series counts with the code of its label value."""

    label: str
    values: Mapping[str, float]
    other: float | None = None


@dataclass(frozen=True, slots=True)
class Term:
    """One number per entity, read from the page. ``beside``: 0 for an entity that has that metric.

    Of the spellings in ``beside`` the first one on the page counts, its series that meet ``beside_where``.
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
    """One way to a signal.

    ``terms``: one for TERM (two when ``minus``), two for RATIO, PRODUCT and AT_LEAST.

    The result is ``value * scale + offset``; ``equals`` then makes it 1 or 0. ``per`` are labels
    within which a number is formed before ``aggregate`` joins those of one entity. ``statistic`` says
    what a rule of a histogram signal tells; ``scale`` turns bounds and sums into the signal's unit.
    ``old``: this is how former releases told it.
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
        """True when one page alone cannot give a value."""
        return self.operator is Operator.HISTOGRAM or any(term.section is not Section.GAUGE for term in self.terms)

    @property
    def names(self) -> tuple[str, ...]:
        """Every metric name the rule may read, histograms by their family name."""
        return tuple(name for term in self.terms for name in term.metrics.names)

    @property
    def shown(self) -> tuple[str, ...]:
        """The same as people know them."""
        return tuple(name for term in self.terms for name in term.metrics.shown)


@dataclass(frozen=True, slots=True)
class EntitySpec:
    """How series of one kind of entity are told apart.

    ``parts`` are joined by "/"; each part lists label spellings, and ``("@target",)`` stands for the
    name of the target's entity. A series without any of the labels is left out, or is about the
    target where a spelling of the part is ``@target``. ``target`` means: the entity the target stands
    for; ``split`` names labels that divide it, those of which the page carries more than one value.
    ``otherwise`` are the parts of a name for series that lack those labels.
    ``instance`` is the label of a part of the entity (a MIG instance of a GPU): such series are about
    the part, named ``<entity>/<instance>``, and about the whole.
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
    """Series of the first metric found say that ``upper`` rests on ``lower``."""

    lower: EntityKind
    upper: EntityKind
    metrics: tuple[str, ...]
    where: tuple[Match, ...] = ()


@dataclass(frozen=True, slots=True)
class LabelSpec:
    """Series of the first metric found tell facts about an entity: fact name -> label spellings."""

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
class Probing:
    """Where an engine answers beside its page: paths of its HTTP door, "" for none.

    ``page`` is the usual path of the metrics, which is taken off the target's URL. ``port`` is the port
    of the door where it is not that of the page, used when the page is on ``page_port``. ``load_as`` says
    where the answer of ``load`` has the requests in flight, the newest spelling first (``collectors.mapping.load_endpoint``).
    """

    health: str = "/health"
    load: str = ""
    load_as: tuple[str, ...] = ()
    page: str = "/metrics"
    port: int | None = None
    page_port: int | None = None

    def url(self, page_url: str, path: str) -> str:
        """Where a path of the door is, beside this page; "" when that cannot be told."""
        parts = urlsplit(page_url)
        if not path:
            return ""
        base = parts.path.removesuffix(self.page) if parts.path.endswith(self.page) else parts.path.rpartition("/")[0]
        place, _, query = f"{base}{path}".partition("?")
        netloc = parts.netloc
        if self.port is not None:
            if parts.port != self.page_port:
                return ""
            netloc = f"{netloc.rpartition(':')[0]}:{self.port}"
        return urlunsplit((parts.scheme, netloc, place, query, ""))


@dataclass(frozen=True, slots=True)
class Fixes:
    """How to get what a page lacks: i18n keys ``collect.fix.<name>`` by signal, and a default.

    ``means`` is the one for distributions of which only the mean is published. ``lines`` holds for a
    metric the very line of the exporter's configuration that publishes it.
    """

    default: str = ""
    means: str = ""
    signals: Mapping[str, str] = field(default_factory=dict)
    lines: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Heartbeat:
    """Counters that move on every page that is made anew, however idle what it is about may be.

    When all of them have stood still for ``within_seconds``, somebody serves an old page.
    """

    metrics: Metrics
    within_seconds: float


@dataclass(frozen=True)
class Adapter:
    """One engine or exporter. ``rules`` maps a signal to its alternatives, best first.

    ``up``, ``health``, ``load`` name the signals that a scrape itself gives; ``seen`` the signal that
    says of each entity of a kind whether a whole page had it. ``no_value`` is the number by which the
    exporter says that it could not read something. ``title`` is what people call the system.
    """

    name: str
    target: EntityKind
    entities: Mapping[EntityKind, EntitySpec]
    rules: Mapping[str, tuple[Rule, ...]]
    probe: Probing | None = None
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
        """The columns of this adapter's batches by kind of entity; the same for every page."""
        found: dict[EntityKind, list[SignalKey]] = {}
        for name in self.rules:
            found.setdefault(catalog.signal(name).entity, []).extend(self._columns_of(name))
        for kind, name in self.seen.items():
            found.setdefault(kind, []).append(SignalKey(name))
        probes = [SignalKey(name) for name in (self.up, self.health, self.load) if name]
        found.setdefault(self.target, []).extend([*probes, *TARGET_KEYS])
        return {kind: tuple(columns) for kind, columns in found.items()}

    def _columns_of(self, name: str) -> Iterator[SignalKey]:
        """The columns of a signal: for a histogram those of each statistic that some rule of it tells."""
        told = {rule.statistic for rule in self.rules[name]}
        if Statistic.BUCKETS in told:
            yield from catalog.signal(name).bucket_keys
        if Statistic.QUANTILES in told:
            yield from (SignalKey(name, quantile=quantile) for quantile in QUANTILES)
        if told & {Statistic.MEAN, Statistic.VALUE}:
            yield SignalKey(name)

    @cached_property
    def columns(self) -> Mapping[EntityKind, Mapping[SignalKey, int]]:
        """Where each key stands among the columns of its kind."""
        return {kind: {key: column for column, key in enumerate(keys)} for kind, keys in self.keys.items()}

    @cached_property
    def counts(self) -> tuple[SignalKey, ...]:
        """Signals that count entities of the target itself: 0 once the page has lost them all."""
        counted = (name for name, rules in self.rules.items() if any(rule.operator is Operator.COUNT for rule in rules))
        return tuple(SignalKey(name) for name in counted if catalog.signal(name).entity is self.target)

    @cached_property
    def metric_names(self) -> frozenset[str]:
        """Every name on a page that this adapter may read, histograms with their suffixes; some are patterns."""
        return frozenset(name.removeprefix("~") for name in self._names())

    @cached_property
    def _pattern(self) -> re.Pattern[str]:
        return re.compile("|".join(sorted(self.metric_names)))

    def reads(self, metric: str) -> bool:
        """True when the adapter has a use for this name."""
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
