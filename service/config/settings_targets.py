"""Checks targets, jobs and adapters on the raw file, even if other parts are invalid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from collectors.discovery.relabeling import KEPT
from collectors.mapping import registry, signatures
from outrider.errors import ConfigError, ConfigProblem, UsageError
from outrider.text import yaml_file

_TYPO_SIMILARITY = 0.8  # other labels are allowed; only probable typos are reported


def adapter_problems(value: Mapping[str, Any], document: yaml_file.Document, folder: Path) -> list[ConfigProblem]:
    """Registers own adapters; reports their errors and unknown adapter names."""
    problems: list[ConfigProblem] = []
    collect = _mapping(value.get("collect"))
    for index, file in _listed(collect.get("adapters"), str):
        try:
            registry.add(folder / file)
            signatures.clear_caches()
        except ConfigError as error:
            problems += error.problems
        except UsageError as error:
            problems.append(document.problem(("collect", "adapters", index), error.message))
    if problems:
        return problems  # adapters that could not be read would be reported as unknown
    for path, name in _adapters_named(collect):
        if name not in registry.ADAPTERS:
            hint = yaml_file.near(name, registry.ADAPTERS) or f"; valid adapters: {', '.join(registry.ADAPTERS)}"
            problems.append(document.problem(path, f"unknown adapter {name!r}{hint}"))
    return problems


def _adapters_named(collect: Mapping[str, Any]) -> Iterator[tuple[yaml_file.Path_, str]]:
    for index, target in _listed(collect.get("targets"), dict):
        if isinstance(target.get("adapter"), str):
            yield ("collect", "targets", index, "adapter"), target["adapter"]
    for job, name in _mapping(_mapping(collect.get("prometheus")).get("jobs")).items():
        if isinstance(name, str):
            yield ("collect", "prometheus", "jobs", str(job)), name


def duplicate_targets(value: Mapping[str, Any], document: yaml_file.Document) -> list[ConfigProblem]:
    """Reports duplicate target names."""
    problems, seen = [], set[str]()
    for index, target in _listed(_mapping(value.get("collect")).get("targets"), dict):
        name = target.get("name")
        if isinstance(name, str) and name in seen:
            path = ("collect", "targets", index, "name")
            problems.append(document.problem(path, f"duplicate target name {name!r}"))
        seen.add(str(name))
    return problems


def target_warnings(value: Mapping[str, Any], document: yaml_file.Document) -> list[ConfigProblem]:
    """Warns of a label that resembles a known one, and of a metrics page that is read twice for one entity."""
    warnings, pages = [], dict[str, int]()
    for index, target in _listed(_mapping(value.get("collect")).get("targets"), dict):
        path: yaml_file.Path_ = ("collect", "targets", index)
        for label in map(str, _mapping(target.get("labels"))):
            near = yaml_file.near(label, KEPT, cutoff=_TYPO_SIMILARITY) if label not in KEPT else ""
            if near:
                warnings.append(document.problem((*path, "labels", label), f"unknown label {label!r}{near}"))
        page = f"{target.get('url')} {sorted(map(str, _mapping(target.get('entity')).items()))}"
        if page in pages and target.get("url"):
            message = f"same metrics page and entity as collect.targets[{pages[page]}]; its values would count twice"
            warnings.append(document.problem((*path, "url"), message))
        pages.setdefault(page, index)
    return warnings


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: Any, kind: type) -> Iterator[tuple[int, Any]]:
    if isinstance(value, list):
        yield from ((index, entry) for index, entry in enumerate(value) if isinstance(entry, kind))
