"""Context of every router: stores, settings, and the current time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Annotated, Any

from fastapi import Depends, Request

from outrider.clock import Clock
from outrider.model import CycleRecord, Incident
from outrider.ports import MetricStore, StateStore
from outrider.records.drill import DrillWindow
from outrider.text.i18n import LANGUAGES, Language
from outrider.topology import Topology
from service.api.dependencies import ApiExtras
from service.config.api_settings import ApiSettings
from service.engine import drill_marking
from service.incidents import topology_at
from service.oncall.button_tokens import ButtonSigner
from service.oncall.roster import RosterSource

LATE_AFTER_CYCLES = 3


class CycleWatch:
    """Watches for new cycles.

    Fleet time may be ahead of the wall clock or faster. A cycle is recent if its timestamp is close to the clock, or if
    this process saw it appear a short while ago.
    """

    def __init__(self, clock: Clock, limit: timedelta) -> None:
        """``limit`` is the longest acceptable time without a new cycle."""
        self._clock = clock
        self._limit = limit
        self._newest: str | None = None
        self._appeared: float | None = None
        self._lock = threading.Lock()

    def is_fresh(self, newest: CycleRecord | None) -> bool:
        """True while new cycles arrive."""
        if newest is None:
            return False
        with self._lock:
            if newest.id != self._newest:
                # The first cycle seen may be old: only a later one proves that cycles run.
                self._appeared = None if self._newest is None else self._clock.monotonic()
                self._newest = newest.id
            appeared = self._appeared
        if abs(self._clock.now() - newest.at) <= self._limit:
            return True
        return appeared is not None and self._clock.monotonic() - appeared <= self._limit.total_seconds()


class ResultCache:
    """Cache of expensive results. One computation serves every viewer of the same cycle."""

    def __init__(self, size: int = 16) -> None:
        """Keeps ``size`` results and drops the oldest first."""
        self._size = size
        self._answers: dict[object, Any] = {}
        self._lock = threading.Lock()

    def peek(self, key: object) -> Any:
        """Cached result of ``key``, else None. Does not wait for a running computation."""
        return self._answers.get(key)

    def get(self, key: object, compute: Callable[[], Any]) -> Any:
        """Result of ``key``. Concurrent callers wait for one computation."""
        with self._lock:
            if key not in self._answers:
                self._answers[key] = compute()
                while len(self._answers) > self._size:
                    self._answers.pop(next(iter(self._answers)))
            return self._answers[key]


@dataclass(frozen=True, slots=True)
class Context:
    """Everything a request can use. ``signer`` None: no message has a button that acts."""

    state: StateStore
    metrics: MetricStore
    settings: ApiSettings
    extras: ApiExtras
    watch: CycleWatch
    roster: RosterSource
    signer: ButtonSigner | None = None
    result_cache: ResultCache = field(default_factory=ResultCache)

    def newest_cycle(self) -> CycleRecord | None:
        """The newest cycle. None before the first."""
        cycles = self.state.cycles(1)
        return cycles[0] if cycles else None

    def topology(self) -> Topology:
        """The newest topology, read once per cycle: with 10,000 GPUs it has several megabytes."""
        newest = self.newest_cycle()
        cached: Topology = self.result_cache.get(("topology", newest.id if newest else None), self.state.topology)
        return cached

    def topology_of(self, incident: Incident) -> Topology:
        """Topology at the time of an incident, built once per cycle."""
        newest = self.topology()
        key = ("topology of", incident.id, newest.at)
        cached: Topology = self.result_cache.get(key, lambda: topology_at.of_incident(self.state, incident, newest))
        return cached

    def drills_around(self, incidents: Sequence[Incident]) -> tuple[DrillWindow, ...]:
        """Windows of drills that one of these incidents may belong to."""
        if not incidents:
            return ()
        return self.state.drill_windows(min(incident.opened_at for incident in incidents) - drill_marking.AFTER)

    def as_of(self) -> datetime:
        """Time of the newest cycle, or of the clock before the first one."""
        newest = self.newest_cycle()
        return newest.at if newest else self.extras.clock.now()


def context_of(request: Request) -> Context:
    """Context of the application that serves the request."""
    context: Context = request.app.state.context
    return context


def language_of(request: Request, lang: Language | None = None) -> Language:
    """Language: ``?lang=``, else the first supported language of Accept-Language, else the configured one."""
    if lang is not None:
        return lang
    for part in request.headers.get("accept-language", "").split(","):
        wanted = part.split(";")[0].strip().lower()[:2]
        for language in LANGUAGES:
            if wanted == language:
                return language
    return context_of(request).settings.language


Ctx = Annotated[Context, Depends(context_of)]
Lang = Annotated[Language, Depends(language_of)]
