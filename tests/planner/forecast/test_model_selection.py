"""Selection of nightly models, and the reasons of the others."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest

from outrider.documents.summaries import because
from outrider.model import EntityKind, NoPlanReason, Window
from planner.forecast import batch_forecast, forecast, forecaster, model_selection, nightly_fit
from planner.forecast.ensemble import forecast_many
from planner.forecast.nightly_fit import Fits
from planner.forecast.registry import FORECASTERS
from planner.forecast.series import Series


def _wave(times, hours=31.0):
    """No day profile knows it."""
    return 20.0 * (1.0 + 0.8 * np.sin(times / 3600.0 / hours * 2 * np.pi))


@dataclass(frozen=True)
class FixedForecast:
    """Forecasts a function of the timestamp, at any origin."""

    factor: float
    hours: float = 31.0

    def at(self, series, origins, leads):
        return self.factor * _wave(series.start + series.step * (origins[:, None] + leads[None, :] - 1), self.hours)


@dataclass(frozen=True)
class Fake:
    name: str
    title: str
    factor: float = 1.0
    hours: float = 31.0
    absent: bool = False
    extra: str = "more"
    fitted: list = field(default_factory=list)

    def is_absent(self):
        return self.absent

    def fit(self, series, ahead):
        self.fitted.append(series.origin)
        if self.factor == 0.0:
            raise ValueError("nothing fits")
        return FixedForecast(self.factor, self.hours)


@pytest.fixture
def among(monkeypatch):
    def put(*fakes):
        result = {each.name: each for each in fakes}
        monkeypatch.setattr(model_selection, "FORECASTERS", result)
        monkeypatch.setattr(forecaster, "FORECASTERS", result)
        return ("ensemble", *result)

    return put


def _ask(build, models, **more):
    times = build.times(8.0)
    return forecast(times, _wave(times), signal="s", entity=build.service, now=build.now, models=models, **more)


def test_a_good_model_is_selected_and_a_bad_one_refused_with_figures(build, among):
    models = among(Fake("wrong", "Wrong", hours=7.0), Fake("right", "Right"))
    result = _ask(build, models)
    assert result.model == "ensemble+right"
    by_name = {each.arguments.get("name"): each for each in result.why}
    assert by_name["Right"].text == "plan.why_helps"
    assert by_name["Wrong"].text == "plan.why_refused"
    assert float(by_name["Right"].arguments["joined"]) < float(by_name["Right"].arguments["error"])
    assert float(by_name["Wrong"].arguments["own"]) > float(by_name["Right"].arguments["own"])
    truth = _wave(result.times)
    plain = _ask(build, ("ensemble",))
    assert np.abs(result.quantiles[0.5] - truth).sum() < np.abs(plain.quantiles[0.5] - truth).sum()
    assert result.score.pinball < plain.score.pinball


def test_the_second_of_two_equal_models_is_refused(build, among):
    result = _ask(build, among(Fake("one", "One"), Fake("two", "Two")))
    assert result.model in ("ensemble+one", "ensemble+two", "ensemble+one+two")
    assert [each.text for each in result.why][:2] == ["plan.why_mix", "plan.why_helps"]
    assert {each.arguments["name"] for each in result.why[1:]} == {"One", "Two"}


def test_an_absent_model_or_missing_fit_is_reported_with_the_reason(build, among):
    models = among(Fake("away", "Away", absent=True), Fake("lost", "Lost", 0.0), Fake("right", "Right"))
    fits = Fits()
    result = _ask(build, models, fits=fits)
    assert result.model == "ensemble+right"
    reasons = because(result.why)
    assert (
        "Away is not used: not installed (in the checkout: pip install '.[more]', or uv sync --extra more)" in reasons
    )
    assert "Lost is not used: no fit was found (nothing fits)" in reasons
    assert "未安装" in because(result.why, "zh")
    assert set(fits.refused) == {"away", "lost"}
    assert fits.requested == ("lost", "right", "away")


def test_nightly_fits_are_used_by_day_without_new_fits(build, among):
    right = Fake("right", "Right")
    models = among(right, Fake("away", "Away", absent=True))
    times = build.times(8.0)
    fits = forecaster.fit_nightly(times, _wave(times), now=build.now, models=models).fits
    made = len(right.fitted)
    result = _ask(build, ("ensemble", *fits.requested), fits=fits, may_fit=False)
    assert len(right.fitted) == made == model_selection.NIGHTS + 1
    assert result.model == "ensemble+right"
    assert "Away is not used" in because(result.why)
    again = forecaster.fit_nightly(times, _wave(times), now=build.now, models=models, fits=fits).fits
    assert len(right.fitted) == made
    assert again.made == fits.made


def test_the_newest_fit_made_by_then_is_used():
    series = Series(0.0, 3600.0, np.ones(72))
    member = nightly_fit.NightlyMember(series, {86400.0: FixedForecast(1.0), 172800.0: FixedForecast(2.0)})
    values = member.at(np.array([10, 24, 47, 48, 72]), np.array([1]))[:, 0]
    expected = np.array([np.nan, 1.0, 1.0, 2.0, 2.0]) * _wave(3600.0 * np.array([10, 24, 47, 48, 72]))
    np.testing.assert_allclose(values, expected)


def test_too_little_history_names_all_requested_models(build, among):
    models = among(Fake("one", "One"), Fake("two", "Two"))
    times = build.times(3.0)
    result = forecast(times, _wave(times), signal="s", entity=build.service, now=build.now, models=models)
    assert result.model == "ensemble"
    assert "One, Two is not used: 3.0 days" in because(result.why)


def test_every_forecaster_has_a_name():
    for name, each in FORECASTERS.items():
        assert each.name == name
        assert each.title
        assert isinstance(each.is_absent(), bool)


class _Breaks:
    def at(self, series, origins, leads):
        raise ValueError("a fit that was damaged")


def _many(build, count=5):
    """Services that differ only in noise, one with gaps, one of only three days, one without any value."""
    times = build.times(8.0)
    noise = np.random.default_rng(4).normal(0.0, 0.05, (count, times.size))
    rows = _wave(times) * np.exp(noise)
    rows[1, 100:140] = np.nan
    rows[2, : times.size * 5 // 8] = np.nan
    rows[3] = np.nan
    services = tuple(replace(build.service, name=f"s{index}") for index in range(count))
    values = rows[:, :, None]
    status = np.zeros(values.shape, dtype=np.uint8)
    return Window(EntityKind.SERVICE, services, times, (batch_forecast.LOAD,), values, status, forecaster.STEP)


def _nights(build, window, models):
    values = window.column(batch_forecast.LOAD)
    return {
        service: replace(forecaster.fit_nightly(window.times, row, now=build.now, models=models), selected=("right",))
        for service, row in zip(window.entities, values, strict=True)
    }


def test_batched_services_with_nightly_fits_equal_single_ones(build, among):
    models = among(Fake("right", "Right"), Fake("wrong", "Wrong", hours=7.0))
    window = _many(build)
    decided = _nights(build, window, models)
    result = batch_forecast.forecast_all(window, build.now, forecaster.HORIZON, decided)
    assert result[window.entities[0]].model == result[window.entities[1]].model == "ensemble+right"
    assert result[window.entities[2]].model == "ensemble"
    assert result[window.entities[3]] is NoPlanReason.NO_HISTORY
    for row, service in enumerate(window.entities):
        fits = decided[service].fits
        alone = forecast(
            window.times,
            window.column(batch_forecast.LOAD)[row],
            signal=batch_forecast.LOAD.name,
            entity=service,
            now=build.now,
            models=("ensemble", *fits.requested),
            fits=fits,
            may_fit=False,
        )
        if isinstance(alone, NoPlanReason):
            continue
        assert (result[service].model, result[service].why) == (alone.model, alone.why)
        assert result[service].buffers == pytest.approx(alone.buffers, rel=1e-6)
        for level, values in alone.quantiles.items():
            np.testing.assert_allclose(result[service].quantiles[level], values, rtol=1e-5)
            np.testing.assert_allclose(result[service].peaks[level], alone.peaks[level], rtol=1e-5)


def test_a_broken_nightly_fit_affects_only_its_service(build, among):
    models = among(Fake("right", "Right"))
    window = _many(build)
    decided = _nights(build, window, models)
    made = decided[window.entities[0]].fits.made["right"]
    made.update(dict.fromkeys(made, _Breaks()))
    result = batch_forecast.forecast_all(window, build.now, forecaster.HORIZON, decided)
    assert result[window.entities[0]] is NoPlanReason.FAILED
    assert result[window.entities[1]].model == "ensemble+right"
    assert result[window.entities[4]].model == "ensemble+right"


def test_an_extra_member_covers_every_row():
    with pytest.raises(ValueError, match="one forecaster for each row"):
        forecast_many(np.ones((2, 300)), step_seconds=600.0, steps=6, extra={"one": [FixedForecast(1.0)]})
