"""The cheapest mix of GPU types for a load, exactly: a covering problem in whole replicas, solved by HiGHS.

    minimise    sum over pools of price x GPUs bought
    subject to  sum of capacity x replicas - losses x the most that one of them takes along >= need
                GPUs of a pool's replicas <= GPUs bought <= quota         (whole nodes where asked for)
                GPUs of a device, whole and cut into slices (each GPU of one profile) <= its quota
                capacity on spot <= share of all capacity

A replica that is lost takes its capacity along; slices go with the GPU that they are on, as many as it can hold.
And the front of cost against latency by the epsilon constraint: solve, forbid what is as slow as the answer, repeat.
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
_SECONDS = 0.5  # of one solution; what is best by then is taken, with its gap
_OUT_OF_TIME = 1  # as scipy.optimize.milp numbers how it ended


@dataclass(frozen=True, slots=True)
class Pool:
    """GPUs of one type in one place under one contract. ``quota`` None: no limit. ``node`` GPUs are bought at once.

    Of slices, ``parts`` of which make one GPU, price, node and the GPUs of an option count slices, the quota whole
    GPUs; pools of one ``device`` share it. ``per_gpu`` replicas go with a GPU that is lost, ``parts`` where it
    is 0: slices that are offered by themselves are counted singly and lost together.
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
        """Replicas that go with one GPU, or with one group of GPUs."""
        return self.per_gpu or self.parts


@dataclass(frozen=True, slots=True)
class Option:
    """One way to run a replica: ``gpus`` of ``pool`` carry ``capacity`` requests a second, ``latency`` s each."""

    name: str
    pool: str
    gpus: int
    capacity: float
    latency: float

    def __post_init__(self) -> None:
        """Refuse replicas that carry nothing."""
        if not (self.capacity > 0 and self.gpus >= 1 and self.latency >= 0):
            raise UsageError(
                f"option {self.name!r} carries {self.capacity:g} requests/s on {self.gpus} GPUs",
                hint="leave out what cannot serve",
            )


@dataclass(frozen=True, slots=True)
class Demand:
    """What a mix must do: ``need`` requests a second, also when any ``losses`` replicas or GPUs of slices are gone.

    ``spot_ratio`` is the largest share of capacity that may be taken away at short notice.
    """

    need: float
    losses: int = 0
    spot_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Mix:
    """Replicas of each option (by its place), what they cost an hour and the latency of the slowest of them.

    ``gap_ratio`` is how far from the best the solver may still be: 0 when it proved the answer. ``gpus`` are whole
    ones, also of pools of slices; ``slices`` are those of such pools that are paid for.
    """

    replicas: Mapping[int, int]
    gpus: Mapping[str, int]
    cost_per_hour: float
    capacity: float
    latency: float
    gap_ratio: float = 0.0
    slices: Mapping[str, int] = field(default_factory=dict)


class NoMixReason(StrEnum):
    """Why there is no mix."""

    NOTHING_SERVES = "nothing_serves"
    QUOTA = "quota"
    TIME = "time"  # none was found in the time that a solution is given; there may be one


@dataclass(frozen=True, slots=True)
class NoMix:
    """No mix meets the demand; ``most`` is the load that all quotas together can carry."""

    reason: NoMixReason
    most: float = 0.0


def cheapest(options: Sequence[Option], pools: Sequence[Pool], demand: Demand, *, latency: float = inf) -> Mix | NoMix:
    """The cheapest mix of options that are no slower than ``latency``. A need of 0 costs nothing."""
    by_name = {pool.name: pool for pool in pools}
    usable = [
        place
        for place, option in enumerate(options)
        if option.latency <= latency and (by_name[option.pool].quota is None or by_name[option.pool].quota)
    ]
    if demand.need <= 0:
        return Mix({}, {}, 0.0, 0.0, 0.0)
    if not usable:
        held = any(option.latency <= latency for option in options)
        return NoMix(NoMixReason.QUOTA if held else NoMixReason.NOTHING_SERVES)
    return _solve(options, _undominated(options, usable, by_name, demand), by_name, demand)


def front(options: Sequence[Option], pools: Sequence[Pool], demand: Demand, *, most: int = 40) -> list[Mix] | NoMix:
    """Every mix for which nothing is both cheaper and faster, cheapest first; at most ``most`` of them."""
    found: list[Mix] = []
    limit = inf
    while len(found) < most:
        mix = cheapest(options, pools, demand, latency=limit)
        if isinstance(mix, NoMix):
            if not found:
                return mix
            break
        while found and found[-1].cost_per_hour >= mix.cost_per_hour * (1 - _SAME_COST):
            found.pop()  # as cheap, and slower
        found.append(mix)
        faster = [option.latency for option in options if option.latency < mix.latency]
        if not faster:
            break
        limit = max(faster)
    return found


