"""One incident: the cause and how sure, the evidence, what was ruled out, what happened, what was done."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import streamlit as st

from dashboards import session
from dashboards.client import ApiAwayError, ApiError
from dashboards.components import charts, html
from dashboards.components import format as fmt
from dashboards.session import Viewer
from dashboards.views import feedback
from outrider.documents import graph_text
from outrider.documents.summaries import word
from outrider.text.i18n import translate

_PAGE = 20
_REFUSED = "refused"


def page(who: Viewer) -> None:
    """Draw the incident that ``?incident=`` names, else the list of incidents."""
    session.refreshed(who, _body)


def _body(who: Viewer) -> None:
    # Read here and not in page(): a click inside the fragment runs the fragment alone.
    chosen = st.query_params.get("incident")
    refused = st.session_state.pop(_REFUSED, None) or feedback.refused()
    if refused:
        st.html(html.note(*refused, away=True))
    if chosen:
        _one(who, chosen)
    else:
        _list(who)


def _list(who: Viewer) -> None:
    cursor = st.session_state.get("incidents_cursor", "")
    found = who.client.get("/incidents", limit=_PAGE, cursor=cursor)
    overview = who.client.get("/overview")
    as_of, seen = overview["as_of"], overview["monitoring"]["cycle"] is not None
    still = sum(each["resolved_at"] is None for each in found["incidents"])
    key = "incidents.title_open" if still else "incidents.title_none" if seen else "overview.no_cycle"
    title = who.say(key, n=still)
    st.html(html.head(title, who.say("incidents.below")))
    if not found["incidents"]:
        st.html(html.card(html.empty(who.say("incidents.never"))))
        return
    for each in found["incidents"]:
        row = st.container(border=True, key=f"o-box-row-{each['id']}", horizontal=True, vertical_alignment="center")
        row.html(html.incident_line(each, as_of, who.language), width="stretch")
        row.button(who.say("incidents.open"), key=f"open-{each['id']}", on_click=_choose, args=(each["id"],))
    _turn_pages(who, "incidents_cursor", cursor, found["next_cursor"])


def _choose(incident_id: str | None) -> None:
    if incident_id is None:
        st.query_params.pop("incident", None)
    else:
        st.query_params["incident"] = incident_id


def _one(who: Viewer, incident_id: str) -> None:
    try:
        found = who.client.get(f"/incidents/{incident_id}")
    except ApiError as error:
        st.html(html.head(who.say("incident.unknown"), error.message))
        _back(who)
        return
    _head(who, found)
    left, right = st.columns([1, 1], gap="medium")
    with left:
        st.html(html.section(who.say("incident.cause")))
        with st.container(border=True, height="stretch", key="o-box-incident-1"):
            st.html(cause(who, found))
            if found["may_be_retold"]:
                _retold(who, incident_id)
    with right:
        st.html(html.section(who.say("incident.done")))
        with st.container(border=True, height="stretch", key="o-box-incident-2"):
            _actions(who, found)
    st.html(html.section(who.say("incident.evidence")))
    _evidence(who, incident_id)
    st.html(html.section(who.say("incident.graph")))
    _graph(who, incident_id)
    left, right = st.columns([1, 1], gap="medium")
    with left:
        st.html(html.section(who.say("incident.timeline")))
        with st.container(border=True, height="stretch", key="o-box-incident-3"):
            st.html(timeline(who, found))
    with right:
        st.html(html.section(who.say("incident.folded", n=found["alerts"])))
        with st.container(border=True, height="stretch", key="o-box-incident-4"):
            _folded(who, found)
    st.html(html.section(who.say("feedback.title")))
    with st.container(border=True, key="o-box-incident-5"):
        feedback.ask(who, found)
    if found["recording"]:
        st.html(html.label(who.say("incident.recording", path=found["recording"])))


def _drill(who: Viewer, name: str) -> str:
    by_hand = translate("notify.drill_by_hand", who.language)
    return who.say("incident.drill_told", name=by_hand if name == "drill" else name)


def _head(who: Viewer, found: dict[str, Any]) -> None:
    text, buttons = st.columns([5, 2], vertical_alignment="center")
    with text:
        state = "resolved" if found["resolved_at"] else "acknowledged" if found["acknowledged_at"] else "open"
        cause_ = found["suspected_cause"]
        title = found["summary"]
        if cause_:
            title = fmt.cause(cause_, who.language)
        facts = [
            f"{found['priority']} · {who.say(f'incident.state_{state}', by=found['acknowledged_by'] or '')}",
            who.say("incident.since", when=fmt.when(found["opened_at"], found["as_of"], who.language)),
        ]
        if found["drill"]:
            facts.insert(0, _drill(who, found["drill"]))
        if found["resolved_at"]:
            facts.append(
                who.say("incident.resolved_when", when=fmt.when(found["resolved_at"], found["as_of"], who.language))
            )
        facts.append(who.say("incident.folded_short", alerts=found["alerts"], pages=found["pages"]))
        services = html.incident_services(found)
        if services:
            facts.append(who.say("incident.services", names=", ".join(services)))
        st.html(html.head(title, " · ".join(facts)))
    with buttons.container(horizontal=True, horizontal_alignment="right"):
        _back(who)
        if found["resolved_at"] is None and found["acknowledged_at"] is None:
            _change_button(
                who,
                who.say("incident.acknowledge"),
                f"ack-{found['id']}",
                f"/incidents/{found['id']}/ack",
                main=True,
            )


def _back(who: Viewer) -> None:
    st.button(who.say("incidents.all"), key="back", type="tertiary", on_click=_choose, args=(None,))


def _change_button(who: Viewer, label: str, key: str, path: str, *, main: bool = False) -> None:
    """A button that changes something; without the token it says what is missing."""
    st.button(
        label,
        key=key,
        type="primary" if main else "secondary",
        disabled=not who.may_change,
        help=None if who.may_change else who.say("token.needed"),
        on_click=_change,
        args=(who, path),
    )


def _change(who: Viewer, path: str) -> None:
    try:
        who.client.post(path)
    except (ApiError, ApiAwayError) as error:
        st.session_state[_REFUSED] = (error.message, error.hint)


def cause(who: Viewer, found: dict[str, Any]) -> str:
    """The suspected cause, what speaks for it and against it, what else it could be, how to check, who mends it."""
    if not found["hypotheses"]:
        return html.empty(who.say("incident.no_cause_long")) + _explained(found)
    first = found["hypotheses"][0]
    name = fmt.cause(first, who.language)
    sure = who.say("incident.confidence", share=fmt.percent(first["confidence"], 0))
    parts = [
        f'<div class="o-row"><span class="o-name">{escape(name)}</span><span>{escape(sure)}</span></div>',
        html.confidence_bar(first["confidence"]),
        html.label(_where(who, first["entity"])),
    ]
    lines = [fmt.observation(each, who.language) for each in first.get("evidence", [])]
    if lines:
        parts += [html.label(who.say("incident.speaks_for")), html.bullets(escape(line) for line in lines)]
    return f'<div class="o-list">{"".join(parts)}{_explained(found)}</div>'


def _retold(who: Viewer, incident_id: str) -> None:
    """On a click what a model makes of the explanation, marked as such."""
    if not st.button(who.say("incident.retell"), key=f"retell-{incident_id}"):
        return
    try:
        said = who.client.get(f"/incidents/{incident_id}/narrative")
    except (ApiError, ApiAwayError) as error:
        st.html(html.note(error.message, error.hint))
        return
    if said["text"] is None:
        st.html(html.note(who.say(f"incident.retell_{said['reason']}")))
        return
    st.html(html.bullets(escape(line) for line in said["text"].splitlines() if line.strip()))
    st.html(html.label(who.say("incident.retold_by", model=said["model"])))


def _explained(found: dict[str, Any]) -> str:
    """The sections of the explanation that this card does not show in a form of its own."""
    told = [each for each in found["explanation"]["sections"] if each["name"] not in ("what", "for")]
    return "".join(html.label(each["heading"]) + html.bullets(escape(line) for line in each["lines"]) for each in told)


def _where(who: Viewer, entity: dict[str, Any]) -> str:
    return who.say(
        "incident.full_name", name="/".join(filter(None, (entity["cluster"], entity["namespace"], entity["name"])))
    )


def _actions(who: Viewer, found: dict[str, Any]) -> None:
    if not found["actions"]:
        st.html(html.empty(who.say("incident.no_actions")))
    else:
        st.html(html.actions_table(found["actions"], found["as_of"], who.language))
    for each in found["actions"]:
        if each["status"] == "waiting_approval":
            what = f"{word('action_kind', each['kind'], who.language)} · {fmt.entity(each['target'], who.language)}"
            with st.container(horizontal=True, vertical_alignment="center"):
                st.html(html.label(what))
                _change_button(
                    who, who.say("actions.approve"), f"yes-{each['id']}", f"/actions/{each['id']}/approve", main=True
                )
                _change_button(who, who.say("actions.reject"), f"no-{each['id']}", f"/actions/{each['id']}/reject")
    told = [each for each in found["messages"] if each["reason"] in ("opened", "priority_raised", "resolved")]
    if told:
        channels = ", ".join(dict.fromkeys(each["channel"] for each in told))
        st.html(html.label(who.say("incident.told", channels=channels, n=len(told))))


def _evidence(who: Viewer, incident_id: str) -> None:
    found = who.client.get(f"/incidents/{incident_id}/evidence")
    drawn = found["charts"]
    if not drawn:
        st.html(html.card(html.empty(who.say("incident.no_evidence"))))
        return
    for start in range(0, len(drawn), 2):
        for column, chart in zip(st.columns(2, gap="medium"), drawn[start : start + 2], strict=False):
            with column.container(border=True, key=f"o-box-evidence-{chart['signal']}"):
                figure = charts.evidence(chart, found, who.palette, who.language)
                st.plotly_chart(figure, theme=None, config=charts.CONFIG, key=f"evidence-{chart['signal']}")


def _graph(who: Viewer, incident_id: str) -> None:
    """The part of the knowledge graph that the incident is about."""
    found = who.client.get(f"/incidents/{incident_id}/graph")
    if not found["edges"]:
        st.html(html.card(html.empty(who.say("incident.no_graph"))))
        return
    with st.container(border=True, key="o-box-incident-graph"):
        st.graphviz_chart(graph_text.dot(found, who.palette.graph), width="stretch")
        st.html(html.label(who.say("incident.graph_key")))
        if found["left_out"]:
            st.html(html.label(who.say("incident.graph_more", n=found["left_out"])))


def timeline(who: Viewer, found: dict[str, Any]) -> str:
    """What happened, oldest first."""
    if not found["timeline"]:
        return html.empty(who.say("incident.no_timeline"))
    cells = [(who.say("timeline.at"), "o-tight"), (who.say("timeline.what"), "")]
    return html.table(
        cells,
        [(escape(_second(each["at"], found["as_of"])), escape(each["text"])) for each in found["timeline"]],
    )


def _second(at: str, as_of: str) -> str:
    when = fmt.instant(at)
    assert when is not None
    now = fmt.instant(as_of)
    return when.strftime("%H:%M:%S UTC" if now and now.date() == when.date() else "%Y-%m-%d %H:%M:%S UTC")


def _folded(who: Viewer, found: dict[str, Any]) -> None:
    key = f"folded-{found['id']}"
    cursor = st.session_state.get(key, "")
    answer = who.client.get(f"/incidents/{found['id']}/alerts", limit=_PAGE, cursor=cursor)
    if not answer["alerts"]:
        st.html(html.empty(who.say("incident.no_alerts")))
        return
    names = ("priority", "alert", "state", "since")
    cells = [(who.say(f"alerts.{name}"), "" if name == "alert" else "o-tight") for name in names]
    rows = [
        (
            html.priority_pill(each["priority"]),
            escape(each["summary"]),
            escape(word("alert_state", each["state"], who.language)),
            escape(fmt.clock(each["starts_at"], found["as_of"])),
        )
        for each in answer["alerts"]
    ]
    st.html(html.table(cells, rows))
    _turn_pages(who, key, cursor, answer["next_cursor"])


def _turn_pages(who: Viewer, key: str, cursor: str, following: str | None) -> None:
    """Forwards and backwards through what the API pages."""
    if not cursor and following is None:
        return
    # A cursor leads forwards only: the way back is what one came by.
    way: tuple[str, ...] = st.session_state.get(f"{key}-way", ())

    def turn(to: str, came_by: tuple[str, ...]) -> Callable[[], None]:
        return lambda: st.session_state.update({key: to, f"{key}-way": came_by})

    before = turn(way[-1] if way else "", way[:-1])
    after = turn(following or "", (*way, cursor))
    with st.container(horizontal=True, horizontal_alignment="right"):
        st.button(who.say("pages.before"), key=f"{key}-before", disabled=not cursor, on_click=before)
        st.button(who.say("pages.next"), key=f"{key}-next", disabled=following is None, on_click=after)
