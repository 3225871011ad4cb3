"""How many replicas and GPUs a service needs, by when, and the arithmetic behind it."""

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
_KEPT_HOURS = 24


def page(who: Viewer) -> None:
    """Draw the page, again and again."""
    session.refreshed(who, _body)


def _body(who: Viewer) -> None:
    plan = who.client.get("/plan")
    recommendations = plan["recommendations"]
    if not recommendations:
        st.html(html.head(who.say("capacity.none"), who.say("capacity.none_hint")))
        return
    title, picker = st.columns([5, 2], vertical_alignment="center")
    names = {each["entity"]["name"]: each for each in recommendations}
    chosen = picker.selectbox(
        who.say("capacity.service"), list(names), key="capacity_service", label_visibility="collapsed"
    )
    found = names[chosen or next(iter(names))]
    with title:
        st.html(html.head(headline(who, found), _below(who, found, plan["as_of"])))
    forecast = _forecast_of(who, found)
    left, right = st.columns([7, 3], gap="medium")
    with left.container(border=True, height="stretch", key="o-box-capacity-1"):
        _chart(who, forecast, found, plan["as_of"])
    with right.container(border=True, height="stretch", key="o-box-capacity-2"):
        st.html(figures(who, found, plan["as_of"]))
    st.html(html.section(who.say("capacity.looking_back")))
    with st.container(border=True, key="o-box-capacity-5"):
        st.html(looking_back(who, found, plan.get("looking_back")))
    left, right = st.columns([7, 3], gap="medium")
    with left:
        st.html(html.section(who.say("capacity.derivation")))
        with st.container(border=True, height="stretch", key="o-box-capacity-3"):
            st.html(derivation(who, found))
    with right:
        st.html(html.section(who.say("capacity.model")))
        with st.container(border=True, height="stretch", key="o-box-capacity-4"):
            st.html(model(who, forecast) + came(who, _kept(who, found)))


def headline(who: Viewer, found: dict[str, Any]) -> str:
    """The answer in one sentence."""
    name, now, wanted = found["service"], found["current_replicas"], found["target_replicas"]
    if wanted is None:
        return who.say("capacity.no_plan", service=name)
    key = "capacity.more" if wanted > now else "capacity.fewer" if wanted < now else "capacity.same"
    return who.say(key, service=name, now=now, target=wanted, gpus=found["gpus"])


def _below(who: Viewer, found: dict[str, Any], as_of: str) -> str:
    parts = [word("plan_reason", found["reason"], who.language)]
    if found.get("detail"):
        parts.append(found["detail"])
    if found["need_at"]:
        parts.append(who.say("capacity.need_at", when=fmt.when(found["need_at"], as_of, who.language)))
    if found["needed_by"]:
        parts.append(who.say("capacity.needed_by", when=fmt.when(found["needed_by"], as_of, who.language)))
    parts.append(who.say("capacity.made_at", when=fmt.when(found["made_at"], as_of, who.language)))
    return " · ".join(parts)


def _forecast_of(who: Viewer, found: dict[str, Any]) -> dict[str, Any] | None:
    every = who.client.get("/forecasts", history_hours=_HISTORY_HOURS)["forecasts"]
    return next((each for each in every if each["entity"] == found["entity"]), None)


def _chart(who: Viewer, forecast: dict[str, Any] | None, found: dict[str, Any], as_of: str) -> None:
    if forecast is None:
        st.html(html.empty(who.say("capacity.no_forecast")))
        return
    figure = charts.forecast(forecast, found, as_of, who.palette, who.language)
    st.plotly_chart(figure, theme=None, config=charts.CONFIG, key=f"forecast-{found['service']}")


def figures(who: Viewer, found: dict[str, Any], as_of: str) -> str:
    """Replicas now and then, GPUs, cost, limits and lead time."""
    if found["target_replicas"] is None:
        return html.empty(word("plan_reason", found["reason"], who.language))
    replicas = f"{found['current_replicas']} → {found['target_replicas']}"
    lead = found["lead_time_seconds"]
    rows = [
        (who.say("plan.gpus"), f"{found['gpus']} × {found['gpu_type']}"),
        *_nodes(who, found.get("nodes")),
        (who.say("plan.needed_by"), fmt.when(found["needed_by"], as_of, who.language)),
        (who.say("plan.need_at"), fmt.when(found["need_at"], as_of, who.language)),
        (who.say("capacity.lead"), fmt.DASH if lead is None else fmt.say_span(lead, who.language)),
        *_lead_parts(who, found["derivation"].get("lead")),
        (who.say("capacity.limits"), f"{found['floor']}–{found['ceiling']}"),
        (who.say("capacity.binding"), word("binding", found["binding"], who.language)),
        (who.say("plan.cost"), fmt.money(found["cost_per_hour"], found["currency"])),
        *_next_day(who, found["derivation"].get("next_24h"), as_of),
    ]
    body = "".join(
        f'<tr><td class="o-muted">{escape(name)}</td><td class="o-number">{escape(value)}</td></tr>'
        for name, value in rows
    )
    return (
        f'<div class="o-label">{escape(who.say("plan.replicas"))}</div><div class="o-big">{escape(replicas)}</div>'
        f'<table class="o-table o-facts"><tbody>{body}</tbody></table>'
    )


def _nodes(who: Viewer, nodes: dict[str, Any] | None) -> list[tuple[str, str]]:
    """Whole nodes for the target, where the size of a node is known."""
    if nodes is None:
        return []
    said = who.say("capacity.whole_nodes", n=nodes["nodes"], gpus=nodes["gpus"], idle=nodes["idle_gpus"])
    return [(who.say("capacity.nodes"), said)]


