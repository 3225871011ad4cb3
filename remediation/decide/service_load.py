"""Load of one service: its queue, and whether the ordered replicas will drain it. Pure arithmetic."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from math import ceil, inf


@dataclass(frozen=True, slots=True)
class LoadSample:
    """One cycle of a service, in requests and requests/s.

    ``served`` are complete responses, ``lost`` clients that left before the end, ``rejected`` responses with 429 (None:
    not counted by any source).
    """

    at: datetime
    waiting: float
    served: float
    lost: float = 0.0
    rejected: float | None = None


@dataclass(frozen=True, slots=True)
class PromptLength:
    """Mean tokens of a prompt: recently, and usually."""

    recent: float
    usual: float

    @property
    def ratio(self) -> float:
        """Recent length over the usual one."""
        return self.recent / self.usual


@dataclass(frozen=True, slots=True)
class ServiceLoad:
    """The samples of the last minutes, oldest first. Cycles without values are left out.

    ``prompts`` None: the length of prompts is unknown.
    """

    samples: tuple[LoadSample, ...]
    prompts: PromptLength | None = None

    @property
    def newest(self) -> LoadSample:
        """The newest sample. Raises IndexError without samples."""
        return self.samples[-1]

    @property
    def served(self) -> float:
        """Mean complete responses per second."""
        return sum(sample.served for sample in self.samples) / len(self.samples)

    @property
    def growth(self) -> float:
        """Growth of the queue in requests/s, by least squares; 0 for a single sample."""
        start = self.samples[0].at
        times = [(sample.at - start).total_seconds() for sample in self.samples]
        mean = sum(times) / len(times)
        spread = sum((time - mean) ** 2 for time in times)
        if spread == 0:
            return 0.0
        return sum((time - mean) * sample.waiting for time, sample in zip(times, self.samples, strict=True)) / spread

    @property
    def arriving(self) -> float:
        """Requests/s that engines must serve: those served, those lost in the queue, and its growth."""
        lost = sum(sample.lost for sample in self.samples) / len(self.samples)
        return max(0.0, self.served + lost + self.growth)

    @property
    def offered(self) -> float | None:
        """Requests/s of all clients, rejected ones included; None if rejected ones are not counted."""
        rejected = [sample.rejected for sample in self.samples if sample.rejected is not None]
        return self.arriving + sum(rejected) / len(rejected) if len(rejected) == len(self.samples) else None

    @property
    def rejected_ratio(self) -> float | None:
        """Rejected requests over those of all clients; None if rejected ones are not counted."""
        offered = self.offered
        return None if offered is None else 1.0 - self.arriving / offered if offered > 0 else 0.0

    def last(self, span: timedelta) -> ServiceLoad | None:
        """The samples of the last ``span``; None if they do not cover it."""
        first = self.newest.at - span
        covering = [sample for sample in self.samples if sample.at >= first]
        older = len(self.samples) > len(covering) or self.samples[0].at == first
        return replace(self, samples=tuple(covering)) if older and len(covering) >= 2 else None

    @property
    def queued(self) -> ServiceLoad:
        """The newest cycles that ended with a queue; all cycles without two of them.

        Before a queue the replicas served what arrived, which is less than they can, and less than arrives now.
        """
        begin = next((at for at in range(len(self.samples), 0, -1) if self.samples[at - 1].waiting <= 0), 0)
        return replace(self, samples=self.samples[begin:]) if len(self.samples) - begin >= 2 else self

    def waits(self, objective: timedelta) -> Iterator[float]:
        """The expected wait of a new request over the objective, for each sample."""
        for sample in self.samples:
            if sample.waiting <= 0:
                yield 0.0
            else:
                yield sample.waiting / sample.served / objective.total_seconds() if sample.served > 0 else inf

    def overload(self, ready: int, ordered: int) -> float:
        """Arriving load over the capacity of all ordered replicas. The served load is the capacity of a queue."""
        capacity = self.served * max(ordered, ready) / ready if ready > 0 else 0.0
        return self.arriving / capacity if capacity > 0 else inf

    def replicas_for_all(self, ready: int, spare: float, drain: timedelta) -> int | None:
        """Replicas that serve all clients with a share of ``spare``, and the queue within ``drain``.

        None without a queue: only that of a queue is the capacity of the ``ready`` replicas.
        """
        if self.newest.waiting <= 0 or self.served <= 0 or ready <= 0:
            return None
        queued = self.queued
        each, offered = queued.served / ready, queued.offered
        arriving = queued.arriving if offered is None else offered
        return ceil(arriving / each * (1.0 + spare) + self.newest.waiting / (each * drain.total_seconds()) - 1e-9)

    def drained_within(self, ready: int, ordered: int, starts_in: timedelta | None) -> float:
        """Seconds until the queue is empty: by the present replicas, or once the ordered ones serve; inf if never.

        ``starts_in`` None: no replica is starting. Clients that leave are load that is not served, not capacity.
        """
        waiting, excess = self.newest.waiting, self.arriving - self.served
        if waiting <= 0:
            return 0.0
        if excess < 0:
            return waiting / -excess
        if starts_in is None or ready <= 0 or ordered <= ready:
            return inf
        gain = self.served * (ordered - ready) / ready - excess
        seconds = max(0.0, starts_in.total_seconds())
        return seconds + (waiting + excess * seconds) / gain if gain > 0 else inf
