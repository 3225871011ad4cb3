"""On-call page: who is on call in each team, the schedules with their gaps, overrides, open follow-ups."""

from __future__ import annotations

from datetime import datetime, timedelta
from html import escape
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import streamlit as st
from streamlit.navigation.page import StreamlitPage

from dashboards import session
from dashboards.client import ApiError, ApiUnreachableError
from dashboards.components import format as fmt
from dashboards.components import html, shifts
from dashboards.session import Viewer
from dashboards.views import response
from outrider.clock import rfc3339
from outrider.documents.summaries import word

_HOURS = (1, 2, 4, 8, 12, 24, 48, 168)
_MOST_SHIFTS, _MOST_FOLLOW_UPS = 6, 100
_REFUSED = "oncall_refused"


def page(viewer: Viewer, incidents: StreamlitPage | None = None) -> None:
    """Draws the page. ``incidents`` is the page that follow-ups link to."""
    session.refreshed(viewer, lambda now: _body(now, incidents))


def _body(viewer: Viewer, incidents: StreamlitPage | None) -> None:
    status = viewer.client.get("/oncall")
    refusal = st.session_state.pop(_REFUSED, None)
    if refusal:
        st.html(html.note(*refusal, away=True))
    st.html(html.head(_title(viewer, status["schedules"]), viewer.localize("oncall.below")))
    if not status["teams"] and not status["schedules"]:
        st.html(html.note(viewer.localize("oncall.none"), viewer.localize("oncall.none_hint")))
    if status["teams"]:
        st.html(html.section(viewer.localize("oncall.teams")))
        st.html(html.card(teams(viewer, status["teams"])))
    if status["schedules"]:
        st.html(html.section(viewer.localize("oncall.schedules")))
    for schedule in status["schedules"]:
        with st.container(border=True, key=f"o-box-schedule-{schedule['name']}"):
            st.html(schedule_card(viewer, schedule, status["people"]))
    if status["schedules"]:
        _overrides(viewer, status)
    response.draw_refusal()
    _follow_ups(viewer, incidents)


def _title(viewer: Viewer, schedules: list[dict[str, Any]]) -> str:
    gaps = sum(schedule["now"]["person"] is None for schedule in schedules)
    if gaps:
        return viewer.localize("oncall.title_gap", n=gaps, total=len(schedules))
    people = dict.fromkeys(schedule["now"]["person"] for schedule in schedules)
    return viewer.localize("oncall.title", names=", ".join(people)) if people else viewer.localize("page.oncall")


def teams(viewer: Viewer, rows: list[dict[str, Any]]) -> str:
    """One line for each team: who is on call, who is next, the lead, and what the team owns."""
    names = ("team", "on_call", "second", "lead", "owns")
    cells = [(viewer.localize(f"oncall.{name}"), "") for name in names]
    body = [
        (
            f"<b>{escape(team['name'])}</b>",
            escape(", ".join(team["on_call"]) or (viewer.localize("oncall.nobody") if team["schedule"] else fmt.DASH)),
            escape(", ".join(team["second"]) or fmt.DASH),
            escape(team["lead"] or fmt.DASH),
            escape(_owned(viewer, team)),
        )
        for team in rows
    ]
    return html.table(cells, body)


def _owned(viewer: Viewer, team: dict[str, Any]) -> str:
    layers = ", ".join(word("layer", layer, viewer.language) for layer in team["layers"])
    services = ", ".join(team["services"])
    parts = [
        viewer.localize("oncall.layers", names=layers) if layers else "",
        viewer.localize("oncall.services", names=services) if services else "",
    ]
    return " · ".join(filter(None, parts)) or viewer.localize("oncall.everything")


def schedule_card(viewer: Viewer, schedule: dict[str, Any], people: list[str]) -> str:
    """Who is on call and until when, gaps and the calendar, the bar, and the next shifts."""
    zone, now = schedule["timezone"], schedule["now"]
    person = now["person"] or viewer.localize("oncall.nobody")
    until = viewer.localize("oncall.until", when=shifts.local(now["to"], zone), zone=zone)
    kind = "" if now["person"] else ' class="o-broken"'
    on_call = f"<span><b{kind}>{escape(person)}</b> {escape(until)}</span>"
    parts = [
        f'<div class="o-row"><span class="o-name">{escape(schedule["name"])}</span>{on_call}</div>',
        shifts.bar(schedule["shifts"], zone, people, viewer.palette, viewer.language),
    ]
    if schedule["gaps"]:
        first = schedule["gaps"][0]
        span = f"{shifts.local(first['from'], zone)} – {shifts.local(first['to'], zone)}"
        parts.append(html.missed_line(viewer.localize("oncall.gaps", n=len(schedule["gaps"]), span=span)))
    parts += _calendar(viewer, schedule)
    listed = schedule["shifts"][:_MOST_SHIFTS]
    listed = [now, *listed[1:]] if now["person"] else listed  # the current shift with its true start
    names = ("from", "to", "person", "source")
    cells = [(viewer.localize(f"oncall.{name}"), "o-tight" if name in ("from", "to") else "") for name in names]
    rows = [
        (
            escape(shifts.local(shift["from"], zone)),
            escape(shifts.local(shift["to"], zone)),
            escape(shift["person"] or viewer.localize("oncall.nobody")),
            escape(viewer.localize(f"oncall.source_{shift['source']}")),
        )
        for shift in listed
    ]
    return f'<div class="o-list">{"".join(parts)}{html.table(cells, rows)}</div>'


