"""Playbooks: the repair steps of each fault, as data.

A playbook is ``steps``, or ``none`` with the reason why nothing is done automatically. A step names an action and its
target, and optionally:

``require``   conditions that must hold before it; while one does not, the step is skipped
``verify``    condition that must hold afterwards, within ``timeout``; the step is complete only then
``escalate``  consequence of a failed step: ``next`` (go on), ``ask`` (later steps need approval), or ``{page: text}``
``undo``      action that undoes it after the recovery, or ``none``; by default the natural one
``after: done`` waits for the earlier steps; ``wait`` counts from the opening of the incident; ``ask`` always requests
approval; ``surge`` adds capacity first if too little would be left; ``attempts`` is the number of tries in one session.

``none`` and ``page`` are text ids of ``outrider.text.i18n``, or plain text.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Literal

from outrider.errors import ConfigProblem, UsageError
from outrider.model import ActionKind
from outrider.text import yaml_file
from outrider.vocabulary.faults import faults
from outrider.vocabulary.units import parse_duration
from remediation.playbooks.conditions import AFTER_A_STEP, Check, Condition, parse_check
from remediation.playbooks.selectors import SELECTORS, Selector, mismatch

EscalationKind = Literal["next", "ask", "page"]
STEP_TIMEOUT = timedelta(minutes=5)

# Load faults: the engine works, and a restart would remove capacity when it is needed most.
LOAD_FAULTS = frozenset({"traffic-surge", "kv-pressure", "long-prompt-burst", "traffic-skew", "retry-storm"})
RESTARTING = frozenset(
    {
        ActionKind.RESTART_POD,
        ActionKind.DELETE_STUCK_POD,
        ActionKind.DRAIN,
        ActionKind.DRAIN_ENGINE,
        ActionKind.SLEEP_ENGINE,
        ActionKind.REBOOT_NODE,
        ActionKind.RESET_GPU,
    }
)
# Playbooks cannot leave these in force. Balanced weights may stay, for the former ones can be the fault.
_ALWAYS_UNDONE = frozenset({ActionKind.CORDON, ActionKind.DRAIN, ActionKind.SHIFT_TRAFFIC})
# The action that undoes another one. A kind without an entry changes nothing that stays.
UNDOES: Mapping[ActionKind, ActionKind] = {
    ActionKind.CORDON: ActionKind.UNCORDON,
    ActionKind.DRAIN: ActionKind.UNCORDON,
    ActionKind.SHIFT_TRAFFIC: ActionKind.RESTORE_TRAFFIC,
    ActionKind.BALANCE_TRAFFIC: ActionKind.RESTORE_TRAFFIC,
    ActionKind.PAUSE_ROLLOUT: ActionKind.RESUME_ROLLOUT,
    ActionKind.SLEEP_ENGINE: ActionKind.WAKE_ENGINE,
    ActionKind.DRAIN_ENGINE: ActionKind.RESUME_ENGINE,
    ActionKind.DEGRADE_SERVICE: ActionKind.RESTORE_SERVICE,
}
_ONLY_UNDO = frozenset(
    {
        ActionKind.UNCORDON,
        ActionKind.RESTORE_TRAFFIC,
        ActionKind.RESUME_ROLLOUT,
        ActionKind.RESUME_ENGINE,
        ActionKind.RESTORE_SERVICE,
    }
)
# The action itself lasts until the check of its step holds; the timeout of other steps begins when the action ends.
_LASTING = frozenset({ActionKind.DRAIN, ActionKind.DRAIN_ENGINE})
STEP_ACTIONS = tuple(kind for kind in ActionKind if kind not in {*_ONLY_UNDO, ActionKind.DEGRADE_SERVICE})
# Procedures decide these, by their settings. A playbook may only announce the switch of a lost cluster.
_OF_PROCEDURES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    ActionKind.DEGRADE_SERVICE: ("degrade", ()),
    ActionKind.SWITCH_CLUSTER: ("cluster_switch", ("cluster-lost",)),
}
_STEP_KEYS = (
    *("action", "target", "require", "verify", "timeout", "escalate", "undo"),
    *("after", "wait", "ask", "surge", "attempts"),
)
_PLAYBOOK_KEYS = ("serving", "steps", "none")
Path = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Escalation:
    """The consequence of a step whose action or check failed. ``text`` is the reason for the page."""

    kind: EscalationKind = "next"
    text: str = ""


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a playbook. ``undo`` None: it leaves nothing to undo."""

    kind: ActionKind
    target: Selector
    after_done: bool = False
    wait: timedelta = timedelta(0)
    ask: bool = False
    surge: bool = False
    attempts: int = 1
    require: tuple[Check, ...] = ()
    verify: Check | None = None
    timeout: timedelta = STEP_TIMEOUT
    escalate: Escalation = Escalation()
    undo: ActionKind | None = None


