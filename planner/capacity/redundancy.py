"""Spare replicas: N+k by failure domain, and rounding up to whole nodes.

Replicas are spread evenly over the domains (nodes, racks, zones). At least N must be left after the loss of any k
domains, so n is the smallest number with n - k x ceil(n / domains) >= N.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass

from outrider.errors import UsageError
from outrider.text.i18n import Language, translate


@dataclass(frozen=True, slots=True)
class Spares:
    """``replicas`` in total, ``spare`` of them for losses, at most ``largest`` in one domain."""

    needed: int
    replicas: int
    spare: int
    largest: int
    domains: int
    losses: int

    def as_dict(self) -> dict[str, int]:
        """Plain values."""
        return asdict(self)

    def line(self, language: Language = "en") -> str:
        """One step of a derivation."""
        return translate(
            "capacity.spares",
            language,
            needed=str(self.needed),
            replicas=str(self.replicas),
            losses=str(self.losses),
            domains=str(self.domains),
            largest=str(self.largest),
        )


@dataclass(frozen=True, slots=True)
class Nodes:
    """Whole nodes for groups of ``gpus_per_replica``: a group lies in one node, or fills whole ones."""

    nodes: int
    gpus: int
    idle_gpus: int
    replicas_per_node: float
    replicas: int
    gpus_per_replica: int
    gpus_per_node: int

    @property
    def stranded_gpus(self) -> int:
        """Idle GPUs that no further replica of this size fits."""
        if self.gpus_per_replica > self.gpus_per_node:
            return self.idle_gpus
        return self.nodes * (self.gpus_per_node % self.gpus_per_replica)

    def as_dict(self) -> dict[str, float]:
        """Plain values."""
        return asdict(self)

    def line(self, language: Language = "en") -> str:
        """One step of a derivation."""
        return translate(
            "capacity.nodes",
            language,
            replicas=str(self.replicas),
            group=str(self.gpus_per_replica),
            node=str(self.gpus_per_node),
            nodes=str(self.nodes),
            gpus=str(self.gpus),
            idle=str(self.idle_gpus),
        )


def with_spares(needed: int, *, domains: int, losses: int = 1) -> Spares:
    """Returns the replicas of which ``needed`` are left after losing ``losses`` of ``domains``.

    Raises UsageError if as many domains may be lost as there are.
    """
    if needed < 0 or domains < 1 or losses < 0:
        raise UsageError("replicas and losses must be 0 or more, domains 1 or more", hint="count nodes or racks")
    if losses >= domains and needed:
        raise UsageError(
            f"{losses} of {domains} failure {'domain' if domains == 1 else 'domains'} may be lost: none would be left",
            hint="spread over more domains, or allow fewer losses",
        )
    # at least n x (1 - losses / domains) >= needed, since no domain holds less than its even share
    replicas = -(-needed * domains // (domains - losses)) if needed else 0
    # the remaining replicas do not grow with every added one: it may be in a larger domain that is lost
    while replicas - losses * -(-replicas // domains) < needed:
        replicas += 1
    return Spares(needed, replicas, replicas - needed, -(-replicas // domains), domains, losses)


def whole_nodes(replicas: int, *, gpus_per_replica: int, gpus_per_node: int) -> Nodes:
    """Returns the nodes to buy for ``replicas``."""
    if replicas < 0 or gpus_per_replica < 1 or gpus_per_node < 1:
        raise UsageError(
            "replicas must be 0 or more, GPUs of a replica and of a node 1 or more", hint="give 1 or more GPUs"
        )
    if gpus_per_replica > gpus_per_node:
        nodes_per_replica = -(-gpus_per_replica // gpus_per_node)
        nodes, share = replicas * nodes_per_replica, 1.0 / nodes_per_replica
    else:
        fitting = gpus_per_node // gpus_per_replica
        nodes, share = -(-replicas // fitting), float(fitting)
    gpus = nodes * gpus_per_node
    idle = gpus - replicas * gpus_per_replica
    return Nodes(nodes, gpus, idle, share, replicas, gpus_per_replica, gpus_per_node)
