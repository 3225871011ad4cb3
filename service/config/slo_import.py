"""Import of OpenSLO v1, Sloth (prometheus/v1) and Pyrra (pyrra.dev/v1alpha1) objectives as ``slos``.

The SLI is derived from the two Prometheus queries: a histogram that an adapter knows with its bound ``le``, or a
count of requests with status 5xx. An objective without a matching signal rejects the whole file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from outrider.errors import ConfigError, UsageError
from outrider.text import yaml_file
from outrider.text.yaml_file import Document, Path_
from outrider.text.yaml_shapes import Shapes
from outrider.vocabulary import catalog
from outrider.vocabulary.units import parse_duration
from outrider.wire import promql
from service.config.slo_settings import LATENCIES, SUCCESS

SLOTH, OPENSLO, PYRRA = "prometheus/v1", "openslo/v1", "pyrra.dev/v1alpha1"
_OBJECTIVE = "ServiceLevelObjective"
_OF_SERVICE = frozenset(
    {"service", "model_name", "model", "destination_service_name", "destination_workload", "gen_ai_request_model"}
)
"""Labels of metrics whose value is the name of a service."""
_OF_SOURCE = frozenset({"job", "reporter", "le"})  # select the source of a metric or a bucket, not some requests
_TIMED = {
    "engine_ttft_seconds": "ttft",
    "svc_ttft_seconds": "ttft",
    "engine_tpot_seconds": "tpot",
    "svc_tpot_seconds": "tpot",
    "engine_e2e_seconds": "latency",
    "svc_latency_seconds": "latency",
}
_COUNTED = ("svc_requests_total", "engine_http_requests_total")
_BOUND = re.compile(r'\ble\s*=\s*"([0-9.]+)"')
_CODE = re.compile(r'\b\w*(?:status|code)\w*\s*(=~|!~|=|!=)\s*"([^"]*)"')
_FAILED = re.compile(r"\(?5(?:\.\.|\.\*|\.\+|\d\d|xx|\[0-9\]\{2\}|\[0-9\]\[0-9\]|\\d\\d|\\d\{2\})?\)?")
_KNOWN = "a histogram of TTFT, TPOT or latency with le, or a count of requests with status 5xx, that an adapter reads"


@dataclass(frozen=True, slots=True)
class _Sli:
    sli: str
    limit: float | None = None  # seconds


def read(path: Path) -> list[dict[str, Any]]:
    """Returns entries for ``slos``. Raises ConfigError with file, line, key and expected value of every error."""
    text = _text(path)
    reader = _Reader()
    entries = [entry for document in yaml_file.documents(text, str(path)) for entry in reader.read(document)]
    if reader.problems:
        raise yaml_file.refuse(reader.problems)
    if not entries:
        raise ConfigError(f"{path} contains no SLO", hint=f"expected {OPENSLO} (kind: SLO), {SLOTH} or {PYRRA}")
    return entries


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="name a YAML file") from error


class _Reader(Shapes):
    def read(self, document: Document) -> Iterable[dict[str, Any]]:
        """Returns the objectives of one document; none if the document is of another kind."""
        top = self.mapping(document, (), document.value)
        if top.get("version") == SLOTH:
            return self._sloth(document, top)
        if top.get("apiVersion") == OPENSLO:
            return self._openslo(document, top) if top.get("kind") == "SLO" else ()
        if top.get("apiVersion") == PYRRA:
            return self._pyrra(document, (), top)
        if top.get("kind") == "List":
            items = self.items(document, ("items",), top.get("items", []))
            return [
                entry for index, item in enumerate(items) for entry in self._pyrra(document, ("items", index), item)
            ]
        key = "version" if "version" in top else "apiVersion"
        self.expected(document, (key,) if key in top else (), f'"{SLOTH}", "{OPENSLO}" or "{PYRRA}"', top.get(key))
        return ()

    def _pyrra(self, document: Document, path: Path_, value: Any) -> list[dict[str, Any]]:
        """A ServiceLevelObjective; a list of them has them under ``items``."""
        top = self.mapping(document, path, value)
        if top.get("kind") == f"{_OBJECTIVE}List":
            where = (*path, "items")
            items = enumerate(self.items(document, where, top.get("items", [])))
            return [entry for index, item in items for entry in self._pyrra(document, (*where, index), item)]
        if top.get("kind") != _OBJECTIVE:
            self.expected(document, (*path, "kind"), _OBJECTIVE, top.get("kind"))
            return []
        at = (*path, "spec")
        spec = self.mapping(document, at, top.get("spec", {}))
        name = self.mapping(document, (*path, "metadata"), top.get("metadata", {})).get("name")
        self._check_alerting(document, (*at, "alerting"), spec.get("alerting", {}))
        parsed, place = self._pyrra_sli(document, (*at, "indicator"), spec.get("indicator", {}))
        share = self._share(document, (*at, "target"), _number(spec.get("target")), 100.0)
        entry = self._entry(document, (*path, "metadata", "name"), name, place.get("service"), share, parsed)
        if not entry:
            return []
        if "namespace" in place and "service" in place:
            entry["namespace"] = place["namespace"]
        return [{**entry, "window": str(spec.get("window", "30d"))}]

    def _check_alerting(self, document: Document, path: Path_, value: Any) -> None:
        alerting = self.mapping(document, path, value)
        for key, on in (("disabled", False), ("burnrates", True)):
            if alerting.get(key, on) is not on:
                self.expected(document, (*path, key), f"{str(on).lower()}: every SLO alerts", alerting[key])

    def _pyrra_sli(self, document: Document, path: Path_, value: Any) -> tuple[_Sli | None, dict[str, str]]:
        """The SLI of an indicator, and the service that its selectors name."""
        indicator = self.mapping(document, path, value)
        kind = next((key for key in ("ratio", "latency", "latencyNative") if key in indicator), None)
        if kind is None:
            self.expected(document, path, "ratio, latency or latencyNative", next(iter(indicator), None))
            return None, {}
        at = (*path, kind)
        part = self.mapping(document, at, indicator[kind])
        for index, label in enumerate(self.items(document, (*at, "grouping"), part.get("grouping") or [])):
            if label not in _OF_SERVICE | {"namespace"}:
                self.expected(document, (*at, "grouping", index), "a label that names a service", label)
        total = self._metric(document, (*at, "total"), part)
        if kind == "latencyNative":
            events = self._native(document, (*at, "latency"), total, part.get("latency"))
        else:
            events = self._metric(document, (*at, "errors" if kind == "ratio" else "success"), part)
        parsed = self._sli(document, at, events, total, good=False) if events and total else None
        return parsed, self._place(document, (*at, "total"), total)

    def _metric(self, document: Document, path: Path_, part: Mapping[str, Any]) -> str:
        metric = self.mapping(document, path, part.get(str(path[-1]), {})).get("metric")
        if not isinstance(metric, str) or not metric:
            self.expected(document, (*path, "metric"), "a selector such as requests_total", metric)
            return ""
        return metric

    def _native(self, document: Document, path: Path_, total: str, latency: Any) -> str:
        """The selector of the bucket that a classic histogram of the name would have."""
        try:
            seconds = parse_duration(str(latency)).total_seconds()
        except UsageError:
            self.expected(document, path, "a duration such as 200ms", latency)
            return ""
        name = total.partition("{")[0].strip()
        scale = _histograms().get(name, ("", 1.0))[1]
        return f'{name}_bucket{{le="{seconds / scale:.12g}"}}'

    def _place(self, document: Document, path: Path_, total: str) -> dict[str, str]:
        """The service and namespace of a selector. Reports a matcher that selects only some requests of a service."""
        try:
            node = promql.parse(total) if total else None
        except promql.PromqlError as error:
            self.note(document, (*path, "metric"), str(error))
            return {}
        place: dict[str, str] = {}
        for matcher in node.matchers if isinstance(node, promql.Selector) else ():
            key = "service" if matcher.label in _OF_SERVICE else matcher.label
            if key in ("service", "namespace") and matcher.symbol == "=":
                place[key] = matcher.value
            elif key not in _OF_SOURCE:
                self.expected(document, (*path, "metric"), "matchers that name a service or namespace", str(matcher))
        return place

    def _sloth(self, document: Document, top: Mapping[str, Any]) -> list[dict[str, Any]]:
        entries = []
        for index, item in enumerate(self.items(document, ("slos",), top.get("slos", []))):
            path: Path_ = ("slos", index)
            entry = self.mapping(document, path, item)
            sli = self.mapping(document, (*path, "sli"), entry.get("sli", {}))
            events = self.mapping(document, (*path, "sli", "events"), sli.get("events", {}))
            at = (*path, "sli", "events") if "events" in sli else (*path, "sli")
            bad, total = events.get("error_query"), events.get("total_query")
            share = self._share(document, (*path, "objective"), entry.get("objective"), 100.0)
            parsed = self._sli(document, at, str(bad or ""), str(total or ""), good=False)
            entries.append(self._entry(document, (*path, "name"), entry.get("name"), top.get("service"), share, parsed))
        return [entry for entry in entries if entry]

    def _openslo(self, document: Document, top: Mapping[str, Any]) -> list[dict[str, Any]]:
        spec = self.mapping(document, ("spec",), top.get("spec", {}))
        name = self.mapping(document, ("metadata",), top.get("metadata", {})).get("name")
        method = spec.get("budgetingMethod", "Occurrences")
        if method != "Occurrences":
            self.expected(document, ("spec", "budgetingMethod"), '"Occurrences": each request counts', method)
        objectives = self.items(document, ("spec", "objectives"), spec.get("objectives", []))
        if len(objectives) != 1:
            self.expected(document, ("spec", "objectives"), "one objective", objectives)
            return []
        path: Path_ = ("spec", "objectives", 0)
        objective = self.mapping(document, path, objectives[0])
        key, whole = ("targetPercent", 100.0) if "targetPercent" in objective else ("target", 1.0)
        share = self._share(document, (*path, key), objective.get(key), whole)
        at: Path_ = ("spec", "indicator", "spec", "ratioMetric")
        indicator = self.mapping(document, at[:2], spec.get("indicator", {}))
        ratio = self.mapping(document, at[:3], indicator.get("spec", {})).get("ratioMetric", {})
        ratio = self.mapping(document, at, ratio)
        good = "good" in ratio
        events = self._query(document, (*at, "good" if good else "bad"), ratio)
        parsed = self._sli(document, at, events, self._query(document, (*at, "total"), ratio), good=good)
        entry = self._entry(document, ("metadata", "name"), name, spec.get("service"), share, parsed)
        for index, window in enumerate(self.items(document, ("spec", "timeWindow"), spec.get("timeWindow", []))):
            if entry and isinstance(window, dict):
                entry["window"] = str(window.get("duration", "30d"))
                if window.get("isRolling", True) is not True:
                    self.expected(document, ("spec", "timeWindow", index, "isRolling"), "true", window["isRolling"])
        return [entry] if entry else []

    def _query(self, document: Document, path: Path_, ratio: Mapping[str, Any]) -> str:
        part = self.mapping(document, path, ratio.get(str(path[-1]), {}))
        source = self.mapping(document, (*path, "metricSource"), part.get("metricSource", {}))
        spec = self.mapping(document, (*path, "metricSource", "spec"), source.get("spec", {}))
        return str(spec.get("query", ""))

    def _share(self, document: Document, path: Path_, value: Any, whole: float) -> float:
        share = float(value) / whole if isinstance(value, int | float) and not isinstance(value, bool) else math.nan
        if not 0.0 < share < 1.0:
            self.expected(document, path, f"a number between 0 and {whole:g}", value)
        return round(share, 12)

    def _entry(
        self, document: Document, path: Path_, name: Any, service: Any, share: float, parsed: _Sli | None
    ) -> dict[str, Any]:
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            self.expected(document, path, "a name of lowercase letters, digits and hyphens", name)
        if parsed is None:
            return {}
        limit = {} if parsed.limit is None else {"limit": f"{parsed.limit:g}s"}
        owner = {"service": service} if isinstance(service, str) else {}
        return {"name": name, **owner, "sli": parsed.sli, **limit, "objective": share}

    def _sli(self, document: Document, path: Path_, events: str, total: str, *, good: bool) -> _Sli | None:
        """Returns the SLI of the queries. Reports a problem if no signal matches."""
        for metric, (sli, scale) in _histograms().items():
            if _names(metric, total) and _names(metric, events):
                bound = _BOUND.search(events)
                bounds = catalog.signal(LATENCIES[sli]).bounds
                limit = float(bound[1]) * scale if bound else math.nan
                if any(math.isclose(limit, possible) for possible in bounds):
                    return _Sli(sli, limit)
                allowed = ", ".join(f"{possible:g}" for possible in bounds)
                self.expected(
                    document, path, f"a bound le of {metric} that is one of {allowed} seconds", bound and bound[0]
                )
                return None
        if any(_names(metric, total) and _names(metric, events) for metric in _counts()):
            codes = [(sign in ("!~", "!="), pattern) for sign, pattern in _CODE.findall(events)]
            if len(codes) == 1 and codes[0][0] == good and _FAILED.fullmatch(codes[0][1]):
                return _Sli(SUCCESS)
            self.expected(document, path, "a query that counts only status 5xx as bad", events)
            return None
        self.expected(document, path, f"queries over {_KNOWN}", total or events)
        return None


def _number(value: Any) -> Any:
    """The number in a text; Pyrra writes targets as texts."""
    try:
        return float(value) if isinstance(value, str) else value
    except ValueError:
        return value


def _names(metric: str, query: str) -> bool:
    base = metric.removesuffix("_total")
    return re.search(rf"(?<![\w:]){re.escape(base)}(?:_bucket|_count|_total)?(?![\w:])", query) is not None


@cache
def _histograms() -> Mapping[str, tuple[str, float]]:
    """Returns the histograms that adapters read, as (SLI, seconds per unit)."""
    return {
        name: (_TIMED[signal], float(entry.get("scale", 1.0)))
        for signal, rules in _signals()
        if signal in _TIMED
        for entry in _mappings(rules)
        for name in _texts(entry.get("histogram"))
    }


@cache
def _counts() -> frozenset[str]:
    """Returns the request counts that adapters read."""
    entries = [entry for signal, rules in _signals() if signal in _COUNTED for entry in _mappings(rules)]
    return frozenset(name for entry in entries for name in _texts(entry.get("delta")))


@cache
def _signals() -> tuple[tuple[str, Any], ...]:
    folder = resources.files("collectors").joinpath("adapters")
    paths = [path for path in folder.iterdir() if path.name.endswith(".yaml")]
    files = [yaml.safe_load(path.read_text(encoding="utf-8")) for path in paths]
    return tuple(item for file in files for item in file.get("signals", {}).items())


def _mappings(rules: Any) -> list[dict[str, Any]]:
    """Returns the rules of an adapter for a signal: one, or several of which the first match applies."""
    return [rule for rule in (rules if isinstance(rules, list) else [rules]) if isinstance(rule, dict)]


def _texts(value: Any) -> list[str]:
    return [value] if isinstance(value, str) else [text for text in value or () if isinstance(text, str)]
