"""The signal of a metric: what adapters read, by metric name. Pure.

Only signals that equal one metric up to a factor are listed, or the ratio of two gauges. Sums of several metrics, codes
and counts of series have no metric of their own.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from collectors.mapping import registry
from collectors.mapping.model import Adapter, Aggregate, EntitySpec, Match, Operator, Rule, Section, Term
from outrider.model import EntityKind, SignalKind
from outrider.vocabulary import catalog
from outrider.wire.promql import Matcher

HISTOGRAM = "histogram"
OF_TARGET = frozenset({"instance", "pod", "pod_name", "exported_pod"})  # labels of the target of a page
_LITERAL = re.compile(r"[\w\-./:@ ]*")


@dataclass(frozen=True, slots=True)
class MetricSignal:
    """A signal that is a metric times ``scale`` plus ``offset``.

    ``section`` is ``gauge``, ``delta`` or ``rate`` as in adapters, or ``histogram``. ``identity`` are labels that name
    one entity of the kind. ``aggregate`` combines several series of one entity.
    """

    signal: str
    kind: EntityKind
    section: str
    where: tuple[Match, ...] = ()
    scale: float = 1.0
    offset: float = 0.0
    identity: frozenset[str] = OF_TARGET
    aggregate: Aggregate = Aggregate.SUM


@cache
def signals_of_metrics() -> Mapping[str, tuple[MetricSignal, ...]]:
    """Signals by metric name; a histogram by its name without ``_bucket``."""
    found: dict[str, dict[MetricSignal, None]] = {
        "up": dict.fromkeys(
            MetricSignal(name, kind, "gauge")
            for name, kind in (("target_up", EntityKind.WORKLOAD), ("engine_up", EntityKind.REPLICA))
        )
    }
    for name, entry in _every():
        found.setdefault(name, {})[entry] = None
    for signal in catalog.signals().values():  # series that Outrider itself writes or has recorded
        if signal.kind not in (SignalKind.GAUGE, SignalKind.STATE):
            continue
        own = MetricSignal(signal.name, signal.entity, "gauge", identity=frozenset({"name", "instance", "entity_0"}))
        for prefix in ("outrider:", "outrider_"):
            found.setdefault(prefix + signal.name, {})[own] = None
    return {name: tuple(entries) for name, entries in found.items()}


@cache
def signals_of_ratios() -> Mapping[tuple[str, str], tuple[MetricSignal, ...]]:
    """Signals by the names of the two gauges that they are the ratio of."""
    found: dict[tuple[str, str], dict[MetricSignal, None]] = {}
    for adapter, rule in _rules():
        if rule.operator is Operator.RATIO and all(
            term.section is Section.GAUGE and _plain(term) for term in rule.terms
        ):
            entry = _entry(adapter, rule, "gauge", ())
            of, to = rule.terms
            for pair in ((one, other) for one in of.metrics.first for other in to.metrics.first):
                if not of.where and not to.where:
                    found.setdefault(pair, {})[entry] = None
    return {pair: tuple(entries) for pair, entries in found.items()}


def _every() -> Iterator[tuple[str, MetricSignal]]:
    for adapter, rule in _rules():
        term = rule.terms[0]
        if not _plain(term):
            continue
        if rule.operator is Operator.HISTOGRAM:
            section = HISTOGRAM
        elif rule.operator is Operator.TERM and not rule.minus:
            section = term.section.value
        else:
            continue
        for name in term.metrics.first:
            if not name.startswith("~"):
                yield name, _entry(adapter, rule, section, term.where)


def _rules() -> Iterator[tuple[Adapter, Rule]]:
    for name in registry.ADAPTERS:
        adapter = registry.adapter(name)
        for rules in adapter.rules.values():
            for rule in rules:
                if rule.equals is None and not rule.absolute and not rule.per and rule.type is None:
                    yield adapter, rule


def _plain(term: Term) -> bool:
    metrics = term.metrics
    return not (metrics.every or metrics.some or metrics.maybe or term.weigh_by or term.codes)


def _entry(adapter: Adapter, rule: Rule, section: str, where: tuple[Match, ...]) -> MetricSignal:
    kind = catalog.signal(rule.signal).entity
    return MetricSignal(
        rule.signal,
        kind,
        section,
        where,
        rule.scale,
        rule.offset,
        _identity(adapter.entities.get(kind)),
        rule.terms[0].aggregate,
    )


def _identity(spec: EntitySpec | None) -> frozenset[str]:
    if spec is None:
        return OF_TARGET
    labels = {label for part in (*spec.parts, *spec.otherwise) for label in part if label != "@target"}
    return frozenset(labels | set(spec.split)) | (OF_TARGET if spec.target or not labels else frozenset())


def rest_of(matchers: Sequence[Matcher], where: Iterable[Match]) -> tuple[Matcher, ...] | None:
    """The matchers beside those of an adapter's term; None if they select other series than the term reads."""
    rest = list(matchers)
    for condition in where:
        same = next((matcher for matcher in rest if matcher.label == condition.label), None)
        if same is None or not _equal(same, condition):
            return None
        rest.remove(same)
    return tuple(rest)


def literals(matcher: Matcher) -> tuple[str, ...] | None:
    """The values that a positive matcher lists; None if it is negative or a pattern."""
    if matcher.symbol == "=":
        return (matcher.value,)
    return _alternatives(matcher.value) if matcher.symbol == "=~" else None


def _alternatives(pattern: str) -> tuple[str, ...] | None:
    inner = pattern.removeprefix("^").removesuffix("$")
    inner = inner[1:-1] if inner.startswith("(") and inner.endswith(")") else inner
    parts = tuple(
        part.replace("\\", "") if re.fullmatch(r"(?:\\[-./]|[\w\-./:@ ])*", part) else part for part in inner.split("|")
    )
    return parts if all(_LITERAL.fullmatch(part) for part in parts) else None


def _equal(matcher: Matcher, condition: Match) -> bool:
    if (matcher.symbol in ("=", "=~")) is not condition.wanted:
        return False
    given = (matcher.value,) if matcher.symbol in ("=", "!=") else _alternatives(matcher.value)
    known = _alternatives(condition.pattern.pattern)
    if given is None or known is None:
        return matcher.value.strip("^$()") == condition.pattern.pattern.strip("^$()")
    return set(given) == set(known)
