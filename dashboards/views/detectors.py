"""Detectors page: rollout stage of each detector, findings in shadow, and reasons without a verdict."""

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
_COLOR = {"alerting": "ok", "shadow": "at_risk", "learning": "unknown"}
_NUMBERS = ("entities", "findings")


def page(viewer: Viewer) -> None:
    """Draws the page and refreshes it."""
    session.refreshed(viewer, _body)


def _body(viewer: Viewer) -> None:
    status = viewer.client.get("/detectors")
    rows = status["detectors"]
    if not rows:
        st.html(html.head(viewer.localize("page.detectors"), viewer.localize("detectors.none")))
        return
    when = fmt.instant(status["as_of"]).strftime("%Y-%m-%d %H:%M:%S UTC")  # type: ignore[union-attr]
    title = viewer.localize("detectors.head", total=len(rows), **status["by_stage"])
    st.html(html.head(title, viewer.localize("detectors.below", when=when)))
    learning = [detector for detector in rows if detector["needed_seconds"] is not None]
    st.html(html.section(viewer.localize("detectors.statistics")))
    st.html(html.card(statistics(viewer, learning, status["as_of"])))
    findings = [(detector, finding) for detector in learning for finding in detector["shadowed"]]
    if findings:
        st.html(html.section(viewer.localize("detectors.shadow")))
        st.html(html.card(shadowed(viewer, findings, status["as_of"])))
    st.html(html.section(viewer.localize("detectors.rules")))
    st.html(html.card(rules(viewer, [detector for detector in rows if detector["needed_seconds"] is None])))


def statistics(viewer: Viewer, rows: list[dict[str, Any]], as_of: str) -> str:
    """Detectors that learn: stage, time, reason, and alarm rate against the budget."""
    names = ("detector", "stage", "since", "reason", "past", "rate", "entities", "findings", "silent")
    cells = []
    for detector in rows:
        rate, days = detector["alarms_per_entity_day"], detector["learnt_seconds"] / _DAY
        history_text = viewer.localize(
            "detectors.past_of", learnt=f"{days:.3g}", needed=f"{detector['needed_seconds'] / _DAY:g}"
        )
        rate_text = fmt.DASH if rate["realised"] is None else f"{rate['realised']:.2g}"
        alarm_rate = viewer.localize("detectors.rate_of", realised=rate_text, budget=f"{rate['budget']:.2g}")
        reason = escape(detector["reason_text"])
        since = escape(fmt.when(detector["since"], as_of, viewer.language))
        cells.append(
            (
                _name(detector),
                _stage(viewer, detector),
                since,
                reason,
                escape(history_text),
                escape(alarm_rate),
                *_now(viewer, detector),
            )
        )
    return _table(viewer, names, cells)


def rules(viewer: Viewer, rows: list[dict[str, Any]]) -> str:
    """Detectors that alert from the first cycle."""
    names = ("detector", "stage", "entities", "findings", "silent")
    return _table(
        viewer, names, [(_name(detector), _stage(viewer, detector), *_now(viewer, detector)) for detector in rows]
    )


def shadowed(viewer: Viewer, findings: list[tuple[dict[str, Any], dict[str, Any]]], as_of: str) -> str:
    """Findings that raised no alert."""
    cells = [
        (
            _name(detector),
            escape(fmt.entity(finding["entity"], viewer.language)),
            escape(", ".join(signal_name(name, viewer.language) for name in finding["signals"])),
            escape(fmt.when(finding["since"], as_of, viewer.language)),
        )
        for detector, finding in findings
    ]
    return _table(viewer, ("detector", "entity", "signals", "since"), cells)


def _table(viewer: Viewer, names: tuple[str, ...], rows: Sequence[Sequence[str]]) -> str:
    heads = [(viewer.localize(f"detectors.{name}"), "o-number" if name in _NUMBERS else "") for name in names]
    return html.table(heads, rows)


def _name(detector: dict[str, Any]) -> str:
    return f"<b>{escape(detector['detector'])}</b>"


def _stage(viewer: Viewer, detector: dict[str, Any]) -> str:
    stage = word("stage", detector["stage"], viewer.language)
    return f'<span class="o-{_COLOR[detector["stage"]]}">{escape(stage)}</span>'


def _now(viewer: Viewer, detector: dict[str, Any]) -> tuple[str, str, str]:
    reasons = [f"{word('no_verdict', reason, viewer.language)} {count}" for reason, count in detector["silent"].items()]
    if detector["everyone_silent"]:
        reasons.insert(
            0, viewer.localize("detectors.all", reason=word("no_verdict", detector["everyone_silent"], viewer.language))
        )
    return str(detector["entities"]), str(detector["findings"]), escape(" · ".join(reasons) or fmt.DASH)
