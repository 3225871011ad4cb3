"""Plans a scenario on a world: every fault on an entity that the seed chooses."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from outrider.errors import ConfigError, ConfigProblem, UsageError
from outrider.text import yaml_file
from simulator.faults import FAULTS, Truth, inject
from simulator.faults.scope import scope_of
from simulator.fleet import Fleet
from simulator.scenarios.entity_choice import WORDS, EarlierFault, candidates, is_name
from simulator.scenarios.loader import PlannedFault, Scenario

if TYPE_CHECKING:
    from simulator.world import World


def arrange(target: Fleet | World, scenario: Scenario, seed: int) -> tuple[Truth, ...]:
    """Injects every fault of a scenario, starting now; returns the ground truths in file order.

    The same scenario, seed and target give the same entities and magnitudes. Raises ConfigError with file, line and key
    if an entity does not exist or none matches the words; nothing stays injected then.
    """
    fleets = (target,) if isinstance(target, Fleet) else tuple(target.fleets)
    before: dict[str, list[EarlierFault]] = {"main": [], "standby": []}
    truths: list[Truth] = []
    known = [list(fleet.injections) for fleet in fleets]
    try:
        for number, planned in enumerate(scenario.faults):
            fleet = _fleet(fleets, planned)
            drawn = int(np.random.default_rng([seed, number, zlib.crc32(scenario.id.encode())]).integers(2**31))
            truth = _inject(fleet, planned, before[planned.cluster], drawn)
            before[planned.cluster].append(EarlierFault(truth.entity, scope_of(fleet, truth.entity)))
            truths.append(truth)
    except UsageError:
        for fleet, injections in zip(fleets, known, strict=True):
            fleet.injections[:] = injections
        raise
    return tuple(truths)


def _fleet(fleets: Sequence[Fleet], planned: PlannedFault) -> Fleet:
    place = 1 if planned.cluster == "standby" else 0
    if place >= len(fleets):
        raise _refused(planned, "this world has no standby cluster; expected a world of two fleets")
    return fleets[place]


def _inject(fleet: Fleet, planned: PlannedFault, before: Sequence[EarlierFault], seed: int) -> Truth:
    start = fleet.now + planned.after
    if is_name(planned.entity):
        try:
            return inject(fleet, planned.fault, planned.entity, start, planned.lasts, seed)
        except UsageError as error:
            raise _refused(planned, f"{error.message}; {error.hint}") from error
    declared, words = FAULTS[planned.fault], planned.entity.split()
    for word in words:
        if word not in WORDS:
            raise _refused(planned, f"unknown word {word!r}{yaml_file.near(word, WORDS)}")
    reason = ""
    for entity, _ in candidates(fleet, declared.kind, words, declared.likely, before, seed):
        try:
            return inject(fleet, planned.fault, entity, start, planned.lasts, seed)
        except UsageError as error:  # conflicts with another fault of the scenario: try the next entity
            reason = f": {error.message}"
    wanted = f"that is {' and '.join(words)}" if words else f"that is {declared.likely}"
    raise _refused(planned, f"the fleet has no {declared.kind.value} {wanted} for {planned.fault}{reason}")


def _refused(planned: PlannedFault, message: str) -> ConfigError:
    where = planned.where
    problem = ConfigProblem(where.file, where.line, where.key, message)
    return ConfigError(str(problem), (problem,), hint="change the scenario's entity, or the world it runs on")
