"""Actions of faults: functions that the ``deeds`` of a fault file call, in addition to its effects.

``failure_actions`` has actions for processes, devices and exporters; ``deployment_actions`` for rollouts, flags and
replicas; ``log_events`` for log lines, events and changes. Each takes the fleet, the active fault and the arguments of
the file. It may return an undo function, which runs when the fault ends or is stopped. Arguments are checked against
the annotations of the signature when a file is read.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.faults import deployment_actions, failure_actions, log_events
from simulator.faults.log_events import ABOUT, FIELDS

__all__ = ["ABOUT", "ACTIONS", "FIELDS", "Action"]


@dataclass(frozen=True, slots=True)
class Action:
    """A function with its arguments: annotations by name, and the names without a default."""

    call: Callable[..., Any]
    arguments: Mapping[str, str]
    required: frozenset[str]


_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    failure_actions.crash,
    failure_actions.oom_kill,
    failure_actions.xid,
    failure_actions.lose_gpu,
    failure_actions.vanish,
    failure_actions.evict,
    failure_actions.restart_some,
    failure_actions.exporter_down,
    deployment_actions.rollout,
    deployment_actions.reconfigure,
    deployment_actions.rollback,
    deployment_actions.scale,
    deployment_actions.fill_pool,
    log_events.kernel_line,
    log_events.engine_line,
    log_events.kubernetes_event,
    log_events.change,
)


def _read(function: Callable[..., Any]) -> Action:
    arguments = list(inspect.signature(function).parameters.values())[2:]
    return Action(
        function,
        {argument.name: str(argument.annotation) for argument in arguments},
        frozenset(argument.name for argument in arguments if argument.default is inspect.Parameter.empty),
    )


ACTIONS: dict[str, Action] = {function.__name__: _read(function) for function in _FUNCTIONS}
