"""Which forecasters of the night are heard, and what is said of the others."""

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
    """No profile of days knows it."""
    return 20.0 * (1.0 + 0.8 * np.sin(times / 3600.0 / hours * 2 * np.pi))


@dataclass(frozen=True)
class Saying:
    """Says a function of the instant, wherever it is asked."""

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
        return Saying(self.factor, self.hours)


@pytest.fixture
def among(monkeypatch):
    def put(*fakes):
        found = {each.name: each for each in fakes}
        monkeypatch.setattr(model_selection, "FORECASTERS", found)
        monkeypatch.setattr(forecaster, "FORECASTERS", found)
        return ("ensemble", *found)

    return put


def _ask(build, models, **more):
    times = build.times(8.0)
    return forecast(times, _wave(times), signal="s", entity=build.service, now=build.now, models=models, **more)


def test_who_knows_is_heard_and_who_does_not_is_refused_with_the_figures(build, among):
    models = among(Fake("wrong", "Wrong", hours=7.0), Fake("right", "Right"))
    found = _ask(build, models)
    assert found.model == "ensemble+right"
    by_name = {each.arguments.get("name"): each for each in found.why}
    assert by_name["Right"].text == "plan.why_helps"
    assert by_name["Wrong"].text == "plan.why_refused"
    assert float(by_name["Right"].arguments["joined"]) < float(by_name["Right"].arguments["error"])
    assert float(by_name["Wrong"].arguments["own"]) > float(by_name["Right"].arguments["own"])
    truth = _wave(found.times)
    plain = _ask(build, ("ensemble",))
    assert np.abs(found.quantiles[0.5] - truth).sum() < np.abs(plain.quantiles[0.5] - truth).sum()
    assert found.score.pinball < plain.score.pinball


def test_the_second_of_two_alike_is_refused_once_the_first_is_heard(build, among):
    found = _ask(build, among(Fake("one", "One"), Fake("two", "Two")))
    assert found.model in ("ensemble+one", "ensemble+two", "ensemble+one+two")
    assert [each.text for each in found.why][:2] == ["plan.why_mix", "plan.why_helps"]
    assert {each.arguments["name"] for each in found.why[1:]} == {"One", "Two"}


def test_who_is_absent_or_finds_no_fit_is_named_with_the_reason(build, among):
    models = among(Fake("away", "Away", absent=True), Fake("lost", "Lost", 0.0), Fake("right", "Right"))
    fits = Fits()
    found = _ask(build, models, fits=fits)
    assert found.model == "ensemble+right"
    said = because(found.why)
    assert "Away is not used: not installed (in the checkout: pip install '.[more]', or uv sync --extra more)" in said
    assert "Lost is not used: no fit was found (nothing fits)" in said
    assert "未安装" in because(found.why, "zh")
    assert set(fits.refused) == {"away", "lost"}
    assert fits.requested == ("lost", "right", "away")


def test_what_was_fitted_by_night_is_heard_by_day_without_a_fit(build, among):
    right = Fake("right", "Right")
    models = among(right, Fake("away", "Away", absent=True))
    times = build.times(8.0)
    fits = forecaster.fit_nightly(times, _wave(times), now=build.now, models=models).fits
    made = len(right.fitted)
    found = _ask(build, ("ensemble", *fits.requested), fits=fits, may_fit=False)
    assert len(right.fitted) == made == model_selection.NIGHTS + 1
    assert found.model == "ensemble+right"
    assert "Away is not used" in because(found.why)
    again = forecaster.fit_nightly(times, _wave(times), now=build.now, models=models, fits=fits).fits
    assert len(right.fitted) == made
    assert again.made == fits.made


def test_the_newest_fit_made_by_then_speaks():
    series = Series(0.0, 3600.0, np.ones(72))
    fit_nightly = nightly_fit.NightlyMember(series, {86400.0: Saying(1.0), 172800.0: Saying(2.0)})
    said = fit_nightly.at(np.array([10, 24, 47, 48, 72]), np.array([1]))[:, 0]
    expected = np.array([np.nan, 1.0, 1.0, 2.0, 2.0]) * _wave(3600.0 * np.array([10, 24, 47, 48, 72]))
    np.testing.assert_allclose(said, expected)


def test_too_little_history_names_all_that_were_asked(build, among):
    models = among(Fake("one", "One"), Fake("two", "Two"))
    times = build.times(3.0)
    found = forecast(times, _wave(times), signal="s", entity=build.service, now=build.now, models=models)
    assert found.model == "ensemble"
    assert "One, Two is not used: 3.0 days" in because(found.why)


def test_every_forecaster_says_who_it_is():
    for name, each in FORECASTERS.items():
        assert each.name == name
        assert each.title
        assert isinstance(each.is_absent(), bool)


class _Breaks:
    def at(self, series, origins, leads):
        raise ValueError("a fit that was damaged")


def _many(build, count=5):
    """Services alike but for noise, one with gaps, one of three days alone, one without any value."""
    times = build.times(8.0)
    noise = np.random.default_rng(4).normal(0.0, 0.05, (count, times.size))
    rows = _wave(times) * np.exp(noise)
    rows[1, 100:140] = np.nan
    rows[2, : times.size * 5 // 8] = np.nan
    rows[3] = np.nan
    services = tuple(replace(build.service, name=f"s{place}") for place in range(count))
    values = rows[:, :, None]
    status = np.zeros(values.shape, dtype=np.uint8)
    return Window(EntityKind.SERVICE, services, times, (batch_forecast.LOAD,), values, status, forecaster.STEP)


def _nights(build, window, models):
    values = window.column(batch_forecast.LOAD)
    return {
        service: replace(forecaster.fit_nightly(window.times, row, now=build.now, models=models), selected=("right",))
        for service, row in zip(window.entities, values, strict=True)
    }


def test_many_that_listen_to_their_nights_get_what_each_gets_alone(build, among):
    models = among(Fake("right", "Right"), Fake("wrong", "Wrong", hours=7.0))
    window = _many(build)
    decided = _nights(build, window, models)
    found = batch_forecast.forecast_all(window, build.now, forecaster.HORIZON, decided)
    assert found[window.entities[0]].model == found[window.entities[1]].model == "ensemble+right"
    assert found[window.entities[2]].model == "ensemble"
    assert found[window.entities[3]] is NoPlanReason.NO_HISTORY
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
        assert (found[service].model, found[service].why) == (alone.model, alone.why)
        assert found[service].buffers == pytest.approx(alone.buffers, rel=1e-6)
        for level, values in alone.quantiles.items():
            np.testing.assert_allclose(found[service].quantiles[level], values, rtol=1e-5)
            np.testing.assert_allclose(found[service].peaks[level], alone.peaks[level], rtol=1e-5)


def test_a_night_that_breaks_costs_its_own_service_alone(build, among):
    models = among(Fake("right", "Right"))
    window = _many(build)
    decided = _nights(build, window, models)
    made = decided[window.entities[0]].fits.made["right"]
    made.update(dict.fromkeys(made, _Breaks()))
    found = batch_forecast.forecast_all(window, build.now, forecaster.HORIZON, decided)
    assert found[window.entities[0]] is NoPlanReason.FAILED
    assert found[window.entities[1]].model == "ensemble+right"
    assert found[window.entities[4]].model == "ensemble+right"


def test_a_member_speaks_for_every_row_or_for_none():
    with pytest.raises(ValueError, match="one speaker for each row"):
        forecast_many(np.ones((2, 300)), step_seconds=600.0, steps=6, extra={"one": [Saying(1.0)]})