@dataclass(frozen=True, slots=True)
class Playbook:
    """The steps for one fault, or the reason why there are ``none``.

    ``serving`` False: replicas that the fault reaches no longer serve.
    """

    fault: str
    steps: tuple[Step, ...]
    serving: bool = True
    none: str = ""

    @property
    def kinds(self) -> frozenset[ActionKind]:
        """The kinds of its steps."""
        return frozenset(step.kind for step in self.steps)


def time_limits(playbooks: Mapping[str, Playbook]) -> dict[ActionKind, timedelta]:
    """The longest time that a playbook gives to each kind of action that lasts as long as its step."""
    result: dict[ActionKind, timedelta] = {}
    for playbook in playbooks.values():
        for step in playbook.steps:
            if step.kind in _LASTING:
                result[step.kind] = max(step.timeout, result.get(step.kind, step.timeout))
    return result


def read(documents: Sequence[yaml_file.Document]) -> dict[str, Playbook]:
    """Parses playbooks by fault id; a later one of the same fault replaces the earlier one.

    Raises ConfigError with every mistake of every document, in line order.
    """
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
                result[fault] = Playbook(fault, steps, entry.get("serving", True), str(entry.get("none", "")))
    if problems:
        raise yaml_file.refuse(problems)
    return result


def _check(document: yaml_file.Document, fault: str, entry: Any) -> list[ConfigProblem]:
    path: Path = ("playbooks", fault)
    if fault not in faults():
        return [document.problem(path, f"unknown fault{yaml_file.near(fault, faults())}")]
    if not isinstance(entry, dict) or not isinstance(entry.get("steps") or [], list):
        return [document.problem(path, "expected {serving: ..., steps: [...]} or {none: reason}")]
    problems = _unknown_keys(document, path, entry, _PLAYBOOK_KEYS)
    reason = entry.get("none")
    if bool(entry.get("steps")) == (reason is not None):
        problems.append(document.problem(path, "expected either steps or none with its reason"))
    if reason is not None and (not isinstance(reason, str) or not reason.strip()):
        problems.append(document.problem((*path, "none"), "expected the reason for a person, or its text id"))
    if not isinstance(entry.get("serving", True), bool):
        problems.append(document.problem((*path, "serving"), "expected true or false"))
    for index, step in enumerate(entry.get("steps") or []):
        problems += _check_step(document, (*path, "steps", index), fault, step)
    return problems


def _unknown_keys(
    document: yaml_file.Document, path: Path, entry: Mapping[Any, Any], known: Sequence[str]
) -> list[ConfigProblem]:
    return [
        document.problem((*path, str(key)), f"unknown key{yaml_file.near(str(key), known)}")
        for key in entry
        if key not in known
    ]


def _check_step(document: yaml_file.Document, path: Path, fault: str, step: Any) -> list[ConfigProblem]:
    if not isinstance(step, dict):
        return [document.problem(path, "expected a step such as {action: cordon, target: node}")]
    found = [*_wrong_action(fault, step), *_wrong_order(step), *_wrong_conditions(step), *_wrong_consequences(step)]
    return [
        *_unknown_keys(document, path, step, _STEP_KEYS),
        *(document.problem((*path, *key), message) for key, message in found),
    ]


