"""Onset of a fault: step, ramp or intermittent."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Shape = Literal["step", "ramp", "intermittent"]
SHAPES: tuple[Shape, ...] = ("step", "ramp", "intermittent")


@dataclass(frozen=True, slots=True)
class Onset:
    """``seconds`` is the length of a ramp; ``on_seconds`` and ``off_seconds`` alternate, starting with on."""

    shape: Shape = "step"
    seconds: float = 0.0
    on_seconds: float = 0.0
    off_seconds: float = 0.0

    def strength(self, elapsed: float) -> float:
        """Returns the strength ``elapsed`` seconds after the start, 0 to 1; 0 before it."""
        if elapsed < 0:
            return 0.0
        if self.shape == "ramp":
            return min(1.0, elapsed / self.seconds)
        if self.shape == "intermittent":
            return float(elapsed % (self.on_seconds + self.off_seconds) < self.on_seconds)
        return 1.0
