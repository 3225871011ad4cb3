"""All procedures of one configuration, as one input of the decisions."""

from __future__ import annotations

from dataclasses import dataclass, field

from remediation.procedures.cluster_switch import ClusterSwitch
from remediation.procedures.degrade_ladder import Ladders


@dataclass(frozen=True, slots=True)
class Procedures:
    """The degrade ladders, and the procedure for a lost cluster. Without them neither happens."""

    ladders: Ladders = field(default_factory=Ladders)
    switch: ClusterSwitch | None = None


NONE = Procedures()
