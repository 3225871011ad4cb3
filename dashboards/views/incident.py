"""Incident page: cause and confidence, evidence, alternatives ruled out, timeline and actions."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import streamlit as st

from dashboards import session
from dashboards.client import ApiError, ApiUnreachableError
from dashboards.components import charts, html
from dashboards.components import format as fmt
from dashboards.session import Viewer
from dashboards.views import feedback, remediation, response
from outrider.documents import graph_diagram
from outrider.documents.summaries import word
from outrider.text.i18n import translate

_PAGE = 20


def page(viewer: Viewer) -> None:
    """Draws the incident of ``?incident=``, otherwise the list of incidents."""
    session.refreshed(viewer, _body)


def _body(viewer: Viewer) -> None:
    # Read here, not in page(): a click inside the fragment reruns only the fragment.
    chosen = st.query_params.get("incident")
    remediation.draw_refusal()
    response.draw_refusal()
    refusal = feedback.pop_refusal()
    if refusal:
        st.html(html.note(*refusal, away=True))
    if chosen:
        _incident(viewer, chosen)
    else:
        _list(viewer)


def _list(viewer: Viewer) -> None:
    cursor = st.session_state.get("incidents_cursor", "")
    listing = viewer.client.get("/incidents", limit=_PAGE, cursor=cursor)
    overview = viewer.client.get("/overview")
    as_of, is_monitored = overview["as_of"], overview["monitoring"]["cycle"] is not None
    open_count = sum(incident["resolved_at"] is None for incident in listing["incidents"])
    key = "incidents.title_open" if open_count else "incidents.title_none" if is_monitored else "overview.no_cycle"
    title = viewer.localize(key, n=open_count)
    st.html(html.head(title, viewer.localize("incidents.below")))
    if not listing["incidents"]:
        st.html(html.card(html.empty(viewer.localize("incidents.never"))))
        return
    for incident in listing["incidents"]:
        row = st.container(border=True, key=f"o-box-row-{incident['id']}", horizontal=True, vertical_alignment="center")
        row.html(html.incident_line(incident, as_of, viewer.language), width="stretch")
        row.button(
            viewer.localize("incidents.open"), key=f"open-{incident['id']}", on_click=_choose, args=(incident["id"],)
        )
    _turn_pages(viewer, "incidents_cursor", cursor, listing["next_cursor"])


def _choose(incident_id: str | None) -> None:
    if incident_id is None:
        st.query_params.pop("incident", None)
    else:
        st.query_params["incident"] = incident_id


def _incident(viewer: Viewer, incident_id: str) -> None:
    try:
        incident = viewer.client.get(f"/incidents/{incident_id}")
    except ApiError as error:
        st.html(html.head(viewer.localize("incident.unknown"), error.message))
        _back(viewer)
        return
    _head(viewer, incident)
    for note in response.recurrence_notes(viewer, incident):
        st.html(note)
    left, right = st.columns([1, 1], gap="medium")
    with left:
        st.html(html.section(viewer.localize("incident.cause")))
        with st.container(border=True, height="stretch", key="o-box-incident-1"):
            st.html(cause(viewer, incident))
            if incident["may_be_retold"]:
                _narrative(viewer, incident_id)
    with right:
        st.html(html.section(viewer.localize("incident.done")))
        with st.container(border=True, height="stretch", key="o-box-incident-2"):
            _actions(viewer, incident)
    st.html(html.section(viewer.localize("incident.evidence")))
    _evidence(viewer, incident_id)
    st.html(html.section(viewer.localize("incident.graph")))
    _graph(viewer, incident_id)
    left, right = st.columns([1, 1], gap="medium")
    with left:
        st.html(html.section(viewer.localize("incident.timeline")))
        with st.container(border=True, height="stretch", key="o-box-incident-3"):
            st.html(timeline(viewer, incident))
    with right:
        st.html(html.section(viewer.localize("incident.folded", n=incident["alerts"])))
        with st.container(border=True, height="stretch", key="o-box-incident-4"):
            _folded(viewer, incident)
    st.html(html.section(viewer.localize("response.title")))
    response.panel(viewer, incident)
    st.html(html.section(viewer.localize("feedback.title")))
    with st.container(border=True, key="o-box-incident-5"):
        feedback.feedback_form(viewer, incident)
    if incident["recording"]:
        st.html(html.label(viewer.localize("incident.recording", path=incident["recording"])))


def _drill(viewer: Viewer, name: str) -> str:
    by_hand = translate("notify.drill_by_hand", viewer.language)
    return viewer.localize("incident.during_drill", name=by_hand if name == "drill" else name)


def _head(viewer: Viewer, incident: dict[str, Any]) -> None:
    text, buttons = st.columns([5, 2], vertical_alignment="center")
    with text:
        state = "resolved" if incident["resolved_at"] else "acknowledged" if incident["acknowledged_at"] else "open"
        cause_ = incident["suspected_cause"]
        title = incident["summary"]
        if cause_:
            title = fmt.cause(cause_, viewer.language)
        standing = viewer.localize(f"incident.state_{state}", by=incident["acknowledged_by"] or "")
        facts = [
            f"{incident['priority']} · {standing}",
            viewer.localize("incident.since", when=_when(viewer, incident, "opened_at")),
        ]
        if incident["drill"]:
            facts.insert(0, _drill(viewer, incident["drill"]))
        if incident["resolved_at"]:
            facts.append(viewer.localize("incident.resolved_when", when=_when(viewer, incident, "resolved_at")))
        facts.append(viewer.localize("incident.folded_short", alerts=incident["alerts"], pages=incident["pages"]))
        facts += response.facts(viewer, incident)
        services = html.incident_services(incident)
        if services:
            facts.append(viewer.localize("incident.services", names=", ".join(services)))
        st.html(html.head(title, " · ".join(facts)))
    with buttons.container(horizontal=True, horizontal_alignment="right"):
        _back(viewer)
        if incident["resolved_at"] is None and incident["acknowledged_at"] is None:
            remediation.change_button(
                viewer,
                viewer.localize("incident.acknowledge"),
                f"ack-{incident['id']}",
                f"/incidents/{incident['id']}/ack",
                main=True,
            )


def _back(viewer: Viewer) -> None:
    st.button(viewer.localize("incidents.all"), key="back", type="tertiary", on_click=_choose, args=(None,))


def cause(viewer: Viewer, incident: dict[str, Any]) -> str:
    """The suspected cause with its evidence and explanation."""
    if not incident["hypotheses"]:
        return html.empty(viewer.localize("incident.no_cause_long")) + _explanation(incident)
    first = incident["hypotheses"][0]
    name = fmt.cause(first, viewer.language)
    sure = viewer.localize("incident.confidence", share=fmt.percent(first["confidence"], 0))
    parts = [
        f'<div class="o-row"><span class="o-name">{escape(name)}</span><span>{escape(sure)}</span></div>',
        html.confidence_bar(first["confidence"]),
        html.label(_full_name(viewer, first["entity"])),
    ]
    lines = [fmt.observation(evidence, viewer.language) for evidence in first.get("evidence", [])]
    if lines:
        parts += [html.label(viewer.localize("incident.speaks_for")), html.bullets(escape(line) for line in lines)]
    return f'<div class="o-list">{"".join(parts)}{_explanation(incident)}</div>'


def _narrative(viewer: Viewer, incident_id: str) -> None:
    """On a click, shows a model's narrative of the explanation, marked as such."""
    if not st.button(viewer.localize("incident.retell"), key=f"retell-{incident_id}"):
        return
    try:
        narrative = viewer.client.get(f"/incidents/{incident_id}/narrative")
    except (ApiError, ApiUnreachableError) as error:
        st.html(html.note(error.message, error.hint))
        return
    if narrative["text"] is None:
        st.html(html.note(viewer.localize(f"incident.retell_{narrative['reason']}")))
        return
    st.html(html.bullets(escape(line) for line in narrative["text"].splitlines() if line.strip()))
    st.html(html.label(viewer.localize("incident.summary_by", model=narrative["model"])))


