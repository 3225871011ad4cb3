"""Prefill and decode on replicas of their own: how many of each keep a promise, and what that saves.

A prefill replica computes prompts, one after the other as far as arithmetic goes: a queue M/G/1 whose service is

    S = base + prompt seconds x prompt tokens that no cache holds

The keys and values of the whole prompt then cross to a decode replica, a second queue M/G/1 at the link of each prefill
replica: ``T = latency + prompt tokens x KV bytes of a token / bytes a second``. A decode replica takes steps without
prompts; its KV memory holds whole sequences (``queueing`` with no prompt seconds). The user's first token comes after

    front + wait for the prefill replica + S + wait for the link + T + wait for a decode seat + one decode step

Both pools share the promise of the first token: of several ways to split it, the one with the fewest GPUs is taken.
References: Pollaczek and Khinchine for the wait, Zhong et al., DistServe (OSDI 2024), for the split of the pools.
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
from planner.performance.prefill import CLOSE, Bind, Link, Side, decoding, first_token, largest, prompt_seconds
from planner.performance.queueing import AtSlo, Prediction, Slo, Work

_SHARES = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5)
_KEPT = 256


@dataclass(frozen=True, slots=True)
class Pool:
    """One pool: ``rate`` requests a second of a replica at the promise, and how many replicas and GPUs carry the need.

    ``busy_ratio`` is that of a replica at the planned load; ``seconds`` its part of the first token at the quantile.
    """

    rate: float
    replicas: int
    gpus: int
    busy_ratio: float
    seconds: float
    binds: Bind


@dataclass(frozen=True, slots=True)
class Pools:
    """Both pools, the same on mixed replicas (None where those cannot keep the promise), and what it follows from."""

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
        """Of both pools."""
        return self.prefill.gpus + self.decode.gpus


class Missed(StrEnum):
    """Why no sizes keep the promise."""

    PROMPT = "prompt"  # an idle prefill replica and link already take longer than the first token may
    STEP = "step"  # an idle decode replica's step takes longer than promised
    NO_KV = "no_kv"  # not one sequence fits into a decode replica


@dataclass(frozen=True, slots=True)
class NoPools:
    """The promise cannot be kept; ``best`` seconds is what idle replicas do for the share ``quantile`` of requests."""

    reason: Missed
    best: float
    quantile: float

    def text(self, language: Language = "en") -> str:
        """One sentence."""
        told = {"best": f"{self.best:.4g}", "share": _share(self.quantile)}
        return translate(f"capacity.pools_missed_{self.reason.value}", language, **told)


def size(
    prefill: Side,
    decode: Side,
    link: Link,
    work: Work,
    qps: float,
    slo: Slo,
    *,
    buffer: float = 0.25,
    mixed: Side | None = None,
) -> Pools | NoPools:
    """Replicas of both pools for ``qps`` requests a second at the peak, ``buffer`` (a ratio) added.

    ``mixed`` is a replica that does both, for comparison; the decode side's replica when not given.
    """
    if not (isfinite(qps) and qps >= 0 and 0 <= buffer <= 1):
        raise UsageError(
            f"{qps:g} requests/s with a buffer of {buffer:g}", hint="give --qps 0 or more, --buffer as a ratio up to 1"
        )
    idle = queueing.predict(*decoding(decode), work, 0.0, slo.quantile)
    if queueing.seats(decoding(decode)[1], work) < 1:
        return NoPools(Missed.NO_KV, 0.0, slo.quantile)
    if idle.tpot > slo.tpot:
        return NoPools(Missed.STEP, idle.tpot, slo.quantile)
    alone = first_token(prefill, link, work, 0.0, slo.quantile) + idle.ttft
    if alone > slo.ttft:
        return NoPools(Missed.PROMPT, alone, slo.quantile)
    need = qps * (1.0 + buffer)
    best: tuple[int, float, Pool, Pool, Prediction, float] | None = None
    # where the least share leaves prompts too little, half of what idle replicas leave of the promise is decode's
    spare = (idle.ttft + (slo.ttft - alone) / 2.0) / slo.ttft if isfinite(slo.ttft) else 0.5
    for share in (*_SHARES, spare) if isfinite(slo.ttft) else (spare,):
        if share == spare and best is not None:
            continue
        found = _split(prefill, decode, link, work, need, slo, share, idle.ttft)
        if found is None:
            continue
        first, second, said = found
        key = (first.gpus + second.gpus, first.busy_ratio + second.busy_ratio)
        if best is None or key < best[:2]:
            best = (*key, first, second, said, share)
    if best is None:  # only an idle pair keeps the promise: the smallest load breaks it
        return NoPools(Missed.PROMPT, alone, slo.quantile)
    _, _, first, second, said, share = best
    whole_prompt = link.seconds(work.prompt)
    per_replica = need / first.replicas if first.replicas else 0.0
    pools = Pools(
        prefill=first,
        decode=second,
        transfer_seconds=whole_prompt,
        link_ratio=per_replica * whole_prompt,
        ttft=first.seconds + second.seconds,
        tpot=said.tpot,
        decode_share=share,
        mixed=_mixed(mixed or decode, work, need, slo),
        derivation={},
    )
    return replace(pools, derivation=_derivation(pools, prefill, decode, link, work, qps, buffer, slo))


def lines(found: Pools, language: Language = "en") -> list[str]:
    """The derivation as a manager follows it."""
    told = {
        name: f"{value:.4g}" if isinstance(value, float) else str(value) for name, value in found.derivation.items()
    }
    for pool in ("prefill", "decode"):
        told[f"{pool}_binds"] = translate(f"capacity.pools_{pool}_{told[f'{pool}_binds']}", language)
    told["quantile"] = _share(found.derivation["quantile"])
    steps = ["need", "prompt", "prefill", "transfer", "decode_step", "decode", "answer"]
    said = [translate(f"capacity.pools_{step}", language, **told) for step in steps]
    if found.mixed is None:
        return [*said, translate("capacity.pools_mixed_missed", language)]
    return [*said, translate("capacity.pools_mixed", language, **told)]


def _share(quantile: float) -> str:
    return f"{100 * quantile:g} %"


def as_dict(found: Pools) -> dict[str, Any]:
    """Plain values."""

    def pool(one: Pool) -> dict[str, Any]:
        return {
            "requests_per_second": one.rate,
            "replicas": one.replicas,
            "gpus": one.gpus,
            "busy_ratio": one.busy_ratio,
            "binds": one.binds.value,
        }

    return {
        "prefill": pool(found.prefill),
        "decode": pool(found.decode),
        "gpus": found.gpus,
        "transfer_seconds": found.transfer_seconds,
        "link_ratio": found.link_ratio,
        "ttft_seconds": found.ttft,
        "tpot_seconds": found.tpot,
        "mixed": None if found.mixed is None else pool(found.mixed),
        "inputs": dict(found.derivation),
    }


def _split(
    prefill: Side, decode: Side, link: Link, work: Work, need: float, slo: Slo, share: float, idle: float
) -> tuple[Pool, Pool, Prediction] | None:
    """Both pools when decode replicas may take ``share`` of the first token; None where the rest is too short."""
    for_decode = max(slo.ttft * share, idle * (1.0 + CLOSE)) if isfinite(slo.ttft) else inf
    top = _top(decode, work, Slo(for_decode, slo.tpot, slo.quantile))
    if not isinstance(top, AtSlo):
        return None
    rate, binds = largest(prefill, link, work, slo.ttft - top.prediction.ttft, slo.quantile)
    if rate <= 0:
        return None
    first, second = whole(need / rate), whole(need / top.prediction.rate)
    each = (need / first, need / second) if need else (0.0, 0.0)
    seconds = first_token(prefill, link, work, each[0], slo.quantile)
    said = queueing.predict(*decoding(decode), work, each[1], slo.quantile)
    limit = Bind(top.binds)
    if limit is not Bind.TPOT and queueing.seats(decode.bounds, work) < decode.bounds.sequences:
        limit = Bind.KV
    busy = each[0] * prompt_seconds(prefill, work)
    return (
        Pool(rate, first, first * prefill.gpus, busy, seconds, binds),
        Pool(top.prediction.rate, second, second * decode.gpus, said.load_ratio if need else 0.0, said.ttft, limit),
        said,
    )


@lru_cache(_KEPT)
def _mixed(side: Side, work: Work, need: float, slo: Slo) -> Pool | None:
    found = queueing.at_slo(side.times, side.bounds, work, slo)
    if not isinstance(found, AtSlo):
        return None
    replicas = whole(need / found.prediction.rate)
    busy = need / replicas / queueing.most(side.times, side.bounds, work) if replicas else 0.0
    return Pool(found.prediction.rate, replicas, replicas * side.gpus, busy, found.prediction.ttft, Bind(found.binds))


@lru_cache(_KEPT)
def _top(side: Side, work: Work, slo: Slo) -> AtSlo | queueing.OutOfReach:
    """The same decode replica is asked for beside each size of a prefill replica."""
    return queueing.at_slo(*decoding(side), work, slo)


def _derivation(
    found: Pools, prefill: Side, decode: Side, link: Link, work: Work, qps: float, buffer: float, slo: Slo
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
        ("prefill_rate", found.prefill.rate),
        ("prefill_replicas", found.prefill.replicas),
        ("prefill_gpus", found.prefill.gpus),
        ("prefill_binds", found.prefill.binds.value),
        ("kv_bytes", work.prompt * link.bytes_per_token),
        ("link", link.rate),
        ("transfer", found.transfer_seconds),
        ("link_ratio", found.link_ratio),
        ("seats", seats),
        ("context", work.context),
        ("step", decode.times.decode(seats, work.context)),
        ("decode_type", decode.name),
        ("decode_rate", found.decode.rate),
        ("decode_replicas", found.decode.replicas),
        ("decode_gpus", found.decode.gpus),
        ("decode_binds", found.decode.binds.value),
        ("ttft", found.ttft),
        ("tpot", found.tpot),
        ("quantile", slo.quantile),
        ("gpus", found.gpus),
        ("mixed_replicas", found.mixed.replicas if found.mixed else None),
        ("mixed_gpus", found.mixed.gpus if found.mixed else None),
        ("source", " / ".join(dict.fromkeys((prefill.times.source, decode.times.source)))),
    )
    return dict(named)
