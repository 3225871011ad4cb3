"""Results as aligned text tables for a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

Rows = Sequence[Sequence[str]]
_WHOLE = 34


def table(headings: Sequence[str], rows: Rows, *, empty: str) -> str:
    """Aligned columns; ``empty`` when there is nothing to show."""
    if not rows:
        return empty
    drawn = Table(box=None, pad_edge=False, header_style="bold")
    widths = [max(len(cell) for cell in column) for column in zip(headings, *rows, strict=True)]
    for heading, width in zip(headings, widths, strict=True):
        whole = width <= _WHOLE  # ids, instants and words are copied: they are never broken
        drawn.add_column(heading, overflow="fold", no_wrap=whole, min_width=width if whole else _WHOLE)
    for row in rows:
        drawn.add_row(*(escape(cell) for cell in row))
    needed = sum(min(width, _WHOLE) for width in widths) + 2 * len(widths)
    console = Console(width=max(Console().width, needed))
    with console.capture() as capture:
        console.print(drawn)
    return capture.get().rstrip()


def entity(found: dict[str, Any] | None) -> str:
    """``kind/name`` of an entity in JSON."""
    return f"{found['kind']}/{found['name']}" if found else "-"


def alerts(found: list[dict[str, Any]]) -> str:
    """Alerts, one a line."""
    rows = [[a["priority"], a["state"], a["starts_at"], a["summary"], a["fingerprint"]] for a in found]
    return table(["", "state", "since", "what", "fingerprint"], rows, empty="no alerts")


def incidents(found: list[dict[str, Any]]) -> str:
    """Incidents, one a line."""
    rows = []
    for incident in found:
        cause = incident["suspected_cause"]
        named = f"{cause['fault']} {entity(cause['entity'])} ({cause['confidence']:.0%})" if cause else "unknown"
        rows.append(
            [incident["priority"], incident["id"], incident["opened_at"], incident["resolved_at"] or "open", named]
        )
    return table(["", "incident", "opened", "resolved", "suspected cause"], rows, empty="no incidents")


def actions(found: list[dict[str, Any]]) -> str:
    """Actions, one a line."""
    rows = [
        [
            a["kind"],
            entity(a["target"]),
            a["decision"],
            a["reason"],
            a["status"] + (" (dry run)" if a["dry_run"] else ""),
            a["id"],
        ]
        for a in found
    ]
    return table(["action", "target", "decision", "reason", "status", "id"], rows, empty="no actions")


def recommendations(found: list[dict[str, Any]]) -> str:
    """Recommendations, one a line."""
    rows = [
        [
            r["service"],
            r["gpu_type"] or "-",
            f"{r['current_replicas']} -> {r['target_replicas']}" if r["target_replicas"] is not None else "-",
            str(r["gpus"]) if r["gpus"] is not None else "-",
            r["needed_by"] or "-",
            r["need_at"] or "-",
            r["reason"],
        ]
        for r in found
    ]
    headings = ["service", "GPU", "replicas", "GPUs", "start by", "needed by", "reason"]
    return table(headings, rows, empty="no service is known yet; collect for a while first")


def audit(found: list[dict[str, Any]]) -> str:
    """Audit records, one a line."""
    rows = [[r["at"], r["event"], r["subject"], r["reason"], r["by"]] for r in found]
    return table(["at", "event", "subject", "reason", "by"], rows, empty="nothing was decided yet")
