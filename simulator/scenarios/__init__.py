"""Scenarios: combinations of faults, load and world, as YAML files in this package.

Thresholds must not be tuned on ``SCORING_SEEDS`` or ``SCORING_SHAPES``. Must not import ``servers``.
"""

from datetime import timedelta

from simulator.scenarios.entity_choice import WORDS
from simulator.scenarios.fault_plan import arrange
from simulator.scenarios.loader import PlannedFault, Scenario, load
from simulator.traffic.shapes import ORDERED_BURST_FACTOR

# Tuning and scoring are separate. Thresholds and rules may be tuned only on drills of ``TUNING_SEEDS`` under
# ``TUNING_SHAPES``. The packaged scenarios use only ``SCORING_SHAPES``. Published tables use ``SCORING_SEEDS``; a score
# of a tuning seed is marked.
TUNING_SEEDS = (1, 2, 3, 7)
TUNING_SHAPES = ("steady", "diurnal")
SCORING_SEEDS = (22, 23, 24)
# By shape: start relative to the scenario's, and strength (None: the default). The event falls into the scenario's
# minutes, and a fleet without a fault can serve it at the peak of the day. A holiday takes hours to fall; 20 minutes of
# outage precede a rebound.
EVENTS: dict[str, tuple[timedelta, float | None]] = {
    "bursty": (timedelta(minutes=2), ORDERED_BURST_FACTOR),
    "launch-day": (timedelta(minutes=-10), 1.22),
    "holiday": (timedelta(hours=-2), None),
    "outage-rebound": (timedelta(minutes=-23), 1.3),
    "mix-shift": (timedelta(minutes=-10), None),
}
SCORING_SHAPES = tuple(EVENTS)

__all__ = [
    "EVENTS",
    "SCORING_SEEDS",
    "SCORING_SHAPES",
    "TUNING_SEEDS",
    "TUNING_SHAPES",
    "WORDS",
    "PlannedFault",
    "Scenario",
    "arrange",
    "load",
]
