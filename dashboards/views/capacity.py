"""Capacity page: replicas and GPUs needed by each service, their deadline, and the derivation."""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import quote

import streamlit as st

from dashboards import session
from dashboards.components import charts, html
from dashboards.components import format as fmt
from dashboards.session import Viewer
from outrider.documents.summaries import word
from outrider.model import EntityKind, EntityRef

_HISTORY_HOURS = 24
_ACCURACY_HOURS = 24


def page(viewer: Viewer) -> None:
    """Draws the page and refreshes it."""
    session.refreshed(viewer, _body)


def _body(viewer: Viewer) -> None:
    plan = viewer.client.get("/plan")
    recommendations = plan["recommendations"]
    if not recommendations:
        st.html(html.head(viewer.localize("capacity.none"), viewer.localize("capacity.none_hint")))
        return
    title, picker = st.columns([5, 2], vertical_alignment="center")
    names = {entry["entity"]["name"]: entry for entry in recommendations}
    chosen = picker.selectbox(
        viewer.localize("capacity.service"), list(names), key="capacity_service", label_visibility="collapsed"
    )
    recommendation = names[chosen or next(iter(names))]
    with title:
        st.html(html.head(recommendation["sentence"], below(viewer, recommendation, plan["as_of"])))
    _incidents(viewer, recommendation, plan["as_of"])
    forecast = _forecast_of(viewer, recommendation)
    left, right = st.columns([7, 3], gap="medium")
    with left.container(border=True, height="stretch", key="o-box-capacity-1"):
        _chart(viewer, forecast, recommendation, plan["as_of"])
    with right.container(border=True, height="stretch", key="o-box-capacity-2"):
        st.html(figures(viewer, recommendation, plan["as_of"]))
    st.html(html.section(viewer.localize("capacity.looking_back")))
    with st.container(border=True, key="o-box-capacity-5"):
        st.html(hindsight_table(viewer, recommendation, plan.get("looking_back")))
    left, right = st.columns([7, 3], gap="medium")
    with left:
        st.html(html.section(viewer.localize("capacity.derivation")))
        with st.container(border=True, height="stretch", key="o-box-capacity-3"):
            st.html(derivation(viewer, recommendation))
    with right:
        st.html(html.section(viewer.localize("capacity.model")))
        with st.container(border=True, height="stretch", key="o-box-capacity-4"):
            st.html(model(viewer, forecast) + accuracy_table(viewer, _forecast_accuracy(viewer, recommendation)))


def _incidents(viewer: Viewer, recommendation: dict[str, Any], as_of: str) -> None:
    """Open incidents of the service: the plan is read together with them."""
    incidents = recommendation.get("incidents") or []
    if incidents:
        lines = "".join(html.incident_line(incident, as_of, viewer.language) for incident in incidents)
        st.html(html.card(html.label(viewer.localize("capacity.incidents")), lines))


def below(viewer: Viewer, recommendation: dict[str, Any], as_of: str) -> str:
    """The reason of the plan unless the headline has it, and its time. The times of a need are in the figures."""
    why = recommendation["why"] or ""
    parts = ["" if why in recommendation["sentence"] else why, recommendation.get("detail")]
    reasons = recommendation["derivation"].get("replanned")
    if reasons:
        why = ", ".join(word("replan_reason", reason, viewer.language) for reason in reasons)
        parts.append(viewer.localize("capacity.replanned", why=why))
    parts.append(viewer.localize("capacity.made_at", when=fmt.when(recommendation["made_at"], as_of, viewer.language)))
    return " · ".join(filter(None, parts))


def _forecast_of(viewer: Viewer, recommendation: dict[str, Any]) -> dict[str, Any] | None:
    forecasts = viewer.client.get("/forecasts", history_hours=_HISTORY_HOURS)["forecasts"]
    return next((forecast for forecast in forecasts if forecast["entity"] == recommendation["entity"]), None)


def _chart(viewer: Viewer, forecast: dict[str, Any] | None, recommendation: dict[str, Any], as_of: str) -> None:
    if forecast is None:
        st.html(html.empty(viewer.localize("capacity.no_forecast")))
        return
    figure = charts.forecast(forecast, recommendation, as_of, viewer.palette, viewer.language)
    st.plotly_chart(figure, theme=None, config=charts.CONFIG, key=f"forecast-{recommendation['service']}")