def _undominated(
    options: Sequence[Option], usable: Sequence[int], pools: Mapping[str, Pool], demand: Demand
) -> list[int]:
    """Leave out an option when another does as much for no more, wherever that one could be taken instead.

    All of them are fast enough by now; the latency of the mix may end below the limit, never above. Of another pool
    only GPUs that are bought singly, without a quota and without the risk of spot can stand in.
    """
    if demand.losses > 1:  # of several larger replicas more is lost at once
        return list(usable)

    def cost(place: int) -> float:
        return options[place].gpus * pools[options[place].pool].price

    def stands_in(other: int, place: int) -> bool:
        one, two = options[other], options[place]
        if one.capacity < two.capacity:
            return False
        if one.pool == two.pool:
            return one.gpus <= two.gpus
        if demand.losses and pools[one.pool].lost > 1:  # more of them are lost at once
            return False
        free = pools[one.pool].quota is None and not pools[one.pool].spot
        singly = pools[one.pool].node == pools[two.pool].node == 1  # in a node that is paid for, one more is free
        return free and singly and cost(other) <= cost(place)

    kept: list[int] = []
    for place in sorted(usable, key=lambda p: (cost(p), options[p].gpus, -options[p].capacity, options[p].latency, p)):
        if not any(stands_in(other, place) for other in kept):
            kept.append(place)
    return sorted(kept)


