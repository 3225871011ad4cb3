"""Detector state: arrays that follow their entities as these appear and disappear."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from outrider.model import DetectorState, EntityRef

Arrays = dict[str, NDArray[Any]]


def empty(version: int, defaults: Mapping[str, Any]) -> DetectorState:
    """The initial state: one empty array per name, typed like its default."""
    arrays = {name: np.full(0, default) for name, default in defaults.items()}
    return DetectorState(version=version, entities=(), arrays=arrays)


def align(state: DetectorState, entities: tuple[EntityRef, ...], defaults: Mapping[str, Any]) -> Arrays:
    """The state's arrays reordered for ``entities``, as copies of shape (entities,).

    A new entity gets the default; a departed one is dropped. An array that is missing or has the wrong length starts
    over, so a damaged checkpoint only costs learned history.
    """
    if entities == state.entities:
        return {name: _own(state, name, default) for name, default in defaults.items()}
    place = {entity: row for row, entity in enumerate(state.entities)}
    rows = np.fromiter((place.get(entity, -1) for entity in entities), dtype=np.intp, count=len(entities))
    known = rows >= 0
    aligned: Arrays = {}
    for name, default in defaults.items():
        fresh = np.full(len(entities), default)
        fresh[known] = _own(state, name, default)[rows[known]]
        aligned[name] = fresh
    return aligned


def scalars(state: DetectorState, defaults: Arrays) -> Arrays:
    """Arrays of the whole class as stored; the default of each that is missing or has another shape."""
    arrays = {}
    for name, default in defaults.items():
        stored = state.arrays.get(name)
        fits = stored is not None and stored.shape == default.shape and not bool(np.isnan(stored).any())
        arrays[name] = stored.copy() if fits and stored is not None else default.copy()
    return arrays


def _own(state: DetectorState, name: str, default: Any) -> NDArray[Any]:
    held = state.arrays.get(name)
    fresh = np.full(len(state.entities), default)
    if held is None or held.shape != fresh.shape:
        return fresh
    fresh[:] = held
    return fresh