def figures(viewer: Viewer, recommendation: dict[str, Any], as_of: str) -> str:
    """Current and planned replicas, GPUs, cost, limits and lead time."""
    if recommendation["target_replicas"] is None:
        return html.empty(word("plan_reason", recommendation["reason"], viewer.language))
    replicas = f"{recommendation['current_replicas']} → {recommendation['target_replicas']}"
    lead = recommendation["lead_time_seconds"]
    rows = [
        (viewer.localize("plan.gpus"), f"{recommendation['gpus']} × {recommendation['gpu_type']}"),
        *_nodes(viewer, recommendation.get("nodes")),
        (viewer.localize("plan.needed_by"), fmt.need_time(recommendation, "needed_by", as_of, viewer.language)),
        (viewer.localize("plan.need_at"), fmt.need_time(recommendation, "need_at", as_of, viewer.language)),
        (viewer.localize("capacity.lead"), fmt.DASH if lead is None else fmt.seconds_span(lead, viewer.language)),
        *_lead_parts(viewer, recommendation["derivation"].get("lead")),
        (viewer.localize("capacity.limits"), f"{recommendation['floor']}–{recommendation['ceiling']}"),
        (viewer.localize("capacity.binding"), word("binding", recommendation["binding"], viewer.language)),
        (viewer.localize("plan.cost"), fmt.money(recommendation["cost_per_hour"], recommendation["currency"])),
        *_next_day(viewer, recommendation["derivation"].get("next_24h"), as_of),
    ]
    body = "".join(
        f'<tr><td class="o-muted">{escape(name)}</td><td class="o-number">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return (
        f'<div class="o-label">{escape(viewer.localize("plan.replicas"))}</div>'
        f'<div class="o-big">{escape(replicas)}</div>'
        f'<table class="o-table o-facts"><tbody>{body}</tbody></table>'
    )


