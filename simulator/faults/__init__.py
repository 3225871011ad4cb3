"""Faults, one YAML file each in ``catalogue``. ``inject`` plans a fault and returns the ground truth.

The platform under test never imports this package: it reads pages, logs and events. A fault changes effects of the
fleet and runs a few actions. The pages follow from the fleet's physics.
"""

from simulator.faults.base import Injection, Truth
from simulator.faults.registry import FAULTS, inject

__all__ = ["FAULTS", "Injection", "Truth", "inject"]
