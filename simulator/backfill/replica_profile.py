"""Profile of one replica at each level of load, measured on the engine model.

Backfilled history uses these profiles, so that its levels match the live fleet at the same rate.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from outrider.model import Floats
from simulator.engine.engine import Conditions, EngineBank, Work
from simulator.hardware.gpus import activity
from simulator.spec.fleets import ServiceSpec, TrafficSpec
from simulator.traffic.arrivals import Arrivals, fit_to_engine

LEVELS = (0.02, 0.08, 0.16, 0.26, 0.36, 0.46, 0.56, 0.66, 0.74, 0.82, 0.9)
TWINS = 5  # replicas simulated at each level
WARM_SECONDS = 90.0
MEASURED_SECONDS = 240.0
SLICE_SECONDS = 1.0
SAMPLE_SECONDS = 15.0
HISTOGRAMS = ("ttft", "tpot", "e2e")


@dataclass(frozen=True, slots=True)
class Profile:
    """Curves over ``rates`` (requests per second of one replica), each of shape (levels,).

    ``mean`` and ``spread`` (standard deviation of one 15 s sample) are by quantity. ``buckets`` are
    the shares of requests in each bucket, shape (levels, buckets); ``per_request`` their mean value.
    """

    rates: Floats
    mean: Mapping[str, Floats]
    spread: Mapping[str, Floats]
    buckets: Mapping[str, Floats]
    per_request: Mapping[str, Floats]

    def mean_at(self, name: str, rates: Floats) -> Floats:
        """Returns a quantity's mean at any rates."""
        return np.asarray(np.interp(rates, self.rates, self.mean[name]), dtype=np.float64)

    def spread_at(self, name: str, rates: Floats) -> Floats:
        """Returns a quantity's spread at any rates."""
        return np.asarray(np.interp(rates, self.rates, self.spread[name]), dtype=np.float64)

    def buckets_at(self, name: str, rates: Floats) -> Floats:
        """Returns shares of requests by bucket at any rates, shape (..., buckets); each sums to 1."""
        table = self.buckets[name]
        upper = np.clip(np.searchsorted(self.rates, rates), 1, self.rates.size - 1)
        low, high = self.rates[upper - 1], self.rates[upper]
        share = np.clip((rates - low) / (high - low), 0.0, 1.0)[..., None]
        mixed = table[upper - 1] * (1 - share) + table[upper] * share
        return np.asarray(mixed / mixed.sum(axis=-1, keepdims=True), dtype=np.float64)


def profile(service: ServiceSpec) -> Profile:
    """Returns the profile of a service's engine, measured once: services that differ in name, size or load share it."""
    return _measured(replace(service, name="", namespace="", replicas=1, ceiling=1, traffic=TrafficSpec()))


@cache
def _measured(service: ServiceSpec) -> Profile:
    rates = np.array(LEVELS) * service.capacity_per_second(1)
    load = np.repeat(rates, TWINS)
    bank = EngineBank([service.engine] * load.size, 1, patience_seconds=600.0)
    random = np.random.default_rng(1)
    calm = Conditions()
    samples: dict[str, list[Floats]] = {}
    slices, warm = round((WARM_SECONDS + MEASURED_SECONDS) / SLICE_SECONDS), round(WARM_SECONDS / SLICE_SECONDS)
    for number in range(slices):
        if number == warm:
            for replica in range(load.size):
                bank.counters.reset(replica)
        start = number * SLICE_SECONDS
        _arrive(bank, service, random, load, start)
        work = bank.step(start, SLICE_SECONDS, calm)
        if number >= warm:
            _note(samples, bank, work)
    return _summary(bank, rates, samples)


def _arrive(bank: EngineBank, service: ServiceSpec, random: np.random.Generator, load: Floats, start: float) -> None:
    counts = random.poisson(load * SLICE_SECONDS)
    replica = random.permutation(np.repeat(np.arange(load.size), counts))
    at = start + SLICE_SECONDS * np.sort(random.random(replica.size))
    drawn: Arrivals = fit_to_engine(random, [service], np.zeros(replica.size, dtype=np.int64), at)
    bank.accept(replica, at, drawn.prompt, drawn.computed, drawn.output)


def _note(samples: dict[str, list[Floats]], bank: EngineBank, work: Work) -> None:
    shown = activity(work.batch, bank.max_sequences, work.prefill_ratio, work.busy_ratio)
    for name, values in (
        ("running", bank.running),
        ("waiting", bank.waiting),
        ("kv", bank.kv_used_ratio),
        ("tokens", work.tokens_per_second),
        ("prompt_tokens", work.prompt_tokens_per_second),
        ("utilization", shown.utilization),
        ("tensor", shown.tensor),
        ("power_share", shown.power_share),
    ):
        samples.setdefault(name, []).append(values)


def _summary(bank: EngineBank, rates: Floats, samples: dict[str, list[Floats]]) -> Profile:
    levels = rates.size
    mean, spread = {}, {}
    per_window = round(SAMPLE_SECONDS / SLICE_SECONDS)
    for name, slices in samples.items():
        values = np.stack(slices)  # (slices, replicas)
        mean[name] = values.mean(axis=0).reshape(levels, TWINS).mean(axis=1)
        # Gauges are instantaneous; rates and activities are means over an interval.
        instant = name in ("running", "waiting", "kv")
        windows = values if instant else values.reshape(-1, per_window, values.shape[1]).mean(axis=1)
        spread[name] = windows.reshape(-1, levels, TWINS).std(axis=(0, 2))
    buckets, per_request = {}, {}
    for name in HISTOGRAMS:
        counts = bank.counters.buckets[name].reshape(levels, TWINS, -1).sum(axis=1)
        total = np.maximum(counts.sum(axis=1), 1.0)
        buckets[name] = counts / total[:, None]
        per_request[name] = bank.counters.sums[name].reshape(levels, TWINS).sum(axis=1) / total
    return Profile(rates, mean, spread, buckets, per_request)
