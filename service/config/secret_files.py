"""Warns of secret files that cannot be read here. They may exist on the machine that runs Outrider."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from outrider.errors import ConfigProblem
from outrider.text import yaml_file

# a switch that is off without its file, and a token that is generated
_MAY_BE_ABSENT = frozenset({("remediation", "kill_switch_file"), ("api", "token_file")})


def secret_file_warnings(settings: BaseModel, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """One warning for each file that the configuration names and that is not readable text."""
    for path, file in _named_files(settings, ()):
        if path not in _MAY_BE_ABSENT and (problem := _unreadable(file)):
            yield document.problem(path, f"{file} {problem}")


def _named_files(value: Any, path: yaml_file.Path_) -> Iterator[tuple[yaml_file.Path_, Path]]:
    if isinstance(value, BaseModel):
        for name in value.model_fields_set & set(type(value).model_fields):
            child = getattr(value, name)
            if isinstance(child, Path):
                if name.endswith("_file"):
                    yield (*path, name), child
            elif name == "secret_files":
                yield from (((*path, name, key), file) for key, file in child.items())
            else:
                yield from _named_files(child, (*path, name))
    elif isinstance(value, dict):
        for key, child in value.items():
            yield from _named_files(child, (*path, str(key)))
    elif isinstance(value, list | tuple):
        for index, child in enumerate(value):
            yield from _named_files(child, (*path, index))


def _unreadable(file: Path) -> str:
    try:
        file.read_text(encoding="utf-8")
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    except UnicodeDecodeError:
        return "is not UTF-8 text"
    return ""
