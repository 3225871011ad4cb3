"""What a memory was learnt from: levels of one signal must never be read as those of another.

A memory of many signals bears their names in the order of its columns, and one that holds a model bears
the digest of the rows that the model is fitted to and the version of the library that fitted it. What does
not agree is not used.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.base.state_arrays import Arrays
from outrider.model import DetectorState

SIGNALS, DIGEST, LIBRARY = "signals", "digest", "library"
MODEL = (DIGEST, LIBRARY)


def of_signals(signals: Sequence[str]) -> Arrays:
    """The array that names the columns."""
    return {SIGNALS: np.array(signals, dtype=np.str_)}


def same_signals(state: DetectorState, signals: Sequence[str]) -> bool:
    """Whether the columns are these signals, in this order."""
    return _words(state.arrays.get(SIGNALS)) == tuple(signals)


def of_model(rows: NDArray[np.float32]) -> Arrays:
    """What a model fitted to these rows is known by."""
    return {DIGEST: np.array([digest(rows)]), LIBRARY: np.array([library()])}


def same_model(state: DetectorState, rows: NDArray[Any]) -> bool:
    """Whether a model fitted to these rows now would be the one that was remembered."""
    known = (_words(state.arrays.get(DIGEST)), _words(state.arrays.get(LIBRARY)))
    return known == ((digest(rows),), (library(),))


def same_rows(state: DetectorState, rows: NDArray[Any]) -> bool:
    """Whether these are the rows that the model was fitted to."""
    return _words(state.arrays.get(DIGEST)) == (digest(rows),)


def digest(rows: NDArray[Any]) -> str:
    """64 hex digits over shape and content."""
    return hashlib.sha256(repr((rows.shape, rows.dtype.str)).encode() + rows.tobytes()).hexdigest()


@cache
def library() -> str:
    """Name and version of what fits models. Asked of the package's metadata: importing it takes seconds."""
    return f"scikit-learn {version('scikit-learn')}"


def _words(held: NDArray[Any] | None) -> tuple[str, ...] | None:
    return None if held is None or held.dtype.kind != "U" or held.ndim != 1 else tuple(held.tolist())
