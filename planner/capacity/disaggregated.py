"""Disaggregated serving: sizes of a prefill and a decode pool under an SLO, and the GPUs this saves.

A prefill replica computes prompts one after the other: a queue M/G/1 with the service time

    S = base + prompt seconds x uncached prompt tokens

The keys and values of the whole prompt are then sent to a decode replica, a second queue M/G/1 at the link of each
prefill replica: ``T = latency + prompt tokens x KV bytes of a token / bytes per second``. A decode replica runs steps
without prompts; its KV memory holds whole sequences (``queueing`` with no prompt seconds). The TTFT is

    front + wait for the prefill replica + S + wait for the link + T + wait for a decode seat + one decode step

Both pools share the TTFT target: of several splits, the one with the fewest GPUs is used. References: Pollaczek and
Khinchine for the wait, Zhong et al., DistServe (OSDI 2024), for the split of the pools.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import lru_cache
from math import inf, isfinite
from typing import Any

from outrider.errors import UsageError
from outrider.text.i18n import Language, translate
from planner.capacity.formula import whole
from planner.performance import queueing
from planner.performance.prefill import CLOSE, Bind, Link, PoolRole, decoding, first_token, largest, prompt_seconds
from planner.performance.queueing import AtSlo, Prediction, Slo, Work

_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
_CACHED_SIZES = 256


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool: ``rate`` requests per second of a replica under the SLO, and the replicas and GPUs needed.

    ``busy_ratio`` is that of a replica at the planned load; ``seconds`` its part of the TTFT at the quantile.
    """

    rate: float
    replicas: int
    gpus: int
    busy_ratio: float
    seconds: float
    binds: Bind


@dataclass(frozen=True, slots=True)
class Pools:
    """Both pools, the same on mixed replicas (None if those violate the SLO), and the derivation."""

    prefill: Pool
    decode: Pool
    transfer_seconds: float
    link_ratio: float
    ttft: float
    tpot: float
    decode_share: float
    mixed: Pool | None
    derivation: Mapping[str, Any]

    @property
    def gpus(self) -> int:
        """GPUs of both pools."""
        return self.prefill.gpus + self.decode.gpus


class PoolsRefusal(StrEnum):
    """Reasons why no sizes meet the SLO."""

    PROMPT = "prompt"  # an idle prefill replica and link already exceed the TTFT target
    STEP = "step"  # the step of an idle decode replica exceeds the TPOT target
    NO_KV = "no_kv"  # a decode replica has no room for a single sequence


@dataclass(frozen=True, slots=True)
class NoPools:
    """No sizes meet the SLO; ``best`` seconds is reached by idle replicas for the share ``quantile`` of requests."""

    reason: PoolsRefusal
    best: float
    quantile: float

    def text(self, language: Language = "en") -> str:
        """One sentence."""
        arguments = {"best": f"{self.best:.4g}", "share": _share(self.quantile)}
        return translate(f"capacity.pools_missed_{self.reason.value}", language, **arguments)