def _explanation(incident: dict[str, Any]) -> str:
    """The sections of the explanation that this card does not show in another form."""
    sections = [section for section in incident["explanation"]["sections"] if section["name"] not in ("what", "for")]
    return "".join(
        html.label(section["heading"]) + html.bullets(escape(line) for line in section["lines"]) for section in sections
    )


def _full_name(viewer: Viewer, entity: dict[str, Any]) -> str:
    return viewer.localize(
        "incident.full_name", name="/".join(filter(None, (entity["cluster"], entity["namespace"], entity["name"])))
    )


def _actions(viewer: Viewer, incident: dict[str, Any]) -> None:
    if not incident["actions"]:
        st.html(html.empty(viewer.localize("incident.no_actions")))
    else:
        st.html(html.actions_table(incident["actions"], incident["as_of"], viewer.language, incident["timezone"]))
    for action in incident["actions"]:
        remediation.decision(viewer, action)
    messages = [
        message for message in incident["messages"] if message["reason"] in ("opened", "priority_raised", "resolved")
    ]
    if messages:
        channels = ", ".join(dict.fromkeys(message["channel"] for message in messages))
        st.html(html.label(viewer.localize("incident.notified", channels=channels, n=len(messages))))


def _evidence(viewer: Viewer, incident_id: str) -> None:
    evidence = viewer.client.get(f"/incidents/{incident_id}/evidence")
    drawn = evidence["charts"]
    if not drawn:
        st.html(html.card(html.empty(viewer.localize("incident.no_evidence"))))
        return
    for start in range(0, len(drawn), 2):
        for column, chart in zip(st.columns(2, gap="medium"), drawn[start : start + 2], strict=False):
            with column.container(border=True, key=f"o-box-evidence-{chart['signal']}"):
                figure = charts.evidence(chart, evidence, viewer.palette, viewer.language)
                st.plotly_chart(figure, theme=None, config=charts.CONFIG, key=f"evidence-{chart['signal']}")


