"""Signals of replicas from the pages of model servers, and derived signals of services."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from benchmarks.fleet.sheets import Increases, Sheet, ratio
from outrider.model import EntityKind, Floats, Statuses
from outrider.vocabulary import catalog
from simulator.engine.counters import HISTOGRAMS, EngineCounters
from simulator.fleet import Fleet

OPEN_FILES_IDLE = 32.0
OWN = (
    "engine_up",
    "engine_health_ok",
    "engine_inflight_requests",
    "target_up",
    "target_scrape_seconds",
    "target_samples",
    "target_failure_code",
)
_OF_HISTOGRAM = {
    "engine_ttft_seconds": "ttft",
    "engine_itl_seconds": "itl",
    "engine_tpot_seconds": "tpot",
    "engine_e2e_seconds": "e2e",
    "engine_queue_seconds": "queue",
    "engine_prefill_seconds": "prefill",
    "engine_decode_seconds": "decode",
    "engine_prompt_length_tokens": "prompt_length",
    "engine_output_length_tokens": "output_length",
}
_OF_SERVICE = {
    "svc_ttft_seconds": "engine_ttft_seconds",
    "svc_latency_seconds": "engine_e2e_seconds",
    "svc_tpot_seconds": "engine_tpot_seconds",
}
_PLAIN = (
    "prompt_tokens",
    "cached_tokens",
    "generation_tokens",
    "finished_stop",
    "finished_length",
    "finished_abort",
    "finished_error",
    "preemptions",
    "http_ok",
    "http_4xx",
    "http_5xx",
    "kv_transfer_failures",
)
_ENDED_OTHERWISE = ("engine_http_failed_total", "engine_http_refused_total", "engine_requests_finished_total")
_LOST_TRANSFERS = _PLAIN.index("kv_transfer_failures")
_STEPS = len(_PLAIN)  # column of the iterations, then of the tokens in them
_FIRST_BUCKET = _STEPS + 2


def counters_of(counters: EngineCounters, longest: Floats) -> Floats:
    """Returns all counters of all replicas as one matrix; ``longest`` is the maximum context of each in tokens."""
    parts = [np.stack([counters.plain[name] for name in _PLAIN], axis=1)]
    parts.append(counters.buckets["iteration"].sum(axis=1)[:, None])
    parts.append(counters.sums["iteration"][:, None])
    for name in _OF_HISTOGRAM.values():
        counts = counters.buckets[name]
        if name.endswith("_length"):
            counts = _within(counts, np.array(HISTOGRAMS[name]), longest)
        parts += [counts, counters.sums[name][:, None]]
    return np.concatenate(parts, axis=1)


def _within(counts: Floats, bounds: Floats, longest: Floats) -> Floats:
    """Caps length buckets at the maximum context: larger values count in the last bucket."""
    beyond = bounds[None, :] > longest[:, None]
    result = counts.copy()
    result[:, -1] += np.where(beyond, counts[:, :-1], 0.0).sum(axis=1)
    result[:, :-1][beyond] = 0.0
    return result


def replica_sheet(fleet: Fleet, grown: Increases, about: Mapping[str, Floats]) -> Sheet:
    """Returns a row per slot. ``about`` has the scrape status of its page."""
    engines = [pod.service.engine for pod in fleet.pods.pods]
    bank = fleet.bank
    awake = 1.0 - (fleet.effects.slots.asleep > 0.5)  # a sleeping engine publishes no values
    gauges = {
        "engine_requests_running": bank.running * awake,
        "engine_requests_waiting": bank.waiting * awake,
        "engine_kv_cache_usage_ratio": np.round(bank.kv_used_ratio * awake, 12),
        "engine_kv_cache_capacity_tokens": bank.kv_blocks * bank.block,
        "engine_memory_reserved_ratio": np.array([engine.memory_reserved_ratio for engine in engines]),
        "engine_sleep_state": awake,
        "engine_open_files": OPEN_FILES_IDLE + bank.in_flight,
        "engine_start_time_seconds": np.round([pod.started_at for pod in fleet.pods.pods], 2),
        # The page has no such line before the first failure: absent, not undefined.
        "engine_kv_transfer_failures_per_second": np.where(
            bank.counters.plain["kv_transfer_failures"] > 0, grown.increases[:, _LOST_TRANSFERS] / grown.seconds, np.nan
        ),
        **about,
    }
    return Sheet(EntityKind.REPLICA, "replicas", gauges, _grown_columns(grown))


def _grown_columns(grown: Increases) -> dict[str, Floats]:
    grew = {name: grown.increases[:, place] for place, name in enumerate(_PLAIN)}
    steps, step_tokens = grown.increases[:, _STEPS], grown.increases[:, _STEPS + 1]
    finished = grew["finished_stop"] + grew["finished_length"] + grew["finished_abort"] + grew["finished_error"]
    seconds = grown.seconds
    result = {
        "engine_preemptions_per_second": grew["preemptions"] / seconds,
        "engine_prefix_cache_hit_ratio": ratio(grew["cached_tokens"], grew["prompt_tokens"]),
        "engine_requests_per_second": finished / seconds,
        "engine_error_ratio": ratio(grew["finished_error"], finished),
        "engine_aborted_per_second": grew["finished_abort"] / seconds,
        "engine_rejected_per_second": 0.0 * seconds,
        "engine_truncated_ratio": ratio(grew["finished_length"], finished),
        "engine_prompt_tokens_per_second": grew["prompt_tokens"] / seconds,
        "engine_generation_tokens_per_second": grew["generation_tokens"] / seconds,
        "engine_batch_tokens": ratio(step_tokens, steps),
        "engine_generation_tokens_total": grew["generation_tokens"],
        "engine_prompt_tokens_total": grew["prompt_tokens"],
        "engine_iterations_total": steps,
        "engine_requests_finished_total": finished,
        "engine_requests_failed_total": grew["finished_error"],
        "engine_http_requests_total": grew["http_ok"] + grew["http_4xx"] + grew["http_5xx"],
        "engine_http_failed_total": grew["http_5xx"],
        "engine_http_refused_total": grew["http_4xx"],
    }
    first = _FIRST_BUCKET
    for signal in _OF_HISTOGRAM:
        width = len(catalog.signal(signal).bucket_keys)
        result[signal] = grown.increases[:, first : first + width]
        first += width
    return result


def service_sheet(
    fleet: Fleet, replicas: Sheet, of_slot: np.ndarray, counted: np.ndarray, up: np.ndarray, grown: Increases
) -> tuple[Sheet, Floats, Statuses]:
    """Returns services as sums over their listed replicas (``counted``), with seconds and status of their increases."""
    size = len(fleet.spec.services)
    new = counted & up & (grown.status == 0)

    def total(values: Floats, rows: np.ndarray) -> Floats:
        there = rows & np.isfinite(values)
        summed = np.bincount(of_slot[there], values[there], size)
        return np.where(np.bincount(of_slot[there], minlength=size) > 0, summed, np.nan)

    requests = total(replicas.grown["engine_http_requests_total"], new)
    failed = np.fmax(
        total(replicas.grown["engine_http_failed_total"], new),
        total(replicas.grown["engine_requests_failed_total"], new),
    )
    with np.errstate(divide="ignore", invalid="ignore"):
        success = np.where(requests > 0, 1.0 - np.minimum(failed, requests) / requests, np.nan)
    awake = up & (replicas.gauges["engine_sleep_state"] != 0) & (replicas.gauges["engine_health_ok"] != 0)
    gauges = {
        "svc_inflight_requests": total(replicas.gauges["engine_inflight_requests"], counted & up),
        "svc_queue_requests": total(replicas.gauges["engine_requests_waiting"], counted & up),
        "svc_ready_backends": total(awake.astype(np.float64), counted),
    }
    columns = {
        "svc_requests_total": requests,
        "svc_failed_total": failed,
        "svc_refused_total": total(replicas.grown["engine_http_refused_total"], new),
        "svc_abandoned_total": _abandoned(
            requests,
            [total(replicas.grown[name], new) for name in _ENDED_OTHERWISE],
            total(replicas.grown["engine_aborted_per_second"] * grown.seconds, new),
        ),
        "svc_prompt_tokens_total": total(replicas.grown["engine_prompt_tokens_total"], new),
        "svc_requests_per_second": total(replicas.grown["engine_http_requests_total"] / grown.seconds, new),
        "svc_success_ratio": success,
        "svc_generation_tokens_total": total(replicas.grown["engine_generation_tokens_total"], new),
        "svc_tokens_per_second": total(replicas.grown["engine_generation_tokens_per_second"], new),
    }
    member = (of_slot[None, new] == np.arange(size)[:, None]).astype(np.float64)
    for signal, origin in _OF_SERVICE.items():
        result = replicas.grown[origin][new]
        summed = member @ np.where(np.isfinite(result), result, 0.0)
        columns[signal] = np.where(member.any(axis=1)[:, None], summed, np.nan)
    return Sheet(EntityKind.SERVICE, "services", gauges, columns), *_of_services(of_slot, counted, new, grown, size)


def _abandoned(requests: Floats, otherwise: Sequence[Floats], aborted: Floats) -> Floats:
    """Returns requests whose client left: status 200 and never finished, or aborted. ``otherwise``: other results."""
    unfinished: Floats = np.maximum(0.0, requests - np.sum(otherwise, axis=0))
    return unfinished + np.nan_to_num(aborted)


def _of_services(
    of_slot: np.ndarray, counted: np.ndarray, new: np.ndarray, grown: Increases, size: int
) -> tuple[Floats, Statuses]:
    """Returns the median interval of all replicas, and per service the worst status if no replica has an increase."""
    seconds = grown.seconds[counted & np.isfinite(grown.seconds)]
    middle = float(np.median(seconds)) if seconds.size else np.nan
    worst = np.zeros(size, dtype=np.uint8)
    np.maximum.at(worst, of_slot[counted], grown.status[counted])
    some = np.bincount(of_slot[new], minlength=size) > 0
    return np.full(size, middle), np.where(some, np.uint8(0), np.maximum(worst, np.uint8(1)))
