"""The rules of an adapter as PromQL: recording rules to install, and queries for pushdown.

Rules that PromQL cannot express are omitted and named (``UnsupportedInPromql``): weights in label values, increases
of metrics with an index in their name, and alternatives that depend on the type of a metric. Known differences to
raw samples: ``rate`` and ``increase`` extrapolate to the ends of their window and omit the first increase of a new
series. They agree within some percent over a window and not scrape by scrape.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from collectors.mapping.model import (
    QUANTILES,
    Adapter,
    Aggregate,
    Codes,
    EntitySpec,
    Match,
    Metrics,
    Operator,
    Rule,
    Section,
    Term,
)
from outrider.model import EntityKind, SignalKey
from outrider.vocabulary import catalog

TARGET_LABELS = ("job", "instance")
_AGGREGATE = {Aggregate.SUM: "sum", Aggregate.MEAN: "avg", Aggregate.MAX: "max", Aggregate.MIN: "min"}
_ORIGIN = "origin"  # distinguishes the series of several metrics before they are joined


class UnsupportedInPromql(Exception):  # noqa: N818 - not an error
    """PromQL cannot express this rule; the message gives the reason."""


@dataclass(frozen=True, slots=True)
class Query:
    """Values of one column of an adapter's batches, for each entity."""

    key: SignalKey
    kind: EntityKind
    text: str


@dataclass(frozen=True, slots=True)
class Dialect:
    """Options of the queries. ``select`` is added to every selector, ``window`` is the range of every counter.

    ``delta_seconds``: an increase is the rate over the window times that many seconds, for a caller with that
    interval; None gives the increase in the window. ``exported``: a label may have the prefix that Prometheus adds to
    labels that it sets itself.
    """

    window: str = "5m"
    select: str = ""
    target: tuple[str, ...] = TARGET_LABELS
    delta_seconds: float | None = None
    exported: bool = False


def queries(adapter: Adapter, dialect: Dialect = Dialect()) -> tuple[list[Query], dict[str, str]]:
    """Every signal of an adapter that PromQL can express, and the reason for each that it cannot."""
    supported, left_out = list[Query](), dict[str, str]()
    for signal in adapter.rules:
        try:
            supported.extend(_Writer(adapter, dialect, signal).queries())
        except UnsupportedInPromql as why:
            left_out[signal] = str(why)
    return supported, left_out


def observations(adapter: Adapter, signal: str, dialect: Dialect = Dialect()) -> str:
    """Observations per second of a histogram or summary. Raises UnsupportedInPromql if nothing counts them."""
    return _Writer(adapter, dialect, signal).observations()


