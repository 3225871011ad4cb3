"""Scenarios: which faults strike together or after each other, under what load, on what world.

``load`` reads them, ``arrange`` plans one on a world and returns the truth. Files are in YAML beside
this module; ``reading`` describes their format, ``choosing`` the words that stand for an entity.

Tuning and scoring are kept apart. Whoever sets a threshold or writes a rule may look at drills of
``TUNING_SEEDS`` under ``TUNING_SHAPES``, and at nothing else. The scenarios shipped here run under
``SCORING_SHAPES`` only; published tables take ``SCORING_SEEDS``, and a score of a tuning seed says so.
"""

from datetime import timedelta

from simulator.scenarios.arranging import arrange
from simulator.scenarios.choosing import WORDS
from simulator.scenarios.reading import PlannedFault, Scenario, load

TUNING_SEEDS = (1, 2, 3, 7)
TUNING_SHAPES = ("steady", "diurnal")
SCORING_SEEDS = (11, 12, 13)
# By shape: its start relative to the scenario's, and its strength (None: the default).
# Its course lies in the scenario's minutes, and a fleet without a fault bears it at the peak of the day. A holiday
# takes hours to fall, and 20 minutes of outage come before a rebound.
EVENTS: dict[str, tuple[timedelta, float | None]] = {
    "bursty": (timedelta(minutes=2), None),
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
