"""Response to an incident: team, assignment, escalation, comments and follow-ups."""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import quote

import streamlit as st

from dashboards.client import ApiError, ApiUnreachableError
from dashboards.components import format as fmt
from dashboards.components import html
from dashboards.session import Viewer
from dashboards.views.remediation import change_button

_REFUSED = "response_refused"


def draw_refusal() -> None:
    """Shows the API's refusal of the last change, once."""
    refusal = st.session_state.pop(_REFUSED, None)
    if refusal:
        st.html(html.note(*refusal, away=True))


def recurrence_notes(viewer: Viewer, incident: dict[str, Any]) -> list[str]:
    """One note for each follow-up of an earlier incident with the same fault on the same entity."""
    return [
        html.note(
            viewer.localize("follow_up.recurs_open" if item["closed_at"] is None else "follow_up.recurs_closed"),
            viewer.localize(
                "follow_up.line", text=item["text"], owner=item["owner"], due=item["due"], incident=item["incident"]
            ),
        )
        for item in incident["recurrences"]
    ]


def facts(viewer: Viewer, incident: dict[str, Any]) -> list[str]:
    """Team and assignee, for the head of the page."""
    shown = {"response.head_team": incident["team"], "response.head_assignee": incident["assignee"]}
    return [viewer.localize(key, name=name) for key, name in shown.items() if name]


def panel(viewer: Viewer, incident: dict[str, Any]) -> None:
    """Who responds, with the buttons to assign and escalate; comments; follow-ups."""
    left, right = st.columns([1, 1], gap="medium")
    with left, st.container(border=True, height="stretch", key="o-box-response-1"):
        st.html(responding(viewer, incident))
        if incident["resolved_at"] is None:
            _assignment(viewer, incident)
        st.html(html.label(viewer.localize("response.comments")))
        st.html(notes(viewer, incident))
        _comment_form(viewer, incident)
    with right, st.container(border=True, height="stretch", key="o-box-response-2"):
        st.html(html.label(viewer.localize("follow_up.title")))
        if not incident["follow_ups"]:
            st.html(html.empty(viewer.localize("follow_up.none")))
        for item in incident["follow_ups"]:
            with st.container(horizontal=True, vertical_alignment="center"):
                st.html(follow_up_line(viewer, item), width="stretch")
                if item["closed_at"] is None:
                    close_button(viewer, item)
        _follow_up_form(viewer, incident)


def responding(viewer: Viewer, incident: dict[str, Any]) -> str:
    """Team, people notified so far, and the assignee."""
    facts = [
        ("response.team", incident["team"]),
        ("response.notified", ", ".join(incident["notified"])),
        ("response.assignee", incident["assignee"]),
        ("response.acknowledged", incident["acknowledged_by"]),
    ]
    rows = [(html.label(viewer.localize(key)), escape(value or fmt.DASH)) for key, value in facts]
    return html.table([("", "o-tight"), ("", "")], rows)


def notes(viewer: Viewer, incident: dict[str, Any]) -> str:
    """Comments, assignments and escalations, oldest first."""
    if not incident["notes"]:
        return html.empty(viewer.localize("response.no_comments"))
    return html.bullets(escape(_note(viewer, note, incident)) for note in incident["notes"])


def _note(viewer: Viewer, note: dict[str, Any], incident: dict[str, Any]) -> str:
    if note["kind"] == "comment":
        text = viewer.localize("response.comment", by=note["by"], text=note["text"])
    elif note["kind"] == "assignment":
        key = "response.assigned" if note["to"] else "response.unassigned"
        text = viewer.localize(key, by=note["by"], to=note["to"] or "")
    else:
        text = viewer.localize("response.escalated", by=note["by"])
    return f"{text} · {fmt.clock(note['at'], incident['as_of'], incident['timezone'])}"


