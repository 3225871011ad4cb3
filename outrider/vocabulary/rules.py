"""Alert rules, as read by the expression compiler and the alert stage.

The YAML files are in ``alerts/rules``; ``detectors`` compiles the expressions.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from enum import StrEnum

from outrider.model import ActionKind, EntityKind, Priority

# Undoing follows from a session, never from a rule, and a degrade level from the ladder.
RULE_ACTIONS = frozenset(ActionKind) - {
    ActionKind.UNCORDON,
    ActionKind.RESTORE_TRAFFIC,
    ActionKind.RESUME_ROLLOUT,
    ActionKind.RESUME_ENGINE,
    ActionKind.RESTORE_SERVICE,
    ActionKind.DEGRADE_SERVICE,
}


class RuleCheck(StrEnum):
    """A check that a rule runs when it fires. Its result is a line in the incident's timeline."""

    TIME_TO_EXHAUSTION = "time_to_exhaustion"
    LONG_PROMPTS = "long_prompts"
    CAPACITY_PLAN = "capacity_plan"


class AbsentPolicy(StrEnum):
    """What the alerts of a rule do while values are missing, stale or not to be trusted."""

    KEEP = "keep"  # the alert stays as it is
    FIRE = "fire"  # no values count as a condition that is true
    RESOLVE = "resolve"  # the alert ends after ``Rule.resolve_after``


@dataclass(frozen=True, slots=True)
class Rule:
    """One alert rule. Exactly one of ``expr`` and ``faults``/``detectors`` is its condition.

    ``expr`` is an expression over signals of entities of ``kind``, compiled into the detector ``rule:<name>``.
    ``faults`` matches findings with one of these faults; ``detectors`` matches findings of these detectors.
    ``priority`` None: the fault's own pair of priorities. ``wait`` is the time the condition must hold before it fires,
    ``clear`` the time it must be false before it resolves. ``answer_within`` is the response time of a person.
    ``routes`` are channel groups (``phone``, ``sms``, ``im``, ``mail``, ``report``); empty: those of the alert's
    priority. A detector ``plan:<measure>`` reads that figure of a recommendation's derivation and holds at
    ``threshold`` or above. ``then`` are the default actions of an incident that no playbook repairs, and the checks.
    ``absent`` is the policy for missing values; ``AbsentPolicy.RESOLVE`` ends an alert after ``resolve_after`` of them.
    ``instead_of`` are the rules that it replaces. ``where`` limits ``expr`` to the entities that have one of the values
    of each key; a key is ``name``, ``namespace``, ``cluster`` or a fact of the topology.
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
    then: tuple[ActionKind | RuleCheck, ...] = ()
    default_action_text: str = ""
    runbook: str = ""
    labels: dict[str, str] = field(default_factory=dict)
    threshold: float | None = None
    absent: AbsentPolicy = AbsentPolicy.KEEP
    resolve_after: timedelta = timedelta(0)
    instead_of: tuple[str, ...] = ()
    where: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
