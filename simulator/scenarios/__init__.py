"""Scenarios: which faults strike together or after each other, under what load, on what world.

``load`` reads them, ``arrange`` plans one on a world and returns the truth. Files are in YAML beside
this module; ``reading`` describes their format, ``choosing`` the words that stand for an entity.

Tuning and scoring are kept apart. Whoever sets a threshold or writes a rule may look at drills of
``TUNING_SEEDS`` under ``TUNING_SHAPES``, and at nothing else. The scenarios shipped here run under
``SCORING_SHAPES`` only, and a score takes a seed that is none of the tuning ones.
"""

from simulator.scenarios.arranging import arrange
from simulator.scenarios.choosing import WORDS
from simulator.scenarios.reading import Planned, Scenario, load

TUNING_SEEDS = (1, 2, 3, 7)
TUNING_SHAPES = ("steady", "diurnal")
SCORING_SHAPES = ("weekly", "bursty", "launch-day", "mix-shift")

__all__ = ["SCORING_SHAPES", "TUNING_SEEDS", "TUNING_SHAPES", "WORDS", "Planned", "Scenario", "arrange", "load"]
