"""Weights of a trained LSTM, and its forward pass in plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.model import Floats


@dataclass(frozen=True, slots=True)
class Weights:
    """Of the cell (gates x inputs, gates x hidden, gates; gates are input, forget, cell, output) and of the head."""

    inputs: Floats
    hidden: Floats
    bias: Floats
    head: Floats
    head_bias: Floats

    def run(self, windows: Floats) -> Floats:
        """Windows (rows, slots, features) to what is said at the anchors (rows, anchors)."""
        rows, slots, _ = windows.shape
        width = self.hidden.shape[1]
        state, memory = np.zeros((rows, width)), np.zeros((rows, width))
        driven = windows @ self.inputs.T + self.bias
        for slot in range(slots):
            gates = driven[:, slot] + state @ self.hidden.T
            entry, forget, _, out = (_sigmoid(gates[:, gate * width : (gate + 1) * width]) for gate in range(4))
            memory = forget * memory + entry * np.tanh(gates[:, 2 * width : 3 * width])
            state = out * np.tanh(memory)
        found: Floats = state @ self.head.T + self.head_bias
        return found


def _sigmoid(values: Floats) -> Floats:
    found: Floats = 0.5 * (1.0 + np.tanh(0.5 * values))
    return found
