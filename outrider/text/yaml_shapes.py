"""Type checks of hand-written YAML that collect all problems instead of stopping at the first.

Each method returns a value of the requested type, empty if the file has another one, so that a reader reports every
mistake of a file at once.
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
    """Adds values of unexpected types to ``problems``."""

    problems: list[ConfigProblem] = field(default_factory=list)

    def note(self, document: Document, path: Path_, message: str) -> None:
        """Adds a problem at a key."""
        self.problems.append(document.problem(path, message))

    def expected(self, document: Document, path: Path_, description: str, value: Any) -> None:
        """Adds the problem that ``value`` is not ``what``."""
        self.note(document, path, f"expected {description}, not {shown(value)}")

    def mapping(self, document: Document, path: Path_, value: Any) -> dict[str, Any]:
        """A mapping with text keys."""
        if not isinstance(value, Mapping):
            self.expected(document, path, "a mapping of keys", value)
            return {}
        result = {}
        for key, inner in value.items():
            if isinstance(key, str):
                result[key] = inner
            else:
                self.expected(document, path, "keys that are text", key)
        return result

    def items(self, document: Document, path: Path_, value: Any) -> list[Any]:
        """A list."""
        if not isinstance(value, list):
            self.expected(document, path, "a list", value)
            return []
        return value

    def texts(self, document: Document, path: Path_, value: Any) -> list[tuple[Path_, str]]:
        """A list of texts, each with its own path."""
        result = []
        for number, item in enumerate(self.items(document, path, value)):
            if isinstance(item, str):
                result.append(((*path, number), item))
            else:
                self.expected(document, (*path, number), "text", item)
        return result

    def number(self, document: Document, path: Path_, value: Any) -> float | None:
        """A finite number; None if it is not one."""
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            self.expected(document, path, "a number", value)
            return None
        return float(value)
