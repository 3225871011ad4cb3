"""Reads the rules of an adapter file: the metrics of each signal."""

from __future__ import annotations

from typing import Any

from collectors.mapping.adapter_fields import FieldReader, spellings
from collectors.mapping.model import Aggregate, Codes, EntitySpec, Metrics, Operator, Rule, Section, Statistic, Term
from outrider.model import EntityKind, SignalKind
from outrider.text import yaml_file
from outrider.vocabulary import catalog

_TERM = {"gauge", "delta", "rate", "where", "aggregate", "weigh_by", "codes", "otherwise"}
_RULE = _TERM | {
    "histogram", "summary", "ratio", "product", "count", "at_least", "minus", "scale", "offset", "equals", "absolute",
    "per", "distinct", "type", "statistic", "old",
}  # fmt: skip
_OPERATORS = ("gauge", "delta", "rate", "histogram", "summary", "ratio", "product", "count", "at_least")


class RuleReader(FieldReader):
    """Readers of rules, their terms and their codes."""

    def __init__(self, document: yaml_file.Document) -> None:
        """``_default`` is the aggregate of rules that do not set one."""
        super().__init__(document)
        self._default = Aggregate.SUM

    def _alternatives(self, name: str, value: Any, specs: dict[EntityKind, EntitySpec]) -> tuple[Rule, ...]:
        path: yaml_file.Path_ = ("signals", name)
        if name not in catalog.signals():
            self._problem(path, "unknown signal")
            return ()
        if catalog.signal(name).entity not in specs:
            self._problem(path, f"this signal belongs to a {catalog.signal(name).entity}, which 'entities' lacks")
        if isinstance(value, list):
            return tuple(self._rule(name, rule, (*path, i)) for i, rule in enumerate(value))
        return (self._rule(name, value, path),)

    def _rule(self, name: str, value: Any, path: yaml_file.Path_) -> Rule:
        spec = self._mapping(value, path, _RULE)
        used = [key for key in _OPERATORS if key in spec]
        if len(used) != 1:
            self._problem(path, f"expected exactly one of {', '.join(_OPERATORS)}")
            return Rule(name, Operator.TERM, ())
        operator, aggregate = self._operator(used[0]), self._aggregate(spec.get("aggregate", self._default), path)
        statistic = self._statistic(name, operator, spec, (*path, used[0]))
        return Rule(
            signal=name,
            operator=operator,
            terms=self._terms(operator, used[0], spec, path),
            minus="minus" in spec,
            scale=self._number(spec.get("scale", 1.0), (*path, "scale")),
            offset=self._number(spec.get("offset", 0.0), (*path, "offset")),
            equals=self._number(spec["equals"], (*path, "equals")) if "equals" in spec else None,
            absolute=bool(spec.get("absolute", False)),
            per=self._names(spec.get("per", []), (*path, "per")),
            aggregate=aggregate,
            distinct=spellings(spec.get("distinct", "")),
            type=spec.get("type"),
            statistic=statistic,
            old=bool(spec.get("old", False)),
        )

    def _statistic(self, name: str, operator: Operator, spec: dict[str, Any], path: yaml_file.Path_) -> Statistic:
        """Statistic of a distribution. A mean must be declared as one: it is not a quantile."""
        is_mean = spec.get("statistic") == "mean"
        if spec.get("statistic", "mean") != "mean":
            self._problem((*path[:-1], "statistic"), "expected mean")
        statistic = {Operator.HISTOGRAM: Statistic.BUCKETS, Operator.SUMMARY: Statistic.QUANTILES}.get(operator)
        if (statistic is not None or is_mean) is not (catalog.signal(name).kind is SignalKind.HISTOGRAM):
            hint = "" if statistic or is_mean else "; if only its mean is published, add statistic: mean"
            self._problem(path, f"this signal is a {catalog.signal(name).kind} in the catalog{hint}")
        return statistic or (Statistic.MEAN if is_mean else Statistic.VALUE)

    @staticmethod
    def _operator(key: str) -> Operator:
        return Operator.TERM if key in {"gauge", "delta", "rate"} else Operator(key)

    def _terms(self, operator: Operator, key: str, spec: dict[str, Any], path: yaml_file.Path_) -> tuple[Term, ...]:
        if operator in {Operator.RATIO, Operator.AT_LEAST}:
            pair = self._mapping(spec[key], (*path, key), {"of", "to"})
            if set(pair) != {"of", "to"}:
                self._problem((*path, key), "expected the keys of and to")
            per = self._aggregate("sum", path) if "per" in spec else None
            return tuple(self._term(pair[side], (*path, key, side), per) for side in ("of", "to") if side in pair)
        if operator is Operator.PRODUCT:
            factors = spec[key] if isinstance(spec[key], list) else []
            if len(factors) != 2:
                self._problem((*path, key), "expected a list of two factors")
            terms = ({"gauge": factor} if isinstance(factor, str) else factor for factor in factors)
            return tuple(self._term(term, (*path, key, number)) for number, term in enumerate(terms))
        if operator is Operator.TERM:
            per = self._aggregate("sum", path) if "per" in spec else None
            term = self._term({name: spec[name] for name in spec if name in _TERM}, path, per)
            if "minus" not in spec:
                return (term,)
            other = Term(term.section, self._metrics(spec["minus"], (*path, "minus")), term.where, term.aggregate)
            return (term, other)
        section = Section.DELTA if operator is Operator.HISTOGRAM else Section.GAUGE
        return (Term(section, self._metrics(spec[key], (*path, key)), self._where(spec, path)),)

    def _term(self, value: Any, path: yaml_file.Path_, aggregate: Aggregate | None = None) -> Term:
        spec = self._mapping(value, path, _TERM)
        used = [key for key in ("gauge", "delta", "rate") if key in spec]
        if len(used) != 1:
            self._problem(path, "expected exactly one of gauge, delta, rate")
            return Term(Section.GAUGE, Metrics())
        beside = self._mapping(spec.get("otherwise", {}), (*path, "otherwise"), {"zero_beside", "where"})
        if beside and "zero_beside" not in beside:
            self._problem((*path, "otherwise"), "expected zero_beside: the metric beside which a missing one is 0")
            beside = {}
        return Term(
            section=Section(used[0]),
            metrics=self._metrics(spec[used[0]], (*path, used[0])),
            where=self._where(spec, path),
            aggregate=aggregate or self._aggregate(spec.get("aggregate", self._default), (*path, "aggregate")),
            weigh_by=self._names(spec.get("weigh_by", []), (*path, "weigh_by")),
            codes=self._codes(spec["codes"], (*path, "codes")) if "codes" in spec else None,
            beside=self._metrics(beside["zero_beside"], (*path, "otherwise", "zero_beside")) if beside else Metrics(),
            beside_where=self._where(beside, (*path, "otherwise")),
        )

    def _codes(self, value: Any, path: yaml_file.Path_) -> Codes:
        spec = self._mapping(value, path, {"label", "values", "other"})
        values = self._mapping(spec.get("values", {}), (*path, "values"))
        codes = {str(name): self._number(code, (*path, "values", name)) for name, code in values.items()}
        other = self._number(spec["other"], (*path, "other")) if "other" in spec else None
        return Codes(str(spec.get("label", "")), codes, other)