def _solve(options: Sequence[Option], kept: Sequence[int], pools: Mapping[str, Pool], demand: Demand) -> Mix | NoMix:
    from scipy.optimize import Bounds, LinearConstraint, milp  # noqa: PLC0415 - a third of a second

    names = list(dict.fromkeys(options[place].pool for place in kept))
    count, units = len(kept), np.array([max(1, pools[name].node) for name in names], dtype=np.float64)
    capacity = np.array([options[place].capacity for place in kept])
    gpus = np.array([options[place].gpus for place in kept], dtype=np.float64)
    shared = _shared(names, pools)
    opened = {name: count + len(names) + place for place, name in enumerate(_cut_pools(shared, names, pools))}
    first = count + len(names) + len(opened)  # of what losses add
    cut = [name for name in names if pools[name].lost > 1]
    width = first + (count + len(cut) + 1 if demand.losses else 0)
    cost, whole, upper = np.zeros(width), np.ones(width), np.full(width, np.inf)
    cost[count : count + len(names)] = [pools[name].price * unit for name, unit in zip(names, units, strict=True)]
    parts = np.array([pools[options[place].pool].lost for place in kept])
    upper[:count] = np.ceil(demand.need / capacity) + demand.losses * parts + 1
    for place, name in enumerate(names):
        quota = pools[name].quota
        if quota is not None:
            upper[count + place] = quota * pools[name].parts // units[place]
    rows, low, high = _rows(options, kept, names, units, pools, capacity, gpus, demand, width)
    _share_quotas(rows, low, high, names, units, pools, shared, opened, count, width)
    if demand.losses:
        whole[-1], upper[first:-1] = 0, 1
        pool_of = [options[place].pool for place in kept]
        lost = _lost(pool_of, cut, parts, capacity, upper[:count], width, first)
        rows, low, high = rows + lost, low + [-np.inf] * len(lost), high + _ends(lost, cut, first + count)
    found = milp(
        cost,
        constraints=LinearConstraint(np.array(rows), np.array(low), np.array(high)),
        bounds=Bounds(np.zeros(width), upper),
        integrality=whole,
        options={"mip_rel_gap": 0.0, "time_limit": _SECONDS},
    )
    if found.x is None:
        late = found.status == _OUT_OF_TIME
        return NoMix(
            NoMixReason.TIME if late else NoMixReason.QUOTA, _most(capacity, gpus, names, units, pools, options, kept)
        )
    amounts = np.rint(found.x[:count]).astype(int)
    bought = np.rint(found.x[count : count + len(names)]) * units
    paid = {name: int(amount) for name, amount in zip(names, bought, strict=True) if amount}
    used = [place for place, amount in zip(kept, amounts, strict=True) if amount]
    return Mix(
        replicas={place: int(amount) for place, amount in zip(kept, amounts, strict=True) if amount},
        gpus={name: -(-amount // pools[name].parts) for name, amount in paid.items()},
        cost_per_hour=float(cost @ np.rint(found.x)),
        capacity=float(capacity @ amounts),
        latency=max(options[place].latency for place in used),
        gap_ratio=float(found.mip_gap or 0.0),
        slices={name: amount for name, amount in paid.items() if pools[name].parts > 1},
    )


def _shared(names: Sequence[str], pools: Mapping[str, Pool]) -> dict[str, list[int]]:
    """Places of pools by device, of those devices whose quota several of them share."""
    found: dict[str, list[int]] = {}
    for place, name in enumerate(names):
        if pools[name].quota is not None and pools[name].device:
            found.setdefault(pools[name].device, []).append(place)
    return {device: places for device, places in found.items() if len(places) > 1}


def _cut_pools(shared: Mapping[str, Sequence[int]], names: Sequence[str], pools: Mapping[str, Pool]) -> list[str]:
    """Pools of slices among them: how many GPUs are cut for each is a variable of its own."""
    return [names[place] for places in shared.values() for place in places if pools[names[place]].parts > 1]


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
    """Whole GPUs and those that are cut, each for one profile, together stay within the quota of their device."""
    for places in shared.values():
        all_of = np.zeros(width)
        for place in places:
            pool = pools[names[place]]
            if pool.parts == 1:
                all_of[count + place] = units[place]
                continue
            all_of[opened[pool.name]] = 1.0
            cut = np.zeros(width)
            cut[opened[pool.name]], cut[count + place] = pool.parts, -units[place]
            rows.append(cut)
            low.append(0.0)
            high.append(np.inf)
        rows.append(all_of)
        low.append(-np.inf)
        high.append(float(pools[names[places[0]]].quota or 0))


def _rows(
    options: Sequence[Option],
    kept: Sequence[int],
    names: Sequence[str],
    units: Floats,
    pools: Mapping[str, Pool],
    capacity: Floats,
    gpus: Floats,
    demand: Demand,
    width: int,
) -> tuple[list[Floats], list[float], list[float]]:
    count = len(kept)
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
    for place, name in enumerate(names):
        row = np.zeros(width)
        row[:count] = [gpus[i] if options[kept[i]].pool == name else 0.0 for i in range(count)]
        row[count + place] = -units[place]
        add(row, -np.inf, 0.0)
    if demand.spot_ratio < 1.0:
        row = np.zeros(width)
        spot = np.array([pools[options[place].pool].spot for place in kept])
        row[:count] = capacity * (spot - demand.spot_ratio)
        add(row, -np.inf, 0.0)
    return rows, low, high


def _lost(
    pool_of: Sequence[str], cut: Sequence[str], parts: Floats, capacity: Floats, most: Floats, width: int, first: int
) -> list[Floats]:
    """Rows that hold the last variable at or above what one loss takes along.

    From ``first`` on stands one switch an option, 1 where it is in use, then one a pool of slices: 1 where all slices
    of the pool may be on one GPU, so that no more than they are is lost; else a GPU full of the largest.
    """
    count = len(pool_of)
    rows: list[Floats] = []
    place = {name: first + count + at for at, name in enumerate(cut)}
    for i in range(count):
        row = np.zeros(width)
        row[i], row[first + i] = 1.0, -most[i]
        rows.append(row)
        row = np.zeros(width)
        row[first + i], row[-1] = capacity[i] * parts[i], -1.0
        if pool_of[i] in place:
            row[place[pool_of[i]]] = -capacity[i] * parts[i]
        rows.append(row)
    for name in cut:
        mine = np.array([pool == name for pool in pool_of])
        row = np.zeros(width)
        row[:count], row[-1] = capacity * mine, -1.0
        row[place[name]] = float((capacity * most)[mine].sum())
        rows.append(row)
    return rows


def _ends(rows: Sequence[Floats], cut: Sequence[str], first: int) -> list[float]:
    """Upper ends of those rows: what all slices of a pool can carry where its switch may lift the row, else 0."""
    pools = len(cut)
    return [0.0] * (len(rows) - pools) + [float(row[first + at]) for at, row in enumerate(rows[len(rows) - pools :])]


def _most(
    capacity: Floats,
    gpus: Floats,
    names: Sequence[str],
    units: Floats,
    pools: Mapping[str, Pool],
    options: Sequence[Option],
    kept: Sequence[int],
) -> float:
    """Requests a second that the quotas can carry: the best option of each device, as often as it fits."""
    best: dict[str, float] = {}
    for place, name in enumerate(names):
        pool = pools[name]
        if pool.quota is None:
            return inf
        held = pool.quota * pool.parts // units[place] * units[place]
        mine = [i for i in range(len(kept)) if options[kept[i]].pool == name]
        carried = max((capacity[i] * (held // gpus[i]) for i in mine), default=0.0)
        device = pool.device or name
        best[device] = max(best.get(device, 0.0), float(carried))
    return sum(best.values())
