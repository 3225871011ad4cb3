"""Checks of targets, jobs and adapters on the raw file, even if other parts are invalid."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from collectors.discovery.relabeling import KEPT
from collectors.mapping import registry, signatures
from outrider.errors import ConfigError, ConfigProblem, UsageError
from outrider.text import yaml_file

_SURELY = 0.8  # labels of one's own are welcome: only what is surely a slip of the pen is told


def adapters_usable(value: Mapping[str, Any], document: yaml_file.Document, folder: Path) -> list[ConfigProblem]:
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
        return problems  # names of adapters that could not be read would be told as unknown
    for path, name in _adapters_named(collect):
        if name not in registry.ADAPTERS:
            hint = yaml_file.near(name, registry.ADAPTERS) or f"; known are {', '.join(registry.ADAPTERS)}"
            problems.append(document.problem(path, f"unknown adapter {name!r}{hint}"))
    return problems


def _adapters_named(collect: Mapping[str, Any]) -> Iterator[tuple[yaml_file.Path_, str]]:
    for index, target in _listed(collect.get("targets"), dict):
        if isinstance(target.get("adapter"), str):
            yield ("collect", "targets", index, "adapter"), target["adapter"]
    for job, name in _mapping(_mapping(collect.get("prometheus")).get("jobs")).items():
        if isinstance(name, str):
            yield ("collect", "prometheus", "jobs", str(job)), name


def targets_apart(value: Mapping[str, Any], document: yaml_file.Document) -> list[ConfigProblem]:
    """Reports targets with the name of another one."""
    problems, seen = [], set[str]()
    for index, target in _listed(_mapping(value.get("collect")).get("targets"), dict):
        name = target.get("name")
        if isinstance(name, str) and name in seen:
            where = ("collect", "targets", index, "name")
            problems.append(document.problem(where, f"a second target is named {name!r}"))
        seen.add(str(name))
    return problems


def doubts(value: Mapping[str, Any], document: yaml_file.Document) -> list[ConfigProblem]:
    """Warnings: a label close to a known one, one metrics page read twice for one entity."""
    found, pages = [], dict[str, int]()
    for index, target in _listed(_mapping(value.get("collect")).get("targets"), dict):
        where: yaml_file.Path_ = ("collect", "targets", index)
        for label in map(str, _mapping(target.get("labels"))):
            near = yaml_file.near(label, KEPT, cutoff=_SURELY) if label not in KEPT else ""
            if near:
                found.append(document.problem((*where, "labels", label), f"{label!r} is none of our labels{near}"))
        page = f"{target.get('url')} {sorted(map(str, _mapping(target.get('entity')).items()))}"
        if page in pages and target.get("url"):
            said = f"the same page for the same entity as collect.targets[{pages[page]}]: it would count twice"
            found.append(document.problem((*where, "url"), said))
        pages.setdefault(page, index)
    return found


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _listed(value: Any, kind: type) -> Iterator[tuple[int, Any]]:
    if isinstance(value, list):
        yield from ((index, one) for index, one in enumerate(value) if isinstance(one, kind))
