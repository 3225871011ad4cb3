"""What a kept forecast says of now, as detectors read it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from outrider.model.entities import EntityRef

_Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class ForecastView:
    """The slot of a forecast that holds an instant, one an entity; all arrays are of shape (entities,).

    ``signals`` name what was forecast and thereby its unit, ``step_seconds`` is the length of the slot, ``made_at``
    when it was said (unix seconds). ``low``, ``middle`` and ``high`` are its lowest quantile, its median and its
    highest, NaN where the forecast does not reach as far as the instant.
    """

    entities: tuple[EntityRef, ...]
    signals: tuple[str, ...]
    step_seconds: _Floats
    made_at: _Floats
    low: _Floats
    middle: _Floats
    high: _Floats
