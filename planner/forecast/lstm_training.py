"""Training of the LSTM: Equinox's cell and head, Optax's Adam. The only module that imports JAX."""

from __future__ import annotations

import equinox as eqx
import jax
import jax.numpy as jnp
import numpy as np
import optax

from outrider.model import Floats
from planner.forecast.lstm_weights import Weights

SEED = 7
STEPS = 400
_BATCH = 64
_RATE = 6e-3
_DECAY = 1e-3
_LARGEST_STEP = 1.0
_ROWS = 512
"""Windows are padded to whole multiples, so that all fits of one service share one compilation."""


class Network(eqx.Module):
    """One cell over the slots of a window, one linear head to the leads."""

    cell: eqx.nn.LSTMCell
    head: eqx.nn.Linear

    def __init__(self, features: int, hidden: int, leads: int, key: jax.Array) -> None:
        """Draws the weights by ``key``."""
        first, second = jax.random.split(key)
        self.cell = eqx.nn.LSTMCell(features, hidden, key=first)
        self.head = eqx.nn.Linear(hidden, leads, key=second)

    def __call__(self, window: jax.Array) -> jax.Array:
        """Maps a window (slots, features) to one output for each lead."""
        start = (jnp.zeros(self.cell.hidden_size), jnp.zeros(self.cell.hidden_size))
        (state, _), _ = jax.lax.scan(lambda carry, slot: (self.cell(slot, carry), None), start, window)
        return self.head(state)


def train(windows: Floats, targets: Floats, hidden: int) -> Weights:
    """Fits ``targets`` (rows, leads; NaN if unknown) to ``windows`` (rows, slots, features) in a fixed step count."""
    rows = -len(windows) % _ROWS
    inputs = np.concatenate([windows, np.zeros((rows, *windows.shape[1:]))]).astype(np.float32)
    observed = np.concatenate([targets, np.full((rows, targets.shape[1]), np.nan)]).astype(np.float32)
    jax.config.update(
        "jax_platforms", "cpu"
    )  # before the first device access: otherwise every back end reserves its memory
    with jax.default_device(jax.devices("cpu")[0]):
        key = jax.random.PRNGKey(SEED)
        network = Network(windows.shape[2], hidden, targets.shape[1], key)
        network = _trained(network, jnp.asarray(inputs), jnp.asarray(observed), jnp.asarray(len(windows)), key)
    return weights_of(network)


def weights_of(network: Network) -> Weights:
    """Returns the weights of a network as plain arrays."""
    cell, head = network.cell, network.head
    arrays = (cell.weight_ih, cell.weight_hh, cell.bias, head.weight, head.bias)
    return Weights(*(np.asarray(array, dtype=np.float64) for array in arrays))


@eqx.filter_jit
def _trained(network: Network, windows: jax.Array, targets: jax.Array, rows: jax.Array, key: jax.Array) -> Network:
    """Runs all steps in one compiled loop. The learning rate decays to zero along half a cosine."""
    rate = optax.cosine_decay_schedule(_RATE, STEPS)
    optimiser = optax.chain(optax.clip_by_global_norm(_LARGEST_STEP), optax.adamw(rate, weight_decay=_DECAY))
    learned, fixed = eqx.partition(network, eqx.is_inexact_array)

    def loss(candidate: Network, batch: jax.Array) -> jax.Array:
        predicted = jax.vmap(eqx.combine(candidate, fixed))(windows[batch])
        observed = targets[batch]
        known = ~jnp.isnan(observed)
        errors = jnp.where(known, jnp.abs(predicted - jnp.where(known, observed, 0.0)), 0.0)
        return errors.sum() / jnp.maximum(known.sum(), 1)

    def step(carry: tuple[Network, optax.OptState], key: jax.Array) -> tuple[tuple[Network, optax.OptState], None]:
        candidate, state = carry
        batch = jax.random.randint(key, (_BATCH,), 0, rows)
        updates, state = optimiser.update(jax.grad(loss)(candidate, batch), state, candidate)
        return (eqx.apply_updates(candidate, updates), state), None

    (learned, _), _ = jax.lax.scan(step, (learned, optimiser.init(learned)), jax.random.split(key, STEPS))
    trained: Network = eqx.combine(learned, fixed)
    return trained
