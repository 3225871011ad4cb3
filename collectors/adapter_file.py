"""Reads and checks an adapter file. Every fault is told with its file, line and key."""

from __future__ import annotations

import re
from datetime import timedelta
from enum import StrEnum
from typing import Any, TypeVar

from collectors.adapter import (
    Adapter,
    Aggregate,
    Codes,
    EdgeSpec,
    EntitySpec,
    EventSpec,
    Fixes,
    Heartbeat,
    LabelSpec,
    Match,
    Metrics,
    Operator,
    Probing,
    Rule,
    Section,
    Statistic,
    Term,
)
from collectors.loads import faults_of
from outrider import catalog, yamlfile
from outrider.errors import ConfigProblem, UsageError
from outrider.model import EntityKind, EventKind, SignalKind
from outrider.units import parse_duration

_Choice = TypeVar("_Choice", bound=StrEnum)
_SCIENTIFIC = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+")

_TOP = {
    "adapter", "title", "prefix", "target", "probe", "up", "health", "load", "start_time", "heartbeat", "new_series",
    "no_value", "aggregate", "entities", "edges", "labels", "events", "seen", "fixes", "signals",
}  # fmt: skip
_TERM = {"gauge", "delta", "rate", "where", "aggregate", "weigh_by", "codes", "otherwise"}
_RULE = _TERM | {
    "histogram", "summary", "ratio", "product", "count", "at_least", "minus", "scale", "offset", "equals", "absolute",
    "per", "distinct", "type", "statistic", "old",
}  # fmt: skip
_OPERATORS = ("gauge", "delta", "rate", "histogram", "summary", "ratio", "product", "count", "at_least")
_PROBE = {"health", "load", "load_as", "page", "port", "page_port"}


def read_adapter(text: str, file: str) -> Adapter:
    """Parse an adapter. Raises ConfigError that lists every fault in line order."""
    reader = _Reader(yamlfile.parse(text, file))
    adapter = reader.adapter()
    if reader.problems:
        raise yamlfile.refuse(reader.problems)
    return adapter


