"""Faults: one file each. ``inject`` breaks one component of a fleet and returns the ground truth.

The platform under test never sees this package: it sees pages. A fault acts on the fleet's own
handles (a device's health, a process, a fan, the arrivals), and what the pages show follows from it.
"""

from simulator.faults.base import Injection, Truth
from simulator.faults.registry import FAULTS, inject

__all__ = ["FAULTS", "Injection", "Truth", "inject"]
