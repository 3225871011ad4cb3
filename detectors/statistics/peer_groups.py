"""Peer groups: the same model on the same GPU type in the same service and role.

Peers share load, prompts and time of day, so a distance from their median belongs to the entity itself. Fewer than
three peers have no useful median. Prefill-only and decode-only engines (``role``) do different work on the same model
and are not peers, nor are their GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from outrider.model import EntityKind, EntityRef, Floats
from outrider.topology import Topology

FEWEST = 3
SIGMA_OF_MAD = 1.4826  # for a normal distribution


def groups(entities: Sequence[EntityRef], topology: Topology) -> NDArray[np.intp]:
    """A group number per entity, shape (entities,); -1 for groups of fewer than three.

    Peers have the same services above them, model, GPU type and role; nodes have the same GPU type. Model and role of
    a GPU or a pod are those of the replicas that run on it.
    """
    numbers: dict[tuple[str, ...], int] = {}
    result = np.fromiter(
        (numbers.setdefault(_group(entity, topology), len(numbers)) for entity in entities),
        dtype=np.intp,
        count=len(entities),
    )
    sizes = np.bincount(result, minlength=len(numbers)) if result.size else np.zeros(0, dtype=np.intp)
    return np.where(sizes[result] >= FEWEST, result, -1) if result.size else result


def classes(entities: Sequence[EntityRef], topology: Topology) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """A stable number per entity by its peer criteria, and whether anything runs on it.

    Both of shape (entities,). The number is above 0 and the same in every cycle and process, so that it can be stored.
    """
    numbers: dict[tuple[str, ...], int] = {}
    result, carries = np.zeros(len(entities), dtype=np.int64), np.zeros(len(entities), dtype=np.bool_)
    for row, entity in enumerate(entities):
        group = _group(entity, topology)
        if group not in numbers:
            digest = blake2b("\x1f".join(group).encode(), digest_size=7).digest()
            numbers[group] = 1 + int.from_bytes(digest, "big")
        result[row], carries[row] = numbers[group], any(group[2:])
    return result, carries


def numbered(codes: NDArray[np.int64]) -> NDArray[np.intp]:
    """Group numbers of entities with equal codes, (entities,); -1 for groups of fewer than three."""
    if not codes.size:
        return np.zeros(0, dtype=np.intp)
    _, result, sizes = np.unique(codes, return_inverse=True, return_counts=True)
    large = sizes >= FEWEST
    places = np.where(large, np.cumsum(large) - 1, -1)
    return np.asarray(places[result], dtype=np.intp)


def _group(entity: EntityRef, topology: Topology) -> tuple[str, ...]:
    card, model = topology.label(entity, "gpu_type"), topology.label(entity, "model")
    if entity.kind is EntityKind.NODE:
        return (entity.cluster, card, model)
    reached = topology.affected_by(entity)
    services = sorted([item.key for item in reached if item.kind is EntityKind.SERVICE])
    runs = [item for item in reached if item.kind is EntityKind.REPLICA]
    model = model or ",".join(sorted({topology.label(run, "model") for run in runs}))
    role = topology.label(entity, "role") or ",".join(sorted({topology.label(run, "role") for run in runs}))
    return (entity.cluster, card, model, role, *services)


def apart(values: Floats, group: NDArray[np.intp], floor: Floats) -> Floats:
    """Distance of each value from its group's median in robust scales, (entities, signals).

    The scale is 1.4826 x MAD, at least ``floor`` (broadcast over ``values``). NaN if the value is missing or its group
    has fewer than three values.
    """
    floors = np.broadcast_to(floor, values.shape)
    grouped = group >= 0
    if not grouped.any():
        return np.full_like(values, np.nan)
    part, numbers = values[grouped], group[grouped]
    groups_of = int(numbers.max()) + 1
    with np.errstate(invalid="ignore"):  # an infinite value has no distance from itself
        away = part - _medians(part, numbers, groups_of)[numbers]
    scale = np.maximum(SIGMA_OF_MAD * _medians(np.abs(away), numbers, groups_of)[numbers], floors[grouped])
    finite = _counted(np.isfinite(part), numbers, groups_of)
    result = np.full_like(values, np.nan)
    with np.errstate(invalid="ignore"):
        result[grouped] = np.where((finite >= FEWEST)[numbers], away / scale, np.nan)
    return result


def _medians(values: Floats, group: NDArray[np.intp], groups_of: int) -> Floats:
    """The median of each group's values without NaN, (groups, signals); NaN if none.

    Handles all groups at once: rows are sorted by value and then, stably, by group.
    """
    by_value = np.argsort(values, axis=0)  # NaN last
    # numpy radix-sorts 16-bit integers, which is far faster
    small = group.astype(np.uint16) if groups_of <= np.iinfo(np.uint16).max else group
    by_group = np.argsort(small[by_value], axis=0, kind="stable")
    ranked = np.take_along_axis(np.take_along_axis(values, by_value, axis=0), by_group, axis=0)
    sizes = np.bincount(group, minlength=groups_of)
    known = _counted(~np.isnan(values), group, groups_of)
    first = (np.cumsum(sizes) - sizes)[:, None]
    last = values.shape[0] - 1
    low = np.take_along_axis(ranked, np.minimum(first + np.maximum(known - 1, 0) // 2, last), axis=0)
    high = np.take_along_axis(ranked, np.minimum(first + known // 2, last), axis=0)
    return np.where(known > 0, (low + high) / 2.0, np.nan)


def _counted(there: NDArray[np.bool_], group: NDArray[np.intp], groups_of: int) -> NDArray[np.intp]:
    """Number of True values in each group, shape (groups, signals)."""
    columns = there.shape[1]
    place = group[:, None] * columns + np.arange(columns)
    return np.bincount(place[there], minlength=groups_of * columns).reshape(groups_of, columns)


def medians(values: Floats, group: NDArray[np.intp]) -> Floats:
    """The median of each entity's group, (entities, signals); NaN for groups with fewer than three values."""
    result = np.full(values.shape, np.nan)
    grouped = group >= 0
    if grouped.any():
        part, numbers = values[grouped], group[grouped]
        groups_of = int(numbers.max()) + 1
        enough = _counted(np.isfinite(part), numbers, groups_of) >= FEWEST
        result[grouped] = np.where(enough, _medians(part, numbers, groups_of), np.nan)[numbers]
    return result
