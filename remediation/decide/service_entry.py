"""The entry of a service: probes from outside, and the values of its own gateway."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from outrider.model import EntityRef


@dataclass(frozen=True, slots=True)
class ServiceEntry:
    """Probes and success ratios of the last minutes, oldest first.

    ``viewed``: the newest cycle has values of the service's own gateway. ``load`` is the highest requests/s of the last
    minutes; None if unknown.
    """

    probes: tuple[tuple[datetime, bool], ...] = ()
    success: tuple[tuple[datetime, float], ...] = ()
    viewed: bool = False
    load: float | None = None

    def failing_for(self) -> timedelta:
        """Time since the first probe of the present run of failures; zero without two failures."""
        return self._run(answered=False)

    def fine_for(self) -> timedelta:
        """Time since the first probe of the present run of successes; zero without two successes."""
        return self._run(answered=True)

    def good_since(self, since: datetime, least: float) -> bool:
        """True if the newest two probes since then succeed, and the newest ratio, if any, is at least ``least``."""
        probes, ratios = self._since(since)
        return len(probes) > 1 and all(probes[-2:]) and all(ratio >= least for ratio in ratios[-1:])

    def bad_since(self, since: datetime, least: float) -> bool:
        """True if the newest two probes since then fail, or the newest two ratios are below ``least``."""
        probes, ratios = self._since(since)
        fails = len(probes) > 1 and not any(probes[-2:])
        return fails or (len(ratios) > 1 and all(ratio < least for ratio in ratios[-2:]))

    def _since(self, since: datetime) -> tuple[list[bool], list[float]]:
        return [good for at, good in self.probes if at > since], [ratio for at, ratio in self.success if at > since]

    def _run(self, *, answered: bool) -> timedelta:
        run: list[datetime] = []
        for at, good in reversed(self.probes):
            if good is not answered:
                break
            run.append(at)
        return run[0] - run[-1] if len(run) > 1 else timedelta(0)


Entries = Mapping[EntityRef, ServiceEntry]


def of_cluster(entries: Entries, cluster: str) -> dict[EntityRef, ServiceEntry]:
    """The entries of a cluster's services that are probed."""
    return {service: entry for service, entry in entries.items() if service.cluster == cluster and entry.probes}


def lost(entries: Entries, cluster: str, confirm_for: timedelta) -> bool:
    """True if the cluster is gone, and not merely out of our sight.

    Every probe of every service fails, and no gateway of it has values. Another cluster's entry answers and has values,
    so our own network and monitoring work.
    """
    own = of_cluster(entries, cluster)
    others = [entry for service, entry in entries.items() if service.cluster != cluster]
    gone = bool(own) and all(
        not entry.viewed and not entry.probes[-1][1] and entry.failing_for() >= confirm_for for entry in own.values()
    )
    return gone and any(entry.viewed and entry.probes and entry.probes[-1][1] for entry in others)
