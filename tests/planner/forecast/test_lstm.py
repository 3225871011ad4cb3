"""The LSTM: tests that need JAX are skipped without the extra [lstm], which is optional."""

from __future__ import annotations

import importlib.util
import pickle

import numpy as np
import pytest

from planner.forecast import lstm
from planner.forecast.grid import Grid
from planner.forecast.lstm import FittedLstm, Lstm, View, Weights
from planner.forecast.naive import seasonal_naive
from planner.forecast.series import Series

ANCHORS = Grid(600.0).anchors
needs_jax = pytest.mark.skipif(Lstm().is_absent(), reason="the extra [lstm] is not installed")


def _weights(seed=1, scale=0.3, hidden=4):
    random = np.random.default_rng(seed)
    shapes = ((4 * hidden, lstm.FEATURES), (4 * hidden, hidden), (4 * hidden,), (ANCHORS.size, hidden), (ANCHORS.size,))
    return Weights(*(scale * random.standard_normal(shape) for shape in shapes))


def _fit(series, **more):
    return FittedLstm(lstm._view(series), ANCHORS, _weights(**more))


def test_without_its_packages_it_is_absent(monkeypatch):
    result = importlib.util.find_spec
    monkeypatch.setattr(lstm, "find_spec", lambda name: None if name == "optax" else result("numpy"))
    assert Lstm().is_absent()


def test_one_slot_of_the_cell_by_hand():
    weights = Weights(
        np.array([[1.0], [0.0], [2.0], [0.0]]), np.zeros((4, 1)), np.array([0.0, 1.0, 0.0, 0.5]),
        np.array([[3.0]]), np.array([0.1]),
    )  # fmt: skip

    def gate(value):
        return 1.0 / (1.0 + np.exp(-value))

    memory = gate(0.7) * np.tanh(1.4)
    expected = 3.0 * gate(0.5) * np.tanh(memory) + 0.1
    assert weights.run(np.array([[[0.7]]]))[0, 0] == pytest.approx(expected)


def test_a_window_ends_before_its_origin_and_a_gap_lies_on_the_mean_day(build):
    series = Series(0.0, 600.0, build.wave(4.0))
    view = lstm._view(series)
    windows = view.windows(series, np.array([200, 201]))
    assert windows.shape == (2, lstm.WINDOW_TENS, lstm.FEATURES)
    np.testing.assert_allclose(windows[0, 1:, 0], windows[1, :-1, 0])
    targets = view.targets(series, np.array([200]), np.array([1]))
    assert windows[1, -1, 0] == pytest.approx(targets[0, 0])
    values = series.values.copy()
    values[199] = np.nan
    assert view.windows(Series(0.0, 600.0, values), np.array([200]))[0, -1, 0] == 0.0
    later = Series(144 * 600.0, 600.0, series.values[144:])
    np.testing.assert_allclose(
        view.windows(later, np.array([56 + 100]))[0, -50:], view.windows(series, np.array([300]))[0, -50:]
    )


def test_nothing_after_an_origin_is_read_and_nothing_is_negative(build):
    values = build.wave(5.0)
    values[50:60] = 0.0
    series = Series(0.0, 600.0, values)
    changed = Series(0.0, 600.0, np.where(np.arange(values.size) < 600, values, 900.0))
    fit = _fit(series.until(576), scale=3.0)
    leads = np.arange(1, 300)
    text = fit.at(series, np.array([600]), leads)
    np.testing.assert_array_equal(text, fit.at(changed, np.array([600]), leads))
    assert np.isfinite(text).all()
    assert (text >= 0).all()
    assert text.max() <= np.exp(2.5) * (values.max() + 1.0)


def test_between_its_leads_lie_straight_lines(build):
    series = Series(0.0, 600.0, build.wave(4.0))
    view = View(0.0, 1.0, np.zeros(144), 1.0)
    fit = FittedLstm(view, ANCHORS, _weights())
    text = np.log(fit.at(series, np.array([500]), np.array([6, 7, 9, 144, 200]))[0] + 1.0)
    own = fit.weights.run(view.windows(series, np.array([500])))[0]
    at = {int(lead): own[index] for index, lead in enumerate(ANCHORS)}
    positive = np.maximum(np.array([at[6], at[6] * 2 / 3 + at[9] / 3, at[9], at[144], at[144]]), 0.0)
    np.testing.assert_allclose(text, positive, atol=1e-9)


@needs_jax
def test_a_trained_network_gives_the_same_output_without_jax(build):
    import jax

    from planner.forecast import lstm_training

    network = lstm_training.Network(lstm.FEATURES, 5, ANCHORS.size, jax.random.PRNGKey(3))
    windows = np.random.default_rng(4).standard_normal((6, 30, lstm.FEATURES))
    text = np.asarray(jax.vmap(network)(windows.astype(np.float32)))
    np.testing.assert_allclose(lstm_training.weights_of(network).run(windows), text, atol=1e-4)


@needs_jax
def test_training_learns_and_is_deterministic(build):
    # a level that fades over hours: a deviation at the origin predicts the next ones
    random = np.random.default_rng(8)
    level = np.zeros(8 * 144)
    for slot in range(1, level.size):
        level[slot] = 0.97 * level[slot - 1] + 0.1 * random.standard_normal()
    series = Series(0.0, 600.0, build.wave(8.0, noise=0.0) * np.exp(level))
    first = Lstm().fit(series.until(7 * 144), 288)
    import jax

    assert jax.config.jax_platforms == "cpu"
    again = pickle.loads(pickle.dumps(Lstm().fit(series.until(7 * 144), 288)))
    origins, leads = np.arange(7 * 144, 8 * 144 - 12), np.arange(1, 13)
    text = first.at(series, origins, leads)
    np.testing.assert_array_equal(text, again.at(series, origins, leads))
    truth = series.values[origins[:, None] + leads - 1]
    naive = np.stack([seasonal_naive(series.until(origin), 12) for origin in origins.tolist()])
    assert np.abs(text - truth).mean() < 0.7 * np.abs(naive - truth).mean()


@needs_jax
def test_too_little_history_finds_no_fit(build):
    with pytest.raises(ValueError, match="too short"):
        Lstm().fit(Series(0.0, 600.0, build.wave(0.5)), 288)