class _Writer:
    """Writes the queries of one signal."""

    def __init__(self, adapter: Adapter, dialect: Dialect, signal: str) -> None:
        self._adapter, self._dialect = adapter, dialect
        self._rules, self._kind = adapter.rules[signal], catalog.signal(signal).entity
        self._signal = signal
        self._joined: dict[str, tuple[str, ...]] = {}  # labels that represent several spellings
        self._by = (*dialect.target, *self._entity_labels())

    def _entity_labels(self) -> tuple[str, ...]:
        """One label per part of the entity's name; one that represents all of several spellings."""
        spec = self._adapter.entities.get(self._kind)
        if spec is None:
            return ()
        labels = [*spec.split, *([spec.instance] if spec.instance else [])]
        for label, spellings in named_by(spec, exported=self._dialect.exported).items():
            labels.append(label)
            if spellings != (label,):
                self._joined[label] = spellings
        return tuple(dict.fromkeys(label for label in labels if label not in self._dialect.target))

    def queries(self) -> Iterator[Query]:
        """One query per column: the value, or each quantile of a distribution and its mean."""
        by_key: dict[SignalKey, list[str]] = {}
        problems = []
        for rule in self._rules:
            try:
                for key, text in self._columns(rule):
                    by_key.setdefault(key, []).append(text)
            except UnsupportedInPromql as why:
                problems.append(str(why))
        if not by_key:
            raise UnsupportedInPromql(problems[0] if problems else "has no rule")
        for key, texts in by_key.items():
            yield Query(key, self._kind, _first_present(texts))

    def observations(self) -> str:
        """Observations per second, whatever their values."""
        distributions = [rule for rule in self._rules if rule.operator in (Operator.HISTOGRAM, Operator.SUMMARY)]
        if not distributions:
            raise UnsupportedInPromql("it is not a distribution")
        return _first_present([self._rates(rule, "_count", self._by) for rule in distributions])

    def _columns(self, rule: Rule) -> Iterator[tuple[SignalKey, str]]:
        if rule.type is not None:
            raise UnsupportedInPromql(f"it depends on the type of {rule.names[0]}")
        if rule.operator is Operator.HISTOGRAM:
            for quantile in QUANTILES:
                yield SignalKey(self._signal, quantile=quantile), self._quantile(rule, quantile)
            yield SignalKey(self._signal), self._mean(rule)
        elif rule.operator is Operator.SUMMARY:
            for quantile in QUANTILES:
                term = self._term(rule.terms[0], f'quantile="{quantile:g}"', aggregate=Aggregate.MAX)
                yield SignalKey(self._signal, quantile=quantile), _scaled(term, rule)
        else:
            yield SignalKey(self._signal), self._value(rule)

    # --- whole rules ------------------------------------------------------------------------------

    def _value(self, rule: Rule) -> str:
        inner = (*self._by, *rule.per)
        if rule.operator is Operator.COUNT:
            names = rule.terms[0].metrics
            series = _first_present(
                [
                    f"count by ({_list((*inner, *rule.distinct))}) ({self._union(names_of_way, rule.terms[0])})"
                    for names_of_way in _alternatives(names)
                ]
            )
            return _scaled(f"count by ({_list(inner)}) ({series})", rule)
        terms = [self._term(term, "", by=inner) for term in rule.terms]
        expression = terms[0]
        if rule.operator is Operator.RATIO:
            expression = f"{_wrapped(terms[0])} / {_wrapped(terms[1])}"
        elif rule.operator is Operator.PRODUCT:
            expression = f"{_wrapped(terms[0])} * {_wrapped(terms[1])}"
        elif rule.operator is Operator.AT_LEAST:
            expression = f"{_wrapped(terms[0])} >= bool {_wrapped(terms[1])}"
        elif rule.minus:
            expression = f"{_wrapped(terms[0])} - {_wrapped(terms[1])}"
        if rule.per:
            expression = f"{_AGGREGATE[rule.aggregate]} by ({_list(self._by)}) ({expression})"
        return _scaled(expression, rule)

    def _quantile(self, rule: Rule, quantile: float) -> str:
        buckets = self._rates(rule, "_bucket", (*self._by, "le"))
        return _scaled(f"histogram_quantile({quantile:g}, {buckets})", rule)

    def _mean(self, rule: Rule) -> str:
        total, count = (self._rates(rule, suffix, self._by) for suffix in ("_sum", "_count"))
        return _scaled(f"{_wrapped(total)} / {_wrapped(count)}", rule)

    def _rates(self, rule: Rule, suffix: str, by: Sequence[str]) -> str:
        term = rule.terms[0]
        families = Metrics(first=tuple(name + suffix for name in term.metrics.names))
        return self._term(Term(Section.RATE, families, term.where), "", by=by)

    # --- terms ------------------------------------------------------------------------------------

    def _term(self, term: Term, more: str, *, by: Sequence[str] = (), aggregate: Aggregate | None = None) -> str:
        """One number for each label set: the first spelling that is present."""
        if term.weigh_by:
            raise UnsupportedInPromql(f"its weight is the label {term.weigh_by[0]}")
        by, over = by or self._by, _AGGREGATE[aggregate or term.aggregate]
        expressions = []
        for names in _alternatives(term.metrics):
            text = f"{over} by ({_list(by)}) ({self._union(names, term, more)})"
            every = (self._one_spelling(self._selected(name, term.where)) for name in term.metrics.every)
            guards = [f"sum by ({_list(by)}) ({name})" for name in every]
            expressions.append(" and ".join([text, *guards]) if len(guards) > 1 else text)
        for names in _alternatives(term.beside):
            beside = Term(Section.GAUGE, term.beside, term.beside_where)
            expressions.append(f"0 * sum by ({_list(by)}) ({self._union(names, beside)})")
        return _first_present(expressions)

    def _union(self, names: Sequence[str], term: Term, more: str = "") -> str:
        """The series of several metrics; each keeps its name."""
        parts = [self._coded(name, term, more) for name in names]
        if len(parts) == 1:
            return parts[0]
        marked = (
            f'label_replace({part}, "{_ORIGIN}", "{name}", "", "")' for name, part in zip(names, parts, strict=True)
        )
        return " or ".join(marked)

    def _coded(self, name: str, term: Term, more: str) -> str:
        if term.codes is None:
            return self._counted(name, term, more)
        parts = []
        for code, match in _by_code(term.codes):
            text = self._counted(name, term, ",".join(filter(None, (match, more))))
            parts.append(text if code == 1 else f"{text} * {code:g}")
        return " or ".join(parts)

    def _counted(self, name: str, term: Term, more: str) -> str:
        selected = self._selected(name, term.where, more)
        if term.section is Section.GAUGE:
            none = self._adapter.no_value
            return self._one_spelling(selected if none is None else f"({selected} != {none:g})")
        if name.startswith("~"):
            raise UnsupportedInPromql("the increases of metrics with an index in their name cannot be separated")
        is_rate, seconds = term.section is Section.RATE, self._dialect.delta_seconds
        function = "rate" if is_rate or seconds is not None else "increase"
        text = self._one_spelling(f"{function}({selected}[{self._dialect.window}])")
        return text if is_rate or seconds is None else f"{text} * {seconds:g}"

    def _one_spelling(self, text: str) -> str:
        """Sets the labels that represent several spellings; the first one comes last: it takes precedence."""
        for label, spellings in self._joined.items():
            for spelling in reversed(spellings):
                text = f'label_replace({text}, "{label}", "$1", "{spelling}", "(.+)")'
        return text

    def _selected(self, name: str, where: Sequence[Match], more: str = "") -> str:
        matchers = [
            f'{match.label}{"=~" if match.wanted else "!~"}"{_quoted(match.pattern.pattern)}"' for match in where
        ]
        inside = ",".join(filter(None, (*matchers, more, self._dialect.select)))
        if name.startswith("~"):
            return "{" + ",".join(filter(None, (f'__name__=~"{_quoted(name[1:])}"', inside))) + "}"
        return name + (f"{{{inside}}}" if inside else "")