class _Reader:
    """Walks the document once; a faulty part is noted and replaced by something harmless."""

    def __init__(self, document: yamlfile.Document) -> None:
        self._document = document
        self.problems: list[ConfigProblem] = []
        self._default = Aggregate.SUM
        self._prefix = ""

    def adapter(self) -> Adapter:
        document = self._mapping(self._document.value, (), _TOP)
        for key in ("adapter", "target", "entities", "signals"):
            if key not in document:
                self._problem((key,), "this key is missing")
        self._default = self._aggregate(document.get("aggregate", "sum"), ("aggregate",))
        self._prefix = str(document.get("prefix", ""))
        if document.get("new_series", "baseline") not in {"from_zero", "baseline"}:
            self._problem(("new_series",), "expected from_zero or baseline")
        for key in ("up", "health", "load"):
            if key in document and document[key] not in catalog.signals():
                self._problem((key,), f"{document[key]!r} is no signal of the catalogue")
        entities = self._mapping(document.get("entities", {}), ("entities",))
        signals = self._mapping(document.get("signals", {}), ("signals",))
        labels = self._mapping(document.get("labels", {}), ("labels",))
        specs = {self._kind(kind, ("entities", kind)): self._entity(kind, spec) for kind, spec in entities.items()}
        return Adapter(
            name=str(document.get("adapter", "")),
            target=self._kind(document.get("target", "node"), ("target",)),
            entities=specs,
            rules={name: self._alternatives(name, value, specs) for name, value in signals.items()},
            probe=self._probe(document["probe"]) if document.get("probe") else None,
            up=document.get("up"),
            health=document.get("health"),
            load=document.get("load"),
            start_time=document.get("start_time"),
            heartbeat=self._heartbeat(document["heartbeat"]) if "heartbeat" in document else None,
            from_zero=document.get("new_series") == "from_zero",
            no_value=self._number(document["no_value"], ("no_value",)) if "no_value" in document else None,
            fixes=self._fixes(document.get("fixes", {})),
            title=str(document.get("title", document.get("adapter", ""))),
            edges=tuple(self._edge(edge, ("edges", i)) for i, edge in enumerate(self._list(document, "edges"))),
            labels=tuple(self._labels(kind, spec) for kind, spec in labels.items()),
            events=tuple(self._event(event, ("events", i)) for i, event in enumerate(self._list(document, "events"))),
            seen=self._seen(document.get("seen", {})),
            file=self._document.file,
        )

    def _heartbeat(self, value: Any) -> Heartbeat:
        spec = self._mapping(value, ("heartbeat",), {"of", "within"})
        names = self._names(spec.get("of", []), ("heartbeat", "of"))
        if not names:
            self._problem(("heartbeat", "of"), "expected the counters that always move")
        try:
            within = parse_duration(str(spec.get("within", "")))
        except UsageError as error:
            self._problem(("heartbeat", "within"), error.message)
            within = timedelta(minutes=5)
        return Heartbeat(self._metrics({"any": list(names)}, ("heartbeat", "of")), within.total_seconds())

    # --- rules ------------------------------------------------------------------------------------

    def _alternatives(self, name: str, value: Any, specs: dict[EntityKind, EntitySpec]) -> tuple[Rule, ...]:
        path: yamlfile.Path_ = ("signals", name)
        if name not in catalog.signals():
            self._problem(path, "no such signal in the catalogue")
            return ()
        if catalog.signal(name).entity not in specs:
            self._problem(path, f"this signal is about a {catalog.signal(name).entity}, which 'entities' lacks")
        if isinstance(value, list):
            return tuple(self._rule(name, one, (*path, i)) for i, one in enumerate(value))
        return (self._rule(name, value, path),)

    def _rule(self, name: str, value: Any, path: yamlfile.Path_) -> Rule:
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
            distinct=_spellings(spec.get("distinct", "")),
            type=spec.get("type"),
            statistic=statistic,
            old=bool(spec.get("old", False)),
        )

    def _statistic(self, name: str, operator: Operator, spec: dict[str, Any], path: yamlfile.Path_) -> Statistic:
        """What the rule tells of a distribution. A mean must be said to be one: it is no quantile."""
        is_mean = spec.get("statistic") == "mean"
        if spec.get("statistic", "mean") != "mean":
            self._problem((*path[:-1], "statistic"), "expected mean")
        told = {Operator.HISTOGRAM: Statistic.BUCKETS, Operator.SUMMARY: Statistic.QUANTILES}.get(operator)
        if (told is not None or is_mean) is not (catalog.signal(name).kind is SignalKind.HISTOGRAM):
            hint = "" if told or is_mean else "; where only its mean is published, add statistic: mean"
            self._problem(path, f"this signal is a {catalog.signal(name).kind} in the catalogue{hint}")
        return told or (Statistic.MEAN if is_mean else Statistic.VALUE)

    @staticmethod
    def _operator(key: str) -> Operator:
        return Operator.TERM if key in {"gauge", "delta", "rate"} else Operator(key)

    def _terms(self, operator: Operator, key: str, spec: dict[str, Any], path: yamlfile.Path_) -> tuple[Term, ...]:
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

    def _term(self, value: Any, path: yamlfile.Path_, aggregate: Aggregate | None = None) -> Term:
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

    def _codes(self, value: Any, path: yamlfile.Path_) -> Codes:
        spec = self._mapping(value, path, {"label", "values", "other"})
        values = self._mapping(spec.get("values", {}), (*path, "values"))
        codes = {str(name): self._number(code, (*path, "values", name)) for name, code in values.items()}
        other = self._number(spec["other"], (*path, "other")) if "other" in spec else None
        return Codes(str(spec.get("label", "")), codes, other)

    def _metrics(self, value: Any, path: yamlfile.Path_) -> Metrics:
        if isinstance(value, str | list):
            return Metrics(first=self._series(value, path))
        spec = self._mapping(value, path, {"all", "maybe", "any"})
        if ("all" in spec) is ("any" in spec):
            self._problem(path, "expected a name, a list of spellings, or one of all, any")
        every, maybe, some = (self._series(spec.get(key, []), (*path, key)) for key in ("all", "maybe", "any"))
        return Metrics(every=every, maybe=maybe, some=some)

    def _series(self, value: Any, path: yamlfile.Path_) -> tuple[str, ...]:
        """Names of metrics, which may bear the adapter's prefix or not."""
        names = self._names(value, path)
        if not self._prefix:
            return names
        return tuple(name if name.startswith("~") else f"~(?:{re.escape(self._prefix)})?{name}" for name in names)

    def _where(self, spec: dict[str, Any], path: yamlfile.Path_) -> tuple[Match, ...]:
        conditions = self._mapping(spec.get("where", {}), (*path, "where"))
        return tuple(self._match(label, str(text), (*path, "where", label)) for label, text in conditions.items())

    def _match(self, label: str, text: str, path: yamlfile.Path_) -> Match:
        wanted = not text.startswith("!")
        text = text.removeprefix("!")
        try:
            pattern = re.compile(text[1:] if text.startswith("~") else re.escape(text))
        except re.error as error:
            self._problem(path, f"not a regular expression: {error}")
            pattern = re.compile("")
        return Match(label, pattern, wanted)

    def _probe(self, value: Any) -> Probing:
        spec = self._mapping(value, ("probe",), _PROBE)
        ports = {key: self._port(spec[key], ("probe", key)) for key in ("port", "page_port") if key in spec}
        paths = {key: self._path(spec[key], ("probe", key)) for key in ("health", "load", "page") if key in spec}
        read_as = self._names(spec.get("load_as") or [], ("probe", "load_as"))
        for fault in faults_of(read_as):
            self._problem(("probe", "load_as"), fault)
        if bool(paths.get("load")) is not bool(spec.get("load_as")):
            self._problem(("probe",), "load and load_as go together")
        return Probing(**paths, load_as=read_as, port=ports.get("port"), page_port=ports.get("page_port"))

    def _path(self, value: Any, path: yamlfile.Path_) -> str:
        if value and not (isinstance(value, str) and value.startswith("/")):
            self._problem(path, f"expected a path such as /{path[-1]}, not {value!r}")
        return str(value or "")

    def _port(self, value: Any, path: yamlfile.Path_) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65536:
            self._problem(path, f"expected a port from 1 to 65535, not {value!r}")
            return 1
        return value

    def _fixes(self, value: Any) -> Fixes:
        spec = self._mapping(value, ("fixes",), {"default", "means", "signals", "lines"})
        signals = self._mapping(spec.get("signals", {}), ("fixes", "signals"))
        for name in signals:
            if name not in catalog.signals():
                self._problem(("fixes", "signals", name), "no such signal in the catalogue")
        lines = self._mapping(spec.get("lines", {}), ("fixes", "lines"))
        return Fixes(
            str(spec.get("default", "")),
            str(spec.get("means", "")),
            {name: str(key) for name, key in signals.items()},
            {name: str(line) for name, line in lines.items()},
        )

    def _seen(self, value: Any) -> dict[EntityKind, str]:
        found = self._mapping(value, ("seen",))
        for kind, name in found.items():
            if name not in catalog.signals():
                self._problem(("seen", kind), f"{name!r} is no signal of the catalogue")
        return {self._kind(kind, ("seen", kind)): str(name) for kind, name in found.items()}

    # --- entities, edges, labels, events ----------------------------------------------------------

    def _entity(self, kind: str, value: Any) -> EntitySpec:
        path: yamlfile.Path_ = ("entities", kind)
        spec = self._mapping(value, path, {"target", "name", "else", "namespace", "split", "instance"})
        parts, otherwise = _parts(spec.get("name", [])), _parts(spec.get("else", []))
        if not parts and not spec.get("target"):
            self._problem(path, "expected a name, or target: true")
        return EntitySpec(
            kind=self._kind(kind, path),
            target=bool(spec.get("target", False)),
            parts=parts,
            otherwise=otherwise,
            namespace=_spellings(spec.get("namespace", "")),
            split=self._names(spec.get("split", []), (*path, "split")),
            instance=spec.get("instance"),
        )

    def _edge(self, value: Any, path: yamlfile.Path_) -> EdgeSpec:
        spec = self._mapping(value, path, {"from", "to", "seen_on", "where"})
        lower, upper = (self._kind(spec.get(key, ""), (*path, key)) for key in ("from", "to"))
        seen_on = self._series(spec.get("seen_on", []), (*path, "seen_on"))
        return EdgeSpec(lower, upper, seen_on, self._where(spec, path))

    def _labels(self, kind: str, value: Any) -> LabelSpec:
        path: yamlfile.Path_ = ("labels", kind)
        spec = self._mapping(value, path)
        facts = {name: _spellings(labels) for name, labels in spec.items() if name != "seen_on"}
        return LabelSpec(self._kind(kind, path), self._series(spec.get("seen_on", []), (*path, "seen_on")), facts)

    def _event(self, value: Any, path: yamlfile.Path_) -> EventSpec:
        spec = self._mapping(value, path, {"kind", "entity", "code", "count", "code_label", "attributes"})
        if ("code" in spec) is ("count" in spec) or ("count" in spec) is not ("code_label" in spec):
            self._problem(path, "expected code, or count with code_label")
        attributes = self._mapping(spec.get("attributes", {}), (*path, "attributes"))
        return EventSpec(
            kind=self._member(
                EventKind, spec.get("kind", EventKind.XID), (*path, "kind"), EventKind.XID, "kind of event"
            ),
            entity=self._kind(spec.get("entity", ""), (*path, "entity")),
            metrics=self._series(
                spec.get("code", spec.get("count", [])), (*path, "code" if "code" in spec else "count")
            ),
            code_label=spec.get("code_label"),
            attributes={name: _spellings(labels) for name, labels in attributes.items()},
        )

    def _problem(self, path: yamlfile.Path_, message: str) -> None:
        self.problems.append(self._document.problem(path, message))

    # --- small readers ----------------------------------------------------------------------------

    def _mapping(self, value: Any, path: yamlfile.Path_, allowed: set[str] | None = None) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._problem(path, "expected a mapping")
            return {}
        for key in value:
            if allowed is not None and key not in allowed:
                self._problem((*path, str(key)), f"unknown key{yamlfile.near(str(key), allowed)}")
        return {str(key): one for key, one in value.items()}

    def _list(self, document: dict[str, Any], key: str) -> list[Any]:
        found = document.get(key, [])
        if not isinstance(found, list):
            self._problem((key,), "expected a list")
            return []
        return found

    def _names(self, value: Any, path: yamlfile.Path_) -> tuple[str, ...]:
        found = [value] if isinstance(value, str) else value
        if not isinstance(found, list) or not all(isinstance(one, str) for one in found):
            self._problem(path, "expected a name or a list of names")
            return ()
        return tuple(found)

    def _number(self, value: Any, path: yamlfile.Path_) -> float:
        if isinstance(value, str) and _SCIENTIFIC.fullmatch(value):
            return float(value)  # YAML 1.1 reads 1e-6 as text, 1.0e-6 as a number
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._problem(path, "expected a number")
            return 0.0
        return float(value)

    def _member(self, of: type[_Choice], value: Any, path: yamlfile.Path_, instead: _Choice, what: str) -> _Choice:
        try:
            return of(value)
        except ValueError:
            self._problem(path, f"{value!r} is no {what}; known are {', '.join(of)}")
            return instead

    def _kind(self, value: Any, path: yamlfile.Path_) -> EntityKind:
        return self._member(EntityKind, value, path, EntityKind.NODE, "kind of entity")

    def _aggregate(self, value: Any, path: yamlfile.Path_) -> Aggregate:
        return self._member(Aggregate, value, path, Aggregate.SUM, "aggregate")


def _parts(names: Any) -> tuple[tuple[str, ...], ...]:
    return tuple(_spellings(part) for part in ([names] if isinstance(names, str) else names))


def _spellings(text: Any) -> tuple[str, ...]:
    """``UUID|uuid`` into its alternatives."""
    return tuple(filter(None, str(text).split("|")))
