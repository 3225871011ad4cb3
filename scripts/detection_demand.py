"""Pictures of docs/explanation/detection/load.md: demand against its forecast, requests unanswered."""

from __future__ import annotations

import csv
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import numpy as np
from detection_lives import Planned, of_fleet
from detection_panels import COLOURS, USUAL, Panel, bands, grid, key, struck
from matplotlib import pyplot as plt
from matplotlib.figure import Figure

from detectors.load.expected_traffic import RATE
from detectors.load.forecast_deviation import ForecastDeviationDetector
from detectors.platform.autoscaler import ERRORS
from outrider.clock import from_unix, parse_rfc3339
from outrider.model import (
    CellStatus,
    EntityKind,
    EntityRef,
    Finding,
    Floats,
    Forecast,
    ForecastView,
    Plan,
    Window,
)
from outrider.topology import Topology
from planner.forecast import forecast
from planner.forecast.forecaster import FAST_MODELS
from service.engine.forecast_context import ForecastContext

_SLOT, _MINUTE = 600.0, 60.0
_DAY = 144  # slots
_SERVICE = EntityRef("recorded", EntityKind.SERVICE, None, "conversation")
_KNOWN, _SHOWN = 4 * _DAY, 2 * _DAY  # slots before the first that is judged, and those judged
_LAUNCH, _MORE = (_DAY + 54, _DAY + 72), 1.6  # slots of those judged: nine to twelve of the second morning
Band = tuple[Floats, Floats, Floats]


def demand(data: Path | None) -> Figure:
    """Recorded demand, its forecast of an hour before, and three hours of more that nobody told the planner of."""
    path = None if data is None else data / "data" / "traffic" / "azure2024_conversation.csv"
    if path is None or not path.is_file():
        raise SystemExit("demand needs --data FOLDER with data/traffic")
    times, recorded = _trace(path)
    values = recorded.copy()
    values[_KNOWN + _LAUNCH[0] : _KNOWN + _LAUNCH[1]] *= _MORE
    band, told = _watched(times, values)
    shown = slice(_KNOWN, _KNOWN + _SHOWN)
    hours = (times[shown] - times[_KNOWN]) / 3600.0
    launch = [(_LAUNCH[0] / 6.0, _LAUNCH[1] / 6.0)]
    figure, axis = plt.subplots(figsize=(9.4, 2.9), layout="constrained")
    bands(axis, launch, told)
    low, middle, high = band
    axis.fill_between(
        hours, low, high, color=COLOURS[1], alpha=0.25, lw=0, step="post", label="forecast, 5 % to 99.5 %"
    )
    axis.step(hours, middle, where="post", color=COLOURS[1], lw=0.9, label="its median")
    axis.step(hours, recorded[shown], where="post", color=USUAL, lw=0.8, label="recorded")
    axis.step(hours, values[shown], where="post", color=COLOURS[0], label=f"with {_MORE - 1:.0%} more in grey")
    axis.set_ylim(bottom=0)
    axis.margins(x=0.01)
    axis.set_title("requests a second (azure2024_conversation), and what was forecast of each slot an hour before")
    axis.set_xlabel("hours")
    axis.legend(loc="upper left", ncols=4)
    key(figure, [Panel("", {}, launch, [(0, 1)])])
    return figure


def _trace(path: Path) -> tuple[Floats, Floats]:
    with path.open(encoding="utf-8", newline="") as lines:
        rows = list(csv.DictReader(lines))
    times = np.array([parse_rfc3339(row["time_utc"]).timestamp() for row in rows])
    return times, np.array([float(row["requests_per_second"]) for row in rows])


def _watched(times: Floats, values: Floats) -> tuple[Band, list[tuple[float, float]]]:
    """What was forecast of each slot an hour before, and the hours in which something was told."""
    foretelling, detector = ForecastContext(), ForecastDeviationDetector()
    state, rates = detector.initial(), np.repeat(values, int(_SLOT / _MINUTE))
    minutes = times[0] + _MINUTE * np.arange(rates.size)
    band: list[tuple[float, float, float]] = []
    spoken: list[float] = []
    for slot in range(_KNOWN - 12, _KNOWN + _SHOWN):
        now = from_unix(float(times[slot]))
        made = forecast(
            times[:slot], values[:slot], signal=RATE, entity=_SERVICE, now=now, horizon=timedelta(hours=2),
            models=FAST_MODELS,
        )  # fmt: skip
        assert isinstance(made, Forecast)
        foretelling.take(Plan((made,), ()))
        for minute in range(10 * slot, 10 * slot + 10):
            at = from_unix(float(minutes[minute]))
            due = foretelling.at(at)
            window = _window(minutes[minute - 11 : minute + 1], rates[minute - 11 : minute + 1], due)
            state, verdicts = detector.detect(state, window, Topology.build(()), at)
            hour = (minute / 10 - _KNOWN) / 6.0
            if any(isinstance(one, Finding) for one in verdicts):
                spoken.append(hour)
        if slot >= _KNOWN and due is not None:
            band.append((float(due.low[0]), float(due.middle[0]), float(due.high[0])))
    low, middle, high = np.array(band).T
    return (low, middle, high), [(hour, hour + 1.0 / 60.0) for hour in spoken]


def _window(times: Floats, rates: Floats, due: ForecastView | None) -> Window:
    """Minutes of one service of which nothing but its rate of requests is known."""
    keys = ForecastDeviationDetector.keys
    plane = np.full((1, times.size, len(keys)), np.nan)
    plane[0, :, [one.name for one in keys].index(RATE)] = rates
    status = np.where(np.isnan(plane), CellStatus.ABSENT, CellStatus.PRESENT).astype(np.uint8)
    return Window(EntityKind.SERVICE, (_SERVICE,), times, keys, plane, status, timedelta(minutes=1), (), due)


def answers(_: Path | None) -> Figure:
    """Requests that are refused or left, and an autoscaler that cannot read its metric."""
    plan = [
        Planned("bad-requests", 8, 8, "code-14b"),
        Planned("client-aborts", 8, 8, "chat-70b"),
        Planned("autoscaler-stuck", 24, 8, "chat-70b"),
    ]
    life = of_fleet(plan, 38, ("outcomes", "scaling", "saturation", "surge"))
    refused = struck(life, "answers a scrape", "bad-requests", "svc_requests_total", "svc_refused_total")
    left = struck(life, "answers a scrape", "client-aborts", "svc_requests_total", "svc_abandoned_total")
    blind = max(
        (life.series(ERRORS, [entity]) for entity, signal in life.values if signal == ERRORS),
        key=lambda one: float(np.nanmax(one[1])),
    )
    stuck = life.truths["autoscaler-stuck"][1], life.spans("autoscaler-stuck")
    autoscaler = Panel("errors of an autoscaler (1/s)", {"": blind}, [stuck[0]], stuck[1], shown=(20, 38))
    return grid([_cut(refused, 4, 22), _cut(left, 4, 22), replace(autoscaler, from_zero=True)], 3)


def _cut(panel: Panel, begin: float, end: float) -> Panel:
    """Some minutes of it, with room for the legend between its lines."""
    lines = {
        label: (times[inside], values[inside])
        for label, (times, values) in panel.lines.items()
        if (inside := (times >= begin) & (times <= end)).any()
    }
    return replace(panel, lines=lines, legend="center right", from_zero=True)


FIGURES = {"demand": demand, "answers": answers}
