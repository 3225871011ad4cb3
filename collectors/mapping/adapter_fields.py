"""Reads single values of an adapter file: names, numbers, enumerations, metrics and their conditions.

A problem is recorded with its line and key, and a harmless default is used.
"""

from __future__ import annotations

import re
from enum import StrEnum
from typing import Any, TypeVar

from collectors.mapping.model import Aggregate, Match, Metrics
from outrider.errors import ConfigProblem
from outrider.model import EntityKind
from outrider.text import yaml_file

_Choice = TypeVar("_Choice", bound=StrEnum)
_SCIENTIFIC = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?[eE][+-]?[0-9]+")


class FieldReader:
    """Readers of single values. Errors are collected in ``problems``."""

    def __init__(self, document: yaml_file.Document) -> None:
        """Starts without problems."""
        self._document = document
        self.problems: list[ConfigProblem] = []
        self._prefix = ""  # optional prefix of the adapter's metric names

    def _problem(self, path: yaml_file.Path_, message: str) -> None:
        self.problems.append(self._document.problem(path, message))

    def _mapping(self, value: Any, path: yaml_file.Path_, allowed: set[str] | None = None) -> dict[str, Any]:
        if not isinstance(value, dict):
            self._problem(path, "expected a mapping")
            return {}
        for key in value:
            if allowed is not None and key not in allowed:
                self._problem((*path, str(key)), f"unknown key{yaml_file.near(str(key), allowed)}")
        return {str(key): item for key, item in value.items()}

    def _list(self, document: dict[str, Any], key: str) -> list[Any]:
        items = document.get(key, [])
        if not isinstance(items, list):
            self._problem((key,), "expected a list")
            return []
        return items

    def _names(self, value: Any, path: yaml_file.Path_) -> tuple[str, ...]:
        names = [value] if isinstance(value, str) else value
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            self._problem(path, "expected a name or a list of names")
            return ()
        return tuple(names)

    def _number(self, value: Any, path: yaml_file.Path_) -> float:
        if isinstance(value, str) and _SCIENTIFIC.fullmatch(value):
            return float(value)  # YAML 1.1 reads 1e-6 as text, 1.0e-6 as a number
        if isinstance(value, bool) or not isinstance(value, int | float):
            self._problem(path, "expected a number")
            return 0.0
        return float(value)

    def _member(self, of: type[_Choice], value: Any, path: yaml_file.Path_, instead: _Choice, what: str) -> _Choice:
        try:
            return of(value)
        except ValueError:
            self._problem(path, f"{value!r} is not a valid {what}; valid: {', '.join(of)}")
            return instead

    def _kind(self, value: Any, path: yaml_file.Path_) -> EntityKind:
        return self._member(EntityKind, value, path, EntityKind.NODE, "kind of entity")

    def _aggregate(self, value: Any, path: yaml_file.Path_) -> Aggregate:
        return self._member(Aggregate, value, path, Aggregate.SUM, "aggregate")

    # --- metrics and conditions -------------------------------------------------------------------

    def _series(self, value: Any, path: yaml_file.Path_) -> tuple[str, ...]:
        """Names of metrics, with or without the adapter's prefix."""
        names = self._names(value, path)
        if not self._prefix:
            return names
        return tuple(name if name.startswith("~") else f"~(?:{re.escape(self._prefix)})?{name}" for name in names)

    def _metrics(self, value: Any, path: yaml_file.Path_) -> Metrics:
        if isinstance(value, str | list):
            return Metrics(first=self._series(value, path))
        spec = self._mapping(value, path, {"all", "maybe", "any"})
        if ("all" in spec) is ("any" in spec):
            self._problem(path, "expected a name, a list of spellings, or one of all, any")
        every, maybe, some = (self._series(spec.get(key, []), (*path, key)) for key in ("all", "maybe", "any"))
        return Metrics(every=every, maybe=maybe, some=some)

    def _where(self, spec: dict[str, Any], path: yaml_file.Path_) -> tuple[Match, ...]:
        conditions = self._mapping(spec.get("where", {}), (*path, "where"))
        return tuple(self._match(label, str(text), (*path, "where", label)) for label, text in conditions.items())

    def _match(self, label: str, text: str, path: yaml_file.Path_) -> Match:
        wanted = not text.startswith("!")
        text = text.removeprefix("!")
        try:
            pattern = re.compile(text[1:] if text.startswith("~") else re.escape(text))
        except re.error as error:
            self._problem(path, f"not a regular expression: {error}")
            pattern = re.compile("")
        return Match(label, pattern, wanted)


def spellings(text: Any) -> tuple[str, ...]:
    """Splits ``UUID|uuid`` into its alternatives."""
    return tuple(filter(None, str(text).split("|")))
