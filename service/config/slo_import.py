"""Import of OpenSLO v1 and Sloth (prometheus/v1) objectives as ``slos``.

The SLI is derived from the two Prometheus queries: a histogram that an adapter knows with its bound ``le``, or a
count of requests with status 5xx. An objective without a matching signal rejects the whole file.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from outrider.errors import ConfigError
from outrider.text import yaml_file
from outrider.text.yaml_file import Document, Path_
from outrider.text.yaml_shapes import Shapes
from outrider.vocabulary import catalog
from service.config.slo_settings import LATENCIES, SUCCESS

SLOTH, OPENSLO = "prometheus/v1", "openslo/v1"
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
_KNOWN = "a histogram of TTFT, TPOT or latency with le, or requests answered 5xx, that an adapter reads"


@dataclass(frozen=True, slots=True)
class _Sli:
    sli: str
    limit: float | None = None  # seconds


def read(path: Path) -> list[dict[str, Any]]:
    """Entries for ``slos``. Raises ConfigError with file, line, key and expected value of every error."""
    text = _text(path)
    reader = _Reader()
    found = [one for document in _documents(text, str(path)) for one in reader.read(document)]
    if reader.problems:
        raise yaml_file.refuse(reader.problems)
    if not found:
        raise ConfigError(f"{path} holds no SLO", hint=f"give it documents of {OPENSLO} (kind: SLO) or of {SLOTH}")
    return found


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="name a YAML file") from error


def _documents(text: str, file: str) -> Iterator[Document]:
    """Documents of a file, with the line numbers of the file."""
    begun, lines = 0, [*text.splitlines(), "---"]
    for number, line in enumerate(lines):
        if line.rstrip() == "---":
            part = "\n" * begun + "\n".join(lines[begun:number]) + "\n"
            begun = number + 1
            if part.strip():
                yield yaml_file.parse(part, file)


class _Reader(Shapes):
    def read(self, document: Document) -> Iterable[dict[str, Any]]:
        """Objectives of one document; none if the document is of another kind."""
        top = self.mapping(document, (), document.value)
        if top.get("version") == SLOTH:
            return self._sloth(document, top)
        if top.get("apiVersion") == OPENSLO:
            return self._openslo(document, top) if top.get("kind") == "SLO" else ()
        key = "version" if "version" in top else "apiVersion"
        self.expected(document, (key,) if key in top else (), f'"{SLOTH}" or "{OPENSLO}"', top.get(key))
        return ()

    def _sloth(self, document: Document, top: Mapping[str, Any]) -> list[dict[str, Any]]:
        found = []
        for place, one in enumerate(self.items(document, ("slos",), top.get("slos", []))):
            path: Path_ = ("slos", place)
            entry = self.mapping(document, path, one)
            sli = self.mapping(document, (*path, "sli"), entry.get("sli", {}))
            events = self.mapping(document, (*path, "sli", "events"), sli.get("events", {}))
            at = (*path, "sli", "events") if "events" in sli else (*path, "sli")
            bad, total = events.get("error_query"), events.get("total_query")
            share = self._share(document, (*path, "objective"), entry.get("objective"), 100.0)
            told = self._sli(document, at, str(bad or ""), str(total or ""), good=False)
            found.append(self._entry(document, (*path, "name"), entry.get("name"), top.get("service"), share, told))
        return [one for one in found if one]

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
        told = self._sli(document, at, events, self._query(document, (*at, "total"), ratio), good=good)
        found = self._entry(document, ("metadata", "name"), name, spec.get("service"), share, told)
        for place, window in enumerate(self.items(document, ("spec", "timeWindow"), spec.get("timeWindow", []))):
            if found and isinstance(window, dict):
                found["window"] = str(window.get("duration", "30d"))
                if window.get("isRolling", True) is not True:
                    self.expected(document, ("spec", "timeWindow", place, "isRolling"), "true", window["isRolling"])
        return [found] if found else []

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
        self, document: Document, path: Path_, name: Any, service: Any, share: float, told: _Sli | None
    ) -> dict[str, Any]:
        if not isinstance(name, str) or not re.fullmatch(r"[a-z][a-z0-9-]*", name):
            self.expected(document, path, "a name of small letters, digits and hyphens", name)
        if told is None:
            return {}
        limit = {} if told.limit is None else {"limit": f"{told.limit:g}s"}
        keeper = {"service": service} if isinstance(service, str) else {}
        return {"name": name, **keeper, "sli": told.sli, **limit, "objective": share}

    def _sli(self, document: Document, path: Path_, events: str, total: str, *, good: bool) -> _Sli | None:
        """SLI of the queries. Reports a problem if no signal matches."""
        for metric, (sli, scale) in _histograms().items():
            if _names(metric, total) and _names(metric, events):
                bound = _BOUND.search(events)
                ladder = catalog.signal(LATENCIES[sli]).bounds
                limit = float(bound[1]) * scale if bound else math.nan
                if any(math.isclose(limit, one) for one in ladder):
                    return _Sli(sli, limit)
                wanted = ", ".join(f"{one:g}" for one in ladder)
                self.expected(
                    document, path, f"a bound le of {metric} that is one of {wanted} seconds", bound and bound[0]
                )
                return None
        if any(_names(metric, total) and _names(metric, events) for metric in _counts()):
            codes = [(sign in ("!~", "!="), said) for sign, said in _CODE.findall(events)]
            if len(codes) == 1 and codes[0][0] == good and _FAILED.fullmatch(codes[0][1]):
                return _Sli(SUCCESS)
            self.expected(document, path, "a query that takes answers 5xx, and no others, for bad", events)
            return None
        self.expected(document, path, f"queries over {_KNOWN}", total or events)
        return None


def _names(metric: str, query: str) -> bool:
    base = metric.removesuffix("_total")
    return re.search(rf"(?<![\w:]){re.escape(base)}(?:_bucket|_count|_total)?(?![\w:])", query) is not None


@cache
def _histograms() -> Mapping[str, tuple[str, float]]:
    """Histograms that adapters read, as (SLI, seconds per unit)."""
    return {
        name: (_TIMED[signal], float(entry.get("scale", 1.0)))
        for signal, said in _signals()
        if signal in _TIMED
        for entry in _mappings(said)
        for name in _texts(entry.get("histogram"))
    }


@cache
def _counts() -> frozenset[str]:
    """Request counts that adapters read."""
    entries = [entry for signal, said in _signals() if signal in _COUNTED for entry in _mappings(said)]
    return frozenset(name for entry in entries for name in _texts(entry.get("delta")))


@cache
def _signals() -> tuple[tuple[str, Any], ...]:
    folder = resources.files("collectors").joinpath("adapters")
    files = [yaml.safe_load(one.read_text(encoding="utf-8")) for one in folder.iterdir() if one.name.endswith(".yaml")]
    return tuple(item for file in files for item in file.get("signals", {}).items())


def _mappings(said: Any) -> list[dict[str, Any]]:
    """Rules of an adapter for a signal: one, or several of which the first match applies."""
    return [one for one in (said if isinstance(said, list) else [said]) if isinstance(one, dict)]


def _texts(said: Any) -> list[str]:
    return [said] if isinstance(said, str) else [one for one in said or () if isinstance(one, str)]