def _graph(viewer: Viewer, incident_id: str) -> None:
    """The part of the knowledge graph around the incident."""
    graph = viewer.client.get(f"/incidents/{incident_id}/graph")
    if not graph["edges"]:
        st.html(html.card(html.empty(viewer.localize("incident.no_graph"))))
        return
    with st.container(border=True, key="o-box-incident-graph"):
        st.graphviz_chart(graph_diagram.dot(graph, viewer.palette.graph), width="stretch")
        st.html(html.label(viewer.localize("incident.graph_key")))
        if graph["left_out"]:
            st.html(html.label(viewer.localize("incident.graph_more", n=graph["left_out"])))


def timeline(viewer: Viewer, incident: dict[str, Any]) -> str:
    """Events, oldest first."""
    if not incident["timeline"]:
        return html.empty(viewer.localize("incident.no_timeline"))
    cells = [(viewer.localize("timeline.at"), "o-tight"), (viewer.localize("timeline.what"), "")]
    times = [
        fmt.clock(entry["at"], incident["as_of"], incident["timezone"], seconds=True) for entry in incident["timeline"]
    ]
    texts = [entry["text"] for entry in incident["timeline"]]
    return html.table(cells, [(escape(at), escape(text)) for at, text in zip(times, texts, strict=True)])


def _when(viewer: Viewer, incident: dict[str, Any], key: str) -> str:
    """Time and age of an incident, in the zone of the team that responds."""
    return fmt.when(incident[key], incident["as_of"], viewer.language, incident["timezone"])


def _folded(viewer: Viewer, incident: dict[str, Any]) -> None:
    key = f"folded-{incident['id']}"
    cursor = st.session_state.get(key, "")
    response = viewer.client.get(f"/incidents/{incident['id']}/alerts", limit=_PAGE, cursor=cursor)
    if not response["alerts"]:
        st.html(html.empty(viewer.localize("incident.no_alerts")))
        return
    names = ("priority", "alert", "state", "since")
    cells = [(viewer.localize(f"alerts.{name}"), "" if name == "alert" else "o-tight") for name in names]
    rows = [
        (
            html.priority_pill(alert["priority"]),
            escape(alert["summary"]),
            escape(word("alert_state", alert["state"], viewer.language)),
            escape(fmt.clock(alert["starts_at"], incident["as_of"], incident["timezone"])),
        )
        for alert in response["alerts"]
    ]
    st.html(html.table(cells, rows))
    _turn_pages(viewer, key, cursor, response["next_cursor"])


def _turn_pages(viewer: Viewer, key: str, cursor: str, following: str | None) -> None:
    """Buttons for the previous and next result page."""
    if not cursor and following is None:
        return
    # A cursor only leads forward: the way back is the list of previous cursors.
    previous: tuple[str, ...] = st.session_state.get(f"{key}-way", ())

    def turn(target: str, path: tuple[str, ...]) -> Callable[[], None]:
        return lambda: st.session_state.update({key: target, f"{key}-way": path})

    before = turn(previous[-1] if previous else "", previous[:-1])
    after = turn(following or "", (*previous, cursor))
    with st.container(horizontal=True, horizontal_alignment="right"):
        st.button(viewer.localize("pages.before"), key=f"{key}-before", disabled=not cursor, on_click=before)
        st.button(viewer.localize("pages.next"), key=f"{key}-next", disabled=following is None, on_click=after)
