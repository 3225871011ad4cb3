"""Load: a request rate as a pure function of time, and Poisson arrivals drawn from it.

The rate at any instant needs no state, so history, live fleet and forecasts of the truth agree. Time
is unix seconds; the day's shape is in UTC.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from outrider.model import Floats
from simulator.spec import FleetSpec, Lengths, ServiceSpec

DAY_SECONDS = 86400.0
NOISE_SECONDS = 900.0
RATE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Surge:
    """The arrivals of a service are multiplied by ``factor`` from ``start`` to ``end``, with a ramp at each."""

    service: str
    start: float
    end: float
    factor: float
    ramp_seconds: float = 60.0

    def at(self, times: Floats) -> Floats:
        """The multiplier at ``times``."""
        ramp = max(self.ramp_seconds, 1e-9)
        inside = np.clip(np.minimum((times - self.start) / ramp, (self.end - times) / ramp), 0.0, 1.0)
        return 1.0 + (self.factor - 1.0) * inside


def rates(service: ServiceSpec, times: Floats, seed: int) -> Floats:
    """Requests per second at each of ``times``, surges apart. Same seed, same time: same rate."""
    shape = service.traffic
    hours = (times % DAY_SECONDS) / 3600.0
    weekday = (np.floor(times / DAY_SECONDS) + 3) % 7  # 1970-01-01 was a Thursday; 0 is Monday
    phase = 2 * np.pi * (hours - shape.peak_hour) / 24.0
    # The second harmonic widens the working day and narrows the night.
    wave = 0.5 + 0.47 * np.cos(phase) + 0.09 * np.sin(2 * phase) - 0.06 * np.cos(2 * phase)
    daily = shape.trough_ratio + (1 - shape.trough_ratio) * np.clip(wave, 0.0, 1.0)
    week = np.where(weekday >= 5, shape.weekend_ratio, 1.0)
    noise = 1.0 + shape.noise_ratio * _slow_noise(times, seed, service.name)
    peak = shape.peak_ratio * service.capacity_per_second()
    return np.asarray(peak * daily * week * np.clip(noise, 0.5, 1.5), dtype=np.float64)


def _slow_noise(times: Floats, seed: int, name: str) -> Floats:
    """Standard-normal values at every ``NOISE_SECONDS``, joined smoothly: random access, no state."""
    position = times / NOISE_SECONDS
    slot = np.floor(position)
    share = (1 - np.cos(np.pi * (position - slot))) / 2
    joined = _gauss(slot, seed, name) * (1 - share) + _gauss(slot + 1, seed, name) * share
    return np.asarray(joined, dtype=np.float64)


def _gauss(slots: Floats, seed: int, name: str) -> Floats:
    salt = np.uint64((seed * 1_000_003 + sum(ord(c) * 257**i for i, c in enumerate(name[:6]))) % 2**63)
    state = slots.astype(np.int64).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15) + salt
    total = np.zeros(slots.shape)
    for _ in range(4):  # a sum of four uniforms is normal enough for noise
        state = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        state = (state ^ (state >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        state ^= state >> np.uint64(31)
        total += (state >> np.uint64(11)).astype(np.float64) / 2**53 - 0.5
    return np.asarray(total * np.sqrt(3.0), dtype=np.float64)


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Requests of one slice, in order of arrival: parallel arrays.

    ``service`` is an index into the spec; ``computed`` are the prompt tokens not found in the cache.
    """

    service: np.ndarray
    at: Floats
    prompt: Floats
    computed: Floats
    output: Floats

    def __len__(self) -> int:
        """How many requests."""
        return int(self.at.size)


class Traffic:
    """Draws the arrivals of every service of a fleet."""

    def __init__(self, spec: FleetSpec, seed: int) -> None:
        self.spec = spec
        self.seed = seed
        self.surges: list[Surge] = []
        self._random = np.random.default_rng([seed, 1])
        self._slot = -1.0
        self._usual = np.zeros(len(spec.services))

    def rates(self, at: float) -> Floats:
        """Requests per second of each service at an instant, surges included, shape (services,)."""
        # The shape and its noise are slow: one value serves RATE_SECONDS.
        slot = at // RATE_SECONDS
        if slot != self._slot:
            middle = np.array([(slot + 0.5) * RATE_SECONDS])
            self._usual = np.array([rates(service, middle, self.seed)[0] for service in self.spec.services])
            self._slot = slot
        found, instant = self._usual.copy(), np.array([at])
        for surge in self.surges:
            index = next(i for i, service in enumerate(self.spec.services) if service.name == surge.service)
            found[index] *= surge.at(instant)[0]
        return found

    def draw(self, start: float, span: float, per_second: Floats) -> Arrivals:
        """Poisson arrivals in [start, start + span)."""
        counts = self._random.poisson(per_second * span)
        total = int(counts.sum())
        at = start + span * np.sort(self._random.random(total))
        service = self._random.permutation(np.repeat(np.arange(counts.size), counts))
        return fit_to_engine(self._random, self.spec.services, service, at)


def fit_to_engine(
    random: np.random.Generator, services: Sequence[ServiceSpec], service: np.ndarray, at: Floats
) -> Arrivals:
    """Draw the lengths of requests and cut them to what their engine accepts."""
    prompt, output = draw_lengths(random, [spec.lengths for spec in services], service)
    limit = np.array([spec.engine.max_model_length for spec in services], dtype=np.float64)[service]
    prompt = np.minimum(prompt, np.floor(limit * 0.75))
    output = np.minimum(output, limit - prompt)
    cached = np.array([spec.lengths.cached_ratio for spec in services])[service]
    # The shared part of a prompt varies: a beta with the service's mean, concentration 6.
    hit = random.beta(6 * cached + 1e-9, 6 * (1 - cached) + 1e-9) if service.size else cached
    return Arrivals(service, at, prompt, np.maximum(1.0, np.ceil(prompt * (1 - hit))), output)


def draw_lengths(random: np.random.Generator, lengths: list[Lengths], service: np.ndarray) -> tuple[Floats, Floats]:
    """Whole prompt and output lengths of at least 1 token for requests of the given services."""
    table = np.array(
        [
            (
                np.log(kind.prompt_mean) - kind.prompt_sigma**2 / 2,
                kind.prompt_sigma,
                np.log(kind.output_mean) - kind.output_sigma**2 / 2,
                kind.output_sigma,
            )
            for kind in lengths
        ]
    )[service]
    drawn = random.standard_normal((service.size, 2))
    prompt = np.exp(table[:, 0] + table[:, 1] * drawn[:, 0])
    output = np.exp(table[:, 2] + table[:, 3] * drawn[:, 1])
    return np.maximum(1.0, np.round(prompt)), np.maximum(1.0, np.round(output))
