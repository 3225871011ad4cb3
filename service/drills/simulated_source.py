"""A simulated world as a source of the cycle, in process: its exposition pages are read without HTTP."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from collectors.mapping import target as configured
from collectors.mapping.target import Target
from collectors.pipeline.scrape_manager import ScrapeManager
from collectors.scrape.result import Scrape
from collectors.scrape.target_health import TargetHealth
from outrider.errors import CollectError, CollectReason
from outrider.ports import Collected
from simulator.exporters.targets import Answer, Pages
from simulator.servers.event_feed import EventFeed
from simulator.world import ClusterTarget, World

_FAILED = {
    "refused": (CollectReason.REFUSED, "refuses connections"),
    "timeout": (CollectReason.TIMEOUT, "did not respond in time"),
}


class FleetSource:
    """Collects from a world in this process. Failures have the same reasons as over HTTP."""

    def __init__(self, world: World) -> None:
        """``world`` is advanced elsewhere; this class only reads it."""
        self._world = world
        self._pages = {fleet.spec.cluster: Pages(fleet) for fleet in world.fleets}
        self._collector = ScrapeManager([])
        self._event_feeds = [EventFeed(fleet) for fleet in world.fleets]
        self._known: dict[str, tuple[ClusterTarget, Target]] = {}

    @property
    def health(self) -> list[TargetHealth]:
        """Health of each target."""
        return self._collector.health

    async def collect(self, at: datetime) -> Collected:
        """Collects once."""
        return self.collect_now(at)

    def collect_now(self, at: datetime) -> Collected:
        """Collects once, synchronously."""
        pairs = [(simulated, self._target(simulated)) for simulated in self._world.targets()]
        listed = tuple(target for _, target in pairs)
        if listed != self._collector.targets:
            self._collector.set_targets(listed)
        scrapes = [
            _scrape(target, self._pages[simulated.fleet.spec.cluster].answer(simulated.target), at)
            for simulated, target in pairs
        ]
        collected = self._collector.absorb(scrapes, at)
        events = [event for feed in self._event_feeds for event in feed.new_events()]
        return replace(collected, events=(*events, *collected.events))

    async def close(self) -> None:
        """Does nothing: no connection is open."""

    def _target(self, simulated: ClusterTarget) -> Target:
        """Returns the target of the collectors; built again only if it changed."""
        known = self._known.get(simulated.name)
        if known is None or known[0] != simulated:
            (target,) = configured.targets_of(
                simulated.fleet.spec.cluster, [simulated.as_config(f"http://fleet.invalid{simulated.target.path}")]
            )
            known = self._known[simulated.name] = (simulated, target)
        return known[1]


def _scrape(target: Target, answer: Answer, at: datetime) -> Scrape:
    error = None
    if answer.body is None:
        reason, message = _FAILED.get(answer.status, (CollectReason.HTTP_STATUS, f"returned {answer.status}"))
        error = CollectError(f"{target.name}: {target.url} {message}", reason=reason)
    return Scrape(
        target=target,
        at=at,
        body=answer.body,
        error=error,
        duration_seconds=answer.seconds,
        health=answer.health,
        load=answer.load,
        probed=target.probe,
    )
