"""HTML pieces of dashboard pages. All external text is escaped here."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from importlib import resources
from typing import Any

from dashboards.components import format as fmt
from dashboards.components.palette import Palette
from outrider.documents.summaries import word
from outrider.text.i18n import Language

_SIGN = {"ok": "✓", "at_risk": "!", "broken": "✕", "unknown": "?"}
_OF_PRIORITY = {"P0": "broken", "P1": "broken", "P2": "at_risk", "P3": "unknown"}
_OF_ACTION = {
    "done": "ok",
    "failed": "broken",
    "refused": "unknown",
    "cancelled": "unknown",
    "dry_run": "unknown",
    "proposed": "accent",
    "waiting_approval": "at_risk",
    "intended": "accent",
    "claimed": "accent",
}


@cache
def _css() -> str:
    return resources.files("dashboards").joinpath("style.css").read_text(encoding="utf-8")


def style(palette: Palette) -> str:
    """The style sheet with the palette's colors."""
    names = ("card", "text", "muted", "line", "accent", "ok", "at_risk", "broken", "unknown")
    colors = " ".join(f"--o-{name}: {getattr(palette, name)};" for name in names)
    return f"<style>:root {{ {colors} }}\n{_css()}</style>"


def head(title: str, below: str) -> str:
    """The main sentence of a page, and a line below it."""
    return f'<div class="o-head"><h1>{escape(title)}</h1><div class="o-muted">{escape(below)}</div></div>'


def section(title: str) -> str:
    """A heading inside a page."""
    return f'<div class="o-section" role="heading" aria-level="2">{escape(title)}</div>'


def card(*parts: str) -> str:
    """A box."""
    return f'<div class="o-card">{"".join(parts)}</div>'


def note(message: str, hint: str = "", *, away: bool = False) -> str:
    """A notice."""
    below = f'<div class="o-muted">{escape(hint)}</div>' if hint else ""
    return f'<div class="o-note{" o-away" if away else ""}" role="status">{escape(message)}{below}</div>'


def empty(text: str) -> str:
    """Placeholder for an empty list."""
    return f'<div class="o-empty">{escape(text)}</div>'


def label(text: str) -> str:
    """A muted line."""
    return f'<div class="o-label">{escape(text)}</div>'


def missed_line(text: str) -> str:
    """A muted line with a sign, for a missed target."""
    return f'<div class="o-label"><b class="o-broken">✕ {escape(text)}</b></div>'


def status_pill(status: str, language: Language) -> str:
    """A status: color, sign and word."""
    text = f"{_SIGN[status]} {fmt.localize(f'status.{status}', language)}"
    return f'<span class="o-pill o-{status}">{escape(text)}</span>'


def priority_pill(priority: str) -> str:
    """P0 to P3."""
    return f'<span class="o-pill o-{_OF_PRIORITY.get(priority, "unknown")}">{escape(priority)}</span>'


def action_word(action: dict[str, Any], language: Language) -> str:
    """Status of an action, in its color."""
    text = word("action_status", action["status"], language)
    return f'<span class="o-{_OF_ACTION.get(action["status"], "unknown")}">{escape(text)}</span>'


def figure(name: str, value: str, below: str, *, missed: bool = False) -> str:
    """One number with its name and its target; a missed target also has a sign."""
    shown = f'<b class="o-broken">✕ {escape(value)}</b>' if missed else f"<b>{escape(value)}</b>"
    return (
        f'<div class="o-figure"><span class="o-label">{escape(name)}</span>{shown}'
        f'<span class="o-label">{escape(below)}</span></div>'
    )


def strip(slots: Sequence[dict[str, Any]], as_of: str, language: Language) -> str:
    """24 hours as bars: full height is good, shorter is worse, a stub has no data."""
    bars = []
    for slot in slots:
        share = slot["good_ratio"]
        kind = "unknown" if share is None else "ok" if share >= 1 else "at_risk" if share >= 0.5 else "broken"
        amount = fmt.localize("strip.none", language) if share is None else fmt.percent(share, 0)
        title = f"{fmt.clock(slot['start'], as_of)}: {amount}"
        bars.append(f'<i class="o-{kind}" title="{escape(title, quote=True)}"></i>')
    name = escape(fmt.localize("strip.title", language), quote=True)
    return f'<div class="o-strip" role="img" aria-label="{name}">{"".join(bars)}</div>'


