"""Data files that ship with the planner. No other module of the planner reads files."""

from __future__ import annotations

from importlib import resources


def gpus_yaml() -> str:
    """Text of the accelerator table."""
    return _read("gpus.yaml")


def models_yaml() -> str:
    """Text of the table of model shapes."""
    return _read("models.yaml")


def _read(name: str) -> str:
    return resources.files("planner.performance").joinpath(name).read_text("utf-8")
