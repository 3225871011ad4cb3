"""The fleet on one page: is the promise kept, what is broken, how many GPUs when, what was done."""

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
from outrider.documents.summaries import word
from outrider.text.i18n import translate

_CARDS, _INCIDENTS, _ACTIONS, _FEW, _FINDINGS = 6, 4, 6, 2, 8


def page(who: Viewer, incident_page: StreamlitPage) -> None:
    """Draw the page, again and again."""
    session.refreshed(who, lambda viewer: _body(viewer, incident_page))


def _body(who: Viewer, incident_page: StreamlitPage) -> None:
    found = who.client.get("/overview")
    st.html(html.head(headline(who, found), as_of_line(who, found)))
    warning = _warning(who, found["monitoring"])
    if warning:
        st.html(warning)
    st.html(html.section(who.say("overview.promise")))
    _services(who, found)
    left, right = st.columns([6, 5], gap="medium")
    with left:
        st.html(html.section(who.say("overview.broken")))
        with st.container(border=True, height="stretch", key="o-box-overview-1"):
            _incidents(who, found, incident_page)
    with right:
        st.html(html.section(who.say("overview.done")))
        with st.container(border=True, height="stretch", key="o-box-overview-2"):
            _actions(who, found)
    st.html(html.section(who.say("overview.gpus")))
    st.html(html.card(_plan(who, found)))
    _audit(who)


def _audit(who: Viewer) -> None:
    """What is unwise about workloads, the gravest first; nothing where no Kubernetes API is read."""
    try:
        findings = who.client.get("/audit/workloads")["findings"]
    except ApiError:
        return  # this API keeps no ledger
    if not findings:
        return
    heads = [(who.say(f"overview.audit_{name}"), "") for name in ("severity", "workload", "found", "do")]
    rows = [
        (
            escape(translate(f"audit.severity.{one['severity']}", who.language)),
            escape(f"{one['namespace']}/{one['workload']}"),
            escape(one["found"]),
            escape(one["do"]),
        )
        for one in findings[:_FINDINGS]
    ]
    st.html(html.section(who.say("overview.audit", n=len(findings))))
    st.html(html.card(html.table(heads, rows)))


def headline(who: Viewer, found: dict[str, Any]) -> str:
    """The first answer in one sentence."""
    services = found["services"]
    if found["monitoring"]["cycle"] is None:
        return who.say("overview.no_cycle")
    if not services:
        return who.say("overview.no_service")
    counted = {status: sum(each["status"] == status for each in services) for status in ("broken", "at_risk", "ok")}
    if counted["broken"]:
        return who.say("overview.some_broken", n=counted["broken"], total=len(services))
    if counted["at_risk"]:
        return who.say("overview.some_at_risk", n=counted["at_risk"], total=len(services))
    if counted["ok"] == len(services):
        return who.say("overview.all_ok", total=len(services))
    return who.say("overview.some_unknown", n=len(services) - counted["ok"], total=len(services))


def as_of_line(who: Viewer, found: dict[str, Any]) -> str:
    """How fresh all of this is, and what it is about."""
    monitoring, fleet = found["monitoring"], found["fleet"]
    if monitoring["cycle"] is None:
        return who.say("overview.waiting")
    return who.say(
        "overview.as_of",
        when=fmt.instant(found["as_of"]).strftime("%Y-%m-%d %H:%M:%S UTC"),  # type: ignore[union-attr]
        up=monitoring["targets_up"],
        targets=monitoring["targets"],
        nodes=f"{fleet['node']:,}",
        gpus=f"{fleet['gpu']:,}",
        replicas=f"{fleet['replica']:,}",
    )


def _warning(who: Viewer, monitoring: dict[str, Any]) -> str:
    if monitoring["cycle"] is None:
        return ""
    if monitoring["status"] != "ok":
        down = monitoring["targets"] - monitoring["targets_up"]
        text = who.say(f"monitoring.{monitoring['reason']}", n=down, total=monitoring["targets"])
        return html.note(text, who.say("monitoring.hint"), away=monitoring["status"] == "broken")
    return html.note(who.say("monitoring.paused")) if monitoring["remediation_paused"] else ""