def _lead_parts(who: Viewer, lead: dict[str, Any] | None) -> list[tuple[str, str]]:
    """The phases of a start, where they were measured or a node is waited for."""
    parts = lead["parts"] if lead else []
    if not lead or len(parts) < 2:
        return [] if not lead else [(f"— {word('lead_source', lead['source'], who.language)}", "")]
    return [
        (f"— {word('start_phase', part['name'], who.language)}", fmt.say_span(part["seconds"], who.language))
        for part in parts
    ]


def looking_back(who: Viewer, found: dict[str, Any], kept: dict[str, Any] | None) -> str:
    """The last climb to a peak: when the plan starts replicas, and who would have waited without it."""
    known = [one for one in (kept or {}).get("services", ()) if one["entity"] == _key(found["entity"])]
    if not known:
        return html.empty(who.say("capacity.no_looking_back"))
    (one,) = known
    ways = (("with_plan", one["with_plan"]), ("reactive", one["without_forecast"]), ("held", one["without_starts"]))
    rows = [
        (who.say(f"capacity.way_{name}"), fmt.number(way["waited"], 0), fmt.number(way["replica_hours"], 0))
        for name, way in ways
    ]
    heads = [
        (who.say("capacity.way"), ""),
        (who.say("capacity.waited"), "o-number"),
        (who.say("capacity.replica_hours"), "o-number"),
    ]
    body = "".join(
        f'<tr><td>{escape(name)}</td><td class="o-number">{escape(waited)}</td>'
        f'<td class="o-number">{escape(hours)}</td></tr>'
        for name, waited, hours in rows
    )
    head = "".join(f'<th class="{kind}">{escape(text)}</th>' for text, kind in heads)
    table = f'<table class="o-table"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>'
    return f"<p>{escape(one['sentence'])}</p>{table}"


def _key(entity: dict[str, Any]) -> str:
    """An entity of the API as its key."""
    return EntityRef(entity["cluster"], EntityKind(entity["kind"]), entity["namespace"], entity["name"]).key


def _next_day(who: Viewer, day: dict[str, Any] | None, as_of: str) -> list[tuple[str, str]]:
    if not day:
        return []
    peak = f"{fmt.number(day['peak'])}/s, {fmt.clock(day['at'], as_of)}"
    return [
        (who.say("capacity.day_peak"), peak),
        (who.say("capacity.day_need"), who.say("capacity.day_replicas", n=day["replicas"], gpus=day["gpus"])),
    ]


def derivation(who: Viewer, found: dict[str, Any]) -> str:
    """The arithmetic, one step a line, as the planner printed it."""
    lines = found.get("derivation_lines") or found["derivation"].get("lines") or []
    if not lines:
        return html.empty(who.say("capacity.no_derivation"))
    return html.steps(lines) + _basis(who, found["derivation"].get("calibration"))


def _basis(who: Viewer, calibration: dict[str, Any] | None) -> str:
    if not calibration:
        return ""
    origin = word("origin", calibration["origin"], who.language)
    return html.label(who.say("capacity.basis", origin=origin, samples=fmt.number(calibration["samples"], 0)))


def _kept(who: Viewer, found: dict[str, Any]) -> list[dict[str, Any]]:
    entity = found["entity"]
    path = f"/forecasts/{quote(entity['namespace'] or '-', safe='')}/{quote(entity['name'], safe='')}/kept"
    horizons: list[dict[str, Any]] = who.client.get(path, hours=_KEPT_HOURS)["horizons"]
    return horizons


def came(who: Viewer, horizons: list[dict[str, Any]]) -> str:
    """Peaks of the last day against their forecasts, by how far ahead they were said; nothing before there are any."""
    rows = [
        (
            escape(fmt.say_span(each["horizon_seconds"], who.language)),
            *(escape(fmt.percent(each[name], 0)) for name in ("peak_error", "peak_exceeds_p95", "over_provision")),
        )
        for each in horizons
        if each["peak_exceeds_p95"] is not None
    ]
    if not rows:
        return ""
    names = ("ahead", "peak_error", "peak_exceeds", "over_provision")
    heads = [(who.say(f"capacity.{name}"), "o-number" if place else "") for place, name in enumerate(names)]
    return html.label(who.say("capacity.came", hours=_KEPT_HOURS)) + html.table(heads, rows)


def model(who: Viewer, forecast: dict[str, Any] | None) -> str:
    """Which model forecasts, why, and how well it did on history it had not seen."""
    if forecast is None:
        return html.empty(who.say("capacity.no_forecast"))
    score = forecast["score"]
    rows = [
        (who.say("capacity.model_name"), forecast["model"]),
        (who.say("capacity.wape"), fmt.percent(score["wape"], 1)),
        (who.say("capacity.wape_rival"), fmt.percent(score["wape_rival"], 1)),
        (who.say("capacity.pinball"), fmt.percent(score["pinball"], 1)),
        (who.say("capacity.peak_error"), fmt.percent(score["peak_error"], 1)),
        (who.say("capacity.coverage"), fmt.percent(score["coverage90"], 0)),
        (who.say("capacity.folds"), fmt.number(score["folds"], 0)),
    ]
    body = "".join(
        f'<tr><td class="o-muted">{escape(name)}</td><td class="o-number">{escape(value)}</td></tr>'
        for name, value in rows
    )
    why = html.label(forecast["why_model"]) if forecast["why_model"] else ""
    return f'<table class="o-table"><tbody>{body}</tbody></table>{why}'
