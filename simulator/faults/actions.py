"""What faults do once, beside bending levers: the named functions that a fault file's ``actions`` call.

They live in ``breaking`` (processes, devices, exporters), ``rolling`` (rollouts, flags, replicas) and
``telling`` (lines of logs, events and changes). Each takes the fleet, the fault at work and the
arguments of the file, and may return how to put back what it did; the fault does that when it ends or
is stopped. Arguments are checked against the signature when a file is read: a parameter's annotation
says what may be written.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from simulator.faults import breaking, log_events, rolling
from simulator.faults.log_events import ABOUT, FIELDS

__all__ = ["ABOUT", "ACTIONS", "FIELDS", "Action"]


@dataclass(frozen=True, slots=True)
class Action:
    """A function and what its arguments are: name to annotation, and the names without a default."""

    call: Callable[..., Any]
    arguments: Mapping[str, str]
    required: frozenset[str]


_FUNCTIONS: tuple[Callable[..., Any], ...] = (
    breaking.crash,
    breaking.oom_kill,
    breaking.xid,
    breaking.lose_gpu,
    breaking.vanish,
    breaking.evict,
    breaking.restart_some,
    breaking.exporter_down,
    rolling.rollout,
    rolling.reconfigure,
    rolling.rollback,
    rolling.scale,
    rolling.fill_pool,
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