def _assignment(viewer: Viewer, incident: dict[str, Any]) -> None:
    status, number = viewer.client.get("/oncall"), incident["id"]
    with st.container(horizontal=True, vertical_alignment="bottom"):
        label, key = viewer.localize("response.assign_to"), f"assign-to-{number}"
        if status["people"]:
            st.selectbox(label, ["", *status["people"]], key=key, format_func=lambda name: name or fmt.DASH)
        else:
            st.text_input(label, key=key, max_chars=64)
        st.button(
            viewer.localize("response.assign"),
            key=f"assign-{number}",
            disabled=not viewer.may_change,
            help=None if viewer.may_change else viewer.localize("token.needed"),
            on_click=_assign,
            args=(viewer, number),
        )
        if status["teams"]:
            change_button(
                viewer, viewer.localize("response.escalate"), f"escalate-{number}", f"/incidents/{number}/escalate"
            )


def _assign(viewer: Viewer, number: str) -> None:
    _post(viewer, f"/incidents/{number}/assign", {"to": st.session_state.get(f"assign-to-{number}", "")})


def _comment_form(viewer: Viewer, incident: dict[str, Any]) -> None:
    number = incident["id"]
    with st.form(f"o-comment-{number}", border=False, clear_on_submit=True):
        st.text_area(viewer.localize("response.new_comment"), key=f"comment-{number}", max_chars=2000, height=68)
        _submit(viewer, "response.send", _comment, number)


def _comment(viewer: Viewer, number: str) -> None:
    text = st.session_state.get(f"comment-{number}", "").strip()
    if text:
        _post(viewer, f"/incidents/{number}/comments", {"text": text})


def _follow_up_form(viewer: Viewer, incident: dict[str, Any]) -> None:
    number = incident["id"]
    with st.form(f"o-follow-up-{number}", border=False, clear_on_submit=True):
        st.text_input(viewer.localize("follow_up.text"), key=f"follow-text-{number}", max_chars=2000)
        owner, due = st.columns(2, gap="medium")
        owner.text_input(viewer.localize("follow_up.owner"), key=f"follow-owner-{number}", max_chars=64)
        now = fmt.instant(incident["as_of"])
        due.date_input(
            viewer.localize("follow_up.due"), value=now.date() if now else "today", key=f"follow-due-{number}"
        )
        _submit(viewer, "follow_up.add", _follow_up, number)


def _follow_up(viewer: Viewer, number: str) -> None:
    state = st.session_state
    text, owner = (state.get(f"follow-{name}-{number}", "").strip() for name in ("text", "owner"))
    if text and owner:
        body = {"text": text, "owner": owner, "due": state[f"follow-due-{number}"].isoformat()}
        _post(viewer, f"/incidents/{number}/follow-ups", body)


def _submit(viewer: Viewer, key: str, act: Any, number: str) -> None:
    st.form_submit_button(
        viewer.localize(key),
        disabled=not viewer.may_change,
        help=None if viewer.may_change else viewer.localize("token.needed"),
        on_click=act,
        args=(viewer, number),
    )


def follow_up_line(viewer: Viewer, item: dict[str, Any]) -> str:
    """A follow-up with its state, owner and due date."""
    state = "closed" if item["closed_at"] else "overdue" if item["overdue"] else "open"
    kind = {"closed": "ok", "overdue": "broken", "open": "accent"}[state]
    about = viewer.localize("follow_up.about", owner=item["owner"], due=item["due"])
    pill = f'<span class="o-pill o-{kind}">{escape(viewer.localize(f"follow_up.{state}"))}</span>'
    return f'<div>{pill} {escape(item["text"])}<div class="o-label">{escape(about)}</div></div>'


def close_button(viewer: Viewer, item: dict[str, Any]) -> None:
    """The button that closes a follow-up."""
    path = f"/follow-ups/{quote(item['id'], safe='')}/close"
    change_button(viewer, viewer.localize("follow_up.close"), f"close-{item['id']}", path)


def _post(viewer: Viewer, path: str, body: dict[str, Any]) -> None:
    try:
        viewer.client.post(path, body)
    except (ApiError, ApiUnreachableError) as error:
        st.session_state[_REFUSED] = (error.message, error.hint)
