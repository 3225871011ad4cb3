"""Weights of a trained LSTM, and its forward pass in plain arrays."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from outrider.model import Floats


@dataclass(frozen=True, slots=True)
class Weights:
    """Weights of the cell and of the linear head.

    Cell: (gates x inputs), (gates x hidden), (gates). The gates are input, forget, cell and output.
    """

    inputs: Floats
    hidden: Floats
    bias: Floats
    head: Floats
    head_bias: Floats

    def run(self, windows: Floats) -> Floats:
        """Maps windows (rows, slots, features) to outputs at the anchors (rows, anchors)."""
        rows, slots, _ = windows.shape
        width = self.hidden.shape[1]
        state, memory = np.zeros((rows, width)), np.zeros((rows, width))
        driven = windows @ self.inputs.T + self.bias
        for slot in range(slots):
            gates = driven[:, slot] + state @ self.hidden.T
            entry, forget, _, out = (_sigmoid(gates[:, gate * width : (gate + 1) * width]) for gate in range(4))
            memory = forget * memory + entry * np.tanh(gates[:, 2 * width : 3 * width])
            state = out * np.tanh(memory)
        outputs: Floats = state @ self.head.T + self.head_bias
        return outputs


def _sigmoid(values: Floats) -> Floats:
    result: Floats = 0.5 * (1.0 + np.tanh(0.5 * values))
    return result
