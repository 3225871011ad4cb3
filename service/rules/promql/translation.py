"""Translates PromQL of an alert rule into a rule expression over signals. Pure.

A rule has one value for each entity, so an expression is translated only if every series of it belongs to one entity of
one kind. Sums over the replicas of a service become the signal of the service.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from collectors.mapping.model import Aggregate
from outrider.model import EntityKind, SignalKind
from outrider.vocabulary import catalog, percentiles
from outrider.vocabulary.units import exact_duration
from outrider.wire.promql import (
    Aggregation,
    Binary,
    Call,
    Matcher,
    Negative,
    Node,
    Number,
    PromqlError,
    Selector,
    Text,
)
from service.rules.promql.metrics import (
    HISTOGRAM,
    MetricSignal,
    literals,
    rest_of,
    signals_of_metrics,
    signals_of_ratios,
)

OF_SERVICE = {
    "engine_ttft_seconds": "svc_ttft_seconds",
    "engine_tpot_seconds": "svc_tpot_seconds",
    "engine_e2e_seconds": "svc_latency_seconds",
    "engine_requests_waiting": "svc_queue_requests",
    "engine_requests_finished_total": "svc_requests_total",
    "engine_http_requests_total": "svc_requests_total",
    "engine_http_failed_total": "svc_failed_total",
    "engine_prompt_tokens_total": "svc_prompt_tokens_total",
    "engine_generation_tokens_total": "svc_generation_tokens_total",
    "engine_generation_tokens_per_second": "svc_tokens_per_second",
}
"""The signal of a service that is the sum of this one over its replicas."""
_SERVICE_LABELS = frozenset({"model_name", "model", "service", "app"})
_EVERYWHERE = frozenset({"job", "namespace", "cluster", "le"})  # labels that do not divide an entity
_NAMESPACES = frozenset({"namespace", "exported_namespace", "kubernetes_namespace", "pod_namespace"})
_COMPARISONS = frozenset({">", ">=", "<", "<=", "==", "!="})
_ARITHMETIC = frozenset({"+", "-", "*", "/"})
_OVER_TIME = {"avg_over_time": "mean", "max_over_time": "max", "min_over_time": "min"}
_COUNTED = {"rate": "rate", "increase": "sum"}
_OPERATORS = {Aggregate.SUM: "sum", Aggregate.MEAN: "avg", Aggregate.MAX: "max", Aggregate.MIN: "min"}
_STRENGTH = {"or": 1, "and": 2, "+": 4, "-": 4, "*": 5, "/": 5}


@dataclass(frozen=True, slots=True)
class Translated:
    """A rule expression. ``notes`` are differences from the original that a person should know."""

    expr: str
    kind: EntityKind
    where: Mapping[str, tuple[str, ...]]
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Leaf:
    """A metric in its place: the series, how it is read, and the labels that it is aggregated by; None without."""

    selector: Selector
    section: str
    by: frozenset[str] | None
    operator: str = ""


@dataclass(slots=True)
class _Choice:
    """Signals for one leaf, by kind of entity."""

    signals: dict[EntityKind, MetricSignal]
    rest: dict[EntityKind, tuple[Matcher, ...]] = field(default_factory=dict)


def translate(node: Node) -> Translated:
    """Translates the condition of an alert rule. Raises PromqlError with the reason if a part cannot be expressed."""
    writer = _Writer()
    writer.survey(node)
    text = writer.truth(node, 0)
    if not writer.chosen:
        raise PromqlError("it reads no metric")
    return Translated(text, writer.kind, writer.where, tuple(dict.fromkeys(writer.notes)))


class _Writer:
    """Chooses one kind of entity for all metrics, then writes the expression."""

    def __init__(self) -> None:
        self.kind = EntityKind.REPLICA
        self.where: dict[str, tuple[str, ...]] = {}
        self.notes: list[str] = []
        self.chosen: dict[_Leaf, MetricSignal] = {}

    # --- one kind of entity -----------------------------------------------------------------------

    def survey(self, node: Node) -> None:
        """Chooses the kind of entity, and the signal of each metric."""
        choices = {leaf: _choice(leaf) for leaf in dict.fromkeys(_leaves(node))}
        if not choices:
            return
        kinds = list(next(iter(choices.values())).signals)
        common = [kind for kind in kinds if all(kind in choice.signals for choice in choices.values())]
        if not common:
            named = {leaf.selector.metric: "/".join(choice.signals) for leaf, choice in choices.items()}
            listed = ", ".join(f"{metric} of a {kind}" for metric, kind in named.items())
            raise PromqlError(f"it compares values of different kinds of entity: {listed}")
        self.kind = common[0]
        for leaf, choice in choices.items():
            self.chosen[leaf] = choice.signals[self.kind]
            for matcher in choice.rest[self.kind]:
                self._select(matcher)
            self._note_aggregate(leaf)

    def _select(self, matcher: Matcher) -> None:
        """A matcher beside those of the signal becomes a condition on the entity."""
        values = literals(matcher)
        if matcher.label not in _NAMESPACES or values is None:
            self.notes.append(f"the matcher {matcher} is dropped: the signal names its source")
            return
        known = self.where.setdefault("namespace", values)
        if set(known) != set(values):
            raise PromqlError("its metrics are selected from different namespaces")

    def _note_aggregate(self, leaf: _Leaf) -> None:
        own, metric = _OPERATORS[self.chosen[leaf].aggregate], leaf.selector.metric
        if leaf.section == HISTOGRAM or (leaf.by is None and own == "sum") or leaf.operator == own:
            return
        self.notes.append(f"{own} of the series of {metric}, if one entity has several")

    # --- truth values -----------------------------------------------------------------------------

    def truth(self, node: Node, strength: int) -> str:
        if isinstance(node, Binary) and node.symbol in ("and", "or"):
            self._refuse_modifier(node)
            own = _STRENGTH[node.symbol]
            text = f"{self.truth(node.left, own)} {node.symbol} {self.truth(node.right, own)}"
            return f"({text})" if own < strength else text
        if isinstance(node, Binary) and node.symbol in _COMPARISONS:
            self._refuse_modifier(node)
            return f"{self.number(node.left, 3)} {node.symbol} {self.number(node.right, 3)}"
        if isinstance(node, Selector) and node.seconds is None:
            return f"present({self._leaf(_Leaf(node, 'gauge', None)).signal})"
        if isinstance(node, Call) and node.function in ("absent", "absent_over_time"):
            raise PromqlError(f"{node.function}() has no entity: give the rule of these values absent: fire")
        if isinstance(node, Binary) and node.symbol == "unless":
            raise PromqlError("unless cannot be translated: a missing value is neither true nor false")
        raise PromqlError("it is not a comparison, and any value of it fires")

    def _refuse_modifier(self, node: Binary) -> None:
        for word in ("bool", "group_left", "group_right"):
            if word in node.modifier:
                raise PromqlError(f"{word} cannot be translated")
        if node.modifier:
            self.notes.append(f"{node.modifier} is dropped: values of one entity are compared")

    # --- numbers ----------------------------------------------------------------------------------

    def number(self, node: Node, strength: int) -> str:
        if isinstance(node, Number):
            return f"{node.value:.12g}"
        if isinstance(node, Negative):
            return f"-{self.number(node.inner, 6)}"
        if isinstance(node, Binary):
            return self._arithmetic(node, strength)
        if isinstance(node, Call) and node.function == "clamp_min":
            if len(node.arguments) != 2:
                raise PromqlError("clamp_min has two arguments")
            return f"greatest({self.number(node.arguments[0], 0)}, {self.number(node.arguments[1], 0)})"
        if isinstance(node, Call) and node.function == "histogram_quantile":
            return self._quantile(node)
        if isinstance(node, Text):
            raise PromqlError("a text is not a number")
        return self._value(node, strength)

    def _arithmetic(self, node: Binary, strength: int) -> str:
        if node.symbol not in _ARITHMETIC:
            what = "a comparison inside arithmetic" if node.symbol in _COMPARISONS else f"the operator {node.symbol}"
            raise PromqlError(f"{what} cannot be translated")
        self._refuse_modifier(node)
        pair = _ratio_of(node)
        if pair is not None and (leaf := _Leaf(pair, "ratio", None)) in self.chosen:
            return _unscaled(f"last({self.chosen[leaf].signal})", self.chosen[leaf], strength)
        own = _STRENGTH[node.symbol]
        text = f"{self.number(node.left, own)} {node.symbol} {self.number(node.right, own + 1)}"
        return f"({text})" if own < strength else text

    def _quantile(self, node: Call) -> str:
        share, leaf = _quantile_of(node)
        entry = self._leaf(leaf)
        fewest = percentiles.fewest_observations(share)
        self.notes.append(
            f"of fewer than {fewest} observations the quantile {share:.12g} is undefined; "
            "a fourth argument sets the minimum"
        )
        text = f'quantile({share:.12g}, {entry.signal}, "{_duration(leaf.selector)}")'
        return _unscaled(text, entry, _STRENGTH["*"] + 1)

    def _value(self, node: Node, strength: int) -> str:
        leaf, function = _leaf_of(node)
        entry = self._leaf(leaf)
        is_delta = catalog.signal(entry.signal).kind is SignalKind.DELTA
        if function == "last":
            text = f"last({entry.signal})"
        elif leaf.section == "delta" and not is_delta:  # a rate that the adapter computes
            text = f'mean({entry.signal}, "{_duration(leaf.selector)}")'
            if function == "sum":
                text, strength = f"{text} * {leaf.selector.seconds:.12g}", max(strength, _STRENGTH["*"] + 1)
                return _unscaled(f"({text})", entry, strength)
        else:
            text = f'{function}({entry.signal}, "{_duration(leaf.selector)}")'
        return _unscaled(text, entry, strength)

    def _leaf(self, leaf: _Leaf) -> MetricSignal:
        return self.chosen[leaf]


# --- metrics in their place ---------------------------------------------------------------------------


def _leaves(node: Node) -> Iterator[_Leaf]:
    """The metrics of an expression as they are read. Raises PromqlError for a function that no rule has."""
    if isinstance(node, Binary):
        pair = _ratio_of(node)
        if pair is not None:
            yield _Leaf(pair, "ratio", None)
        else:
            yield from _leaves(node.left)
            yield from _leaves(node.right)
    elif isinstance(node, Negative):
        yield from _leaves(node.inner)
    elif isinstance(node, Call) and node.function == "histogram_quantile":
        yield _quantile_of(node)[1]
    elif isinstance(node, Call) and node.function in ("clamp_min", "absent", "absent_over_time"):
        for argument in node.arguments if node.function == "clamp_min" else ():
            yield from _leaves(argument)
    elif not isinstance(node, Number | Text):
        yield _leaf_of(node)[0]


def _ratio_of(node: Binary) -> Selector | None:
    """The pair of gauges that is a signal of its own, as a selector with both names; None if there is none."""
    left, right = node.left, node.right
    if node.symbol != "/" or not isinstance(left, Selector) or not isinstance(right, Selector):
        return None
    if left.seconds is not None or right.seconds is not None or left.matchers != right.matchers:
        return None
    pair = (left.metric, right.metric)
    return Selector(" / ".join(pair), left.matchers) if pair in signals_of_ratios() else None


def _leaf_of(node: Node) -> tuple[_Leaf, str]:
    """A metric with the function of the rule language that reads it."""
    if isinstance(node, Aggregation):
        leaf, function = _leaf_of(node.inner)
        return _aggregated(leaf, node), function
    if isinstance(node, Selector):
        if node.seconds is not None:
            raise PromqlError(f"{node.metric} has a range without a function over it")
        return _Leaf(node, "gauge", None), "last"
    if isinstance(node, Call):
        return _called(node)
    if isinstance(node, Binary | Negative):
        raise PromqlError("an aggregation over arithmetic or comparisons cannot be translated")
    raise PromqlError("a metric is missing")


def _called(node: Call) -> tuple[_Leaf, str]:
    name, inner = node.function, node.arguments[0] if node.arguments else None
    function = {**_OVER_TIME, **_COUNTED, "last_over_time": "last"}.get(name)
    if function is None:
        raise PromqlError(f"the function {name} cannot be translated")
    if not isinstance(inner, Selector) or inner.seconds is None or len(node.arguments) != 1:
        raise PromqlError(f"{name} needs a metric with a range")
    return _Leaf(inner, "delta" if name in _COUNTED else "gauge", None), function


def _aggregated(leaf: _Leaf, node: Aggregation) -> _Leaf:
    if node.operator not in ("sum", "avg", "max", "min") or node.parameter is not None:
        raise PromqlError(f"the aggregation {node.operator} cannot be translated")
    if node.without:
        raise PromqlError("without(...) cannot be translated; name the labels to keep with by(...)")
    if leaf.by is not None:
        raise PromqlError("an aggregation of an aggregation cannot be translated")
    return _Leaf(leaf.selector, leaf.section, frozenset(node.labels), node.operator)


def _quantile_of(node: Call) -> tuple[float, _Leaf]:
    """The share and the histogram of ``histogram_quantile``."""
    if len(node.arguments) != 2 or not isinstance(node.arguments[0], Number):
        raise PromqlError("histogram_quantile needs a number and a rate of buckets")
    share = node.arguments[0].value
    if not 0 < share < 1:
        raise PromqlError("histogram_quantile needs a share between 0 and 1")
    leaf, function = _leaf_of(node.arguments[1])
    name = leaf.selector.metric
    if function not in ("rate", "sum") or not name.endswith("_bucket"):
        raise PromqlError("histogram_quantile needs a rate of buckets")
    if leaf.by is not None and "le" not in leaf.by:
        raise PromqlError("histogram_quantile needs the label le")
    base = Selector(name.removesuffix("_bucket"), leaf.selector.matchers, leaf.selector.seconds)
    return share, _Leaf(base, HISTOGRAM, leaf.by, leaf.operator)


def _choice(leaf: _Leaf) -> _Choice:
    """The signals of a metric in its place. Raises PromqlError if there is none."""
    metric = leaf.selector.metric
    if leaf.section == "ratio":
        first, _, second = metric.partition(" / ")
        entries: Sequence[MetricSignal] = signals_of_ratios()[first, second]
    else:
        entries = signals_of_metrics().get(metric, ())
    if not entries:
        raise PromqlError(f"no adapter reads {metric} as a signal")
    choice = _Choice({})
    reasons = []
    for entry in sorted(entries, key=lambda entry: (entry.section == "rate", -len(entry.where))):
        try:
            _offer(choice, leaf, entry)
        except PromqlError as error:
            reasons.append(str(error))
    if not choice.signals:
        raise PromqlError(reasons[0])
    return choice


def _offer(choice: _Choice, leaf: _Leaf, entry: MetricSignal) -> None:
    """Adds a signal if the metric is read as the adapter reads it, for entities that its labels name."""
    metric, section = leaf.selector.metric, "gauge" if leaf.section == "ratio" else leaf.section
    if section != entry.section and not (section == "delta" and entry.section == "rate"):
        expected = {"delta": "a counter", "rate": "a counter", HISTOGRAM: "a histogram"}.get(entry.section, "a gauge")
        raise PromqlError(f"{metric} is {expected}, and is not read as one")
    rest = rest_of(leaf.selector.matchers, entry.where)
    if rest is None:
        known = ", ".join(f"{match.label}={match.pattern.pattern}" for match in entry.where)
        raise PromqlError(f"{metric} is a signal only with {known}")
    for matcher in rest:
        if not (matcher.label in _NAMESPACES and literals(matcher)) and (matcher.label != "job" or metric == "up"):
            raise PromqlError(f"the matcher {matcher} cannot be expressed; only namespaces can be selected")
    own = _OPERATORS[entry.aggregate]
    if leaf.operator == "sum" and own != "sum" and leaf.section != HISTOGRAM:
        raise PromqlError(f"{metric} is summed, and its signal is the {own} of its series")
    signal, kind = _of_entity(leaf, entry)
    if kind not in choice.signals:
        choice.signals[kind] = replace(entry, signal=signal, kind=kind)
        choice.rest[kind] = rest


def _of_entity(leaf: _Leaf, entry: MetricSignal) -> tuple[str, EntityKind]:
    """The signal and the kind of entity that the labels of an aggregation name."""
    if leaf.by is None:
        return entry.signal, entry.kind
    labels = leaf.by - _EVERYWHERE
    if labels & (entry.identity | ({"gpu"} if entry.kind is EntityKind.GPU else frozenset())):
        return entry.signal, entry.kind
    if labels & _SERVICE_LABELS and entry.kind is EntityKind.SERVICE and leaf.operator == _OPERATORS[entry.aggregate]:
        return entry.signal, entry.kind
    if labels & _SERVICE_LABELS and leaf.operator == "sum" and entry.signal in OF_SERVICE:
        return OF_SERVICE[entry.signal], EntityKind.SERVICE
    named = ", ".join(sorted(leaf.by)) or "nothing"
    raise PromqlError(f"{leaf.selector.metric} is aggregated by {named}, and no kind of entity has one value for each")


def _unscaled(text: str, entry: MetricSignal, strength: int) -> str:
    """The metric from its signal, which is the metric times ``scale`` plus ``offset``."""
    own = strength
    if entry.offset:
        sign = "-" if entry.offset > 0 else "+"
        text, own = f"{text} {sign} {abs(entry.offset):.12g}", _STRENGTH["+"]
    if entry.scale == -1.0 and entry.offset:
        bare = text.rpartition(f" {'-' if entry.offset > 0 else '+'} ")[0]
        text, own = f"{entry.offset:.12g} - {bare}", _STRENGTH["-"]
    elif entry.scale != 1.0:
        text = f"({text})" if entry.offset else text
        factor = 1.0 / entry.scale
        whole = math.isclose(factor, round(factor)) and abs(factor) >= 1
        text, own = (f"{text} * {round(factor)}" if whole else f"{text} / {entry.scale:.12g}"), _STRENGTH["*"]
    return f"({text})" if own < strength else text


def _duration(selector: Selector) -> str:
    seconds = selector.seconds or 0.0
    if seconds < 1 or seconds != int(seconds):
        raise PromqlError(f"a range of {seconds:g} s cannot be expressed; whole seconds can")
    return exact_duration(seconds)
