"""Playbooks: the repair steps of each fault, as data.

A step names an action and its target. ``after: done`` waits for the end of the earlier steps; ``wait`` counts from the
opening of the incident; ``ask`` always requests approval; ``surge`` adds capacity first if too little would be left.
``when: node_not_ready`` waits until the control plane reports the node as not ready, since our own view of it may be
the fault.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal, get_args

from outrider.errors import ConfigProblem, UsageError
from outrider.model import ActionKind
from outrider.text import yaml_file
from outrider.vocabulary.faults import faults
from outrider.vocabulary.units import parse_duration

When = Literal["node_not_ready"]
Selector = Literal["self", "node", "replicas", "pods", "services"]
# Load faults: the engine works, and a restart would remove capacity when it is needed most.
LOAD_FAULTS = frozenset({"traffic-surge", "kv-pressure", "long-prompt-burst", "traffic-skew", "retry-storm"})
_STEP_KEYS = ("action", "target", "after", "wait", "ask", "surge", "attempts", "when")
_PLAYBOOK_KEYS = ("serving", "steps")
_STEP_ACTIONS = tuple(kind for kind in ActionKind if kind not in (ActionKind.UNCORDON, ActionKind.RESTORE_TRAFFIC))


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a playbook. ``attempts`` is the number of tries in one session."""

    kind: ActionKind
    target: Selector
    after_done: bool = False
    wait: timedelta = timedelta(0)
    ask: bool = False
    surge: bool = False
    attempts: int = 1
    when: When | None = None


@dataclass(frozen=True, slots=True)
class Playbook:
    """The steps for one fault. ``serving`` False: replicas that the fault reaches no longer serve."""

    fault: str
    steps: tuple[Step, ...]
    serving: bool


def read(documents: Sequence[yaml_file.Document]) -> dict[str, Playbook]:
    """Parses playbooks by fault id. Raises ConfigError with every mistake of every document, in line order."""
    problems: list[ConfigProblem] = []
    result: dict[str, Playbook] = {}
    for document in documents:
        entries = document.value.get("playbooks") if isinstance(document.value, dict) else None
        if not isinstance(entries, dict):
            problems.append(document.problem(("playbooks",), "expected playbooks by fault"))
            continue
        for fault, entry in entries.items():
            faulty = _check(document, str(fault), entry)
            problems += faulty
            if not faulty:
                steps = tuple(_step(step) for step in entry.get("steps") or ())
                result[fault] = Playbook(fault, steps, entry.get("serving", True))
    if problems:
        raise yaml_file.refuse(problems)
    return result


def _check(document: yaml_file.Document, fault: str, entry: Any) -> list[ConfigProblem]:
    path: tuple[str | int, ...] = ("playbooks", fault)
    if fault not in faults():
        return [document.problem(path, f"unknown fault{yaml_file.near(fault, faults())}")]
    if not isinstance(entry, dict) or not isinstance(entry.get("steps") or [], list):
        return [document.problem(path, "expected {serving: ..., steps: [...]}")]
    problems = [
        document.problem((*path, str(key)), f"unknown key{yaml_file.near(str(key), _PLAYBOOK_KEYS)}")
        for key in entry
        if key not in _PLAYBOOK_KEYS
    ]
    for index, step in enumerate(entry.get("steps") or []):
        problems += _check_step(document, (*path, "steps", index), fault, step)
    return problems


def _check_step(
    document: yaml_file.Document, path: tuple[str | int, ...], fault: str, step: Any
) -> list[ConfigProblem]:
    if not isinstance(step, dict):
        return [document.problem(path, "expected a step such as {action: cordon, target: node}")]
    problems = [
        document.problem((*path, str(key)), f"unknown key{yaml_file.near(str(key), _STEP_KEYS)}")
        for key in step
        if key not in _STEP_KEYS
    ]
    if step.get("action") not in _STEP_ACTIONS:
        problems.append(document.problem((*path, "action"), f"expected one of {', '.join(_STEP_ACTIONS)}"))
    if step.get("target") not in get_args(Selector):
        problems.append(document.problem((*path, "target"), f"expected one of {', '.join(get_args(Selector))}"))
    if step.get("after", "done") != "done":
        problems.append(document.problem((*path, "after"), "expected done"))
    if step.get("when", "node_not_ready") not in get_args(When):
        problems.append(document.problem((*path, "when"), f"expected {', '.join(get_args(When))}"))
    if step.get("action") == ActionKind.RESTART_POD and fault in LOAD_FAULTS:
        problems.append(document.problem((*path, "action"), "an engine under load must not be restarted"))
    try:
        parse_duration(str(step.get("wait", "0s")))
    except UsageError as error:
        problems.append(document.problem((*path, "wait"), f"{error.message}; {error.hint}"))
    return problems


def _step(entry: Mapping[str, Any]) -> Step:
    return Step(
        kind=ActionKind(entry["action"]),
        target=entry["target"],
        after_done=entry.get("after") == "done",
        wait=parse_duration(str(entry.get("wait", "0s"))),
        ask=bool(entry.get("ask", False)),
        surge=bool(entry.get("surge", False)),
        attempts=int(entry.get("attempts", 1)),
        when=entry.get("when"),
    )