def _nodes(viewer: Viewer, nodes: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Whole nodes for the target, if the size of a node is known."""
    if nodes is None:
        return []
    text = viewer.localize("capacity.whole_nodes", n=nodes["nodes"], gpus=nodes["gpus"], idle=nodes["idle_gpus"])
    return [(viewer.localize("capacity.nodes"), text)]


def _lead_parts(viewer: Viewer, lead: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Phases of a start if they were measured or a node must be provisioned."""
    parts = lead["parts"] if lead else []
    if not lead or len(parts) < 2:
        return [] if not lead else [(f"— {word('lead_source', lead['source'], viewer.language)}", "")]
    return [
        (f"— {word('start_phase', part['name'], viewer.language)}", fmt.seconds_span(part["seconds"], viewer.language))
        for part in parts
    ]


def hindsight_table(viewer: Viewer, recommendation: dict[str, Any], hindsight: dict[str, Any] | None) -> str:
    """The last climb to a peak: first start of the plan, and waiting requests with and without it."""
    known = [
        result for result in (hindsight or {}).get("services", ()) if result["entity"] == _key(recommendation["entity"])
    ]
    if not known:
        return html.empty(viewer.localize("capacity.no_looking_back"))
    (result,) = known
    outcomes = (
        ("with_plan", result["with_plan"]),
        ("reactive", result["without_forecast"]),
        ("held", result["without_starts"]),
    )
    rows = [
        (
            viewer.localize(f"capacity.way_{name}"),
            fmt.number(outcome["waited"], 0),
            fmt.number(outcome["replica_hours"], 0),
        )
        for name, outcome in outcomes
    ]
    heads = [
        (viewer.localize("capacity.way"), ""),
        (viewer.localize("capacity.waited"), "o-number"),
        (viewer.localize("capacity.replica_hours"), "o-number"),
    ]
    body = "".join(
        f'<tr><td>{escape(name)}</td><td class="o-number">{escape(waited)}</td>'
        f'<td class="o-number">{escape(hours)}</td></tr>'
        for name, waited, hours in rows
    )
    head = "".join(f'<th class="{kind}">{escape(text)}</th>' for text, kind in heads)
    table = f'<table class="o-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f"<p>{escape(result['sentence'])}</p>{table}"


def _key(entity: dict[str, Any]) -> str:
    """Key of an entity of the API."""
    return EntityRef(entity["cluster"], EntityKind(entity["kind"]), entity["namespace"], entity["name"]).key


def _next_day(viewer: Viewer, day: dict[str, Any] | None, as_of: str) -> list[tuple[str, str]]:
    if not day:
        return []
    peak = f"{fmt.number(day['peak'])}/s, {fmt.clock(day['at'], as_of)}"
    return [
        (viewer.localize("capacity.day_peak"), peak),
        (
            viewer.localize("capacity.day_need"),
            viewer.localize("capacity.day_replicas", n=day["replicas"], gpus=day["gpus"]),
        ),
    ]


def derivation(viewer: Viewer, recommendation: dict[str, Any]) -> str:
    """The derivation, one step a line, as printed by the planner."""
    lines = recommendation.get("derivation_lines") or recommendation["derivation"].get("lines") or []
    if not lines:
        return html.empty(viewer.localize("capacity.no_derivation"))
    return html.steps(lines) + _basis(viewer, recommendation["derivation"].get("calibration"))


def _basis(viewer: Viewer, calibration: dict[str, Any] | None) -> str:
    if not calibration:
        return ""
    origin = word("origin", calibration["origin"], viewer.language)
    return html.label(viewer.localize("capacity.basis", origin=origin, samples=fmt.number(calibration["samples"], 0)))


def _forecast_accuracy(viewer: Viewer, recommendation: dict[str, Any]) -> list[dict[str, Any]]:
    entity = recommendation["entity"]
    path = f"/forecasts/{quote(entity['namespace'] or '-', safe='')}/{quote(entity['name'], safe='')}/kept"
    horizons: list[dict[str, Any]] = viewer.client.get(path, hours=_ACCURACY_HOURS)["horizons"]
    return horizons


def accuracy_table(viewer: Viewer, horizons: list[dict[str, Any]]) -> str:
    """Observed peaks of the last day against their forecasts, by horizon; empty without any."""
    rows = [
        (
            escape(fmt.seconds_span(horizon["horizon_seconds"], viewer.language)),
            *(escape(fmt.percent(horizon[name], 0)) for name in ("peak_error", "peak_exceeds_p95", "over_provision")),
        )
        for horizon in horizons
        if horizon["peak_exceeds_p95"] is not None
    ]
    if not rows:
        return ""
    names = ("ahead", "peak_error", "peak_exceeds", "over_provision")
    heads = [
        (viewer.localize(f"capacity.{name}"), "o-number" if position else "") for position, name in enumerate(names)
    ]
    return html.label(viewer.localize("capacity.came", hours=_ACCURACY_HOURS)) + html.table(heads, rows)


def model(viewer: Viewer, forecast: dict[str, Any] | None) -> str:
    """The forecast model, its reasons, and its accuracy on unseen history."""
    if forecast is None:
        return html.empty(viewer.localize("capacity.no_forecast"))
    score = forecast["score"]
    rows = [
        (viewer.localize("capacity.model_name"), forecast["model"]),
        (viewer.localize("capacity.wape"), fmt.percent(score["wape"], 1)),
        (viewer.localize("capacity.wape_rival"), fmt.percent(score["wape_rival"], 1)),
        (viewer.localize("capacity.pinball"), fmt.percent(score["pinball"], 1)),
        (viewer.localize("capacity.peak_error"), fmt.percent(score["peak_error"], 1)),
        (viewer.localize("capacity.coverage"), fmt.percent(score["coverage90"], 0)),
        (viewer.localize("capacity.folds"), fmt.number(score["folds"], 0)),
    ]
    body = "".join(
        f'<tr><td class="o-muted">{escape(name)}</td><td class="o-number">{escape(value)}</td></tr>'
        for name, value in rows
    )
    reason = html.label(forecast["why_model"]) if forecast["why_model"] else ""
    return f'<table class="o-table"><tbody>{body}</tbody></table>{reason}'
