"""Hand-written YAML files: every fault is reported with its file, line and key.

A duplicate mapping key is a fault, not a silent overwrite.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pydantic
import yaml

from outrider.errors import ConfigError, ConfigProblem
from outrider.text import yaml_words

Path_ = tuple[str | int, ...]
_SHORT_FORMS = {"k8s": "kubernetes", "kube": "kubernetes"}
_CHOICES = {"literal_error": "expected", "enum": "expected", "union_tag_invalid": "expected_tags"}
_QUOTED = re.compile(r"'([^']*)'")


@dataclass(frozen=True, slots=True)
class Document:
    """A parsed file: its plain value, and the line (from 1) of every key and list item in it."""

    file: str
    value: Any
    lines: Mapping[Path_, int]

    def line(self, path: Path_) -> int:
        """The line of the key at ``path``, or of its nearest ancestor that is in the file."""
        for length in range(len(path), -1, -1):
            if path[:length] in self.lines:
                return self.lines[path[:length]]
        return 0

    def problem(self, path: Path_, message: str) -> ConfigProblem:
        """A fault at a key of this file."""
        return ConfigProblem(self.file, self.line(path), dotted(path), message)


def dotted(path: Path_) -> str:
    """Formats ``("collect", "targets", 0, "url")`` as ``collect.targets[0].url``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else (f".{part}" if text else str(part))
    return text or "(file)"


def read(path: Path) -> Document:
    """Reads one file. Raises ConfigError if it is missing, unreadable or not YAML."""
    try:
        text = path.read_text(encoding="utf-8-sig")
    except FileNotFoundError as error:
        raise ConfigError(f"{path} does not exist", hint="create one with: outrider config init") from error
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {error.strerror}", hint="name a file that can be read") from error
    except UnicodeDecodeError as error:
        raise _no_text(path) from error
    if "\0" in text:
        raise _no_text(path)
    return parse(text, str(path))


def readable(files: Iterable[Path], document: Document, path: Path_) -> tuple[list[Path], list[ConfigProblem]]:
    """Returns the YAML files of the list at ``path`` of a document that can be read, and what is wrong with the others.

    The fault of a file that cannot be read is at the line that names it.
    """
    result, problems = list[Path](), list[ConfigProblem]()
    for index, file in enumerate(files):
        try:
            read(file)
        except ConfigError as error:
            problems += error.problems or (document.problem((*path, index), error.message),)
        else:
            result.append(file)
    return result, problems


def _no_text(path: Path) -> ConfigError:
    return ConfigError(
        f"{path} is not valid UTF-8 (binary or compressed?)",
        hint="name the YAML file itself; convert another encoding with: iconv -f UTF-16 -t UTF-8",
    )


def parse(text: str, file: str) -> Document:
    """Parses YAML text. Raises ConfigError with the line of the first syntax error."""
    lines: dict[Path_, int] = {}
    problems: list[ConfigProblem] = []
    try:
        root = yaml.compose(text, Loader=yaml.SafeLoader)
        if root is not None:
            lines[()] = 1
            _walk(root, (), lines, problems, file)
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 0
        message = getattr(error, "problem", None) or str(error).splitlines()[0]
        problem = ConfigProblem(file, line, "(syntax)", f"not valid YAML: {message}")
        hint = "fix that line: indent each key by spaces like its neighbors, and put a colon and a space after it"
        raise ConfigError(str(problem), (problem,), hint=hint) from error
    if problems:
        raise refuse(problems)
    return Document(file, value, lines)


def documents(text: str, file: str) -> Iterator[Document]:
    """The documents of a text, one after the other, with the line numbers of the file. Raises as ``parse`` does."""
    start, lines = 0, [*text.splitlines(), "---"]
    for number, line in enumerate(lines):
        if line.rstrip() == "---":
            part = "\n" * start + "\n".join(lines[start:number]) + "\n"
            start = number + 1
            if part.strip():
                yield parse(part, file)


def _walk(node: yaml.Node, path: Path_, lines: dict[Path_, int], problems: list[ConfigProblem], file: str) -> None:
    if isinstance(node, yaml.MappingNode):
        for key, child in node.value:
            name = str(key.value)
            inner = (*path, name)
            line = key.start_mark.line + 1
            if inner in lines and name != "<<":
                problems.append(
                    ConfigProblem(file, line, dotted(inner), f"is duplicated, first in line {lines[inner]}")
                )
            lines[inner] = line
            _walk(child, inner, lines, problems, file)
    elif isinstance(node, yaml.SequenceNode):
        for index, child in enumerate(node.value):
            lines[(*path, index)] = child.start_mark.line + 1
            _walk(child, (*path, index), lines, problems, file)


def near(name: str, known: Iterable[str], *, cutoff: float = 0.6) -> str:
    """``; did you mean "x"?`` if a known name is close, else empty. ``cutoff`` 1.0: an exact match. Ignores case."""
    by_lower = {text.lower(): text for text in known}
    lower = name.lower()
    lower = _SHORT_FORMS[lower] if _SHORT_FORMS.get(lower) in by_lower else lower
    matches = difflib.get_close_matches(lower, by_lower, n=1, cutoff=cutoff)
    return f'; did you mean "{by_lower[matches[0]]}"?' if matches else ""


def refuse(problems: Iterable[ConfigProblem]) -> ConfigError:
    """The error with the problems in line order."""
    ordered = tuple(sorted(problems, key=lambda problem: (problem.file, problem.line)))
    more = f" (and {len(ordered) - 1} more)" if len(ordered) > 1 else ""
    return ConfigError(f"{ordered[0]}{more}", ordered, hint="fix these lines; outrider config check lists them all")


def problems_of(
    error: pydantic.ValidationError, document: Document, model: type[pydantic.BaseModel]
) -> list[ConfigProblem]:
    """Pydantic's errors with the lines of the file, in plain words."""
    result = []
    for detail in error.errors():
        path = tuple(part for part in detail["loc"] if detail["type"] == "missing" or _written(part, document))
        if detail["type"] == "extra_forbidden":
            message = f"unknown key{near(str(path[-1]), _fields_at(model, path[:-1]))}"
        elif detail["type"] == "missing":
            message = "is missing"
        else:
            message = yaml_words.describe(detail) + _nearest_choice(detail)
        result.append(document.problem(path, message))
    return result


def _nearest_choice(detail: Mapping[str, Any]) -> str:
    """The choice that is close to a misspelt one of a fixed set; empty for other mistakes."""
    choices = detail.get("ctx", {}).get(_CHOICES.get(detail["type"], ""), "")
    given = detail["ctx"].get("tag", detail.get("input")) if choices else None
    return near(given, _QUOTED.findall(choices)) if isinstance(given, str) else ""


def _written(part: str | int, document: Document) -> bool:
    """False for the names of union members, which pydantic inserts between the keys of the file."""
    return any(part in path for path in document.lines)


def _fields_at(model: Any, path: Path_) -> tuple[str, ...]:
    """The keys of a settings model at a path; none if any key is allowed."""
    for part in path:
        if isinstance(part, int):
            continue
        field = getattr(model, "model_fields", {}).get(part)
        if field is None:
            return ()
        model = _model_in(field.annotation)
    return tuple(getattr(model, "model_fields", ()))


def _model_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, pydantic.BaseModel):
        return annotation
    for inner in getattr(annotation, "__args__", ()):
        result = _model_in(inner)
        if result is not None:
            return result
    return None
