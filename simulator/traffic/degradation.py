"""Degrade levels at the gateway: rejected and deferred requests, capped outputs, a smaller model.

The class of a request is that of its tenant: a smaller priority than 0 is VIP, a larger one is offline work. A service
without tenants has standard requests only. The gateway holds a deferred request for ``DEFER_SECONDS``.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from outrider.model import Floats
from simulator.spec.fleets import ServiceSpec, TenantSpec
from simulator.traffic.arrivals import Arrivals

VIP, STANDARD, OFFLINE = CLASSES = ("vip", "standard", "offline")
DEFER_SECONDS = 20.0
RELEASE_FACTOR = 5.0  # held requests follow the end of a deferral over this many times the deferral


@dataclass(slots=True)
class Degradation:
    """What the gateway of one service does at its level; nothing at level 0."""

    level: int = 0
    reject: frozenset[str] = frozenset()
    defer: frozenset[str] = frozenset()
    max_prompt_tokens: int | None = None
    max_prompt_exempt: frozenset[str] = frozenset()
    max_output_tokens: int | None = None
    model: str | None = None


@dataclass(slots=True)
class Degradations:
    """The levels of all services of a fleet. ``step_factor`` is that of the served models, shape (services,)."""

    services: Sequence[ServiceSpec]
    current: dict[int, Degradation] = field(default_factory=dict)
    step_factor: Floats = field(init=False)
    _ending: bool = False  # a deferral has ended, and its held requests follow slowly
    _held: list[tuple[float, Arrivals]] = field(default_factory=list)  # (time of release, requests), oldest first

    def __post_init__(self) -> None:
        """Starts at level 0."""
        self.step_factor = np.ones(len(self.services))

    def set(self, service: int, degradation: Degradation) -> None:
        """Sets the level of a service. An unknown model changes nothing."""
        before = self.current.get(service)
        self._ending |= bool(before and before.defer and not degradation.defer)
        if degradation.level:
            self.current[service] = degradation
        else:
            self.current.pop(service, None)
        spec = self.services[service]
        smaller = degradation.model is not None and degradation.model == spec.fallback_model
        self.step_factor[service] = spec.fallback_step_factor if smaller and degradation.level else 1.0

    def level(self, service: int) -> int:
        """Returns the level of a service, 0 for normal."""
        return self.current[service].level if service in self.current else 0

    @property
    def active(self) -> bool:
        """True while a service is degraded or a request is held."""
        return bool(self.current or self._held)

    def passed(self, arrivals: Arrivals, end: float) -> Arrivals:
        """Returns the requests that reach the engines until ``end`` (unix seconds): capped, and without held ones."""
        if self._ending:
            self._held = [(end + RELEASE_FACTOR * (release - end), requests) for release, requests in self._held]
            self._ending = False
        held = self._deferred(arrivals.service, arrivals.tenant)
        if held.any():
            self._held.append((end + DEFER_SECONDS, arrivals.selected(held)))
        due = [requests for release, requests in self._held if release <= end]
        self._held = self._held[len(due) :]
        passing = Arrivals.joined([*due, arrivals.selected(~held)]) if due else arrivals.selected(~held)
        return replace(passing, output=self._capped(passing.service, passing.output))

    def clear(self) -> None:
        """Sets every service to level 0, and forgets held requests."""
        self.current.clear()
        self._held.clear()
        self.step_factor[:] = 1.0

    def rejected(self, arrivals: Arrivals) -> np.ndarray:
        """Returns True for requests that get 429: those of a rejected class, and too long prompts."""
        service, tenant = arrivals.service, arrivals.tenant
        result = self._of_class(service, tenant, {number: level.reject for number, level in self.current.items()})
        for number, level in self.current.items():
            if level.max_prompt_tokens is not None:
                exempt = self._of_class(service, tenant, {number: level.max_prompt_exempt})
                result |= (service == number) & ~exempt & (arrivals.prompt > level.max_prompt_tokens)
        return result

    def _deferred(self, service: np.ndarray, tenant: np.ndarray) -> np.ndarray:
        """Returns True for requests that others overtake."""
        return self._of_class(service, tenant, {number: level.defer for number, level in self.current.items()})

    def _capped(self, service: np.ndarray, output: Floats) -> Floats:
        """Returns the output tokens of requests, cut to the caps."""
        for number, level in self.current.items():
            if level.max_output_tokens is not None:
                output = np.where(service == number, np.minimum(output, float(level.max_output_tokens)), output)
        return output

    def _of_class(self, service: np.ndarray, tenant: np.ndarray, named: dict[int, frozenset[str]]) -> np.ndarray:
        result = np.zeros(service.size, dtype=bool)
        for number, classes in named.items():
            if classes:
                known = np.array([name in classes for name in classes_of(self.services[number].tenants)])
                result |= (service == number) & known[np.minimum(tenant, known.size - 1)]
        return result


def classes_of(tenants: Iterable[TenantSpec]) -> list[str]:
    """Returns the request class of each tenant; standard for a service without tenants."""
    names = [VIP if tenant.priority < 0 else OFFLINE if tenant.priority > 0 else STANDARD for tenant in tenants]
    return names or [STANDARD]
