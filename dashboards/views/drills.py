"""Drills page: injects faults into the simulated fleet, and compares the truth with the findings."""

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


def page(viewer: Viewer) -> None:
    """Draws the form, which keeps its input, and the self-refreshing list below it."""
    status = viewer.client.get("/drills")
    st.html(html.head(viewer.localize("drills.title"), viewer.localize("drills.below")))
    if status["possible"]:
        _drill_form(viewer, status["known"])
    else:
        st.html(html.note(viewer.localize("drills.impossible"), viewer.localize("drills.impossible_hint")))
    session.refreshed(viewer, _list)


def _drill_form(viewer: Viewer, known: list[dict[str, Any]]) -> None:
    names = {fault["id"]: f"{fault_name(fault['id'], viewer.language)} · {fault['id']}" for fault in known}
    with st.container(border=True, key="o-box-drill-order"):
        fault, entity, minutes, seed, button = st.columns([4, 3, 2, 1, 2], vertical_alignment="bottom")
        chosen = fault.selectbox(
            viewer.localize("drills.fault"), list(names), format_func=lambda name: names[name], key="drill_fault"
        )
        entity_text = entity.text_input(
            viewer.localize("drills.entity"), key="drill_entity", placeholder=viewer.localize("drills.any")
        )
        duration = minutes.selectbox(
            viewer.localize("drills.lasts"),
            _MINUTES,
            index=3,
            key="drill_minutes",
            format_func=lambda minutes: viewer.localize("time.minutes", n=minutes),
        )
        seed_value = seed.number_input(viewer.localize("drills.seed"), min_value=0, value=7, step=1, key="drill_seed")
        order: dict[str, Any] = {"fault": chosen, "seconds": duration * 60, "seed": int(seed_value)}
        if entity_text.strip():
            order["entity"] = entity_text.strip()
        start = partial(viewer.client.post, "/drills", order)
        with button:
            refusal = _button(viewer, viewer.localize("drills.start"), "drill-start", start, main=True)
        _show_refusal(refusal)
        if chosen:
            st.html(html.label(_fault_text(chosen, viewer)))


def _fault_text(fault: str, viewer: Viewer) -> str:
    return translate(f"faults.{fault}.what", viewer.language) if fault in faults() else viewer.localize("drills.state")


def _show_refusal(refusal: ApiError | None) -> None:
    """Shows the API's refusal across the whole box."""
    if refusal is not None:
        st.error("  \n".join(part for part in (refusal.message, refusal.hint) if part))


def _button(viewer: Viewer, text: str, key: str, act: Callable[[], Any], *, main: bool = False) -> ApiError | None:
    """A button for a change; without the token it shows what is missing. Returns the API's refusal."""
    if st.button(
        text,
        key=key,
        type="primary" if main else "secondary",
        disabled=not viewer.may_change,
        help=None if viewer.may_change else viewer.localize("token.needed"),
        width="stretch",
    ):
        try:
            act()
        except ApiError as error:
            return error
        st.rerun(scope="app")
    return None


def _list(viewer: Viewer) -> None:
    drills = viewer.client.get("/drills")["drills"]
    as_of = viewer.client.get("/overview")["as_of"]
    running = [drill for drill in drills if _is_running(drill, as_of)]
    past = [drill for drill in drills if drill not in running]
    st.html(html.section(viewer.localize("drills.running")))
    if not running:
        st.html(html.empty(viewer.localize("drills.none_running")))
    for drill in running:
        with st.container(border=True, key=f"o-box-drill-{drill['id']}"):
            text, button = st.columns([8, 2], vertical_alignment="center")
            text.html(comparison(viewer, drill, as_of))
            stop = partial(viewer.client.post, f"/drills/{drill['id']}/stop")
            with button:
                refusal = _button(viewer, viewer.localize("drills.stop"), f"stop-{drill['id']}", stop)
            _show_refusal(refusal)
    st.html(html.section(viewer.localize("drills.past")))
    st.html(history(viewer, past, as_of) if past else html.empty(viewer.localize("drills.none_past")))


def _is_running(drill: dict[str, Any], as_of: str) -> bool:
    ends, now = fmt.instant(drill["ends_at"]), fmt.instant(as_of)
    return not drill["stopped"] and ends is not None and now is not None and now < ends


