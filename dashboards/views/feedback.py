"""Asks on the page of an incident whether its alerts were worth a person's time, and shows what was said."""

from __future__ import annotations

from html import escape
from typing import Any
from urllib.parse import quote

import streamlit as st

from dashboards.client import ApiAwayError, ApiError
from dashboards.components import format as fmt
from dashboards.components import html
from dashboards.session import Viewer
from outrider.documents.summaries import fault_name, rule_name, word
from outrider.vocabulary.faults import faults

VERDICTS = ("useful", "not_useful", "wrong_cause")
_REFUSED = "feedback_refused"
_MOST_SAID = 8


def refused() -> tuple[str, str] | None:
    """What the API said to the last verdict that it did not take; told once."""
    found: tuple[str, str] | None = st.session_state.pop(_REFUSED, None)
    return found


def ask(who: Viewer, found: dict[str, Any]) -> None:
    """The question with its buttons, and the verdicts given."""
    number = found["id"]
    told = {each["fingerprint"]: each["summary"] for each in found["folded"] if each["state"] != "pending"}
    about, cause = st.columns(2, gap="medium")
    about.selectbox(
        who.say("feedback.about"),
        ["", *told],
        format_func=lambda print_: told.get(print_, who.say("feedback.whole")),
        key=f"judge-about-{number}",
    )
    cause.selectbox(
        who.say("feedback.cause"),
        ["", *sorted(faults(), key=lambda fault: fault_name(fault, who.language))],
        format_func=lambda fault: fault_name(fault, who.language) if fault else who.say("feedback.unknown_cause"),
        key=f"judge-cause-{number}",
    )
    comment, name = st.columns(2, gap="medium")
    comment.text_input(who.say("feedback.comment"), key=f"judge-comment-{number}", max_chars=1000)
    name.text_input(who.say("feedback.name"), key="judge-name", max_chars=64)
    with st.container(horizontal=True, vertical_alignment="center"):
        for verdict in VERDICTS:
            st.button(
                who.say(f"feedback.{verdict}"),
                key=f"judge-{verdict}-{number}",
                disabled=not who.may_change,
                help=None if who.may_change else who.say("token.needed"),
                on_click=_give,
                args=(who, number, verdict),
            )
        st.html(html.label(who.say("feedback.how")))
    st.html(said(who, found))


def said(who: Viewer, found: dict[str, Any]) -> str:
    """The verdicts of an incident, the same of one person on several alerts in one line."""
    groups: dict[tuple[str, str, str, str, str], list[str]] = {}
    for each in found["feedback"]:
        key = (each["by"], each["verdict"], each["cause"] or "", each["comment"], each["at"])
        groups.setdefault(key, []).append(each["rule"])
    if not groups:
        return html.label(who.say("feedback.none"))
    lines = []
    for (by, verdict, cause, comment, at), rules in list(groups.items())[:_MOST_SAID]:
        alert = rule_name(rules[0], who.language) if len(rules) == 1 else who.say("feedback.several", n=len(rules))
        line = who.say("feedback.said", by=by, verdict=word("usefulness", verdict, who.language), alert=alert)
        more = [fault_name(cause, who.language) if cause else "", comment, fmt.clock(at, found["as_of"])]
        lines.append(escape(" · ".join([line, *filter(None, more)])))
    return html.bullets(lines)


def _give(who: Viewer, number: str, verdict: str) -> None:
    kept = st.session_state
    cause = kept.get(f"judge-cause-{number}", "") if verdict == "wrong_cause" else ""
    body = {
        "verdict": verdict,
        "cause": cause or None,
        "comment": kept.get(f"judge-comment-{number}", ""),
        "by": kept.get("judge-name", ""),
    }
    about = kept.get(f"judge-about-{number}", "")
    path = f"/alerts/{quote(about, safe='')}/feedback" if about else f"/incidents/{number}/feedback"
    try:
        who.client.post(path, body)
    except (ApiError, ApiAwayError) as error:
        kept[_REFUSED] = (error.message, error.hint)
