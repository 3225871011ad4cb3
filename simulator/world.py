"""Several clusters with the same services, and the entry that splits each service's demand between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np

from outrider.errors import UsageError
from outrider.model import EntityKind
from simulator.exporters.targets import SimulatedTarget, targets
from simulator.fleet import Fleet


@dataclass(frozen=True, slots=True)
class ClusterTarget:
    """A target and its fleet. Outside the home cluster, ``name`` has the cluster as prefix."""

    fleet: Fleet
    target: SimulatedTarget
    name: str

    def as_config(self, url: str) -> dict[str, object]:
        """Returns the target in configuration format, with its cluster."""
        result = self.target.as_config(url)
        return {**result, "name": self.name, "entity": {**result["entity"], "cluster": self.fleet.spec.cluster}}


class World:
    """Fleets that advance together. The first is the home: its traffic is the demand, and initially it gets all of it.

    ``weights`` are by service: each fleet's share of its demand, shape (fleets,).
    """

    def __init__(self, fleets: Sequence[Fleet]) -> None:
        """Raises UsageError for no fleet, equal names, different services, or different times."""
        if not fleets:
            raise UsageError("a world needs a fleet", hint="give it one or more")
        self.fleets = tuple(fleets)
        self.home = self.fleets[0]
        names = [fleet.spec.cluster for fleet in self.fleets]
        if len(set(names)) < len(names):
            raise UsageError(f"two fleets are called {names[0]}", hint="give each cluster its own name")
        wanted = [service.name for service in self.home.spec.services]
        for fleet in self.fleets:
            if [service.name for service in fleet.spec.services] != wanted:
                raise UsageError(
                    f"cluster {fleet.spec.cluster} does not have the services of {names[0]}", hint=f"give it {wanted}"
                )
            if fleet.now != self.home.now:
                raise UsageError("the fleets have different times", hint="start them at the same time")
        self.weights = {name: self._all_to(self.home) for name in wanted}
        for fleet in self.fleets:
            fleet.demand = self.home.traffic.rates
        self._send()

    @property
    def now(self) -> datetime:
        """The world's time."""
        return self.home.now

    @property
    def clusters(self) -> tuple[str, ...]:
        """The names of the clusters."""
        return tuple(fleet.spec.cluster for fleet in self.fleets)

    def fleet(self, cluster: str) -> Fleet:
        """Returns the fleet of a cluster. Raises UsageError if it is unknown."""
        for fleet in self.fleets:
            if fleet.spec.cluster == cluster:
                return fleet
        raise UsageError(f"no cluster is named {cluster!r}", hint=f"clusters are: {', '.join(self.clusters)}")

    def step(self, duration: timedelta) -> None:
        """Advances every fleet by ``duration``, tick by tick."""
        left = duration.total_seconds()
        finest = min(fleet.spec.tick_seconds for fleet in self.fleets)
        while left > 1e-9:
            seconds = min(finest, left)
            for fleet in self.fleets:
                fleet.tick(seconds)
            left -= seconds
        for fleet in self.fleets:
            fleet.notify()

    def switch_entry(self, service: str, cluster: str, share: float = 1.0) -> None:
        """Sends ``share`` (0 to 1) of a service's demand to a cluster; the others split the rest in proportion.

        If the others had none, the rest goes to the home cluster. Raises UsageError for an unknown service, cluster or
        share.
        """
        name, fleet = self.home.spec.service(service).name, self.fleet(cluster)
        if not 0.0 <= share <= 1.0:
            raise UsageError(f"a share of {share:g} is not between 0 and 1", hint="give 1 to send everything there")
        number = self.fleets.index(fleet)
        others = self.weights[name].copy()
        others[number] = 0.0
        if others.sum() <= 0:
            others[0 if number else min(1, len(self.fleets) - 1)] = 1.0
        self.weights[name] = others / others.sum() * (1.0 - share)
        self.weights[name][number] += share
        self._send()
        where = fleet.entity(EntityKind.SERVICE, name, fleet.spec.service(name).namespace)
        fleet.change(where, "entry", f"entry of {name}: {share:.0%} to {cluster}", to=cluster)

    def entries(self, service: str) -> Mapping[str, float]:
        """Returns each cluster's share of a service's demand. Raises UsageError for an unknown service."""
        weights = self.weights[self.home.spec.service(service).name]
        return dict(zip(self.clusters, weights.tolist(), strict=True))

    def targets(self) -> list[ClusterTarget]:
        """Returns the targets of every cluster; names are unique."""
        return [
            ClusterTarget(fleet, target, target.name if fleet is self.home else f"{fleet.spec.cluster}-{target.name}")
            for fleet in self.fleets
            for target in targets(fleet)
        ]

    def restore(self) -> None:
        """Restores every fleet and sends all demand to the home cluster (see ``Fleet.restore``)."""
        for fleet in self.fleets:
            fleet.restore()
        self.weights = {name: self._all_to(self.home) for name in self.weights}
        self._send()

    def _all_to(self, home: Fleet) -> np.ndarray:
        return np.array([float(fleet is home) for fleet in self.fleets])

    def _send(self) -> None:
        for number, fleet in enumerate(self.fleets):
            fleet.entry = np.array([self.weights[service.name][number] for service in fleet.spec.services])
