"""How far each detector has come: what may alert, what is tried in the shadow, who is silent and why."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import streamlit as st

from dashboards import session
from dashboards.components import format as fmt
from dashboards.components import html
from dashboards.session import Viewer
from outrider.documents.summaries import signal_name, word

_DAY = 86400.0
_COLOUR = {"alerting": "ok", "shadow": "at_risk", "learning": "unknown"}
_NUMBERS = ("entities", "findings")


def page(who: Viewer) -> None:
    """Draw the page, again and again."""
    session.refreshed(who, _body)


def _body(who: Viewer) -> None:
    found = who.client.get("/detectors")
    rows = found["detectors"]
    if not rows:
        st.html(html.head(who.say("page.detectors"), who.say("detectors.none")))
        return
    when = fmt.instant(found["as_of"]).strftime("%Y-%m-%d %H:%M:%S UTC")  # type: ignore[union-attr]
    title = who.say("detectors.head", total=len(rows), **found["by_stage"])
    st.html(html.head(title, who.say("detectors.below", when=when)))
    past = [one for one in rows if one["needed_seconds"] is not None]
    st.html(html.section(who.say("detectors.statistics")))
    st.html(html.card(statistics(who, past, found["as_of"])))
    held = [(one, each) for one in past for each in one["shadowed"]]
    if held:
        st.html(html.section(who.say("detectors.shadow")))
        st.html(html.card(shadowed(who, held, found["as_of"])))
    st.html(html.section(who.say("detectors.rules")))
    st.html(html.card(rules(who, [one for one in rows if one["needed_seconds"] is None])))


def statistics(who: Viewer, rows: list[dict[str, Any]], as_of: str) -> str:
    """Those that need a past: stage, since when, why, and how their alarms keep to the budget."""
    names = ("detector", "stage", "since", "reason", "past", "rate", "entities", "findings", "silent")
    cells = []
    for one in rows:
        rate, days = one["alarms_per_entity_day"], one["learnt_seconds"] / _DAY
        past = who.say("detectors.past_of", learnt=f"{days:.3g}", needed=f"{one['needed_seconds'] / _DAY:g}")
        realised = fmt.DASH if rate["realised"] is None else f"{rate['realised']:.2g}"
        kept = who.say("detectors.rate_of", realised=realised, budget=f"{rate['budget']:.2g}")
        why = escape(one["reason_text"])
        since = escape(fmt.when(one["since"], as_of, who.language))
        cells.append((_name(one), _stage(who, one), since, why, escape(past), escape(kept), *_now(who, one)))
    return _table(who, names, cells)


def rules(who: Viewer, rows: list[dict[str, Any]]) -> str:
    """Those that alert from the first cycle."""
    names = ("detector", "stage", "entities", "findings", "silent")
    return _table(who, names, [(_name(one), _stage(who, one), *_now(who, one)) for one in rows])


def shadowed(who: Viewer, held: list[tuple[dict[str, Any], dict[str, Any]]], as_of: str) -> str:
    """What was found and raised no alert."""
    cells = [
        (
            _name(one),
            escape(fmt.entity(each["entity"], who.language)),
            escape(", ".join(signal_name(name, who.language) for name in each["signals"])),
            escape(fmt.when(each["since"], as_of, who.language)),
        )
        for one, each in held
    ]
    return _table(who, ("detector", "entity", "signals", "since"), cells)


def _table(who: Viewer, names: tuple[str, ...], rows: Sequence[Sequence[str]]) -> str:
    heads = [(who.say(f"detectors.{name}"), "o-number" if name in _NUMBERS else "") for name in names]
    return html.table(heads, rows)


def _name(one: dict[str, Any]) -> str:
    return f"<b>{escape(one['detector'])}</b>"


def _stage(who: Viewer, one: dict[str, Any]) -> str:
    return f'<span class="o-{_COLOUR[one["stage"]]}">{escape(word("stage", one["stage"], who.language))}</span>'


def _now(who: Viewer, one: dict[str, Any]) -> tuple[str, str, str]:
    said = [f"{word('no_verdict', reason, who.language)} {count}" for reason, count in one["silent"].items()]
    if one["everyone_silent"]:
        said.insert(0, who.say("detectors.all", reason=word("no_verdict", one["everyone_silent"], who.language)))
    return str(one["entities"]), str(one["findings"]), escape(" · ".join(said) or fmt.DASH)
