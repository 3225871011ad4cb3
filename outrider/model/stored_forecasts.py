"""Stored forecasts for the current time, as read by detectors."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model.entities import EntityRef

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ForecastView:
    """The forecast slot that contains a given time, one per entity; all arrays have shape (entities,).

    ``signals`` are the forecast signals, which define the unit; ``step_seconds`` is the length of the slot; ``made_at``
    the time of the forecast (unix seconds). ``low``, ``middle`` and ``high`` are its lowest quantile, its median and
    its highest, NaN if the forecast does not reach that time.
    """

    entities: tuple[EntityRef, ...]
    signals: tuple[str, ...]
    step_seconds: _Floats
    made_at: _Floats
    low: _Floats
    middle: _Floats
    high: _Floats