def confidence_bar(share: float | None) -> str:
    """Confidence of a hypothesis."""
    width = 0 if share is None else round(share * 100)
    return f'<div class="o-bar"><i style="width:{width}%"></i></div>'


def table(head_cells: Sequence[tuple[str, str]], rows: Iterable[Sequence[str]]) -> str:
    """A table. Head cells are (text, class); row cells are escaped HTML."""
    top = "".join(f'<th class="{kind}">{escape(text)}</th>' for text, kind in head_cells)
    body = "".join(
        "<tr>"
        + "".join(f'<td class="{kind}">{cell}</td>' for cell, (_, kind) in zip(row, head_cells, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        f'<div class="o-scroll"><table class="o-table"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def bullets(items: Iterable[str]) -> str:
    """A list of sentences, already escaped."""
    return f'<ul class="o-list">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def steps(lines: Iterable[str]) -> str:
    """A numbered derivation."""
    return f'<ol class="o-steps">{"".join(f"<li>{escape(line)}</li>" for line in lines)}</ol>'


def actions_table(actions: Sequence[dict[str, Any]], as_of: str, language: Language, zone: str = "UTC") -> str:
    """Actions, newest first: time in a zone, action, target, outcome and reason."""
    names = ("when", "what", "outcome")
    cells = [(fmt.localize(f"actions.{name}", language), "o-tight" if name == "when" else "") for name in names]
    rows = []
    for action in actions:
        action_text = f"{word('action_kind', action['kind'], language)} · {fmt.entity(action['target'], language)}"
        at = action["ended_at"] or action["started_at"] or action["decided_at"]
        reason = word("decision_reason", action["reason"], language)
        dry = fmt.localize("actions.dry_run", language) if action["dry_run"] and action["status"] != "dry_run" else ""
        plan = fmt.localize("actions.by_plan", language) if action["because"] == "plan" else ""
        about = " · ".join(filter(None, (reason, plan, dry, _objection(action) or action["detail"])))
        rows.append(
            (
                escape(fmt.clock(at, as_of, zone)),
                escape(action_text),
                f'{action_word(action, language)}<div class="o-label">{escape(about)}</div>',
            )
        )
    return table(cells, rows)


def _objection(action: dict[str, Any]) -> str:
    """What the guard compared that refused the action or withdrew its request; empty if none did."""
    given = action["objections"] if action["status"] in ("refused", "cancelled") else ()
    return next((answer["compared"] for answer in given if answer["reason"] == action["reason"]), "")


def incident_line(incident: dict[str, Any], as_of: str, language: Language) -> str:
    """One incident on two lines: cause; time, confidence, number of alerts and services."""
    cause = incident["suspected_cause"]
    if cause:
        action_text = fmt.cause(cause, language)
        sure = fmt.localize("incident.confidence_short", language, share=fmt.percent(cause["confidence"], 0))
    else:
        action_text, sure = incident["summary"], fmt.localize("incident.no_cause", language)
    if incident["resolved_at"]:
        time = fmt.localize("incident.resolved_when", language, when=fmt.when(incident["resolved_at"], as_of, language))
    else:
        time = fmt.localize("incident.since", language, when=fmt.when(incident["opened_at"], as_of, language))
    folded = fmt.localize("incident.folded_short", language, alerts=incident["alerts"], pages=incident["pages"])
    about = " · ".join([time, sure, folded, *incident_services(incident)])
    mark = priority_pill(incident["priority"]) + drill_mark(incident, language)
    return f'<div><div>{mark} <b>{escape(action_text)}</b></div><div class="o-label">{escape(about)}</div></div>'


def drill_mark(incident: dict[str, Any], language: Language) -> str:
    """Marks an incident that may belong to a drill, with the name of its game day."""
    name = incident["drill"]
    if name is None:
        return ""
    text = fmt.localize("incident.drill", language) + ("" if name == "drill" else f": {name}")
    return f' <span class="o-pill">{escape(text)}</span>'


def incident_services(incident: dict[str, Any]) -> list[str]:
    """Plain names of the services an incident affects."""
    return [name.rsplit("/", 1)[-1] for name in incident["services"]][:3]
