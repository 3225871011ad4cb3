"""Parses alert rules from YAML: the packaged ones, overlaid by name with those of the operator.

A rule with a known name changes the keys it gives and keeps the others; ``enabled: false`` switches it off. The rules
of a file with the key ``pack`` are off until they are switched on, one by one or all by the name of the pack. A rule
that is on replaces those of ``instead_of``. Every mistake in a file is reported with its line. Reads no files.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from outrider.errors import ConfigProblem, UsageError
from outrider.model import ActionKind, EntityKind, Priority
from outrider.text import yaml_file
from outrider.vocabulary import catalog
from outrider.vocabulary.faults import faults
from outrider.vocabulary.request_class import RequestClass
from outrider.vocabulary.rules import RULE_ACTIONS, AbsentPolicy, Rule, RuleCheck
from outrider.vocabulary.units import parse_duration

ROUTES = ("phone", "sms", "im", "mail", "report")
PLAN = "plan:"
_NAME = re.compile(r"[a-z][a-z0-9-]*")
_FUNCTIONS = frozenset({"last", "sum", "mean", "max", "min", "quantile", "rate", "present", "greatest"})
_DURATIONS = ("wait", "clear", "answer_within")
_NAME_EXPECTED = "expected a name of lowercase letters, digits and hyphens"
_TOP_KEYS = ("rules", "version", "pack")
_ABSENT = "expected keep, fire or {resolve_after: 10m}"
_THEN = (*sorted(kind.value for kind in RULE_ACTIONS), *(check.value for check in RuleCheck))
_TEXTS = ("name", "expr", "default_action_text", "runbook")
_KEYS = frozenset(
    {
        *_TEXTS,
        *_DURATIONS,
        "absent",
        "kind",
        "faults",
        "detectors",
        "threshold",
        "fault",
        "priority",
        "routes",
        "service_level",
        "then",
        "labels",
        "instead_of",
        "where",
        "enabled",
    }
)


@dataclass(frozen=True, slots=True)
class _Raw:
    """A rule as written, with its position and the pack of its file."""

    document: yaml_file.Document
    path: tuple[str | int, ...]
    keys: dict[str, Any]
    pack: str = ""

    def problem(self, key: str, message: str) -> ConfigProblem:
        """A mistake at one of its keys."""
        return self.document.problem((*self.path, key), message)


@dataclass(frozen=True, slots=True)
class RuleEntry:
    """A rule with its position. ``enabled`` False: it is switched off, or another rule replaces it."""

    rule: Rule
    pack: str
    enabled: bool
    document: yaml_file.Document
    path: tuple[str | int, ...]

    def problem(self, key: str, message: str) -> ConfigProblem:
        """A mistake at one of its keys."""
        return self.document.problem((*self.path, key), message)


def merge_entries(documents: Iterable[yaml_file.Document], enable: Sequence[str] = ()) -> tuple[RuleEntry, ...]:
    """All rules, in the order of the documents. ``enable`` are names of rules and packs to switch on.

    Raises ConfigError with every mistake of every document, in line order, and UsageError for an unknown name.
    """
    problems: list[ConfigProblem] = []
    merged: dict[str, _Raw] = {}
    for document in documents:
        names: set[str] = set()
        for raw in _raw_rules(document, problems):
            name = str(raw.keys.get("name", ""))
            if name in names:
                problems.append(raw.problem("name", f"duplicate rule name {name!r} in this file"))
            names.add(name)
            before = merged.get(name)
            keys = {**before.keys, **raw.keys} if before else raw.keys
            merged[name] = _Raw(raw.document, raw.path, keys, before.pack if before else raw.pack)
            problems += check(merged[name])
    problems += _replacement_problems(merged)
    if problems:
        raise yaml_file.refuse(problems)
    _refuse_unknown(enable, merged)
    on = {name for name, raw in merged.items() if _is_on(name, raw, enable)}
    replaced = {other for name in on for other in merged[name].keys.get("instead_of") or ()}
    return tuple(
        RuleEntry(_rule(raw.keys), raw.pack, name in on - replaced, raw.document, raw.path)
        for name, raw in merged.items()
    )


def _is_on(name: str, raw: _Raw, enable: Sequence[str]) -> bool:
    return name in enable or (raw.pack != "" and raw.pack in enable) or bool(raw.keys.get("enabled", raw.pack == ""))


def _replacement_problems(merged: Mapping[str, _Raw]) -> Iterator[ConfigProblem]:
    for name, raw in merged.items():
        others = raw.keys.get("instead_of")
        for other in others if isinstance(others, list) else ():
            if isinstance(other, str) and (other not in merged or other == name):
                yield raw.problem("instead_of", f"no other rule is named {other!r}{yaml_file.near(str(other), merged)}")


def _refuse_unknown(enable: Sequence[str], merged: Mapping[str, _Raw]) -> None:
    for name in enable:
        if message := unknown_switch(name, ((other, raw.pack) for other, raw in merged.items())):
            raise UsageError(message, hint="outrider rules list")


def unknown_switch(name: str, known: Iterable[tuple[str, str]]) -> str:
    """The mistake if no rule and no pack has the name; empty otherwise. ``known`` are pairs of rule and pack."""
    names = tuple(dict.fromkeys(word for pair in known for word in pair if word))
    return "" if name in names else f"no rule and no pack of rules is named {name!r}{yaml_file.near(name, names)}"


def _raw_rules(document: yaml_file.Document, problems: list[ConfigProblem]) -> list[_Raw]:
    value = document.value
    if not isinstance(value, dict) or not isinstance(value.get("rules"), list):
        problems.append(document.problem(("rules",), "expected a list of rules under the key rules"))
        return []
    problems += [
        document.problem((str(key),), f"unknown key{yaml_file.near(str(key), _TOP_KEYS)}")
        for key in value
        if key not in _TOP_KEYS
    ]
    pack = value.get("pack", "")
    if "pack" in value and (not isinstance(pack, str) or not _NAME.fullmatch(pack)):
        problems.append(document.problem(("pack",), _NAME_EXPECTED))
    raws = []
    for index, entry in enumerate(value["rules"]):
        if isinstance(entry, dict):
            keys = {str(key): item for key, item in entry.items()}
            raws.append(_Raw(document, ("rules", index), keys, str(pack)))
        else:
            problems.append(document.problem(("rules", index), "expected a mapping such as {name: ..., expr: ...}"))
    return raws


def check(raw: _Raw) -> list[ConfigProblem]:
    """Every mistake of one rule."""
    keys = raw.keys
    problems = [raw.problem(key, f"unknown key{yaml_file.near(key, _KEYS)}") for key in keys if key not in _KEYS]
    problems += [
        raw.problem(key, "expected a text") for key in _TEXTS if key in keys and not isinstance(keys[key], str)
    ]
    if not isinstance(keys.get("name"), str) or not _NAME.fullmatch(keys["name"]):
        problems.append(raw.problem("name", _NAME_EXPECTED))
    problems += _check_choices(raw) + _check_numbers(raw) + _check_absent(raw)
    problems += _check_where(raw) + _check_condition(raw)
    return problems


def _check_choices(raw: _Raw) -> list[ConfigProblem]:
    problems: list[ConfigProblem] = []
    one_of: dict[str, tuple[str, ...]] = {
        "kind": tuple(EntityKind),
        "priority": tuple(Priority),
        "fault": tuple(faults()),
    }
    for key, known in one_of.items():
        if raw.keys.get(key) is not None and raw.keys[key] not in known:
            problems.append(raw.problem(key, _unknown(key, raw.keys[key], known)))
    lists: dict[str, tuple[str, ...] | None] = {
        "faults": tuple(faults()),
        "routes": ROUTES,
        "then": _THEN,
        "detectors": None,
        "instead_of": None,
    }
    for key, allowed in lists.items():
        words = raw.keys.get(key, [])
        if not isinstance(words, list):
            problems.append(raw.problem(key, "expected a list"))
            continue
        problems += [raw.problem(key, "expected a list of texts") for word in words if not isinstance(word, str)]
        if allowed is not None:
            problems += [raw.problem(key, _unknown(key, word, allowed)) for word in words if word not in allowed]
    return problems


def _unknown(key: str, word: object, known: Sequence[str]) -> str:
    choices = f"; expected one of {', '.join(known)}" if len(known) <= len(EntityKind) else ""
    return f"unknown {key} {str(word)!r}{yaml_file.near(str(word), known) or choices}"


def _check_numbers(raw: _Raw) -> list[ConfigProblem]:
    problems = []
    for key in _DURATIONS:
        if raw.keys.get(key) is None:
            continue
        try:
            parse_duration(str(raw.keys[key]))
        except UsageError as error:
            problems.append(raw.problem(key, f"{error.message}; {error.hint}"))
    problems += [
        raw.problem(key, "expected true or false")
        for key in ("service_level", "enabled")
        if key in raw.keys and not isinstance(raw.keys[key], bool)
    ]
    threshold = raw.keys.get("threshold")
    if threshold is not None and (isinstance(threshold, bool) or not isinstance(threshold, int | float)):
        problems.append(raw.problem("threshold", "expected a number"))
    if not isinstance(raw.keys.get("labels", {}), dict):
        problems.append(raw.problem("labels", "expected a mapping of texts"))
    return problems


def _check_absent(raw: _Raw) -> list[ConfigProblem]:
    value = raw.keys.get("absent", AbsentPolicy.KEEP.value)
    if value == AbsentPolicy.FIRE.value and not raw.keys.get("expr"):
        return [raw.problem("absent", "fire needs a rule with expr: a finding has no missing values")]
    if isinstance(value, dict):
        if set(value) != {"resolve_after"}:
            return [raw.problem("absent", _ABSENT)]
        try:
            parse_duration(str(value["resolve_after"]))
        except UsageError as error:
            return [raw.problem("absent", f"resolve_after: {error.message}; {error.hint}")]
    elif value not in (AbsentPolicy.KEEP.value, AbsentPolicy.FIRE.value):
        return [raw.problem("absent", _ABSENT)]
    return []


def _check_where(raw: _Raw) -> list[ConfigProblem]:
    where = raw.keys.get("where", {})
    if not isinstance(where, dict):
        return [raw.problem("where", "expected a mapping such as {namespace: prod, request_class: [vip]}")]
    if where and not raw.keys.get("expr"):
        return [raw.problem("where", "needs a rule with expr: findings are about any entity")]
    problems = []
    for key, value in where.items():
        values = value if isinstance(value, list) else [value]
        if not values or not all(isinstance(text, str) and text for text in values):
            problems.append(raw.problem("where", f"{key}: expected a text or a list of texts"))
        elif key == "request_class" and not all(str(RequestClass.parse(text)) for text in values):
            problems.append(raw.problem("where", f"{key}: expected words such as vip, online or long"))
    return problems


def _check_condition(raw: _Raw) -> list[ConfigProblem]:
    keys = raw.keys
    expr, matches = keys.get("expr"), keys.get("faults") or keys.get("detectors")
    if bool(expr) == bool(matches):
        return [raw.problem("name", "needs either expr, or faults and/or detectors to match findings by")]
    plan_measures = [name for name in keys.get("detectors") or () if str(name).startswith(PLAN)]
    if plan_measures and keys.get("threshold") is None:
        return [raw.problem("detectors", "a measure of the plan needs a threshold")]
    if not isinstance(expr, str):
        return []
    problems = (
        [] if keys.get("kind") else [raw.problem("kind", "is missing: expected the kind of entity that expr reads")]
    )
    try:
        tree = ast.parse(expr.strip().replace("\n", " "), mode="eval")
    except SyntaxError as error:
        return [*problems, raw.problem("expr", f"cannot be read: {error.msg}")]
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    named = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - called
    known = catalog.signals()
    problems += [raw.problem("expr", _unknown("function", name, sorted(_FUNCTIONS))) for name in called - _FUNCTIONS]
    problems += [
        raw.problem("expr", _unknown("signal", name, list(known))) for name in sorted(named) if not catalog.known(name)
    ]
    return problems


def _rule(keys: dict[str, Any]) -> Rule:
    matched = tuple(keys.get("faults") or ())
    kind = keys.get("kind") or (faults()[matched[0]].entity if matched else EntityKind.CLUSTER)
    return Rule(
        name=keys["name"],
        kind=EntityKind(kind),
        expr=" ".join(keys["expr"].split()) if keys.get("expr") else None,
        faults=matched,
        detectors=tuple(keys.get("detectors") or ()),
        fault=keys.get("fault"),
        priority=Priority(keys["priority"]) if keys.get("priority") else None,
        wait=_duration(keys.get("wait")) or timedelta(0),
        clear=_duration(keys.get("clear")) or timedelta(0),
        answer_within=_duration(keys.get("answer_within")),
        routes=tuple(keys.get("routes") or ()),
        service_level=keys.get("service_level", False),
        then=tuple(_then(str(word)) for word in keys.get("then") or ()),
        default_action_text=keys.get("default_action_text", ""),
        runbook=keys.get("runbook", ""),
        instead_of=tuple(keys.get("instead_of") or ()),
        labels={str(name): str(value) for name, value in (keys.get("labels") or {}).items()},
        threshold=None if keys.get("threshold") is None else float(keys["threshold"]),
        where={str(key): _texts(value) for key, value in (keys.get("where") or {}).items()},
        **_absent(keys.get("absent", AbsentPolicy.KEEP.value)),
    )


def _absent(value: Any) -> dict[str, Any]:
    if isinstance(value, dict):
        return {"absent": AbsentPolicy.RESOLVE, "resolve_after": parse_duration(str(value["resolve_after"]))}
    return {"absent": AbsentPolicy(value)}


def _texts(value: Any) -> tuple[str, ...]:
    return tuple(value) if isinstance(value, list) else (value,)


def _then(word: str) -> ActionKind | RuleCheck:
    return RuleCheck(word) if word in tuple(RuleCheck) else ActionKind(word)


def _duration(value: object) -> timedelta | None:
    return None if value is None else parse_duration(str(value))
