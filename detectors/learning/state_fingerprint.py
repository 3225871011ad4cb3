"""Fingerprint of learned state: levels of one signal must never be read as those of another.

State of several signals holds their names in column order, state of times of day the time zone. State with a model
holds a digest of the rows that the model was fitted to, and the library version. State that does not match is dropped.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import tzinfo
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from outrider.model import DetectorState

SIGNALS, ZONE, DIGEST, LIBRARY = "signals", "zone", "digest", "library"
MODEL = (DIGEST, LIBRARY)


def of_signals(signals: Sequence[str]) -> Arrays:
    """The array that names the columns."""
    return {SIGNALS: np.array(signals, dtype=np.str_)}


def same_signals(state: DetectorState, signals: Sequence[str]) -> bool:
    """True if the columns are these signals, in this order."""
    return _strings(state.arrays.get(SIGNALS)) == tuple(signals)


def of_zone(zone: tzinfo) -> Arrays:
    """The array that names the time zone of times of day."""
    return {ZONE: np.array([str(zone)], dtype=np.str_)}


def same_zone(state: DetectorState, zone: tzinfo) -> bool:
    """True if times of day were learned in this zone; UTC if the state names none."""
    return (_strings(state.arrays.get(ZONE)) or ("UTC",)) == (str(zone),)


def of_model(rows: NDArray[np.float32]) -> Arrays:
    """The fingerprint of a model fitted to these rows."""
    return {DIGEST: np.array([digest(rows)]), LIBRARY: np.array([library()])}


def same_model(state: DetectorState, rows: NDArray[Any]) -> bool:
    """True if fitting these rows now would give the stored model."""
    known = (_strings(state.arrays.get(DIGEST)), _strings(state.arrays.get(LIBRARY)))
    return known == ((digest(rows),), (library(),))


def same_rows(state: DetectorState, rows: NDArray[Any]) -> bool:
    """True if the model was fitted to these rows."""
    return _strings(state.arrays.get(DIGEST)) == (digest(rows),)


def digest(rows: NDArray[Any]) -> str:
    """64 hex digits over shape and content."""
    return hashlib.sha256(repr((rows.shape, rows.dtype.str)).encode() + rows.tobytes()).hexdigest()


@cache
def library() -> str:
    """Name and version of the library that fits models, from package metadata: its import takes seconds."""
    return f"scikit-learn {version('scikit-learn')}"


def _strings(held: NDArray[Any] | None) -> tuple[str, ...] | None:
    return None if held is None or held.dtype.kind != "U" or held.ndim != 1 else tuple(held.tolist())
