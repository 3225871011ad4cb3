"""Break the simulated fleet on purpose, and see the truth beside what was found."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from html import escape
from typing import Any

import streamlit as st

from dashboards import session
from dashboards.client import ApiError
from dashboards.components import format as fmt
from dashboards.components import html
from dashboards.session import Viewer
from outrider.documents.summaries import fault_name
from outrider.text.i18n import translate
from outrider.vocabulary.faults import faults

_MINUTES = (2, 5, 10, 12, 15, 20, 30, 60)


def page(who: Viewer) -> None:
    """Draw the page: the order above, which keeps what is typed, and the list that refreshes itself below."""
    found = who.client.get("/drills")
    st.html(html.head(who.say("drills.title"), who.say("drills.below")))
    if found["possible"]:
        _order(who, found["known"])
    else:
        st.html(html.note(who.say("drills.impossible"), who.say("drills.impossible_hint")))
    session.refreshed(who, _list)


def _order(who: Viewer, known: list[dict[str, Any]]) -> None:
    names = {each["id"]: f"{fault_name(each['id'], who.language)} · {each['id']}" for each in known}
    with st.container(border=True, key="o-box-drill-order"):
        fault, entity, minutes, seed, button = st.columns([4, 3, 2, 1, 2], vertical_alignment="bottom")
        chosen = fault.selectbox(
            who.say("drills.fault"), list(names), format_func=lambda name: names[name], key="drill_fault"
        )
        where = entity.text_input(who.say("drills.entity"), key="drill_entity", placeholder=who.say("drills.any"))
        lasts = minutes.selectbox(
            who.say("drills.lasts"),
            _MINUTES,
            index=3,
            key="drill_minutes",
            format_func=lambda minutes: who.say("time.minutes", n=minutes),
        )
        drawn = seed.number_input(who.say("drills.seed"), min_value=0, value=7, step=1, key="drill_seed")
        order: dict[str, Any] = {"fault": chosen, "seconds": lasts * 60, "seed": int(drawn)}
        if where.strip():
            order["entity"] = where.strip()
        start = partial(who.client.post, "/drills", order)
        with button:
            refused = _button(who, who.say("drills.start"), "drill-start", start, main=True)
        _tell(refused)
        if chosen:
            st.html(html.label(_explained(chosen, who)))


def _explained(fault: str, who: Viewer) -> str:
    return translate(f"faults.{fault}.what", who.language) if fault in faults() else who.say("drills.state")


def _tell(refused: ApiError | None) -> None:
    """Why the API refused, across the whole box."""
    if refused is not None:
        st.error("  \n".join(part for part in (refused.message, refused.hint) if part))


def _button(who: Viewer, text: str, key: str, act: Callable[[], Any], *, main: bool = False) -> ApiError | None:
    """A button that changes something; without the token it says what is missing. What was refused is answered."""
    if st.button(
        text,
        key=key,
        type="primary" if main else "secondary",
        disabled=not who.may_change,
        help=None if who.may_change else who.say("token.needed"),
        width="stretch",
    ):
        try:
            act()
        except ApiError as error:
            return error
        st.rerun(scope="app")
    return None


def _list(who: Viewer) -> None:
    drills = who.client.get("/drills")["drills"]
    as_of = who.client.get("/overview")["as_of"]
    running = [each for each in drills if _is_running(each, as_of)]
    past = [each for each in drills if each not in running]
    st.html(html.section(who.say("drills.running")))
    if not running:
        st.html(html.empty(who.say("drills.none_running")))
    for each in running:
        with st.container(border=True, key=f"o-box-drill-{each['id']}"):
            text, button = st.columns([8, 2], vertical_alignment="center")
            text.html(comparison(who, each, as_of))
            stop = partial(who.client.post, f"/drills/{each['id']}/stop")
            with button:
                refused = _button(who, who.say("drills.stop"), f"stop-{each['id']}", stop)
            _tell(refused)
    st.html(html.section(who.say("drills.past")))
    st.html(history(who, past, as_of) if past else html.empty(who.say("drills.none_past")))


def _is_running(drill: dict[str, Any], as_of: str) -> bool:
    ends, now = fmt.instant(drill["ends_at"]), fmt.instant(as_of)
    return not drill["stopped"] and ends is not None and now is not None and now < ends


def comparison(who: Viewer, drill: dict[str, Any], as_of: str) -> str:
    """The truth and what was found, side by side, of a drill under way: what is missing may still come."""
    since = fmt.when(drill["starts_at"], as_of, who.language)
    until = fmt.when(drill["ends_at"], as_of, who.language)
    about = who.say("drills.about", since=since, until=until, by=_ordered_by(who, drill))
    found, repaired = _found_at(who, drill), _repaired(who, drill)
    if not drill["detected"]:
        found = _muted(who.say("drills.alone_so_far" if drill["negative"] else "drills.not_yet"))
    if drill["recover_seconds"] is None and not drill["negative"]:
        repaired = _muted(who.say("drills.not_yet"))
    rows = [
        (who.say("drills.what"), _what(who, drill), _named_fault(who, drill)),
        (who.say("drills.where"), escape(fmt.entity(drill["entity"], who.language)), _named_entity(who, drill)),
        (who.say("drills.when"), escape(fmt.clock(drill["starts_at"], as_of)), found),
        (who.say("drills.recovered"), escape(fmt.clock(drill["recovered_at"], as_of)), repaired),
    ]
    cells = [("", "o-tight"), (who.say("drills.truth"), ""), (who.say("drills.found"), "")]
    body = [(_muted(name), truth, said) for name, truth, said in rows]
    return f"{html.label(about)}{html.table(cells, body)}"


def history(who: Viewer, drills: list[dict[str, Any]], as_of: str) -> str:
    """Drills that are over, one a line."""
    heads = ("when", "what", "where", "found", "named", "repaired")
    cells = [(who.say(f"drills.{name}"), "o-tight" if name == "when" else "") for name in heads]
    rows = [
        (
            escape(fmt.clock(each["starts_at"], as_of)),
            _what(who, each) + _label(who.say("drills.stopped") if each["stopped"] else ""),
            escape(fmt.entity(each["entity"], who.language)),
            _found_at(who, each),
            _named_fault(who, each),
            _repaired(who, each),
        )
        for each in drills
    ]
    return html.table(cells, rows)


def _ordered_by(who: Viewer, drill: dict[str, Any]) -> str:
    """A game day, the command line, whoever holds the token, or the name that a person gave."""
    if drill["game_day"]:
        return who.say("drills.by_game_day", name=drill["game_day"])
    known = {"drill": "drills.by_command", "admin": "drills.by_admin"}
    return who.say(known[drill["by"]]) if drill["by"] in known else drill["by"]


def _what(who: Viewer, drill: dict[str, Any]) -> str:
    return escape(fault_name(drill["fault"], who.language)) + _label(
        who.say("drills.no_fault") if drill["negative"] else ""
    )


def _label(text: str) -> str:
    return f' <span class="o-label">{escape(text)}</span>' if text else ""


def _muted(text: str) -> str:
    return f'<span class="o-muted">{escape(text)}</span>'


def _verdict(text: str, *, right: bool) -> str:
    kind, sign = ("ok", "✓") if right else ("broken", "✕")
    return f'<span class="o-{kind}">{sign}</span> {escape(text)}'


def _found_at(who: Viewer, drill: dict[str, Any]) -> str:
    negative = drill["negative"]
    if not drill["detected"] and drill["stopped"]:
        return _muted(who.say("drills.stopped"))  # there was no time to find it, or to be wrong about it
    if not drill["detected"]:
        return _verdict(who.say("drills.left_alone" if negative else "drills.not_found"), right=negative)
    after = fmt.say_span(drill["detect_seconds"], who.language)
    told = who.say("drills.notified") if drill["notified"] else who.say("drills.not_notified")
    opened = who.say("drills.wrongly_after" if negative else "drills.after", span=after)
    return _verdict(f"{opened} · {told}", right=not negative)


def _named_fault(who: Viewer, drill: dict[str, Any]) -> str:
    cause = drill["suspected_cause"]
    if not cause:
        return _muted(fmt.DASH if drill["negative"] else who.say("drills.no_cause"))
    return _verdict(fault_name(cause["fault"], who.language), right=drill["named_fault_correct"])


def _named_entity(who: Viewer, drill: dict[str, Any]) -> str:
    cause = drill["suspected_cause"]
    if not cause:
        return _muted(fmt.DASH)
    return _verdict(fmt.entity(cause["entity"], who.language), right=drill["named_entity_correct"])


def _repaired(who: Viewer, drill: dict[str, Any]) -> str:
    if drill["recover_seconds"] is None:
        return _muted(fmt.DASH if drill["negative"] else who.say("drills.not_repaired"))
    return _verdict(who.say("drills.after", span=fmt.say_span(drill["recover_seconds"], who.language)), right=True)