def comparison(viewer: Viewer, drill: dict[str, Any], as_of: str) -> str:
    """Truth and findings of a running drill side by side: missing findings may still come."""
    since = fmt.when(drill["starts_at"], as_of, viewer.language)
    until = fmt.when(drill["ends_at"], as_of, viewer.language)
    about = viewer.localize("drills.about", since=since, until=until, by=_ordered_by(viewer, drill))
    detection, repaired = _detection(viewer, drill), _repaired(viewer, drill)
    if not drill["detected"]:
        detection = _muted(viewer.localize("drills.alone_so_far" if drill["negative"] else "drills.not_yet"))
    if drill["recover_seconds"] is None and not drill["negative"]:
        repaired = _muted(viewer.localize("drills.not_yet"))
    rows = [
        (viewer.localize("drills.what"), _what(viewer, drill), _named_fault(viewer, drill)),
        (
            viewer.localize("drills.where"),
            escape(fmt.entity(drill["entity"], viewer.language)),
            _named_entity(viewer, drill),
        ),
        (viewer.localize("drills.when"), escape(fmt.clock(drill["starts_at"], as_of)), detection),
        (viewer.localize("drills.recovered"), escape(fmt.clock(drill["recovered_at"], as_of)), repaired),
    ]
    cells = [("", "o-tight"), (viewer.localize("drills.truth"), ""), (viewer.localize("drills.found"), "")]
    body = [(_muted(name), truth, finding) for name, truth, finding in rows]
    return f"{html.label(about)}{html.table(cells, body)}"


def history(viewer: Viewer, drills: list[dict[str, Any]], as_of: str) -> str:
    """Finished drills, one a line."""
    heads = ("when", "what", "where", "found", "named", "repaired")
    cells = [(viewer.localize(f"drills.{name}"), "o-tight" if name == "when" else "") for name in heads]
    rows = [
        (
            escape(fmt.clock(drill["starts_at"], as_of)),
            _what(viewer, drill) + _label(viewer.localize("drills.stopped") if drill["stopped"] else ""),
            escape(fmt.entity(drill["entity"], viewer.language)),
            _detection(viewer, drill),
            _named_fault(viewer, drill),
            _repaired(viewer, drill),
        )
        for drill in drills
    ]
    return html.table(cells, rows)


def _ordered_by(viewer: Viewer, drill: dict[str, Any]) -> str:
    """A game day, the command line, the holder of the token, or a given name."""
    if drill["game_day"]:
        return viewer.localize("drills.by_game_day", name=drill["game_day"])
    known = {"drill": "drills.by_command", "admin": "drills.by_admin"}
    return viewer.localize(known[drill["by"]]) if drill["by"] in known else drill["by"]


def _what(viewer: Viewer, drill: dict[str, Any]) -> str:
    return escape(fault_name(drill["fault"], viewer.language)) + _label(
        viewer.localize("drills.no_fault") if drill["negative"] else ""
    )


def _label(text: str) -> str:
    return f' <span class="o-label">{escape(text)}</span>' if text else ""


def _muted(text: str) -> str:
    return f'<span class="o-muted">{escape(text)}</span>'


def _verdict(text: str, *, right: bool) -> str:
    kind, sign = ("ok", "✓") if right else ("broken", "✕")
    return f'<span class="o-{kind}">{sign}</span> {escape(text)}'


def _detection(viewer: Viewer, drill: dict[str, Any]) -> str:
    negative = drill["negative"]
    if not drill["detected"] and drill["stopped"]:
        return _muted(viewer.localize("drills.stopped"))  # there was no time for a finding, right or wrong
    if not drill["detected"]:
        return _verdict(viewer.localize("drills.left_alone" if negative else "drills.not_found"), right=negative)
    after = fmt.seconds_span(drill["detect_seconds"], viewer.language)
    notified = viewer.localize("drills.notified") if drill["notified"] else viewer.localize("drills.not_notified")
    opened = viewer.localize("drills.wrongly_after" if negative else "drills.after", span=after)
    return _verdict(f"{opened} · {notified}", right=not negative)


def _named_fault(viewer: Viewer, drill: dict[str, Any]) -> str:
    cause = drill["suspected_cause"]
    if not cause:
        return _muted(fmt.DASH if drill["negative"] else viewer.localize("drills.no_cause"))
    return _verdict(fault_name(cause["fault"], viewer.language), right=drill["named_fault_correct"])


def _named_entity(viewer: Viewer, drill: dict[str, Any]) -> str:
    cause = drill["suspected_cause"]
    if not cause:
        return _muted(fmt.DASH)
    return _verdict(fmt.entity(cause["entity"], viewer.language), right=drill["named_entity_correct"])


def _repaired(viewer: Viewer, drill: dict[str, Any]) -> str:
    if drill["recover_seconds"] is None:
        return _muted(fmt.DASH if drill["negative"] else viewer.localize("drills.not_repaired"))
    return _verdict(
        viewer.localize("drills.after", span=fmt.seconds_span(drill["recover_seconds"], viewer.language)), right=True
    )
