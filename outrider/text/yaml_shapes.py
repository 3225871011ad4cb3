"""Shapes of hand-written YAML: takes what has the expected shape, notes what has not, and stops at nothing.

Each method answers with a value of the shape that was asked for, empty where the file has another one, so that
a reader goes on and tells every mistake of a file at once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from outrider.errors import ConfigProblem
from outrider.text.yaml_file import Document, Path_
from outrider.text.yaml_words import shown


@dataclass
class Shapes:
    """Notes in ``problems`` whatever has another shape than its reader expects."""

    problems: list[ConfigProblem] = field(default_factory=list)

    def note(self, document: Document, path: Path_, message: str) -> None:
        """A mistake at a key."""
        self.problems.append(document.problem(path, message))

    def expected(self, document: Document, path: Path_, what: str, value: Any) -> None:
        """The mistake that ``value`` is not ``what``."""
        self.note(document, path, f"expected {what}, not {shown(value)}")

    def mapping(self, document: Document, path: Path_, value: Any) -> dict[str, Any]:
        """A mapping of keys that are text."""
        if not isinstance(value, Mapping):
            self.expected(document, path, "a mapping of keys", value)
            return {}
        found = {}
        for key, inner in value.items():
            if isinstance(key, str):
                found[key] = inner
            else:
                self.expected(document, path, "keys that are text", key)
        return found

    def items(self, document: Document, path: Path_, value: Any) -> list[Any]:
        """A list."""
        if not isinstance(value, list):
            self.expected(document, path, "a list", value)
            return []
        return value

    def texts(self, document: Document, path: Path_, value: Any) -> list[tuple[Path_, str]]:
        """A list of words, each with its own path."""
        found = []
        for number, one in enumerate(self.items(document, path, value)):
            if isinstance(one, str):
                found.append(((*path, number), one))
            else:
                self.expected(document, (*path, number), "text", one)
        return found

    def number(self, document: Document, path: Path_, value: Any) -> float | None:
        """A finite number; None where it is none."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.expected(document, path, "a number", value)
            return None
        return float(value)