def size(
    prefill: PoolRole,
    decode: PoolRole,
    link: Link,
    work: Work,
    qps: float,
    slo: Slo,
    *,
    buffer: float = 0.25,
    mixed: PoolRole | None = None,
) -> Pools | NoPools:
    """Returns the replicas of both pools for ``qps`` requests per second at the peak, plus ``buffer`` (a ratio).

    ``mixed`` is a replica that does both, for comparison; by default the decode replica.
    """
    if not (isfinite(qps) and qps >= 0 and 0 <= buffer <= 1):
        raise UsageError(
            f"{qps:g} requests/s with a buffer of {buffer:g}", hint="give --qps 0 or more, --buffer as a ratio up to 1"
        )
    idle = queueing.predict(*decoding(decode), work, 0.0, slo.quantile)
    if queueing.seats(decoding(decode)[1], work) < 1:
        return NoPools(PoolsRefusal.NO_KV, 0.0, slo.quantile)
    if idle.tpot > slo.tpot:
        return NoPools(PoolsRefusal.STEP, idle.tpot, slo.quantile)
    alone = first_token(prefill, link, work, 0.0, slo.quantile) + idle.ttft
    if alone > slo.ttft:
        return NoPools(PoolsRefusal.PROMPT, alone, slo.quantile)
    need = qps * (1.0 + buffer)
    best: tuple[int, float, Pool, Pool, Prediction, float] | None = None
    # if the smallest share leaves too little for prompts, decode gets half of the slack of idle replicas
    spare = (idle.ttft + (slo.ttft - alone) / 2.0) / slo.ttft if isfinite(slo.ttft) else 0.5
    for share in (*_SHARES, spare) if isfinite(slo.ttft) else (spare,):
        if share == spare and best is not None:
            continue
        split = _split(prefill, decode, link, work, need, slo, share, idle.ttft)
        if split is None:
            continue
        first, second, prediction = split
        key = (first.gpus + second.gpus, first.busy_ratio + second.busy_ratio)
        if best is None or key < best[:2]:
            best = (*key, first, second, prediction, share)
    if best is None:  # only an idle pair meets the SLO: the smallest load violates it
        return NoPools(PoolsRefusal.PROMPT, alone, slo.quantile)
    _, _, first, second, prediction, share = best
    whole_prompt = link.seconds(work.prompt)
    per_replica = need / first.replicas if first.replicas else 0.0
    pools = Pools(
        prefill=first,
        decode=second,
        transfer_seconds=whole_prompt,
        link_ratio=per_replica * whole_prompt,
        ttft=first.seconds + second.seconds,
        tpot=prediction.tpot,
        decode_share=share,
        mixed=_mixed(mixed or decode, work, need, slo),
        derivation={},
    )
    return replace(pools, derivation=_derivation(pools, prefill, decode, link, work, qps, buffer, slo))


def lines(pools: Pools, language: Language = "en") -> list[str]:
    """The derivation as text."""
    figures = {
        name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in pools.derivation.items()
    }
    for pool in ("prefill", "decode"):
        figures[f"{pool}_binds"] = translate(f"capacity.pools_{pool}_{figures[f'{pool}_binds']}", language)
    figures["quantile"] = _share(pools.derivation["quantile"])
    steps = ["need", "prompt", "prefill", "transfer", "decode_step", "decode", "answer"]
    text = [translate(f"capacity.pools_{step}", language, **figures) for step in steps]
    if pools.mixed is None:
        return [*text, translate("capacity.pools_mixed_missed", language)]
    return [*text, translate("capacity.pools_mixed", language, **figures)]


def _share(quantile: float) -> str:
    return f"{100 * quantile:g} %"


def as_dict(pools: Pools) -> dict[str, Any]:
    """Plain values."""

    def pool(sized: Pool) -> dict[str, Any]:
        return {
            "requests_per_second": sized.rate,
            "replicas": sized.replicas,
            "gpus": sized.gpus,
            "busy_ratio": sized.busy_ratio,
            "binds": sized.binds.value,
        }

    return {
        "prefill": pool(pools.prefill),
        "decode": pool(pools.decode),
        "gpus": pools.gpus,
        "transfer_seconds": pools.transfer_seconds,
        "link_ratio": pools.link_ratio,
        "ttft_seconds": pools.ttft,
        "tpot_seconds": pools.tpot,
        "mixed": None if pools.mixed is None else pool(pools.mixed),
        "inputs": dict(pools.derivation),
    }


