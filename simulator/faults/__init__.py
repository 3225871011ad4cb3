"""Faults: one YAML file each in ``catalogue``. ``inject`` breaks one component and returns the ground truth.

The platform under test never sees this package: it sees pages, logs and events. A fault bends the
levers of the fleet and does a few deeds; what the pages show follows from the fleet's physics.
"""

from simulator.faults.base import Injection, Truth
from simulator.faults.registry import FAULTS, inject

__all__ = ["FAULTS", "Injection", "Truth", "inject"]