def _calendar(viewer: Viewer, schedule: dict[str, Any]) -> list[str]:
    calendar = schedule["calendar"]
    if calendar is None:
        return []
    if calendar["error"]:
        return [html.missed_line(viewer.localize("oncall.calendar_error", error=calendar["error"]))]
    if calendar["read_at"] is None:
        return [html.label(viewer.localize("oncall.calendar_waits"))]
    lines = [html.label(viewer.localize("oncall.calendar_read", when=shifts.local(calendar["read_at"], "UTC")))]
    if calendar["unknown"]:
        lines.append(html.missed_line(viewer.localize("oncall.calendar_unknown", names=", ".join(calendar["unknown"]))))
    return lines


def _overrides(viewer: Viewer, status: dict[str, Any]) -> None:
    st.html(html.section(viewer.localize("oncall.overrides")))
    zones = {schedule["name"]: schedule["timezone"] for schedule in status["schedules"]}
    with st.container(border=True, key="o-box-overrides"):
        if not status["overrides"]:
            st.html(html.empty(viewer.localize("oncall.no_overrides")))
        for override in status["overrides"]:
            zone = zones.get(override["schedule"], "UTC")
            line = viewer.localize(
                "oncall.override",
                person=override["person"],
                schedule=override["schedule"],
                start=shifts.local(override["from"], zone),
                end=shifts.local(override["to"], zone),
                by=override["by"] or viewer.localize("oncall.by_configuration"),
            )
            with st.container(horizontal=True, vertical_alignment="center"):
                st.html(html.label(line), width="stretch")
                if override["by"]:
                    st.button(
                        viewer.localize("oncall.remove"),
                        key=f"override-{override['id']}",
                        disabled=not viewer.may_change,
                        help=None if viewer.may_change else viewer.localize("token.needed"),
                        on_click=_remove,
                        args=(viewer, override["id"]),
                    )
        _override_form(viewer, status, zones)


def _override_form(viewer: Viewer, status: dict[str, Any], zones: dict[str, str]) -> None:
    with st.form("o-override", border=False):
        schedule, person, day, clock, hours, button = st.columns([3, 3, 3, 2, 2, 3], vertical_alignment="bottom")
        schedule.selectbox(viewer.localize("oncall.schedule"), list(zones), key="override_schedule")
        person.selectbox(viewer.localize("oncall.person"), status["people"], key="override_person")
        now = fmt.instant(status["as_of"])
        assert now is not None
        now = now.astimezone(ZoneInfo(next(iter(zones.values()))))
        day.date_input(viewer.localize("oncall.day"), value=now.date(), key="override_day")
        clock.time_input(viewer.localize("oncall.time"), value=now.time().replace(second=0), key="override_time")
        hours.selectbox(
            viewer.localize("oncall.hours"),
            _HOURS,
            index=3,
            format_func=lambda count: viewer.localize("time.hours", n=count),
            key="override_hours",
        )
        with button:
            st.form_submit_button(
                viewer.localize("oncall.add"),
                disabled=not viewer.may_change,
                help=None if viewer.may_change else viewer.localize("token.needed"),
                on_click=_add,
                args=(viewer, zones),
                width="stretch",
            )
    st.html(html.label(viewer.localize("oncall.zone_hint")))


def _add(viewer: Viewer, zones: dict[str, str]) -> None:
    state = st.session_state
    schedule = state["override_schedule"]
    start = datetime.combine(state["override_day"], state["override_time"], tzinfo=ZoneInfo(zones[schedule]))
    body = {
        "schedule": schedule,
        "person": state["override_person"],
        "start": rfc3339(start),
        "end": rfc3339(start + timedelta(hours=state["override_hours"])),
    }
    try:
        viewer.client.post("/oncall/overrides", body)
    except (ApiError, ApiUnreachableError) as error:
        state[_REFUSED] = (error.message, error.hint)


def _remove(viewer: Viewer, override_id: str) -> None:
    try:
        viewer.client.delete(f"/oncall/overrides/{quote(override_id, safe='')}")
    except (ApiError, ApiUnreachableError) as error:
        st.session_state[_REFUSED] = (error.message, error.hint)


def _follow_ups(viewer: Viewer, incidents: StreamlitPage | None) -> None:
    st.html(html.section(viewer.localize("follow_up.title")))
    listed = viewer.client.get("/follow-ups", open="true", limit=_MOST_FOLLOW_UPS)["follow_ups"]
    with st.container(border=True, key="o-box-follow-ups"):
        if not listed:
            st.html(html.empty(viewer.localize("follow_up.none_open")))
        for item in sorted(listed, key=lambda item: (item["due"], item["id"])):
            with st.container(horizontal=True, vertical_alignment="center"):
                st.html(response.follow_up_line(viewer, item), width="stretch")
                if incidents is not None:
                    st.page_link(
                        incidents,
                        label=viewer.localize("follow_up.incident"),
                        query_params={"incident": item["incident"]},
                    )
                response.close_button(viewer, item)