def _wrong_action(fault: str, step: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    action, target = step.get("action"), step.get("target")
    section, allowed = _OF_PROCEDURES.get(str(action), ("", (fault,)))
    if fault not in allowed:
        yield ("action",), f"a playbook cannot name the level or the cluster: see remediation.{section}"
    elif action not in STEP_ACTIONS:
        yield ("action",), _unknown("action", action, STEP_ACTIONS)
    elif action in RESTARTING and fault in LOAD_FAULTS:
        yield ("action",), "an engine under load must not be restarted"
    if target not in SELECTORS:
        yield ("target",), _unknown("target", target, SELECTORS)
    elif action in STEP_ACTIONS and not section and (text := mismatch(action, target, fault, faults()[fault].entity)):
        yield ("target",), text


def _unknown(noun: str, value: Any, known: Sequence[str]) -> str:
    """What is wrong with a missing or unknown word, and what was expected."""
    expected = f"expected one of {', '.join(known)}"
    if value is None:
        return f"is missing; {expected}"
    if str(value) in _ONLY_UNDO:
        return f"{value} only undoes another action; {expected}"
    return f"unknown {noun} {str(value)!r}{yaml_file.near(str(value), known)}; {expected}"


def _wrong_order(step: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    if step.get("after", "done") != "done":
        yield ("after",), "expected done"
    for key in ("wait", "timeout"):
        try:
            parse_duration(str(step.get(key, "30s")))
        except UsageError as error:
            yield (key,), f"{error.message}; {error.hint}"
    for key in ("ask", "surge"):
        if not isinstance(step.get(key, False), bool):
            yield (key,), "expected true or false"
    attempts = step.get("attempts", 1)
    if isinstance(attempts, bool) or not isinstance(attempts, int) or attempts < 1:
        yield ("attempts",), "expected a whole number from 1"


def _wrong_conditions(step: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    required = step.get("require", [])
    before = [condition for condition in Condition if condition not in AFTER_A_STEP]
    for key, value in enumerate(required) if isinstance(required, list) else ():
        if message := _mistake(value, before):
            yield ("require", key), message
    if not isinstance(required, list):
        yield ("require",), "expected a list of conditions"
    if "verify" in step and (message := _mistake(step["verify"], list(Condition))):
        yield ("verify",), message
    if "timeout" in step and "verify" not in step:
        yield ("timeout",), "a timeout needs verify"


def _mistake(value: Any, allowed: Sequence[Condition]) -> str:
    try:
        parse_check(value, allowed)
    except UsageError as error:
        return f"{error.message}; {error.hint}" if error.hint else error.message
    return ""


def _wrong_consequences(step: Mapping[str, Any]) -> Iterator[tuple[Path, str]]:
    escalate, undo = step.get("escalate", "next"), step.get("undo", "none")
    text = escalate.get("page") if isinstance(escalate, dict) and len(escalate) == 1 else None
    if escalate not in ("next", "ask") and not (isinstance(text, str) and text.strip()):
        yield ("escalate",), "expected next, ask, or {page: reason}"
    natural = UNDOES.get(step["action"]) if step.get("action") in STEP_ACTIONS else None
    if undo == "none" and str(step.get("action")) in _ALWAYS_UNDONE and "undo" in step:
        yield ("undo",), "nodes and replicas always return once they are healthy"
    elif undo not in ("none", natural):
        yield ("undo",), f"expected {natural} or none" if natural else "expected none: this action has no undo"


def _step(entry: Mapping[str, Any]) -> Step:
    kind = ActionKind(entry["action"])
    escalate = entry.get("escalate", "next")
    return Step(
        kind=kind,
        target=entry["target"],
        after_done=entry.get("after") == "done",
        wait=parse_duration(str(entry.get("wait", "0s"))),
        ask=entry.get("ask", False),
        surge=entry.get("surge", False),
        attempts=entry.get("attempts", 1),
        require=tuple(parse_check(value, Condition) for value in entry.get("require", ())),
        verify=parse_check(entry["verify"], Condition) if "verify" in entry else None,
        timeout=parse_duration(str(entry["timeout"])) if "timeout" in entry else STEP_TIMEOUT,
        escalate=Escalation("page", escalate["page"]) if isinstance(escalate, dict) else Escalation(escalate),
        undo=None if entry.get("undo") == "none" else UNDOES.get(kind),
    )
