"""Target groups as Prometheus writes them (``file_sd``, ``http_sd``): hosts with ports, and labels. Pure."""

from __future__ import annotations

import json
import re
from collections.abc import Generator, Iterator
from typing import Any

import yaml

from collectors.discovery.types import ADDRESS, DiscoveredTarget
from outrider.errors import ConfigError, ConfigProblem
from outrider.text import yaml_file

MOST_LABEL_BYTES = 1024
_ADDRESS = re.compile(ADDRESS)
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def read_groups(text: str, file: str) -> tuple[list[DiscoveredTarget], list[ConfigProblem]]:
    """The targets of a file in JSON or YAML, and what of it cannot be used, by line.

    Raises ConfigError with the line when the whole of it is neither.
    """
    value = _parse(text, file)
    found, faults = [], []
    for path, what in _walk(value):
        if isinstance(what, DiscoveredTarget):
            found.append(what)
        else:
            faults.append((path, what))
    if not faults:
        return found, []
    lines = _lines(text, file)
    return found, [ConfigProblem(file, lines.line(path), yaml_file.dotted(path), said) for path, said in faults]


def _parse(text: str, file: str) -> Any:
    try:
        return json.loads(text)  # every list of a machine's making; ten times as fast as YAML
    except (ValueError, RecursionError) as error:
        if file.endswith(".json"):
            line = getattr(error, "lineno", 0)
            problem = ConfigProblem(file, line, "(syntax)", f"not valid JSON: {getattr(error, 'msg', error)}")
            raise ConfigError(str(problem), (problem,)) from error
    try:
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, the one written in C where there is one
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        mark = getattr(error, "problem_mark", None)
        line = mark.line + 1 if mark else 0
        problem = ConfigProblem(file, line, "(syntax)", f"not valid YAML: {getattr(error, 'problem', None) or error}")
        raise ConfigError(str(problem), (problem,)) from error


def _walk(value: Any) -> Iterator[tuple[yaml_file.Path_, DiscoveredTarget | str]]:
    if value is None:
        return
    if not isinstance(value, list):
        yield (), "expected a list of groups: - targets: [host:port, ...]"
        return
    for number, group in enumerate(value):
        if not isinstance(group, dict):
            yield (number,), "expected a group with targets and labels"
            continue
        for key in sorted(map(str, group.keys() - {"targets", "labels"})):
            yield (number, key), "unknown key; a group has targets and labels"
        labels = yield from _labels(number, group.get("labels"))
        targets = group.get("targets")
        if not isinstance(targets, list):
            yield (number, "targets"), "expected a list such as [10.0.0.1:8000]"
            continue
        for place, target in enumerate(targets):
            if isinstance(target, str) and is_address(target):
                yield (number, "targets", place), DiscoveredTarget(target, labels)
            else:
                yield (number, "targets", place), f"expected host:port, not {str(target)[:60]!r}"


def _labels(number: int, given: Any) -> Generator[tuple[yaml_file.Path_, str], None, dict[str, str]]:
    """Yields what cannot be used and returns the labels that can."""
    labels: dict[str, str] = {}
    if given is None:
        return labels
    if not isinstance(given, dict):
        yield (number, "labels"), "expected a mapping of texts"
        return labels
    for name, value in given.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name):
            yield (number, "labels", str(name)), "is no label name"
        elif isinstance(value, dict | list) or value is None:
            yield (number, "labels", name), "expected a text"
        elif len(str(value)) > MOST_LABEL_BYTES or not str(value).isprintable():
            yield (number, "labels", name), f"expected at most {MOST_LABEL_BYTES} printable characters"
        else:
            labels[name] = str(value)
    return labels


def is_address(text: str) -> bool:
    """True for ``host``, ``host:port`` and ``[v6]:port``."""
    match = _ADDRESS.fullmatch(text)
    return match is not None and 0 < int(match["port"] or 1) < 65536


def _lines(text: str, file: str) -> yaml_file.Document:
    """Where things stand; only looked up when something is wrong, because it costs more than the reading."""
    try:
        return yaml_file.parse(text, file)
    except ConfigError:  # a key that stands twice, or JSON that is no YAML
        return yaml_file.Document(file, None, {})
