"""Import of Prometheus alert rules: PrometheusRule objects (monitoring.coreos.com/v1) and plain rule files.

A rule whose condition can be expressed over signals becomes an alert rule. Every other one is listed by name with the
reason. Recording rules of the same file are put in place of the series that they record.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from alerts.rules import files as rule_files
from detectors.rules.expressions import compile_expression
from outrider.errors import ConfigError, UsageError
from outrider.text import yaml_file
from outrider.text.yaml_file import Document, Path_
from outrider.text.yaml_shapes import Shapes
from outrider.vocabulary import severity
from outrider.vocabulary.units import exact_duration
from outrider.wire import promql
from outrider.wire.promql import Aggregation, Binary, Call, Negative, Node, PromqlError, Selector
from service.rules.promql.translation import translate

API_VERSION, KIND = "monitoring.coreos.com/v1", "PrometheusRule"
RULE_LABEL = "outrider_rule"  # set by the export: the name of the rule
_ROUTING = frozenset({"severity", "priority", RULE_LABEL})  # labels that become keys of their own
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_MOST_EXPANSIONS = 200
_TEMPLATE = "{{"


@dataclass(frozen=True, slots=True)
class LeftOutRule:
    """A rule that was not imported."""

    name: str
    group: str
    line: int
    reason: str


@dataclass(frozen=True, slots=True)
class ImportNote:
    """A difference between a rule and its original."""

    rule: str
    text: str


@dataclass(slots=True)
class ImportedRules:
    """Entries for a rules file, the rules that were left out, and what differs."""

    rules: list[dict[str, Any]] = field(default_factory=list)
    left_out: list[LeftOutRule] = field(default_factory=list)
    notes: list[ImportNote] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class _Rule:
    """One entry of a group, with its position."""

    document: Document
    path: Path_
    group: str
    keys: Mapping[str, Any]

    @property
    def name(self) -> str:
        return str(self.keys.get("alert") or self.keys.get("record") or "")


def read(path: Path) -> ImportedRules:
    """Imports the rules of a file. Raises ConfigError if it is not a file of Prometheus rules."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}", hint="name a YAML file") from error
    reader = _Reader()
    rules = [rule for document in yaml_file.documents(text, str(path)) for rule in reader.rules(document)]
    if reader.problems:
        raise yaml_file.refuse(reader.problems)
    if not rules:
        raise ConfigError(f"{path} contains no rule", hint=f"expected {KIND} objects, or groups: of Prometheus rules")
    return _imported(rules)


class _Reader(Shapes):
    """Finds the rules of documents."""

    def rules(self, document: Document) -> Iterator[_Rule]:
        yield from self._object(document, (), document.value)

    def _object(self, document: Document, path: Path_, value: Any) -> Iterator[_Rule]:
        top = self.mapping(document, path, value)
        if top.get("kind") == "List" or (top.get("kind") == f"{KIND}List"):
            for index, item in enumerate(self.items(document, (*path, "items"), top.get("items", []))):
                yield from self._object(document, (*path, "items", index), item)
        elif top.get("apiVersion") == API_VERSION and top.get("kind") == KIND:
            where = (*path, "spec")
            yield from self._groups(document, where, self.mapping(document, where, top.get("spec", {})))
        elif "groups" in top:
            yield from self._groups(document, path, top)
        elif "apiVersion" not in top or top.get("apiVersion") == API_VERSION:
            self.expected(document, (*path, "kind"), f"{KIND} of {API_VERSION}, or groups", top.get("kind"))

    def _groups(self, document: Document, path: Path_, top: Mapping[str, Any]) -> Iterator[_Rule]:
        for index, item in enumerate(self.items(document, (*path, "groups"), top.get("groups", []))):
            where = (*path, "groups", index)
            group = self.mapping(document, where, item)
            for number, entry in enumerate(self.items(document, (*where, "rules"), group.get("rules", []))):
                at = (*where, "rules", number)
                keys = self.mapping(document, at, entry)
                rule = _Rule(document, at, str(group.get("name", "")), keys)
                if not rule.name or not isinstance(keys.get("expr"), str | int | float):
                    self.note(document, at, "expected a rule with alert or record, and expr")
                else:
                    yield rule


def _imported(rules: Sequence[_Rule]) -> ImportedRules:
    result = ImportedRules()
    recorded = {rule.name: rule for rule in rules if "record" in rule.keys}
    taken = {entry.rule.name for entry in rule_files.load_entries()}
    for rule in rules:
        if "record" in rule.keys:
            result.notes.append(ImportNote(rule.name, "a recording rule, used in place of the series that it records"))
            continue
        try:
            entry, notes = _entry(rule, recorded, taken)
        except (PromqlError, UsageError) as error:
            reason = error.message if isinstance(error, UsageError) else str(error)
            result.left_out.append(LeftOutRule(rule.name, rule.group, rule.document.line(rule.path), reason))
            continue
        taken.add(entry["name"])
        result.rules.append(entry)
        result.notes += [ImportNote(entry["name"], note) for note in notes]
    return result


