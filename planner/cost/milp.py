"""The cheapest mix of GPU types for a load: a covering problem in whole replicas, solved exactly by HiGHS.

    minimize    sum over pools of price x GPUs bought
    subject to  sum of capacity x replicas - losses x the largest capacity lost at once >= need
                GPUs of a pool's replicas <= GPUs bought <= quota         (whole nodes if requested)
                GPUs of a device, whole and cut into slices (each GPU of one profile) <= its quota
                capacity on spot <= share of all capacity

A lost replica takes its capacity along; a lost GPU takes all slices on it. The front of cost against latency follows
from the epsilon constraint: solve, forbid options as slow as the solution, repeat.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import inf

import numpy as np

from outrider.errors import UsageError
from outrider.model import Floats

_SAME_COST = 1e-9
_SECONDS = 0.5  # seconds of one solution; the best one by then is used, with its gap
_OUT_OF_TIME = 1  # status code of scipy.optimize.milp


@dataclass(frozen=True, slots=True)
class Pool:
    """GPUs of one type in one region under one contract. ``quota`` None: no limit. ``node`` GPUs are bought at once.

    For slices, ``parts`` of which make one GPU, price, node and the GPUs of an option count slices, the quota whole
    GPUs. Pools of one ``device`` share its quota. ``per_gpu`` replicas are lost with a GPU, ``parts`` if it is 0:
    slices with their own offer count singly and are lost together.
    """

    name: str
    price: float
    quota: int | None = None
    node: int = 1
    spot: bool = False
    parts: int = 1
    device: str = ""
    per_gpu: int = 0

    @property
    def lost(self) -> int:
        """Replicas lost with one GPU, or with one group of GPUs."""
        return self.per_gpu or self.parts


@dataclass(frozen=True, slots=True)
class Option:
    """One option to run a replica: ``gpus`` of ``pool`` serve ``capacity`` requests per second, ``latency`` s each."""

    name: str
    pool: str
    gpus: int
    capacity: float
    latency: float

    def __post_init__(self) -> None:
        """Refuses replicas without capacity."""
        if not (self.capacity > 0 and self.gpus >= 1 and self.latency >= 0):
            raise UsageError(
                f"invalid option {self.name!r}: {self.capacity:g} requests/s on {self.gpus} GPUs",
                hint="leave out options that cannot serve",
            )


@dataclass(frozen=True, slots=True)
class Demand:
    """Demand of a mix: ``need`` requests per second, also after the loss of any ``losses`` replicas or GPUs of slices.

    ``spot_ratio`` is the largest share of capacity that may be reclaimed at short notice.
    """

    need: float
    losses: int = 0
    spot_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Mix:
    """Replicas of each option (by index), their hourly cost, and the latency of the slowest of them.

    ``gap_ratio`` bounds the distance to the optimum: 0 if it is proven. ``gpus`` are whole ones, also of pools of
    slices; ``slices`` are the paid slices of such pools.
    """

    replicas: Mapping[int, int]
    gpus: Mapping[str, int]
    cost_per_hour: float
    capacity: float
    latency: float
    gap_ratio: float = 0.0
    slices: Mapping[str, int] = field(default_factory=dict)


class NoMixReason(StrEnum):
    """Reasons why there is no mix."""

    NOTHING_SERVES = "nothing_serves"
    QUOTA = "quota"
    TIME = "time"  # none was found in the time of one solution; there may be one


@dataclass(frozen=True, slots=True)
class NoMix:
    """No mix meets the demand; ``most`` is the load within all quotas."""

    reason: NoMixReason
    most: float = 0.0


def cheapest(options: Sequence[Option], pools: Sequence[Pool], demand: Demand, *, latency: float = inf) -> Mix | NoMix:
    """Finds the cheapest mix of options no slower than ``latency``. A need of 0 costs nothing."""
    by_name = {pool.name: pool for pool in pools}
    usable = [
        index
        for index, option in enumerate(options)
        if option.latency <= latency and (by_name[option.pool].quota is None or by_name[option.pool].quota)
    ]
    if demand.need <= 0:
        return Mix({}, {}, 0.0, 0.0, 0.0)
    if not usable:
        fast_enough = any(option.latency <= latency for option in options)
        return NoMix(NoMixReason.QUOTA if fast_enough else NoMixReason.NOTHING_SERVES)
    return _solve(options, _undominated(options, usable, by_name, demand), by_name, demand)


def front(options: Sequence[Option], pools: Sequence[Pool], demand: Demand, *, most: int = 40) -> list[Mix] | NoMix:
    """Finds every Pareto-optimal mix of cost and latency, cheapest first; at most ``most`` of them."""
    mixes: list[Mix] = []
    limit = inf
    while len(mixes) < most:
        mix = cheapest(options, pools, demand, latency=limit)
        if isinstance(mix, NoMix):
            if not mixes:
                return mix
            break
        while mixes and mixes[-1].cost_per_hour >= mix.cost_per_hour * (1 - _SAME_COST):
            mixes.pop()  # same cost, but slower
        mixes.append(mix)
        faster = [option.latency for option in options if option.latency < mix.latency]
        if not faster:
            break
        limit = max(faster)
    return mixes


def _undominated(
    options: Sequence[Option], usable: Sequence[int], pools: Mapping[str, Pool], demand: Demand
) -> list[int]:
    """Removes an option if another one does the same for no more, wherever it can be used instead.

    All of them are fast enough here; the latency of the mix may be below the limit, never above. An option of another
    pool can replace one only if its GPUs are bought singly, without a quota and without spot risk.
    """
    if demand.losses > 1:  # losing several larger replicas loses more at once
        return list(usable)

    def cost(index: int) -> float:
        return options[index].gpus * pools[options[index].pool].price

    def can_replace(other: int, index: int) -> bool:
        candidate, option = options[other], options[index]
        if candidate.capacity < option.capacity:
            return False
        if candidate.pool == option.pool:
            # More capacity on spot may exceed the share of spot that the demand allows.
            fits_share = not pools[option.pool].spot or demand.spot_ratio >= 1 or candidate.capacity == option.capacity
            return candidate.gpus <= option.gpus and fits_share
        if demand.losses and pools[candidate.pool].lost > 1:  # more of them are lost at once
            return False
        free = pools[candidate.pool].quota is None and not pools[candidate.pool].spot
        singly = (
            pools[candidate.pool].node == pools[option.pool].node == 1
        )  # one more in a node already paid for is free
        return free and singly and cost(other) <= cost(index)

    best: list[int] = []
    for index in sorted(usable, key=lambda p: (cost(p), options[p].gpus, -options[p].capacity, options[p].latency, p)):
        if not any(can_replace(other, index) for other in best):
            best.append(index)
    return sorted(best)


def _solve(
    options: Sequence[Option], candidates: Sequence[int], pools: Mapping[str, Pool], demand: Demand
) -> Mix | NoMix:
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 - a third of a second to import

    names = list(dict.fromkeys(options[index].pool for index in candidates))
    count, units = len(candidates), np.array([max(1, pools[name].node) for name in names], dtype=np.float64)
    capacity = np.array([options[index].capacity for index in candidates])
    gpus = np.array([options[index].gpus for index in candidates], dtype=np.float64)
    shared = _shared(names, pools)
    opened = {name: count + len(names) + index for index, name in enumerate(_cut_pools(shared, names, pools))}
    first = count + len(names) + len(opened)  # columns added by losses
    cut = [name for name in names if pools[name].lost > 1]
    width = first + (count + len(cut) + 1 if demand.losses else 0)
    cost, whole, upper = np.zeros(width), np.ones(width), np.full(width, np.inf)
    cost[count : count + len(names)] = [pools[name].price * unit for name, unit in zip(names, units, strict=True)]
    parts = np.array([pools[options[index].pool].lost for index in candidates])
    upper[:count] = np.ceil(demand.need / capacity) + demand.losses * parts + 1
    for index, name in enumerate(names):
        quota = pools[name].quota
        if quota is not None:
            upper[count + index] = quota * pools[name].parts // units[index]
    rows, low, high = _rows(options, candidates, names, units, pools, capacity, gpus, demand, width)
    _share_quotas(rows, low, high, names, units, pools, shared, opened, count, width)
    if demand.losses:
        whole[-1], upper[first:-1] = 0, 1
        pool_of = [options[index].pool for index in candidates]
        lost = _lost(pool_of, cut, parts, capacity, upper[:count], width, first)
        rows, low, high = rows + lost, low + [-np.inf] * len(lost), high + _ends(lost, cut, first + count)
    solution = milp(
        cost,
        constraints=LinearConstraint(np.array(rows), np.array(low), np.array(high)),
        bounds=Bounds(np.zeros(width), upper),
        integrality=whole,
        options={"mip_rel_gap": 0.0, "time_limit": _SECONDS},
    )
    if solution.x is None:
        late = solution.status == _OUT_OF_TIME
        return NoMix(
            NoMixReason.TIME if late else NoMixReason.QUOTA,
            _most(capacity, gpus, names, units, pools, options, candidates),
        )
    amounts = np.rint(solution.x[:count]).astype(int)
    bought = np.rint(solution.x[count : count + len(names)]) * units
    paid = {name: int(amount) for name, amount in zip(names, bought, strict=True) if amount}
    used = [index for index, amount in zip(candidates, amounts, strict=True) if amount]
    return Mix(
        replicas={index: int(amount) for index, amount in zip(candidates, amounts, strict=True) if amount},
        gpus={name: -(-amount // pools[name].parts) for name, amount in paid.items()},
        cost_per_hour=float(cost @ np.rint(solution.x)),
        capacity=float(capacity @ amounts),
        latency=max(options[index].latency for index in used),
        gap_ratio=float(solution.mip_gap or 0.0),
        slices={name: amount for name, amount in paid.items() if pools[name].parts > 1},
    )


def _shared(names: Sequence[str], pools: Mapping[str, Pool]) -> dict[str, list[int]]:
    """Positions of pools by device, for devices whose quota several pools share."""
    positions_by_device: dict[str, list[int]] = {}
    for position, name in enumerate(names):
        if pools[name].quota is not None and pools[name].device:
            positions_by_device.setdefault(pools[name].device, []).append(position)
    return {device: positions for device, positions in positions_by_device.items() if len(positions) > 1}


def _cut_pools(shared: Mapping[str, Sequence[int]], names: Sequence[str], pools: Mapping[str, Pool]) -> list[str]:
    """Pools of slices among them: the number of GPUs cut for each is a variable of its own."""
    return [
        names[position] for positions in shared.values() for position in positions if pools[names[position]].parts > 1
    ]


def _share_quotas(
    rows: list[Floats],
    low: list[float],
    high: list[float],
    names: Sequence[str],
    units: Floats,
    pools: Mapping[str, Pool],
    shared: Mapping[str, Sequence[int]],
    opened: Mapping[str, int],
    count: int,
    width: int,
) -> None:
    """Keeps whole GPUs and cut ones, each for one profile, within the quota of their device."""
    for positions in shared.values():
        all_of = np.zeros(width)
        for position in positions:
            pool = pools[names[position]]
            if pool.parts == 1:
                all_of[count + position] = units[position]
                continue
            all_of[opened[pool.name]] = 1.0
            cut = np.zeros(width)
            cut[opened[pool.name]], cut[count + position] = pool.parts, -units[position]
            rows.append(cut)
            low.append(0.0)
            high.append(np.inf)
        rows.append(all_of)
        low.append(-np.inf)
        high.append(float(pools[names[positions[0]]].quota or 0))


def _rows(
    options: Sequence[Option],
    candidates: Sequence[int],
    names: Sequence[str],
    units: Floats,
    pools: Mapping[str, Pool],
    capacity: Floats,
    gpus: Floats,
    demand: Demand,
    width: int,
) -> tuple[list[Floats], list[float], list[float]]:
    count = len(candidates)
    rows: list[Floats] = []
    low: list[float] = []
    high: list[float] = []

    def add(row: Floats, least: float, largest: float) -> None:
        rows.append(row)
        low.append(least)
        high.append(largest)

    cover = np.zeros(width)
    cover[:count] = capacity
    cover[-1] = -demand.losses if demand.losses else cover[-1]
    add(cover, demand.need, np.inf)
    for index, name in enumerate(names):
        row = np.zeros(width)
        row[:count] = [gpus[i] if options[candidates[i]].pool == name else 0.0 for i in range(count)]
        row[count + index] = -units[index]
        add(row, -np.inf, 0.0)
    if demand.spot_ratio < 1.0:
        row = np.zeros(width)
        spot = np.array([pools[options[index].pool].spot for index in candidates])
        row[:count] = capacity * (spot - demand.spot_ratio)
        add(row, -np.inf, 0.0)
    return rows, low, high


def _lost(
    pool_of: Sequence[str], cut: Sequence[str], parts: Floats, capacity: Floats, most: Floats, width: int, first: int
) -> list[Floats]:
    """Rows that keep the last variable at or above the capacity of one loss.

    From ``first`` on there is one switch per option, 1 if it is used, then one per pool of slices: 1 if all slices of
    the pool may be on one GPU, so that no more than they are is lost; otherwise a GPU full of the largest ones.
    """
    count = len(pool_of)
    rows: list[Floats] = []
    switches = {name: first + count + at for at, name in enumerate(cut)}
    for i in range(count):
        row = np.zeros(width)
        row[i], row[first + i] = 1.0, -most[i]
        rows.append(row)
        row = np.zeros(width)
        row[first + i], row[-1] = capacity[i] * parts[i], -1.0
        if pool_of[i] in switches:
            row[switches[pool_of[i]]] = -capacity[i] * parts[i]
        rows.append(row)
    for name in cut:
        members = np.array([pool == name for pool in pool_of])
        row = np.zeros(width)
        row[:count], row[-1] = capacity * members, -1.0
        row[switches[name]] = float((capacity * most)[members].sum())
        rows.append(row)
    return rows


def _ends(rows: Sequence[Floats], cut: Sequence[str], first: int) -> list[float]:
    """Upper bounds of those rows: the capacity of all slices of a pool if its switch may raise the row, otherwise 0."""
    pools = len(cut)
    return [0.0] * (len(rows) - pools) + [float(row[first + at]) for at, row in enumerate(rows[len(rows) - pools :])]


def _most(
    capacity: Floats,
    gpus: Floats,
    names: Sequence[str],
    units: Floats,
    pools: Mapping[str, Pool],
    options: Sequence[Option],
    candidates: Sequence[int],
) -> float:
    """Requests per second within the quotas: the best option of each device, as often as it fits."""
    best: dict[str, float] = {}
    for index, name in enumerate(names):
        pool = pools[name]
        if pool.quota is None:
            return inf
        available = pool.quota * pool.parts // units[index] * units[index]
        members = [i for i in range(len(candidates)) if options[candidates[i]].pool == name]
        served = max((capacity[i] * (available // gpus[i]) for i in members), default=0.0)
        device = pool.device or name
        best[device] = max(best.get(device, 0.0), float(served))
    return sum(best.values())
