"""Report of a diagnostic: checks with numbers, and the comparison of rates with other nodes.

A diagnostic Job writes it as its termination message::

    {"passed": true, "checks": [{"name": "all_reduce", "passed": true, "value": 412.5, "unit": "GB/s", "limit": 300}]}

``limit`` may be absent. Kubernetes cuts a termination message at 4,096 bytes.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from statistics import median
from typing import Any

LEAST_PEERS = 2  # fewer nodes give no usual rate
PEER_RATIO = 0.8  # of the peers' median
_RATE = "/s"  # GB/s, tokens/s: rates of equal nodes are comparable
_NAME_CHARACTERS, _MOST_CHECKS = 80, 64


class ReportError(ValueError):
    """The text is not a report; the message names the expected form."""


@dataclass(frozen=True, slots=True)
class Check:
    """One check. ``value``, ``limit`` are in ``unit``; None if it has no number."""

    name: str
    passed: bool
    value: float | None = None
    unit: str = ""
    limit: float | None = None

    def __str__(self) -> str:
        """``name 412.5 GB/s (limit 300)``."""
        if self.value is None:
            return self.name
        limit = "" if self.limit is None else f" (limit {self.limit:g})"
        return f"{self.name} {self.value:g} {self.unit}".rstrip() + limit


@dataclass(frozen=True, slots=True)
class Report:
    """The result of a diagnostic."""

    passed: bool
    checks: tuple[Check, ...] = ()


def read(text: str) -> Report | None:
    """Parses a termination message; None if it is not JSON at all. Raises ReportError for another JSON."""
    if not text.lstrip().startswith("{"):
        return None
    try:
        document = json.loads(text)
    except ValueError as error:
        raise ReportError(f"not valid JSON ({error}); a message is cut at 4,096 bytes") from error
    if not isinstance(document.get("passed"), bool):
        raise ReportError("passed: expected true or false")
    checks = document.get("checks", [])
    if not isinstance(checks, list) or len(checks) > _MOST_CHECKS:
        raise ReportError(f"checks: expected a list of at most {_MOST_CHECKS}")
    return Report(document["passed"], tuple(_check(entry, index) for index, entry in enumerate(checks)))


def _check(entry: Any, index: int) -> Check:
    where = f"checks.{index}"
    if not isinstance(entry, dict) or not isinstance(entry.get("name"), str) or not entry["name"]:
        raise ReportError(f"{where}: expected a check with a name")
    if not isinstance(entry.get("passed"), bool):
        raise ReportError(f"{where}.passed: expected true or false")
    numbers = {key: _number(entry.get(key), f"{where}.{key}") for key in ("value", "limit")}
    return Check(entry["name"][:_NAME_CHARACTERS], entry["passed"], unit=str(entry.get("unit") or ""), **numbers)


def _number(value: Any, where: str) -> float | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ReportError(f"{where}: expected a number")
    return float(value)


def judge(report: Report, peers: Sequence[Report], ratio: float = PEER_RATIO) -> tuple[bool, str]:
    """Returns (passed, one sentence). A rate below ``ratio`` of the median of two or more peers fails."""
    failed = [str(check) for check in report.checks if not check.passed]
    slow = [text for check in report.checks if (text := _below_peers(check, peers, ratio))]
    if failed or slow or not report.passed:
        return False, "diagnostic failed: " + "; ".join([*failed, *slow] or ["it reports no reason"])
    shown = "; ".join(str(check) for check in report.checks)
    return True, "diagnostic passed" + (f": {shown}" if shown else "")


def _below_peers(check: Check, peers: Iterable[Report], ratio: float) -> str:
    """The sentence of a rate that is too low; empty for any other check."""
    if check.value is None or not check.unit.endswith(_RATE):
        return ""
    rates = [
        other.value
        for report in peers
        for other in report.checks
        if other.name == check.name and other.unit == check.unit and other.value is not None
    ]
    if len(rates) < LEAST_PEERS or check.value >= ratio * median(rates):
        return ""
    return f"{check} is below {ratio:.0%} of {median(rates):g} {check.unit}, the median of {len(rates)} nodes"
