"""AutoETS and MSTL of statsforecast, fitted nightly and updated through the day."""

from __future__ import annotations

import importlib.util
import os
import pickle
import warnings

import numpy as np
import pytest

from planner.forecast.ets_mstl import FittedSmoothing
from planner.forecast.registry import FORECASTERS
from planner.forecast.series import Series

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("statsforecast") is None, reason="missing: statsforecast (the extra [statsforecast])"
)
LEADS = np.arange(1, 21)


def _series(build, days, **more):
    return Series(0.0, 600.0, build.wave(days, **more))


@pytest.fixture(scope="module")
def week(build):
    return _series(build, 7.0, noise=0.1)


@pytest.fixture(scope="module")
def fitted(week):
    known = week.until(6 * 144)
    return {name: FORECASTERS[name].fit(known, 288) for name in ("autoets", "mstl")}


def _library(name, logs):
    """The library's own model of the logs."""
    os.environ.setdefault("NIXTLA_ID_AS_COL", "1")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from statsforecast.models import MSTL, AutoETS

        trend = AutoETS(season_length=1, model="AZN")
        return (MSTL(season_length=[144], trend_forecaster=trend) if name == "mstl" else trend).fit(logs)


# With a damped slope the library's leads past the first differ: it adds the first power of the damping twice,
# where the formula has its second. The members follow the formula.


@pytest.mark.slow
def test_at_midnight_mstl_equals_the_library(week, fitted):
    fit = fitted["mstl"]
    assert fit.slope == 0.0
    logs = np.log(week.values[: 6 * 144] + fit.shift)
    text = _library("mstl", logs).predict(h=20)["mean"]
    np.testing.assert_allclose(fit.at(week, np.array([6 * 144]), LEADS)[0], np.exp(text) - fit.shift, rtol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("later", [0, 1, 50, 143])
def test_through_the_day_its_state_moves_as_the_library_moves_it(week, fitted, later):
    fit, origin = fitted["autoets"], 6 * 144 + later
    assert fit.slope != 0.0
    logs = np.log(week.values + fit.shift)
    text = _library("autoets", logs[: 6 * 144]).forward(y=logs[:origin], h=2)["mean"]
    result = np.log(fit.at(week, np.array([origin]), np.array([1, 2]))[0] + fit.shift)
    assert result[0] == pytest.approx(text[0], rel=1e-6)
    assert result[1] - result[0] == pytest.approx(fit.damping * (text[1] - text[0]), rel=1e-3)


@pytest.mark.slow
def test_nothing_after_an_origin_is_read(week, fitted):
    changed = Series(week.start, week.step, np.where(np.arange(week.values.size) < 900, week.values, 500.0))
    for fit in fitted.values():
        np.testing.assert_array_equal(fit.at(week, np.array([900]), LEADS), fit.at(changed, np.array([900]), LEADS))


def test_gaps_and_zero_load_are_accepted_and_nothing_is_negative(build):
    values = build.wave(5.0)
    values[100:110] = np.nan
    values[300:330] = 0.0
    values[-3:] = np.nan
    series = Series(0.0, 600.0, values)
    for name in ("autoets", "mstl"):
        fit = pickle.loads(pickle.dumps(FORECASTERS[name].fit(series.until(4 * 144), 288)))
        text = fit.at(series, np.arange(4 * 144, values.size + 1), np.arange(1, 145))
        assert np.isfinite(text).all()
        assert (text >= 0).all()


def test_a_season_goes_round_and_a_slope_fades():
    flat = FittedSmoothing(1200.0, np.array([0.0, 1.0]), 0.0, 2.0, 0.4, (0.5, 0.0), 0.5)
    series = Series(0.0, 600.0, np.exp([9.0, 9.0, 2.2, np.nan]))
    text = np.log(flat.at(series, np.array([2, 3, 4]), np.array([1, 2, 3])))
    # slopes of .2, .1, .05 from level 2; the first slot was as expected, the second is missing
    np.testing.assert_allclose(text[0], [2.2, 3.3, 2.35])
    np.testing.assert_allclose(text[1], [3.3, 2.35, 3.375])
    np.testing.assert_allclose(text[2][:2], [2.35, 3.375])
