"""Silences page: a form with a preview against what fires now, and the list of silences."""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import quote

import streamlit as st

from dashboards import session
from dashboards.client import ApiError
from dashboards.components import format as fmt
from dashboards.components import html
from dashboards.session import Viewer

_HOURS = (1, 2, 4, 8, 24, 72, 168, 720)
_DAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_MOST_SHOWN = 20


def page(viewer: Viewer) -> None:
    """Draws the form, which keeps its input, and the self-refreshing list below it."""
    st.html(html.head(viewer.localize("silences.title"), viewer.localize("silences.below")))
    _form(viewer)
    session.refreshed(viewer, _list)


def _form(viewer: Viewer) -> None:
    with st.container(border=True, key="o-box-silence"):
        matchers, hours = st.columns([8, 2])
        matchers.text_area(
            viewer.localize("silences.matchers"),
            key="silence_matchers",
            help=viewer.localize("silences.matchers_help"),
            placeholder='node=~"gpu-.*"\npriority!=P0',
            height=100,
        )
        hours.selectbox(
            viewer.localize("silences.lasts"),
            _HOURS,
            index=1,
            key="silence_hours",
            format_func=lambda number: viewer.localize("time.hours", n=number),
        )
        start, end, days, zone = st.columns([1, 1, 3, 2])
        start.text_input(viewer.localize("silences.from"), key="silence_start", placeholder="22:00", max_chars=5)
        end.text_input(viewer.localize("silences.to"), key="silence_end", placeholder="02:00", max_chars=5)
        days.multiselect(
            viewer.localize("silences.days"),
            _DAYS,
            key="silence_days",
            format_func=lambda day: viewer.localize(f"silences.day_{day}"),
            placeholder=viewer.localize("silences.every_day"),
        )
        zone.text_input(viewer.localize("silences.timezone"), key="silence_zone", placeholder="UTC", max_chars=64)
        comment, dependents = st.columns([5, 3], vertical_alignment="bottom")
        comment.text_input(viewer.localize("silences.comment"), key="silence_comment", max_chars=500)
        dependents.checkbox(viewer.localize("silences.dependents"), key="silence_dependents")
        _form_buttons(viewer)


def _form_buttons(viewer: Viewer) -> None:
    body = requested()
    refusal: ApiError | None = None
    with st.container(horizontal=True, vertical_alignment="center"):
        preview = st.button(viewer.localize("silences.preview"), key="silence-preview")
        create = st.button(
            viewer.localize("silences.create"),
            key="silence-create",
            type="primary",
            disabled=not viewer.may_change,
            help=None if viewer.may_change else viewer.localize("token.needed"),
        )
    try:
        if preview:
            st.html(preview_text(viewer, viewer.client.post("/silences/preview", body)))
        if create:
            viewer.client.post("/silences", body)
    except ApiError as error:
        refusal = error
    if refusal is not None:
        st.error("  \n".join(part for part in (refusal.message, refusal.hint) if part))


def requested() -> dict[str, Any]:
    """The body of a request, from the form."""
    state = st.session_state
    lines = str(state.get("silence_matchers", "")).splitlines()
    body: dict[str, Any] = {
        "matchers": [line.strip() for line in lines if line.strip()],
        "duration_seconds": int(state.get("silence_hours", 2)) * 3600,
        "comment": state.get("silence_comment", ""),
        "dependents": bool(state.get("silence_dependents", False)),
    }
    start, end = (str(state.get(key, "")).strip() for key in ("silence_start", "silence_end"))
    if start or end:
        body["window"] = {
            "start": start,
            "end": end,
            "days": list(state.get("silence_days", [])),
            "timezone": str(state.get("silence_zone", "")).strip() or "UTC",
        }
    return body


def preview_text(viewer: Viewer, shown: dict[str, Any]) -> str:
    """What a silence would mute: counts, and the first alerts."""
    counts = {"muted": shown["muted"], "firing": shown["firing"], "incidents": len(shown["incidents"])}
    lines = [viewer.localize("silences.would_mute", **counts)]
    if not shown["in_force"]:
        following = shown["next"]
        key = "silences.begins" if following else "silences.never"
        lines.append(viewer.localize(key, at=fmt.clock(following) if following else ""))
    alerts = [f"{alert['priority']} · {alert['summary']}" for alert in shown["alerts"][:_MOST_SHOWN]]
    return html.bullets([escape(line) for line in (*lines, *alerts)])


def _list(viewer: Viewer) -> None:
    silences = viewer.client.get("/silences")
    as_of = viewer.client.get("/overview")["as_of"]
    st.html(html.section(viewer.localize("silences.active")))
    if not silences:
        st.html(html.empty(viewer.localize("silences.none")))
    for silence in silences:
        with st.container(border=True, key=f"o-box-silence-{silence['id']}"):
            text, button = st.columns([8, 2], vertical_alignment="center")
            text.html(silence_text(viewer, silence, as_of))
            ended = button.button(
                viewer.localize("silences.end"),
                key=f"silence-end-{silence['id']}",
                disabled=not viewer.may_change or bool(silence["source"]),
                help=None if viewer.may_change else viewer.localize("token.needed"),
                width="stretch",
            )
            if ended:
                viewer.client.delete(f"/silences/{quote(silence['id'], safe='')}")
                st.rerun(scope="app")


def silence_text(viewer: Viewer, silence: dict[str, Any], as_of: str) -> str:
    """One silence: what it selects, until when, by whom, and why."""
    selects = [*silence["matchers"]]
    if silence["rule"]:
        selects.append(f"rule={silence['rule']}")
    if silence["entity"]:
        selects.append(fmt.entity(silence["entity"], viewer.language))
    window = silence["window"]
    facts = [
        viewer.localize("silences.in_force" if silence["in_force"] else "silences.waiting"),
        viewer.localize("silences.until", at=fmt.when(silence["until"], as_of, viewer.language)),
        "" if window is None else _window_text(viewer, window),
        viewer.localize("silences.by", by=silence["by"]),
        viewer.localize("silences.source", source=silence["source"]) if silence["source"] else "",
        viewer.localize("silences.with_dependents") if silence["dependents"] else "",
        silence["comment"],
    ]
    head = html.label(" · ".join(filter(None, facts)))
    return f"<b>{escape(', '.join(selects))}</b>{head}"


def _window_text(viewer: Viewer, window: dict[str, Any]) -> str:
    days = ", ".join(viewer.localize(f"silences.day_{day}") for day in window["days"])
    return f"{days} {window['start']}-{window['end']} {window['timezone']}"
