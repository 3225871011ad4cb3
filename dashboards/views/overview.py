"""Overview page: SLO status, open incidents, recent actions and the capacity plan of the fleet."""

from __future__ import annotations

from html import escape
from typing import Any

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from dashboards import session
from dashboards.client import ApiError
from dashboards.components import format as fmt
from dashboards.components import html
from dashboards.session import Viewer
from dashboards.views import remediation
from outrider.documents.summaries import word
from outrider.text.i18n import translate

_CARDS, _INCIDENTS, _ACTIONS, _FEW, _FINDINGS = 6, 4, 6, 2, 8


def page(viewer: Viewer, incident_page: StreamlitPage) -> None:
    """Draws the page and refreshes it."""
    session.refreshed(viewer, lambda viewer: _body(viewer, incident_page))


def _body(viewer: Viewer, incident_page: StreamlitPage) -> None:
    overview = viewer.client.get("/overview")
    st.html(html.head(headline(viewer, overview), as_of_line(viewer, overview)))
    warning, state = _warning(viewer, overview["monitoring"]), overview["monitoring"]["remediation"]
    remediation.draw_refusal()
    for note in [*([warning] if warning else []), *remediation.warnings(viewer, state, overview["as_of"])]:
        st.html(note)
    st.html(html.section(viewer.localize("overview.slo_status")))
    _services(viewer, overview)
    left, right = st.columns([6, 5], gap="medium")
    with left:
        st.html(html.section(viewer.localize("overview.broken")))
        with st.container(border=True, height="stretch", key="o-box-overview-1"):
            _incidents(viewer, overview, incident_page)
    with right:
        st.html(html.section(viewer.localize("overview.done")))
        with st.container(border=True, height="stretch", key="o-box-overview-2"):
            _actions(viewer, overview)
            remediation.pending(viewer, overview["pending"])
            remediation.controls(viewer, state)
    st.html(html.section(viewer.localize("overview.gpus")))
    st.html(html.card(_plan(viewer, overview)))
    _audit(viewer)


def _audit(viewer: Viewer) -> None:
    """Risks in workload manifests, most severe first; nothing without a Kubernetes API."""
    try:
        findings = viewer.client.get("/audit/workloads")["findings"]
    except ApiError:
        return  # this API has no change log
    if not findings:
        return
    heads = [(viewer.localize(f"overview.audit_{name}"), "") for name in ("severity", "workload", "found", "do")]
    rows = [
        (
            escape(translate(f"audit.severity.{finding['severity']}", viewer.language)),
            escape(f"{finding['namespace']}/{finding['workload']}"),
            escape(finding["found"]),
            escape(finding["do"]),
        )
        for finding in findings[:_FINDINGS]
    ]
    st.html(html.section(viewer.localize("overview.audit", n=len(findings))))
    st.html(html.card(html.table(heads, rows)))


def headline(viewer: Viewer, overview: dict[str, Any]) -> str:
    """The fleet's status in one sentence."""
    services = overview["services"]
    if overview["monitoring"]["cycle"] is None:
        return viewer.localize("overview.no_cycle")
    if not services:
        return viewer.localize("overview.no_service")
    counted = {
        status: sum(service["status"] == status for service in services) for status in ("broken", "at_risk", "ok")
    }
    if counted["broken"]:
        return viewer.localize("overview.some_broken", n=counted["broken"], total=len(services))
    if counted["at_risk"]:
        return viewer.localize("overview.some_at_risk", n=counted["at_risk"], total=len(services))
    if overview["monitoring"]["status"] == "broken":
        return viewer.localize("overview.blind", total=len(services))  # the last known status is not that of now
    if counted["ok"] == len(services):
        return viewer.localize("overview.all_ok", total=len(services))
    return viewer.localize("overview.some_unknown", n=len(services) - counted["ok"], total=len(services))


def as_of_line(viewer: Viewer, overview: dict[str, Any]) -> str:
    """Time of the data, and its scope."""
    monitoring, fleet = overview["monitoring"], overview["fleet"]
    if monitoring["cycle"] is None:
        return viewer.localize("overview.waiting")
    return viewer.localize(
        "overview.as_of",
        when=fmt.instant(overview["as_of"]).strftime("%Y-%m-%d %H:%M:%S UTC"),  # type: ignore[union-attr]
        up=monitoring["targets_up"],
        targets=monitoring["targets"],
        nodes=f"{fleet['node']:,}",
        gpus=f"{fleet['gpu']:,}",
        replicas=f"{fleet['replica']:,}",
    )


def _warning(viewer: Viewer, monitoring: dict[str, Any]) -> str:
    if monitoring["cycle"] is None:
        return ""
    if monitoring["status"] != "ok":
        down = monitoring["targets"] - monitoring["targets_up"]
        text = viewer.localize(f"monitoring.{monitoring['reason']}", n=down, total=monitoring["targets"])
        return html.note(text, viewer.localize("monitoring.hint"), away=monitoring["status"] == "broken")
    return ""


