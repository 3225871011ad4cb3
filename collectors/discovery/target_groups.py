"""Target groups in Prometheus' format (``file_sd``, ``http_sd``): hosts with ports, and labels. Pure."""

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
    """Targets of a file in JSON or YAML, and its problems by line.

    Raises ConfigError with the line if the whole file is neither.
    """
    value = _parse(text, file)
    targets, faults = [], []
    for path, what in _walk(value):
        if isinstance(what, DiscoveredTarget):
            targets.append(what)
        else:
            faults.append((path, what))
    if not faults:
        return targets, []
    lines = _lines(text, file)
    return targets, [ConfigProblem(file, lines.line(path), yaml_file.dotted(path), message) for path, message in faults]


def _parse(text: str, file: str) -> Any:
    try:
        return json.loads(text)  # generated lists are JSON; ten times as fast as YAML
    except (ValueError, RecursionError) as error:
        if file.endswith(".json"):
            line = getattr(error, "lineno", 0)
            problem = ConfigProblem(file, line, "(syntax)", f"not valid JSON: {getattr(error, 'msg', error)}")
            raise ConfigError(str(problem), (problem,)) from error
    try:
        return yaml.load(text, Loader=_LOADER)  # noqa: S506 - a safe loader, the C implementation if available
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
            yield (number, key), "unknown key; valid keys: targets, labels"
        labels = yield from _labels(number, group.get("labels"))
        targets = group.get("targets")
        if not isinstance(targets, list):
            yield (number, "targets"), "expected a list such as [10.0.0.1:8000]"
            continue
        for index, target in enumerate(targets):
            if isinstance(target, str) and is_address(target):
                yield (number, "targets", index), DiscoveredTarget(target, labels)
            else:
                yield (number, "targets", index), f"expected host:port, not {str(target)[:60]!r}"


def _labels(number: int, raw: Any) -> Generator[tuple[yaml_file.Path_, str], None, dict[str, str]]:
    """Yields the problems and returns the valid labels."""
    labels: dict[str, str] = {}
    if raw is None:
        return labels
    if not isinstance(raw, dict):
        yield (number, "labels"), "expected a mapping of strings"
        return labels
    for name, value in raw.items():
        if not isinstance(name, str) or not _LABEL.fullmatch(name):
            yield (number, "labels", str(name)), "not a valid label name"
        elif isinstance(value, dict | list) or value is None:
            yield (number, "labels", name), "expected a string"
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
    """Line numbers of the keys; computed only for an invalid file, because it costs more than parsing."""
    try:
        return yaml_file.parse(text, file)
    except ConfigError:  # a duplicate key, or JSON that is not YAML
        return yaml_file.Document(file, None, {})
