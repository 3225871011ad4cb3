"""YAML with line numbers: plain Python values, and the line on which every key stands."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import yaml

from outrider.errors import ConfigError, ConfigProblem

Path = tuple[str | int, ...]


@dataclass(slots=True)
class Marked:
    """A parsed file with the line (from 1) of each key path, and the problems found so far."""

    file: str
    document: Any
    lines: dict[Path, int]
    problems: list[ConfigProblem] = field(default_factory=list)

    def problem(self, path: Path, message: str) -> None:
        """Note a fault at a key; the nearest known line above it is taken."""
        known = path
        while known and known not in self.lines:
            known = known[:-1]
        key = ".".join(str(part) for part in path)
        self.problems.append(ConfigProblem(self.file, self.lines.get(known, 1), key, message))

    def finish(self, what: str) -> None:
        """Raise ConfigError with every problem in line order, if there is any."""
        if self.problems:
            found = tuple(sorted(self.problems, key=lambda problem: problem.line))
            more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
            raise ConfigError(f"{what} cannot be used: {found[0]}{more}", found, hint="correct the lines named")


def load_marked(text: str, file: str) -> Marked:
    """Parse YAML. Raises ConfigError with the line where the syntax breaks or a key stands twice."""
    try:
        document = yaml.safe_load(text)
        root = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 1
        why = str(getattr(error, "problem", None) or error)
        problem = ConfigProblem(file, line, "", f"not valid YAML: {why}")
        raise ConfigError(f"{file} cannot be read: {problem}", (problem,), hint="correct the line named") from error
    marked = Marked(file, document, {(): 1})
    if root is not None:
        _walk(root, (), marked)
    return marked


def _walk(node: yaml.Node, path: Path, marked: Marked) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            child = (*path, str(key.value))
            if child in marked.lines and marked.lines[child] != key.start_mark.line + 1:
                marked.lines[child] = key.start_mark.line + 1
                marked.problem(child, "this key stands twice")
            marked.lines[child] = key.start_mark.line + 1
            _walk(value, child, marked)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            marked.lines[(*path, index)] = value.start_mark.line + 1
            _walk(value, (*path, index), marked)