def _entry(rule: _Rule, recorded: Mapping[str, _Rule], taken: set[str]) -> tuple[dict[str, Any], list[str]]:
    """The rule as an entry of a rules file, with the notes about it."""
    labels = {str(key): str(text) for key, text in _mapping(rule.keys.get("labels")).items()}
    annotations = {str(key): str(text) for key, text in _mapping(rule.keys.get("annotations")).items()}
    if RULE_LABEL in labels and "outrider_" in str(rule.keys["expr"]):
        raise PromqlError(f"it is Outrider's own rule {labels[RULE_LABEL]}, exported over its stored series")
    tree, budget = promql.parse(str(rule.keys["expr"])), [_MOST_EXPANSIONS]
    translated = translate(_expanded(tree, recorded, (), budget))
    name = _name(labels.get(RULE_LABEL) or rule.name, labels.get("severity", ""), taken)
    compile_expression(name, translated.expr)
    notes, texts = list(translated.notes), _texts(annotations)
    if any(_TEMPLATE in text for text in labels.values()):
        notes.append("labels with templates are dropped")
    if any(_TEMPLATE in text for text in annotations.values()):
        notes.append("texts with templates are dropped: messages name entity, value and threshold themselves")
    own = {key: text for key, text in labels.items() if key not in _ROUTING and _TEMPLATE not in text}
    entry: dict[str, Any] = {
        "name": name,
        "kind": translated.kind.value,
        "expr": translated.expr,
        **({"where": {key: list(values) for key, values in translated.where.items()}} if translated.where else {}),
        "priority": severity.priority_of(labels).value,
        **_times(rule.keys),
        **texts,
        "labels": {"alertname": rule.name, **own},
    }
    return entry, notes


def _expanded(node: Node, recorded: Mapping[str, _Rule], inside: tuple[str, ...], budget: list[int]) -> Node:
    """The tree with recorded series replaced by their expressions."""
    budget[0] -= 1
    if budget[0] < 0:
        raise PromqlError("its recording rules are too large")
    if isinstance(node, Selector):
        rule = recorded.get(node.metric)
        if rule is None:
            return node
        if node.matchers or node.seconds is not None or rule.keys.get("labels"):
            raise PromqlError(f"{node.metric} is a recorded series with matchers, labels or a range")
        if node.metric in inside:
            raise PromqlError(f"{node.metric} is recorded from itself")
        return _expanded(promql.parse(str(rule.keys["expr"])), recorded, (*inside, node.metric), budget)
    if isinstance(node, Binary):
        left, right = (_expanded(part, recorded, inside, budget) for part in (node.left, node.right))
        return replace(node, left=left, right=right)
    if isinstance(node, Negative | Aggregation):
        return replace(node, inner=_expanded(node.inner, recorded, inside, budget))
    if isinstance(node, Call):
        return replace(node, arguments=tuple(_expanded(part, recorded, inside, budget) for part in node.arguments))
    return node


def _name(text: str, level: str, taken: set[str]) -> str:
    """A free name of lowercase words."""
    words = _WORDS.findall(text) if not re.fullmatch(r"[a-z][a-z0-9-]*", text) else [text]
    base = "-".join(word.lower() for word in words) or "rule"
    base = base if base[0].isalpha() else f"rule-{base}"
    suffix = re.sub(r"[^a-z0-9]+", "-", level.lower()).strip("-")
    for name in (base, f"{base}-{suffix}" if suffix else base):
        if name not in taken:
            return name
    return next(name for number in range(2, 10**6) if (name := f"{base}-{number}") not in taken)


def _times(keys: Mapping[str, Any]) -> dict[str, str]:
    times = {key: str(keys.get(name) or "0s") for key, name in (("wait", "for"), ("clear", "keep_firing_for"))}
    seconds = {key: promql.seconds_of("0s" if text == "0" else text) for key, text in times.items()}
    return {key: exact_duration(count) for key, count in seconds.items() if count}


def _texts(annotations: Mapping[str, str]) -> dict[str, str]:
    """Runbook and default action, without templates of Prometheus."""
    plain = {key: " ".join(text.split()) for key, text in annotations.items() if _TEMPLATE not in text}
    action = plain.get("description") or plain.get("message") or plain.get("summary")
    runbook = plain.get("runbook_url") or plain.get("runbook")
    return {**({"default_action_text": action} if action else {}), **({"runbook": runbook} if runbook else {})}


def _mapping(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, dict) else {}
