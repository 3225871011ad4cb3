"""Faults, one YAML file each in ``catalogue``. ``inject`` plans a fault and returns the ground truth.

A fault changes effects of the fleet; pages follow from its physics. Must not import ``exporters``.
"""

# The platform under test never imports this package: it reads pages, logs and events.

from simulator.faults.base import Injection, Truth
from simulator.faults.registry import FAULTS, inject, injections_of

__all__ = ["FAULTS", "Injection", "Truth", "inject", "injections_of"]
