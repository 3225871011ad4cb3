from __future__ import annotations

import numpy as np
import pytest

from planner.forecast.ensemble import at_origins, forecast_many

STEP = 600.0


def _forecast(values, steps=144, **changes):
    return forecast_many(np.atleast_2d(values), step_seconds=STEP, steps=steps, **changes)


def test_a_row_has_the_same_forecast_alone_and_among_others(build):
    rows = np.stack([build.wave(9.0, seed=seed, level=10.0**seed) for seed in range(4)])
    rows[1, : 3 * 144] = np.nan
    together = _forecast(rows)
    for row, values in enumerate(rows):
        alone = _forecast(values[~np.isnan(values)])
        for quantile, result in alone.quantiles.items():
            np.testing.assert_allclose(result[0], together.quantiles[quantile][row], rtol=1e-2)
            np.testing.assert_allclose(alone.peaks[quantile][0], together.peaks[quantile][row], rtol=1e-2)


def test_an_origin_uses_no_later_data(build):
    values = build.wave(8.0)
    spoiled = values.copy()
    spoiled[6 * 144 :] *= 50
    one, other = (at_origins(each, [5 * 144, 6 * 144], step_seconds=STEP, steps=12) for each in (values, spoiled))
    for quantile, result in one.quantiles.items():
        np.testing.assert_array_equal(result, other.quantiles[quantile])


@pytest.mark.parametrize("days", [0.01, 0.5, 1.2, 2.5, 9.0, 16.0])
def test_any_length_gives_finite_quantiles_in_order(build, days):
    result = _forecast(build.wave(days), steps=200)
    for kind in (result.quantiles, result.peaks):
        before = np.zeros((1, 200))
        for values in kind.values():
            assert np.isfinite(values).all()
            assert (values >= before).all()
            before = values
    for values in result.peaks.values():
        assert (np.diff(values) >= 0).all()


def test_a_row_without_a_value_has_no_forecast(build):
    rows = np.stack([build.wave(3.0), np.full(3 * 144, np.nan)])
    result = _forecast(rows)
    assert np.isfinite(result.quantiles[0.5][0]).all()
    assert np.isnan(result.quantiles[0.5][1]).all()
