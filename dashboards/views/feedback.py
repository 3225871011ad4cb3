"""Feedback on an incident: form for verdicts on its alerts, and the list of given verdicts."""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import quote

import streamlit as st

from dashboards.client import ApiError, ApiUnreachableError
from dashboards.components import format as fmt
from dashboards.components import html
from dashboards.session import Viewer
from outrider.documents.summaries import fault_name, rule_name, word
from outrider.vocabulary.faults import faults

VERDICTS = ("useful", "not_useful", "wrong_cause")
_REFUSED = "feedback_refused"
_MOST_LINES = 8


def pop_refusal() -> tuple[str, str] | None:
    """Returns the API's refusal of the last verdict, once."""
    refusal: tuple[str, str] | None = st.session_state.pop(_REFUSED, None)
    return refusal


def feedback_form(viewer: Viewer, incident: dict[str, Any]) -> None:
    """Draws the form and the given verdicts."""
    number = incident["id"]
    alerts = {alert["fingerprint"]: alert["summary"] for alert in incident["folded"] if alert["state"] != "pending"}
    about, cause = st.columns(2, gap="medium")
    about.selectbox(
        viewer.localize("feedback.about"),
        ["", *alerts],
        format_func=lambda print_: alerts.get(print_, viewer.localize("feedback.whole")),
        key=f"judge-about-{number}",
    )
    cause.selectbox(
        viewer.localize("feedback.cause"),
        ["", *sorted(faults(), key=lambda fault: fault_name(fault, viewer.language))],
        format_func=lambda fault: (
            fault_name(fault, viewer.language) if fault else viewer.localize("feedback.unknown_cause")
        ),
        key=f"judge-cause-{number}",
    )
    comment, name = st.columns(2, gap="medium")
    comment.text_input(viewer.localize("feedback.comment"), key=f"judge-comment-{number}", max_chars=1000)
    name.text_input(viewer.localize("feedback.name"), key="judge-name", max_chars=64)
    with st.container(horizontal=True, vertical_alignment="center"):
        for verdict in VERDICTS:
            st.button(
                viewer.localize(f"feedback.{verdict}"),
                key=f"judge-{verdict}-{number}",
                disabled=not viewer.may_change,
                help=None if viewer.may_change else viewer.localize("token.needed"),
                on_click=_send_verdict,
                args=(viewer, number, verdict),
            )
        st.html(html.label(viewer.localize("feedback.how")))
    st.html(verdict_list(viewer, incident))


def verdict_list(viewer: Viewer, incident: dict[str, Any]) -> str:
    """The verdicts of an incident; equal ones of one person on several alerts share a line."""
    groups: dict[tuple[str, str, str, str, str], list[str]] = {}
    for entry in incident["feedback"]:
        key = (entry["by"], entry["verdict"], entry["cause"] or "", entry["comment"], entry["at"])
        groups.setdefault(key, []).append(entry["rule"])
    if not groups:
        return html.label(viewer.localize("feedback.none"))
    lines = []
    for (by, verdict, cause, comment, at), rules in list(groups.items())[:_MOST_LINES]:
        alert = (
            rule_name(rules[0], viewer.language)
            if len(rules) == 1
            else viewer.localize("feedback.several", n=len(rules))
        )
        line = viewer.localize(
            "feedback.verdict", by=by, verdict=word("usefulness", verdict, viewer.language), alert=alert
        )
        given = fmt.clock(at, incident["as_of"], incident["timezone"])
        more = [fault_name(cause, viewer.language) if cause else "", comment, given]
        lines.append(escape(" · ".join([line, *filter(None, more)])))
    return html.bullets(lines)


def _send_verdict(viewer: Viewer, number: str, verdict: str) -> None:
    state = st.session_state
    cause = state.get(f"judge-cause-{number}", "") if verdict == "wrong_cause" else ""
    body = {
        "verdict": verdict,
        "cause": cause or None,
        "comment": state.get(f"judge-comment-{number}", ""),
        "by": state.get("judge-name", ""),
    }
    about = state.get(f"judge-about-{number}", "")
    path = f"/alerts/{quote(about, safe='')}/feedback" if about else f"/incidents/{number}/feedback"
    try:
        viewer.client.post(path, body)
    except (ApiError, ApiUnreachableError) as error:
        state[_REFUSED] = (error.message, error.hint)