def _services(who: Viewer, found: dict[str, Any]) -> None:
    services = found["services"]
    if not services:
        st.html(html.card(html.empty(who.say("overview.no_service_hint"))))
        return
    cards = "".join(service_card(who, each, found["as_of"]) for each in services[:_CARDS])
    st.html(f'<div class="o-grid">{cards}</div>')
    if len(services) > _CARDS:
        st.html(html.card(_more_services(who, services[_CARDS:])))


def service_card(who: Viewer, service: dict[str, Any], as_of: str) -> str:
    """One service: verdict and why, four measures with their targets, 24 hours as a strip."""
    name = service["service"]["name"]
    top = (
        f'<div class="o-row"><span class="o-name" title="{escape(name, quote=True)}">{escape(name)}</span>'
        f"{html.status_pill(service['status'], who.language)}</div>"
    )
    ends = f'<div class="o-row"><span class="o-label">{escape(who.say("strip.start"))}</span>'
    ends += f'<span class="o-label">{escape(who.say("strip.end"))}</span></div>'
    load = who.say(
        "service.load",
        rate=fmt.number(service["requests_per_second"]),
        queue=fmt.number(service["queue_requests"], 0),
        ready=fmt.number(service["ready_replicas"], 0),
    )
    return html.card(
        top,
        html.label(who.say(f"standing.{service['reason']}")),
        f'<div class="o-figures">{"".join(_figures(who, service))}</div>',
        f"<div>{html.strip(service['strip'], as_of, who.language)}{ends}</div>",
        *(_budget(who, slo) for slo in service["slos"]),
        html.label(load),
    )


def _budget(who: Viewer, slo: dict[str, Any]) -> str:
    """How much of an error budget is left; marked where it burns or is gone."""
    days = f"{slo['window_seconds'] / 86400:g}"
    left = slo["budget_left"]
    if left is None:
        return html.label(who.say("service.budget_unknown", name=slo["name"], days=days))
    text = who.say("service.budget", name=slo["name"], left=fmt.percent(left, 0), days=days)
    if slo["burns"]:
        text += " · " + who.say("service.budget_burns", priority=slo["burns"])
    return html.missed(text) if slo["burns"] or left <= 0 else html.label(text)


def _figures(who: Viewer, service: dict[str, Any]) -> list[str]:
    day, calls = service["availability"], service["success_ratio"]
    ttft, sla = service["ttft_p99_seconds"], service["sla_attainment"]

    def at_least(target: float) -> str:
        return who.say("service.at_least", target=fmt.percent(target, 1))

    return [
        html.figure(
            who.say("service.availability"),
            fmt.percent(day["day"]),
            at_least(day["target"]),
            missed=_under(day["day"], day["target"]),
        ),
        html.figure(
            who.say("service.success"),
            fmt.percent(calls["now"]),
            at_least(calls["target"]),
            missed=_under(calls["now"], calls["target"]),
        ),
        html.figure(
            who.say("service.ttft"),
            fmt.seconds(ttft["value"], below=ttft["below_first_bucket"]),
            who.say("service.at_most", target=fmt.seconds(ttft["limit"])),
            missed=ttft["value"] is not None and ttft["value"] > ttft["limit"],
        ),
        html.figure(
            who.say("service.sla", limit=fmt.seconds(sla["limit_seconds"])),
            _bounds(sla["low"], sla["high"]),
            at_least(sla["target"]),
            missed=_under(sla["high"], sla["target"]),
        ),
    ]


def _under(value: float | None, target: float) -> bool:
    return value is not None and value < target


def _bounds(low: float | None, high: float | None) -> str:
    """A measure between histogram bounds is given as a range."""
    if low is None or high is None:
        return fmt.DASH
    shown = fmt.percent(low, 1), fmt.percent(high, 1)
    return shown[0] if shown[0] == shown[1] else f"{shown[0].removesuffix(' %')}–{shown[1]}"