def _services(viewer: Viewer, overview: dict[str, Any]) -> None:
    services = overview["services"]
    if not services:
        st.html(html.card(html.empty(viewer.localize("overview.no_service_hint"))))
        return
    cards = "".join(service_card(viewer, service, overview["as_of"]) for service in services[:_CARDS])
    st.html(f'<div class="o-grid">{cards}</div>')
    if len(services) > _CARDS:
        st.html(html.card(_more_services(viewer, services[_CARDS:])))


def service_card(viewer: Viewer, service: dict[str, Any], as_of: str) -> str:
    """One service: status and reason, four measures with their targets, 24 hours as a strip."""
    name = service["service"]["name"]
    top = (
        f'<div class="o-row"><span class="o-name" title="{escape(name, quote=True)}">{escape(name)}</span>'
        f"{html.status_pill(service['status'], viewer.language)}</div>"
    )
    ends = f'<div class="o-row"><span class="o-label">{escape(viewer.localize("strip.start"))}</span>'
    ends += f'<span class="o-label">{escape(viewer.localize("strip.end"))}</span></div>'
    load = viewer.localize(
        "service.load",
        rate=fmt.number(service["requests_per_second"]),
        queue=fmt.number(service["queue_requests"], 0),
        ready=fmt.number(service["ready_replicas"], 0),
    )
    return html.card(
        top,
        html.label(_status_reason(viewer, service)),
        *degrade_lines(viewer, service),
        f'<div class="o-figures">{"".join(_figures(viewer, service))}</div>',
        f"<div>{html.strip(service['strip'], as_of, viewer.language)}{ends}</div>",
        *(_budget(viewer, slo) for slo in service["slos"]),
        html.label(load),
    )


def degrade_lines(viewer: Viewer, service: dict[str, Any]) -> list[str]:
    """The degrade level of a service and since when; nothing at level 0."""
    degrade = service.get("degrade")
    if not degrade:
        return []
    since = fmt.instant(degrade["since"])
    text = viewer.localize(
        "service.degraded",
        level=degrade["level"],
        name=word("degrade_level", degrade["name"], viewer.language),
        since=since.strftime("%H:%M UTC") if since else "?",
    )
    return [html.missed_line(text)]


def _status_reason(viewer: Viewer, service: dict[str, Any]) -> str:
    """The reason for the status of a service, with its value and limit."""
    ttft, calls = service["ttft_p99_seconds"], service["success_ratio"]
    return viewer.localize(
        f"standing.{service['reason']}",
        ttft=fmt.seconds(ttft["value"]),
        limit=fmt.seconds(ttft["limit"]),
        success=fmt.percent(calls["now"]),
        target=fmt.percent(calls["target"], 1),
    )


def _budget(viewer: Viewer, slo: dict[str, Any]) -> str:
    """Error budget left; marked if it burns or is exhausted."""
    days = f"{slo['window_seconds'] / 86400:g}"
    name = " ".join(filter(None, (slo["name"], slo["tenant"])))
    left = slo["budget_left"]
    if left is None:
        return html.label(viewer.localize("service.budget_unknown", name=name, days=days))
    text = viewer.localize("service.budget", name=name, left=fmt.percent(left, 0), days=days)
    if slo["burns"]:
        text += " · " + viewer.localize("service.budget_burns", priority=slo["burns"])
    return html.missed_line(text) if slo["burns"] or left <= 0 else html.label(text)


def _figures(viewer: Viewer, service: dict[str, Any]) -> list[str]:
    day, calls = service["availability"], service["success_ratio"]
    ttft, sla = service["ttft_p99_seconds"], service["sla_attainment"]

    def at_least(target: float) -> str:
        return viewer.localize("service.at_least", target=fmt.percent(target, 1))

    return [
        html.figure(
            viewer.localize("service.availability"),
            fmt.percent(day["day"]),
            viewer.localize(
                "service.availability_sources",
                target=at_least(day["target"]),
                requests=fmt.percent(day["requests"]["day"]),
                probe=fmt.percent(day["probe"]["day"]),
            ),
            missed=_under(day["day"], day["target"]),
        ),
        html.figure(
            viewer.localize("service.success"),
            fmt.percent(calls["now"]),
            at_least(calls["target"]),
            missed=_under(calls["now"], calls["target"]),
        ),
        html.figure(
            viewer.localize("service.ttft"),
            fmt.seconds(ttft["value"], below=ttft["below_first_bucket"]),
            viewer.localize("service.at_most", target=fmt.seconds(ttft["limit"])),
            missed=ttft["value"] is not None and ttft["value"] > ttft["limit"],
        ),
        html.figure(
            viewer.localize("service.sla", limit=fmt.seconds(sla["limit_seconds"])),
            _bounds(sla["low"], sla["high"]),
            at_least(sla["target"]),
            missed=_under(sla["high"], sla["target"]),
        ),
    ]


