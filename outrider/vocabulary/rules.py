"""The shape of an alert rule: what both the compiler of expressions and the alert stage read.

The YAML files live in ``alerts/rules``; the expressions are compiled into detectors by ``detectors``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from outrider.model import ActionKind, EntityKind, Priority


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert rule. Exactly one of ``expr`` and ``faults``/``detectors`` says when it holds.

    ``expr`` is an expression over signals of entities of ``kind``, compiled into the detector
    ``rule:<name>``. ``faults`` matches findings that name one of these faults; ``detectors`` matches
    findings of these detectors. ``priority`` None means: the fault's own pair from the vocabulary.
    ``wait`` is how long it must hold before it fires, ``clear`` how long it must be gone before it
    resolves. ``answer_within`` is the time a person has. ``routes`` are channel groups (``phone``,
    ``sms``, ``im``, ``mail``, ``report``); empty means: those of the alert's priority. A detector
    ``plan:<measure>`` reads that figure of a recommendation's derivation and holds at ``threshold``
    or above.
    """

    name: str
    kind: EntityKind
    expr: str | None = None
    faults: tuple[str, ...] = ()
    detectors: tuple[str, ...] = ()
    fault: str | None = None
    priority: Priority | None = None
    wait: timedelta = timedelta(0)
    clear: timedelta = timedelta(0)
    answer_within: timedelta | None = None
    routes: tuple[str, ...] = ()
    service_level: bool = False
    default_actions: tuple[ActionKind, ...] = ()
    default_action_text: str = ""
    runbook: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    threshold: float | None = None
