"""Figures are pure functions of the API's JSON."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dashboards.components import charts
from dashboards.components.palette import palette

GPU = {"cluster": "lab", "kind": "gpu", "namespace": None, "name": "GPU-<b>1</b>"}
AROUND = {
    "start": "2026-05-04T12:30:00Z",
    "end": "2026-05-04T13:07:00Z",
    "opened_at": "2026-05-04T12:59:00Z",
    "resolved_at": None,
}
TIMES = [f"2026-05-04T12:3{minute}:00Z" for minute in range(10)]


def chart(values, *, unit="celsius", good="lower", peers=0):
    series = [{"entity": GPU, "role": "cause", "values": values}]
    if peers:
        series.append({"entity": None, "role": "peers", "values": [40.0] * len(values)})
    return {
        "signal": "hw_accel_temperature_celsius",
        "quantile": None,
        "unit": unit,
        "good": good,
        "times": TIMES[: len(values)],
        "peers": peers,
        "series": series,
    }


FORECAST = {
    "signal": "svc_requests_per_second",
    "unit": "per_second",
    "times": ["2026-05-04T13:10:00Z", "2026-05-04T13:20:00Z"],
    "quantiles": {"0.05": [1.0, 2.0], "0.5": [2.0, 3.0], "0.95": [3.0, 4.0]},
    "history": {"times": TIMES, "values": [1.0] * 10},
}
PLAN = {
    "current_replicas": 8,
    "target_replicas": 11,
    "needed_by": "2026-05-04T13:11:00Z",
    "need_at": "2026-05-04T13:17:00Z",
    "carries": {"current": 48.0, "target": 66.0},
}


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_evidence_uses_the_palette_and_separates_the_cause_from_its_peers(theme):
    colors = palette(theme)
    figure = charts.evidence(chart([50.0] * 10, peers=63), AROUND, colors, "en")
    cause, peers = figure.data
    assert cause.line.color == colors.lines[0]
    assert (peers.line.color, peers.line.dash) == (colors.muted, "dot")
    assert peers.name == "median of 63 peers"
    assert figure.layout.font.color == colors.text
    assert figure.layout.showlegend
    assert figure.layout.annotations[0].text == "opened"


def test_names_are_escaped_in_hovers():
    figure = charts.evidence(chart([1.0, 2.0]), AROUND, palette("light"), "en")
    assert "<b>" not in figure.data[0].hovertemplate.replace("<extra>", "")


def test_states_are_steps_between_no_and_yes():
    figure = charts.evidence(chart([1.0, 0.0], unit="bool", good="higher"), AROUND, palette("light"), "zh")
    assert figure.data[0].line.shape == "hv"
    assert list(figure.layout.yaxis.ticktext) == ["否", "是"]


def test_the_axis_of_a_ratio_near_one_is_zoomed():
    near = charts.evidence(chart([1.0, 0.979], unit="ratio", good="higher"), AROUND, palette("light"), "en")
    assert near.layout.yaxis.range[0] > 0.95
    far = charts.evidence(chart([1.0, 0.2], unit="ratio", good="higher"), AROUND, palette("light"), "en")
    assert far.layout.yaxis.range is None


def test_forecast_has_band_history_level_lines_and_marks():
    figure = charts.forecast(FORECAST, PLAN, "2026-05-04T13:07:30Z", palette("dark"), "en")
    names = [trace.name for trace in figure.data if trace.name]
    assert names == [
        "90 % interval",
        "measured",
        "forecast",
        "forecast P95",
        "8 replicas carry 48/s (running)",
        "11 replicas carry 66/s (plan)",
    ]
    words = [mark.text for mark in figure.layout.annotations]
    assert words == ["needed from 13:17 UTC", "start by 13:11 UTC", "now"]
    assert len({mark.yshift for mark in figure.layout.annotations}) == 3


def test_forecast_without_plan_history_or_interval_is_drawn():
    bare = {**FORECAST, "quantiles": {"0.5": [2.0, 3.0]}, "history": {"times": [], "values": []}}
    figure = charts.forecast(bare, None, "2026-05-04T13:07:30Z", palette("light"), "en")
    assert [trace.name for trace in figure.data] == ["measured", "forecast"]
    without = {**PLAN, "carries": {"current": None, "target": None}, "need_at": None, "needed_by": None}
    assert len(charts.forecast(bare, without, "2026-05-04T13:07:30Z", palette("light"), "en").data) == 2


def test_empty_steps_are_dropped_and_real_gaps_stay_open():
    values = [1.0, None, 2.0, None, 3.0, None, None, None, None, 4.0]
    times, kept = charts.drop_empty_steps(TIMES, values)
    assert kept == [1.0, 2.0, 3.0, None, 4.0]
    assert times == [TIMES[0], TIMES[2], TIMES[4], TIMES[5], TIMES[9]]


@given(st.lists(st.none() | st.floats(0, 9), max_size=10))
def test_dropping_empty_steps_keeps_every_value(values):
    times, kept = charts.drop_empty_steps(TIMES[: len(values)], values)
    assert len(times) == len(kept)
    assert [value for value in kept if value is not None] == [value for value in values if value is not None]


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_chart_of_an_incident_has_change_markers(theme):
    change = {"at": TIMES[4], "code": "flags", "actor": "ada", "before": "a=1", "after": "a=<2>"}
    around = {**AROUND, "changes": [change, {**change, "actor": None, "before": None}]}
    figure = charts.evidence(chart([50.0] * 10), around, palette(theme), "en")
    marks = [one.hovertext for one in figure.layout.annotations if one.text == "flags"]
    assert marks == ["flags, changed by ada → a=1 → a=&lt;2&gt;", "flags, changed by unknown actor → a=&lt;2&gt;"]
    assert sum(one.line.dash == "dot" for one in figure.layout.shapes) == 2
