"""How an entity differs from its peers: the same model on the same kind of card in the same service.

Peers share load, prompts and time of day, so what sets one apart from their median is its own. Fewer
than three peers have no median worth the name.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from outrider.model import EntityKind, EntityRef, Floats
from outrider.topology import Topology

FEWEST = 3
SIGMA_OF_MAD = 1.4826  # for a normal distribution


def groups(entities: Sequence[EntityRef], topology: Topology) -> NDArray[np.intp]:
    """A group number per entity, shape (entities,); -1 for those with fewer than three in their group.

    Peers have the same services above them, model and GPU type; nodes have the same GPU type.
    """
    numbers: dict[tuple[str, ...], int] = {}
    found = np.fromiter(
        (numbers.setdefault(_group(entity, topology), len(numbers)) for entity in entities),
        dtype=np.intp,
        count=len(entities),
    )
    sizes = np.bincount(found, minlength=len(numbers)) if found.size else np.zeros(0, dtype=np.intp)
    return np.where(sizes[found] >= FEWEST, found, -1) if found.size else found


def _group(entity: EntityRef, topology: Topology) -> tuple[str, ...]:
    services: tuple[str, ...] = ()
    if entity.kind is not EntityKind.NODE:
        services = tuple(service.key for service in topology.above(entity, EntityKind.SERVICE))
    labels = (topology.label(entity, "gpu_type"), topology.label(entity, "model"))
    return (entity.cluster, *labels, *services)


def apart(values: Floats, group: NDArray[np.intp], floor: Floats) -> Floats:
    """Each value's distance from its group's median in robust scales, shape of ``values`` (entities, signals).

    The scale is 1.4826 x MAD, at least ``floor`` (broadcast over ``values``). NaN where the value is
    missing or its group has fewer than three values.
    """
    found = np.full_like(values, np.nan)
    floors = np.broadcast_to(floor, values.shape)
    order = np.argsort(group, kind="stable")
    starts = np.flatnonzero(np.diff(group[order], prepend=-2))
    for rows in np.split(order, starts[1:]):
        if rows.size == 0 or group[rows[0]] < 0:
            continue
        enough = np.isfinite(values[rows]).sum(axis=0) >= FEWEST
        if not enough.any():
            continue
        known = np.ix_(rows, np.flatnonzero(enough))
        part = values[known]
        median = np.nanmedian(part, axis=0)
        scale = np.maximum(SIGMA_OF_MAD * np.nanmedian(np.abs(part - median), axis=0), floors[known])
        found[known] = (part - median) / scale
    return found
