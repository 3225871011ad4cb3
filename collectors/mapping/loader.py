"""Loads and checks an adapter file. Every problem is reported with file, line and key."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from collectors.mapping.adapter_fields import spellings
from collectors.mapping.adapter_rules import RuleReader
from collectors.mapping.load_endpoint import invalid_paths
from collectors.mapping.model import (
    Adapter,
    EdgeSpec,
    EngineEndpoints,
    EntitySpec,
    EventSpec,
    Fixes,
    Heartbeat,
    LabelSpec,
)
from outrider.errors import UsageError
from outrider.model import EntityKind, EventKind
from outrider.text import yaml_file
from outrider.vocabulary import catalog
from outrider.vocabulary.units import parse_duration

_TOP = {
    "adapter", "title", "prefix", "target", "probe", "up", "health", "load", "start_time", "heartbeat", "new_series",
    "no_value", "aggregate", "entities", "edges", "labels", "events", "seen", "fixes", "signals",
}  # fmt: skip
_PROBE = {"health", "load", "load_as", "page", "port", "page_port"}


def read_adapter(text: str, file: str) -> Adapter:
    """Parses an adapter. Raises ConfigError that lists every problem in line order."""
    reader = _Reader(yaml_file.parse(text, file))
    adapter = reader.adapter()
    if reader.problems:
        raise yaml_file.refuse(reader.problems)
    return adapter


class _Reader(RuleReader):
    """Walks the document once; an invalid part is recorded and replaced by a harmless default."""

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
                self._problem((key,), f"{document[key]!r} is not a signal of the catalog")
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
            self._problem(("heartbeat", "of"), "expected counters that move on every page")
        try:
            within = parse_duration(str(spec.get("within", "")))
        except UsageError as error:
            self._problem(("heartbeat", "within"), error.message)
            within = timedelta(minutes=5)
        return Heartbeat(self._metrics({"any": list(names)}, ("heartbeat", "of")), within.total_seconds())

    def _probe(self, value: Any) -> EngineEndpoints:
        spec = self._mapping(value, ("probe",), _PROBE)
        ports = {key: self._port(spec[key], ("probe", key)) for key in ("port", "page_port") if key in spec}
        paths = {key: self._path(spec[key], ("probe", key)) for key in ("health", "load", "page") if key in spec}
        read_as = self._names(spec.get("load_as") or [], ("probe", "load_as"))
        for fault in invalid_paths(read_as):
            self._problem(("probe", "load_as"), fault)
        if bool(paths.get("load")) is not bool(spec.get("load_as")):
            self._problem(("probe",), "load and load_as must be set together")
        return EngineEndpoints(**paths, load_as=read_as, port=ports.get("port"), page_port=ports.get("page_port"))

    def _path(self, value: Any, path: yaml_file.Path_) -> str:
        if value and not (isinstance(value, str) and value.startswith("/")):
            self._problem(path, f"expected a path such as /{path[-1]}, not {value!r}")
        return str(value or "")

    def _port(self, value: Any, path: yaml_file.Path_) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 65536:
            self._problem(path, f"expected a port from 1 to 65535, not {value!r}")
            return 1
        return value

    def _fixes(self, value: Any) -> Fixes:
        spec = self._mapping(value, ("fixes",), {"default", "means", "signals", "lines"})
        signals = self._mapping(spec.get("signals", {}), ("fixes", "signals"))
        for name in signals:
            if name not in catalog.signals():
                self._problem(("fixes", "signals", name), "unknown signal")
        lines = self._mapping(spec.get("lines", {}), ("fixes", "lines"))
        return Fixes(
            str(spec.get("default", "")),
            str(spec.get("means", "")),
            {name: str(key) for name, key in signals.items()},
            {name: str(line) for name, line in lines.items()},
        )

    def _seen(self, value: Any) -> dict[EntityKind, str]:
        signals = self._mapping(value, ("seen",))
        for kind, name in signals.items():
            if name not in catalog.signals():
                self._problem(("seen", kind), f"{name!r} is not a signal of the catalog")
        return {self._kind(kind, ("seen", kind)): str(name) for kind, name in signals.items()}

    # --- entities, edges, labels, events ----------------------------------------------------------

    def _entity(self, kind: str, value: Any) -> EntitySpec:
        path: yaml_file.Path_ = ("entities", kind)
        spec = self._mapping(value, path, {"target", "name", "else", "namespace", "split", "instance"})
        parts, otherwise = _parts(spec.get("name", [])), _parts(spec.get("else", []))
        if not parts and not spec.get("target"):
            self._problem(path, "expected a name, or target: true")
        return EntitySpec(
            kind=self._kind(kind, path),
            target=bool(spec.get("target", False)),
            parts=parts,
            otherwise=otherwise,
            namespace=spellings(spec.get("namespace", "")),
            split=self._names(spec.get("split", []), (*path, "split")),
            instance=spec.get("instance"),
        )

    def _edge(self, value: Any, path: yaml_file.Path_) -> EdgeSpec:
        spec = self._mapping(value, path, {"from", "to", "seen_on", "where"})
        lower, upper = (self._kind(spec.get(key, ""), (*path, key)) for key in ("from", "to"))
        seen_on = self._series(spec.get("seen_on", []), (*path, "seen_on"))
        return EdgeSpec(lower, upper, seen_on, self._where(spec, path))

    def _labels(self, kind: str, value: Any) -> LabelSpec:
        path: yaml_file.Path_ = ("labels", kind)
        spec = self._mapping(value, path)
        facts = {name: spellings(labels) for name, labels in spec.items() if name != "seen_on"}
        return LabelSpec(self._kind(kind, path), self._series(spec.get("seen_on", []), (*path, "seen_on")), facts)

    def _event(self, value: Any, path: yaml_file.Path_) -> EventSpec:
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
            attributes={name: spellings(labels) for name, labels in attributes.items()},
        )


def _parts(names: Any) -> tuple[tuple[str, ...], ...]:
    return tuple(spellings(part) for part in ([names] if isinstance(names, str) else names))