def _more_services(who: Viewer, services: list[dict[str, Any]]) -> str:
    cells = [(who.say(f"service.{name}"), "") for name in ("name", "status")]
    cells += [(who.say(f"service.{name}"), "o-number") for name in ("availability", "success", "ttft")]
    return html.table(
        cells,
        [
            (
                escape(each["service"]["name"]),
                html.status_pill(each["status"], who.language),
                fmt.percent(each["availability"]["day"]),
                fmt.percent(each["success_ratio"]["now"]),
                escape(
                    fmt.seconds(each["ttft_p99_seconds"]["value"], below=each["ttft_p99_seconds"]["below_first_bucket"])
                ),
            )
            for each in services
        ],
    )


def _incidents(who: Viewer, found: dict[str, Any], incident_page: StreamlitPage) -> None:
    shown = found["incidents"][:_INCIDENTS]
    if not shown:
        seen = found["monitoring"]["cycle"] is not None
        st.html(html.empty(who.say("incidents.none" if seen else "incidents.not_known")))
    for each in shown:
        incident_row(who, each, found["as_of"], incident_page)
        if len(shown) <= _FEW and each["evidence"]:
            lines = [escape(fmt.observation(one, who.language)) for one in each["evidence"][:3]]
            st.html(html.label(who.say("incident.speaks_for")) + html.bullets(lines))
    hidden = found["incidents_open"] - len(shown)
    firing = found["alerts_firing"]
    total = f"{firing['total']}+" if firing["at_least"] else str(firing["total"])
    about = who.say("incidents.alerts", total=total, p0=firing["by_priority"]["P0"], p1=firing["by_priority"]["P1"])
    if hidden > 0:
        st.page_link(incident_page, label=who.say("incidents.more", n=hidden))
    st.html(html.label(about))
    past = found["incidents_resolved"][: _INCIDENTS - len(shown)]
    if past:
        st.html(html.label(who.say("incidents.past")))
    for each in past:
        incident_row(who, each, found["as_of"], incident_page)


def incident_row(who: Viewer, each: dict[str, Any], as_of: str, incident_page: StreamlitPage) -> None:
    """One incident with a link to its page."""
    with st.container(horizontal=True, vertical_alignment="center"):
        st.html(html.incident_line(each, as_of, who.language), width="stretch")
        st.page_link(incident_page, label=who.say("incidents.open"), query_params={"incident": each["id"]})


def _actions(who: Viewer, found: dict[str, Any]) -> None:
    if not found["actions"]:
        st.html(html.empty(who.say("actions.none")))
        return
    st.html(html.actions_table(found["actions"][:_ACTIONS], found["as_of"], who.language))


def _plan(who: Viewer, found: dict[str, Any]) -> str:
    plan = found["plan"]
    if not plan:
        return html.empty(who.say("plan.none"))
    numbers = ("replicas", "gpus", "cost")
    names = ("service", "gpu_type", "replicas", "gpus", "needed_by", "need_at", "cost", "reason")
    cells = [(who.say(f"plan.{name}"), "o-number" if name in numbers else "") for name in names]
    return html.table(cells, [_plan_row(who, each, found["as_of"]) for each in plan])


def _plan_row(who: Viewer, each: dict[str, Any], as_of: str) -> tuple[str, ...]:
    reason = escape(word("plan_reason", each["reason"], who.language))
    name = f"<b>{escape(each['service'])}</b>"
    if each["target_replicas"] is None:
        return (name, *(fmt.DASH,) * 6, reason)
    return (
        name,
        escape(each["gpu_type"]),
        f"{each['current_replicas']} → <b>{each['target_replicas']}</b>",
        str(each["gpus"]),
        escape(fmt.when(each["needed_by"], as_of, who.language)),
        escape(fmt.when(each["need_at"], as_of, who.language)),
        escape(fmt.money(each["cost_per_hour"], each["currency"])),
        reason,
    )