def _split(
    prefill: PoolRole, decode: PoolRole, link: Link, work: Work, need: float, slo: Slo, share: float, idle: float
) -> tuple[Pool, Pool, Prediction] | None:
    """Both pools if decode replicas may take ``share`` of the TTFT; None if the rest is too short."""
    for_decode = max(slo.ttft * share, idle * (1.0 + CLOSE)) if isfinite(slo.ttft) else inf
    limit_of_decode = _decode_limit(decode, work, Slo(for_decode, slo.tpot, slo.quantile))
    if not isinstance(limit_of_decode, AtSlo):
        return None
    rate, binds = largest(prefill, link, work, slo.ttft - limit_of_decode.prediction.ttft, slo.quantile)
    if rate <= 0:
        return None
    first, second = whole(need / rate), whole(need / limit_of_decode.prediction.rate)
    rates = (need / first, need / second) if need else (0.0, 0.0)
    seconds = first_token(prefill, link, work, rates[0], slo.quantile)
    prediction = queueing.predict(*decoding(decode), work, rates[1], slo.quantile)
    limit = Bind(limit_of_decode.binds)
    if limit is not Bind.TPOT and queueing.seats(decode.bounds, work) < decode.bounds.sequences:
        limit = Bind.KV
    busy = rates[0] * prompt_seconds(prefill, work)
    return (
        Pool(rate, first, first * prefill.gpus, busy, seconds, binds),
        Pool(
            limit_of_decode.prediction.rate,
            second,
            second * decode.gpus,
            prediction.load_ratio if need else 0.0,
            prediction.ttft,
            limit,
        ),
        prediction,
    )


@lru_cache(_CACHED_SIZES)
def _mixed(side: PoolRole, work: Work, need: float, slo: Slo) -> Pool | None:
    result = queueing.at_slo(side.times, side.bounds, work, slo)
    if not isinstance(result, AtSlo):
        return None
    replicas = whole(need / result.prediction.rate)
    busy = need / replicas / queueing.most(side.times, side.bounds, work) if replicas else 0.0
    return Pool(
        result.prediction.rate, replicas, replicas * side.gpus, busy, result.prediction.ttft, Bind(result.binds)
    )


@lru_cache(_CACHED_SIZES)
def _decode_limit(side: PoolRole, work: Work, slo: Slo) -> AtSlo | queueing.OutOfReach:
    """Cached: every size of a prefill replica queries the same decode replica."""
    return queueing.at_slo(*decoding(side), work, slo)


def _derivation(
    pools: Pools, prefill: PoolRole, decode: PoolRole, link: Link, work: Work, qps: float, buffer: float, slo: Slo
) -> dict[str, Any]:
    seats = queueing.seats(decoding(decode)[1], work)
    named: Sequence[tuple[str, Any]] = (
        ("qps", qps),
        ("buffer", buffer),
        ("need", qps * (1.0 + buffer)),
        ("prompt", work.prompt),
        ("computed", work.computed),
        ("tokens", work.output),
        ("base", prefill.times.base),
        ("per_token", prefill.times.prompt),
        ("prompt_seconds", prompt_seconds(prefill, work)),
        ("prefill_type", prefill.name),
        ("prefill_rate", pools.prefill.rate),
        ("prefill_replicas", pools.prefill.replicas),
        ("prefill_gpus", pools.prefill.gpus),
        ("prefill_binds", pools.prefill.binds.value),
        ("kv_bytes", work.prompt * link.bytes_per_token),
        ("link", link.rate),
        ("transfer", pools.transfer_seconds),
        ("link_ratio", pools.link_ratio),
        ("seats", seats),
        ("context", work.context),
        ("step", decode.times.decode(seats, work.context)),
        ("decode_type", decode.name),
        ("decode_rate", pools.decode.rate),
        ("decode_replicas", pools.decode.replicas),
        ("decode_gpus", pools.decode.gpus),
        ("decode_binds", pools.decode.binds.value),
        ("ttft", pools.ttft),
        ("tpot", pools.tpot),
        ("quantile", slo.quantile),
        ("gpus", pools.gpus),
        ("mixed_replicas", pools.mixed.replicas if pools.mixed else None),
        ("mixed_gpus", pools.mixed.gpus if pools.mixed else None),
        ("source", " / ".join(dict.fromkeys((prefill.times.source, decode.times.source)))),
    )
    return dict(named)
