"""The switch of a lost cluster's services to a standby, and their return, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from itertools import pairwise
from typing import Any

from outrider.errors import ConfigProblem, UsageError
from outrider.text import yaml_file
from outrider.vocabulary.faults import faults
from outrider.vocabulary.units import parse_duration

MOST_HEALTHY = timedelta(minutes=9)
_DURATIONS = ("confirm_for", "verify_for", "healthy_for", "step_for", "retry_after", "status_every")
_KEYS = ("faults", "success_ratio", "fail_back", *_DURATIONS)


@dataclass(frozen=True, slots=True)
class ClusterSwitch:
    """Times and limits of the procedure.

    ``fail_back`` are the shares that the home cluster takes step by step. ``standby`` names the cluster that takes
    over each cluster; without an entry it is the only other cluster with the same services.
    """

    faults: frozenset[str]
    confirm_for: timedelta
    verify_for: timedelta
    success_ratio: float
    healthy_for: timedelta
    fail_back: tuple[float, ...]
    step_for: timedelta
    retry_after: timedelta
    status_every: timedelta
    standby: Mapping[str, str]


def read(document: yaml_file.Document, standby: Mapping[str, str] | None = None) -> ClusterSwitch:
    """Parses the procedure. Raises ConfigError with every mistake, in line order."""
    entry = document.value.get("cluster_switch") if isinstance(document.value, dict) else None
    if not isinstance(entry, dict):
        raise yaml_file.refuse([document.problem(("cluster_switch",), f"expected the keys {', '.join(_KEYS)}")])
    problems = _problems(document, entry)
    if problems:
        raise yaml_file.refuse(problems)
    times = {key: parse_duration(entry[key]) for key in _DURATIONS}
    return ClusterSwitch(
        faults=frozenset(entry["faults"]),
        success_ratio=float(entry["success_ratio"]),
        fail_back=tuple(float(share) for share in entry["fail_back"]),
        standby=dict(standby or {}),
        **times,
    )


def _problems(document: yaml_file.Document, entry: Mapping[str, Any]) -> list[ConfigProblem]:
    def problem(key: str, message: str) -> ConfigProblem:
        return document.problem(("cluster_switch", key), message)

    problems = [problem(str(key), f"unknown key{yaml_file.near(str(key), _KEYS)}") for key in entry if key not in _KEYS]
    named = entry.get("faults")
    if not isinstance(named, list) or not named or not set(named) <= set(faults()):
        problems.append(problem("faults", "expected a list of fault ids"))
    for key in _DURATIONS:
        try:
            parse_duration(str(entry.get(key)))
        except UsageError:
            problems.append(problem(key, "expected a duration such as 30s or 15m"))
    if not problems and parse_duration(entry["healthy_for"]) > MOST_HEALTHY:
        problems.append(problem("healthy_for", "expected at most 9m: probes are remembered for 10 minutes"))
    ratio = entry.get("success_ratio")
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 <= ratio <= 1:
        problems.append(problem("success_ratio", "expected a number from 0 to 1"))
    if not _rises_to_one(entry.get("fail_back")):
        problems.append(problem("fail_back", "expected rising shares that end at 1, such as [0.01, 0.1, 0.5, 1.0]"))
    return problems


def _rises_to_one(shares: Any) -> bool:
    if not isinstance(shares, list) or not shares or any(isinstance(share, bool) for share in shares):
        return False
    if not all(isinstance(share, int | float) and 0 < share <= 1 for share in shares):
        return False
    return shares[-1] == 1 and all(first < second for first, second in pairwise(shares))
