"""Plotly figures from the API's JSON: pure functions with one palette."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise
from typing import Any

import plotly.graph_objects as go

from dashboards.components import format as fmt
from dashboards.components.palette import Palette, theme
from outrider.documents.summaries import signal_name
from outrider.text.i18n import Language

EVIDENCE_HEIGHT, FORECAST_HEIGHT = 250, 420
_MOST_MARKERS = 12
CONFIG: dict[str, Any] = {"displayModeBar": False, "displaylogo": False, "scrollZoom": False}
_STATE_UNITS = ("bool", "state")


def evidence(chart: dict[str, Any], around: dict[str, Any], palette: Palette, language: Language) -> go.Figure:
    """One signal around an incident: the cause against the median of its peers, or the affected entities.

    ``chart`` is an entry of ``/incidents/{id}/evidence``, ``around`` the whole response.
    """
    figure = go.Figure()
    steps = chart["unit"] in (*_STATE_UNITS, "code", "count")
    colors = iter(palette.lines)
    for line in chart["series"]:
        peers = line["role"] == "peers"
        times, values = drop_empty_steps(chart["times"], line["values"])
        name = (
            fmt.localize("chart.peers", language, n=chart["peers"]) if peers else fmt.entity(line["entity"], language)
        )
        color = palette.muted if peers else next(colors, palette.muted)
        figure.add_trace(
            go.Scatter(
                x=times,
                y=values,
                name=name,
                mode="lines",
                line={
                    "color": color,
                    "width": 1.5 if peers else 2,
                    "dash": "dot" if peers else "solid",
                    "shape": "hv" if steps else "linear",
                },
                hovertemplate="%{y}<extra>" + _plain(name) + "</extra>",
            )
        )
    _frame(figure, palette, _title(chart, language), EVIDENCE_HEIGHT)
    figure.update_xaxes(range=[around["start"], around["end"]])
    _value_axis(figure, chart["unit"], language)
    _zoom_high_ratio(figure, chart)
    _shade(figure, around, palette, language)
    return figure


_WIDEST = 0.95


def forecast(
    series: dict[str, Any], plan: dict[str, Any] | None, as_of: str, palette: Palette, language: Language
) -> go.Figure:
    """History, the median forecast with its interval, and the marked times: now, start, need."""
    figure = go.Figure()
    # the bound used to plan replicas is beyond a displayed interval
    levels = sorted((level for level in series["quantiles"] if float(level) <= _WIDEST), key=float)
    if len(levels) > 1:
        _band(figure, series, levels, palette, language)
    history = series.get("history") or {"times": [], "values": []}
    times, values = drop_empty_steps(history["times"], history["values"])
    figure.add_trace(
        go.Scatter(
            x=times,
            y=values,
            name=fmt.localize("chart.history", language),
            mode="lines",
            line={"color": palette.muted, "width": 1.5},
            hovertemplate="%{y:.4~g}<extra>" + fmt.localize("chart.history", language) + "</extra>",
        )
    )
    if levels:
        middle = min(levels, key=lambda level: abs(float(level) - 0.5))
        figure.add_trace(
            go.Scatter(
                x=series["times"],
                y=series["quantiles"][middle],
                name=fmt.localize("chart.forecast", language),
                mode="lines",
                line={"color": palette.accent, "width": 2.2},
                hovertemplate="%{y:.4~g}<extra>" + fmt.localize("chart.forecast", language) + "</extra>",
            )
        )
    if "0.95" in series["quantiles"]:
        figure.add_trace(
            go.Scatter(
                x=series["times"],
                y=series["quantiles"]["0.95"],
                name=fmt.localize("chart.p95", language),
                mode="lines",
                line={"color": palette.accent, "width": 1.2, "dash": "dash"},
                hovertemplate="%{y:.4~g}<extra>" + fmt.localize("chart.p95", language) + "</extra>",
            )
        )
    if "0.95" in series.get("peaks", {}):
        figure.add_trace(
            go.Scatter(
                x=series["times"],
                y=series["peaks"]["0.95"],
                name=fmt.localize("chart.peak95", language),
                mode="lines",
                line={"color": palette.muted, "width": 1.2, "dash": "dot", "shape": "hv"},
                hovertemplate="%{y:.4~g}<extra>" + fmt.localize("chart.peak95", language) + "</extra>",
            )
        )
    if plan is not None:
        _capacity(figure, series, plan, palette, language)
    _frame(figure, palette, signal_name(series["signal"], language), FORECAST_HEIGHT)
    figure.update_xaxes(tickformat="%H:%M\n%m-%d")
    _value_axis(figure, series.get("unit", ""), language)
    marks = [(as_of, fmt.localize("chart.now", language), palette.muted)]
    if plan and plan.get("needed_by"):
        word = fmt.localize("chart.needed_by", language, time=fmt.clock(plan["needed_by"], as_of))
        marks.append((plan["needed_by"], word, palette.at_risk))
    if plan and plan.get("need_at"):
        word = fmt.localize("chart.need_at", language, time=fmt.clock(plan["need_at"], as_of))
        marks.append((plan["need_at"], word, palette.broken))
    _marks(figure, marks)
    return figure


def drop_empty_steps(times: list[str], values: list[float | None]) -> tuple[list[str], list[float | None]]:
    """Drops empty steps between values that are sparser than the grid; real gaps stay open."""
    known = [index for index, value in enumerate(values) if value is not None]
    spacings = sorted(after - before for before, after in pairwise(known))
    if not spacings:
        return times, values
    longest = 2 * spacings[len(spacings) // 2]
    indices = []
    for before, after in pairwise(known):
        indices += [before] if after - before <= longest else [before, before + 1]
    indices.append(known[-1])
    return [times[index] for index in indices], [values[index] for index in indices]


def _band(figure: go.Figure, series: dict[str, Any], levels: list[str], palette: Palette, language: Language) -> None:
    low, high = levels[0], levels[-1]
    share = round((float(high) - float(low)) * 100)
    name = fmt.localize("chart.interval", language, share=share)
    edge = {"color": "rgba(0,0,0,0)", "width": 0}
    figure.add_trace(
        go.Scatter(
            x=series["times"], y=series["quantiles"][low], mode="lines", line=edge, showlegend=False, hoverinfo="skip"
        )
    )
    figure.add_trace(
        go.Scatter(
            x=series["times"],
            y=series["quantiles"][high],
            name=name,
            mode="lines",
            line=edge,
            fill="tonexty",
            fillcolor=palette.faint(palette.accent, 0.18),
            hoverinfo="skip",
        )
    )


def _capacity(
    figure: go.Figure, series: dict[str, Any], plan: dict[str, Any], palette: Palette, language: Language
) -> None:
    """Horizontal lines: the load served by the current and the planned replicas, with their buffer."""
    carries = plan.get("carries") or {}
    history = (series.get("history") or {}).get("times") or series["times"]
    colors = {"target": palette.ok, "current": palette.at_risk, "floor": palette.muted}
    names = ["current"] if plan["current_replicas"] == plan["target_replicas"] else ["current", "target"]
    for name in [*names, "floor"]:
        level = carries.get(name)
        if level is None or not series["times"]:
            continue
        figure.add_trace(
            go.Scatter(
                x=[history[0], series["times"][-1]],
                y=[level, level],
                name=fmt.localize(f"chart.carries_{name}", language, n=_replicas(plan, name), rate=fmt.number(level)),
                mode="lines",
                line={"color": colors[name], "width": 1.5, "dash": "dot"},
                hoverinfo="skip",
            )
        )


def _replicas(plan: dict[str, Any], name: str) -> int:
    return int(plan["floor" if name == "floor" else f"{name}_replicas"])


def _frame(figure: go.Figure, palette: Palette, title: str, height: int) -> None:
    """Common layout of all figures. ``uirevision`` keeps the zoom across refreshes."""
    figure.update_layout(
        height=height,
        margin={"l": 56, "r": 16, "t": 44, "b": 62 if len(figure.data) > 1 else 34},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"color": palette.text, "size": 12, "family": theme()["font"]},
        title={
            "text": _plain(title),
            "x": 0.01,
            "xref": "container",
            "xanchor": "left",
            "y": 0.97,
            "yanchor": "top",
            "font": {"size": 14, "color": palette.text},
        },
        hovermode="x unified",
        hoverlabel={"bgcolor": palette.card, "bordercolor": palette.line, "font": {"color": palette.text}},
        showlegend=len(figure.data) > 1,
        legend={
            "orientation": "h",
            "x": 0,
            "xanchor": "left",
            "yref": "container",
            "y": 0.02,
            "yanchor": "bottom",
            "font": {"size": 11.5, "color": palette.muted},
            "itemclick": False,
            "itemdoubleclick": False,
        },
        uirevision="keep",
        dragmode="zoom",
    )
    axis = {
        "gridcolor": palette.line,
        "linecolor": palette.line,
        "zeroline": False,
        "tickfont": {"size": 11.5, "color": palette.muted},
        "automargin": True,
    }
    figure.update_xaxes(
        type="date",
        showgrid=False,
        ticks="outside",
        tickcolor=palette.line,
        hoverformat="%m-%d %H:%M:%S UTC",
        tickformat="%H:%M",
        **axis,
    )
    figure.update_yaxes(nticks=5, rangemode="tozero", **axis)


def _value_axis(figure: go.Figure, unit: str, language: Language) -> None:
    if unit in _STATE_UNITS:
        words = [fmt.localize("chart.no", language), fmt.localize("chart.yes", language)]
        figure.update_yaxes(range=[-0.08, 1.15], tickvals=[0, 1], ticktext=words)
    elif unit == "ratio":
        figure.update_yaxes(tickformat=".4~%", hoverformat=".4~%")
    elif unit == "hertz":
        figure.update_yaxes(tickformat=".3~s", ticksuffix="Hz")
    else:
        figure.update_yaxes(tickformat=".4~g", hoverformat=".4~g", ticksuffix=_SUFFIX.get(unit, ""))


def _zoom_high_ratio(figure: go.Figure, chart: dict[str, Any]) -> None:
    """Zooms a ratio that is always near 1: on an axis from zero, 97 % and 100 % look the same."""
    values = [value for line in chart["series"] for value in line["values"] if value is not None]
    lowest = min(values, default=0.0)
    if chart["unit"] == "ratio" and chart.get("good") == "higher" and lowest >= 0.8:
        room = max(1.0 - lowest, 0.002)
        figure.update_yaxes(range=[lowest - 0.4 * room, 1 + 0.15 * room], rangemode="normal")


_SUFFIX = {
    "seconds": " s",
    "celsius": " °C",
    "watts": " W",
    "per_second": "/s",
    "tokens_per_second": " tok/s",
    "bytes": " B",
}


def _shade(figure: go.Figure, around: dict[str, Any], palette: Palette, language: Language) -> None:
    end = around["resolved_at"] or around["end"]
    figure.add_vrect(
        x0=around["opened_at"], x1=end, fillcolor=palette.faint(palette.broken, 0.09), line_width=0, layer="below"
    )
    begins, opened, ends = (_time(around[name]) for name in ("start", "opened_at", "end"))
    late = (ends - opened) < (ends - begins) * 0.15
    mark = (around["opened_at"], fmt.localize("chart.opened", language), palette.broken)
    _marks(figure, [mark], leftwards=late)
    _changes(figure, around.get("changes") or [], palette, language)


def _changes(figure: go.Figure, changes: list[dict[str, Any]], palette: Palette, language: Language) -> None:
    """Change markers: a dotted line each, with the change and its actor as hover text at its foot."""
    for change in changes[-_MOST_MARKERS:]:
        figure.add_shape(
            type="line",
            x0=change["at"],
            x1=change["at"],
            y0=0,
            y1=1,
            yref="paper",
            layer="below",
            line={"color": palette.accent, "width": 1.2, "dash": "dot"},
        )
        actor = change["actor"] or fmt.localize("chart.nobody_known", language)
        words = fmt.localize("chart.changed", language, code=change["code"], who=actor)
        values = [part for part in (change["before"], change["after"]) if part]
        figure.add_annotation(
            x=change["at"],
            y=0,
            yref="paper",
            yanchor="bottom",
            xanchor="left",
            showarrow=False,
            text=_plain(change["code"]),
            hovertext=_plain(" → ".join([words, *values])[:200]),
            font={"size": 10.5, "color": palette.accent},
        )


def _marks(figure: go.Figure, marks: list[tuple[str, str, str]], *, leftwards: bool = False) -> None:
    """Vertical lines with labels above the plot, each on its own row, so that no value is hidden."""
    latest_first = sorted(marks, key=lambda mark: _time(mark[0]), reverse=True)
    for row, (at, word, color) in enumerate(latest_first):
        figure.add_shape(
            type="line", x0=at, x1=at, y0=0, y1=1, yref="paper", line={"color": color, "width": 1.3, "dash": "dash"}
        )
        figure.add_annotation(
            x=at,
            y=1,
            yref="paper",
            yshift=1 + 15 * row,
            text=_plain(word),
            showarrow=False,
            xanchor="right" if leftwards else "left",
            yanchor="bottom",
            font={"size": 11.5, "color": color},
        )
    figure.update_layout(margin_t=44 + 15 * (len(marks) - 1))


def _title(chart: dict[str, Any], language: Language) -> str:
    name = signal_name(chart["signal"], language)
    if chart["quantile"] is None:
        return name
    return f"{name}, P{chart['quantile'] * 100:g}"


def _time(text: str) -> datetime:
    at = fmt.instant(text)
    assert at is not None
    return at


def _plain(text: str) -> str:
    """Escapes text: Plotly interprets some HTML, and names from the fleet must not become markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