def _under(value: float | None, target: float) -> bool:
    return value is not None and value < target


def _bounds(low: float | None, high: float | None) -> str:
    """A measure between histogram bounds, as a range."""
    if low is None or high is None:
        return fmt.DASH
    shown = fmt.percent(low, 1), fmt.percent(high, 1)
    return shown[0] if shown[0] == shown[1] else f"{shown[0].removesuffix(' %')}–{shown[1]}"


def _more_services(viewer: Viewer, services: list[dict[str, Any]]) -> str:
    cells = [(viewer.localize(f"service.{name}"), "") for name in ("name", "status")]
    cells += [(viewer.localize(f"service.{name}"), "o-number") for name in ("availability", "success", "ttft")]
    return html.table(
        cells,
        [
            (
                escape(service["service"]["name"]),
                html.status_pill(service["status"], viewer.language),
                fmt.percent(service["availability"]["day"]),
                fmt.percent(service["success_ratio"]["now"]),
                escape(
                    fmt.seconds(
                        service["ttft_p99_seconds"]["value"], below=service["ttft_p99_seconds"]["below_first_bucket"]
                    )
                ),
            )
            for service in services
        ],
    )


def _incidents(viewer: Viewer, overview: dict[str, Any], incident_page: StreamlitPage) -> None:
    shown = overview["incidents"][:_INCIDENTS]
    if not shown:
        is_monitored = overview["monitoring"]["cycle"] is not None
        st.html(html.empty(viewer.localize("incidents.none" if is_monitored else "incidents.not_known")))
    for incident in shown:
        incident_row(viewer, incident, overview["as_of"], incident_page)
        if len(shown) <= _FEW and incident["evidence"]:
            lines = [escape(fmt.observation(evidence, viewer.language)) for evidence in incident["evidence"][:3]]
            st.html(html.label(viewer.localize("incident.speaks_for")) + html.bullets(lines))
    hidden = overview["incidents_open"] - len(shown)
    firing = overview["alerts_firing"]
    total = f"{firing['total']}+" if firing["at_least"] else str(firing["total"])
    about = viewer.localize(
        "incidents.alerts", total=total, p0=firing["by_priority"]["P0"], p1=firing["by_priority"]["P1"]
    )
    if hidden > 0:
        st.page_link(incident_page, label=viewer.localize("incidents.more", n=hidden))
    st.html(html.label(about))
    past = overview["incidents_resolved"][: _INCIDENTS - len(shown)]
    if past:
        st.html(html.label(viewer.localize("incidents.past")))
    for incident in past:
        incident_row(viewer, incident, overview["as_of"], incident_page)


def incident_row(viewer: Viewer, incident: dict[str, Any], as_of: str, incident_page: StreamlitPage) -> None:
    """One incident with a link to its page."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.html(html.incident_line(incident, as_of, viewer.language), width="stretch")
        st.page_link(incident_page, label=viewer.localize("incidents.open"), query_params={"incident": incident["id"]})


def _actions(viewer: Viewer, overview: dict[str, Any]) -> None:
    if not overview["actions"]:
        st.html(html.empty(viewer.localize("actions.none")))
        return
    st.html(html.actions_table(overview["actions"][:_ACTIONS], overview["as_of"], viewer.language))


def _plan(viewer: Viewer, overview: dict[str, Any]) -> str:
    plan = overview["plan"]
    if not plan:
        return html.empty(viewer.localize("plan.none"))
    numbers = ("replicas", "gpus", "cost")
    names = ("service", "gpu_type", "replicas", "gpus", "needed_by", "need_at", "cost", "reason")
    cells = [(viewer.localize(f"plan.{name}"), "o-number" if name in numbers else "") for name in names]
    return html.table(cells, [_plan_row(viewer, recommendation, overview["as_of"]) for recommendation in plan])


def _plan_row(viewer: Viewer, recommendation: dict[str, Any], as_of: str) -> tuple[str, ...]:
    reason = escape(recommendation["why"] or viewer.localize("plan.load_incident"))
    name = f"<b>{escape(recommendation['service'])}</b>"
    if recommendation["target_replicas"] is None:
        return (name, *(fmt.DASH,) * 6, reason)
    return (
        name,
        escape(recommendation["gpu_type"]),
        f"{recommendation['current_replicas']} → <b>{recommendation['target_replicas']}</b>",
        str(recommendation["gpus"]),
        escape(fmt.need_time(recommendation, "needed_by", as_of, viewer.language)),
        escape(fmt.need_time(recommendation, "need_at", as_of, viewer.language)),
        escape(fmt.money(recommendation["cost_per_hour"], recommendation["currency"])),
        reason,
    )
