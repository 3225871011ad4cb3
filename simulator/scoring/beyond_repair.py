"""Faults that no automatic action can end within five minutes in the simulated fleet, each with its reason."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib import resources

import yaml


@cache
def beyond_repair() -> Mapping[str, str]:
    """Returns the reason by fault id."""
    text = resources.files("simulator.scoring").joinpath("beyond_repair.yaml").read_text(encoding="utf-8")
    return dict(yaml.safe_load(text)["faults"])