def named_by(spec: EntitySpec, *, exported: bool = False) -> dict[str, tuple[str, ...]]:
    """Labels that name an entity in query results, each with the spellings it represents."""
    spellings_by_label = {}
    for number, part in enumerate((*spec.parts, spec.namespace)):
        spellings = tuple(label for label in part if label != "@target")
        if exported:
            spellings = tuple(name for label in spellings for name in (f"exported_{label}", label))
        if spellings:
            label = "entity_namespace" if number == len(spec.parts) else f"entity_{number}"
            spellings_by_label[spellings[0] if len(spellings) == 1 else label] = spellings
    return spellings_by_label


def _alternatives(metrics: Metrics) -> Iterator[tuple[str, ...]]:
    """Names to read together, one alternative after the other, best first."""
    yield from ((name,) for name in metrics.first)
    if metrics.every:
        yield (*metrics.every, *metrics.maybe)
    if metrics.some:
        yield metrics.some


def _by_code(codes: Codes) -> Iterator[tuple[float, str]]:
    """(code, matcher) of each code; the default comes last."""
    values: dict[float, list[str]] = {}
    for value, code in codes.values.items():
        values.setdefault(code, []).append(value)
    for code, names in values.items():
        yield code, f'{codes.label}=~"{_quoted("|".join(names))}"'
    if codes.other is not None:
        yield codes.other, f'{codes.label}!~"{_quoted("|".join(("", *codes.values)))}"'


def _scaled(text: str, rule: Rule) -> str:
    if rule.scale != 1:
        text = f"{_wrapped(text)} * {rule.scale:.12g}"
    if rule.offset:
        text = f"{_wrapped(text)} + {rule.offset:.12g}"
    if rule.absolute:
        text = f"abs({text})"
    if rule.equals is not None:
        text = f"{_wrapped(text)} == bool {rule.equals:.12g}"
    return text


def _first_present(texts: Sequence[str]) -> str:
    """The first expression with a value, for each label set."""
    return " or ".join(map(_wrapped, texts)) if len(texts) > 1 else texts[0]


def _wrapped(text: str) -> str:
    return f"({text})"


def _list(labels: Sequence[str]) -> str:
    return ", ".join(labels)


def literal(text: str) -> str:
    """Escapes text for a regular expression inside a PromQL string."""
    return _quoted(re.escape(text))


def _quoted(text: str) -> str:
    """Escapes text for a string in double quotes."""
    return text.replace("\\", "\\\\").replace('"', '\\"')
