"""A simulated world as a source of the cycle, without a network: the pages it would serve are absorbed as they are."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime

from collectors.events.deduplication import EventDeduplicator
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
    "timeout": (CollectReason.TIMEOUT, "did not answer in time"),
}


class FleetSource:
    """Collects from a world in this process. What fails on the wire fails here with the same reason."""

    def __init__(self, world: World) -> None:
        """``world`` is moved elsewhere; this only looks."""
        self._world = world
        self._pages = {fleet.spec.cluster: Pages(fleet) for fleet in world.fleets}
        self._collector = ScrapeManager([])
        self._deduplicator = EventDeduplicator()  # an XID of the kernel log also shows on a page
        self._heard = [EventFeed(fleet) for fleet in world.fleets]
        self._known: dict[str, tuple[ClusterTarget, Target]] = {}

    @property
    def health(self) -> list[TargetHealth]:
        """How each target fares."""
        return self._collector.health

    async def collect(self, at: datetime) -> Collected:
        """One round."""
        return self.look(at)

    def look(self, at: datetime) -> Collected:
        """One round, at once."""
        asked = [(one, self._target(one)) for one in self._world.targets()]
        listed = tuple(target for _, target in asked)
        if listed != self._collector.targets:
            self._collector.set_targets(listed)
        scrapes = [_scrape(target, self._pages[one.fleet.spec.cluster].answer(one.target), at) for one, target in asked]
        collected = self._collector.absorb(scrapes, at)
        heard = [event for one in self._heard for event in one.new_events()]
        return replace(collected, events=self._deduplicator.deduplicate((*heard, *collected.events)))

    async def close(self) -> None:
        """Nothing is open."""

    def _target(self, one: ClusterTarget) -> Target:
        """The target as the collectors know it; read anew only when it changed."""
        known = self._known.get(one.name)
        if known is None or known[0] != one:
            (target,) = configured.targets_of(
                one.fleet.spec.cluster, [one.as_config(f"http://fleet.invalid{one.target.path}")]
            )
            known = self._known[one.name] = (one, target)
        return known[1]


def _scrape(target: Target, answer: Answer, at: datetime) -> Scrape:
    error = None
    if answer.body is None:
        reason, said = _FAILED.get(answer.status, (CollectReason.HTTP_STATUS, f"answered {answer.status}"))
        error = CollectError(f"{target.name}: {target.url} {said}", reason=reason)
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
