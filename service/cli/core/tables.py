"""Results as aligned text tables for a terminal."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from rich.cells import cell_len, chop_cells
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from outrider.documents.summaries import entity_name, word
from outrider.model import EntityKind, EntityRef
from outrider.text.i18n import Language, translate

Rows = Sequence[Sequence[str]]
_PIPED = 120  # width in cells if the output is not a terminal
_GAP = 2
_LEAST = 8  # minimum width of a column in cells
_WORD = r"[^\s\u2e80-\u9fff\uff00-\uffef]+"  # Chinese text breaks between any two characters
_PIECE = re.compile(rf"\s+|[（《【]*(?:{_WORD}|\S)[）》】，。：；、！？]*")  # punctuation stays with its word
_PART = re.compile(r"[^_\-/.:,=]*[_\-/.:,=]+|[^_\-/.:,=]+")


def table(headings: Sequence[str], rows: Rows, *, empty: str) -> str:
    """Aligned columns within the width of the terminal; ``empty`` if there are no rows.

    Text wraps between words. A word, an id or a timestamp is broken only if it does not fit, preferably after ``_``
    or ``-``. Nothing is cut.
    """
    if not rows:
        return empty
    console = Console()
    width_limit = console.width if console.is_terminal else max(console.width, _PIPED)
    columns = [list(column) for column in zip(headings, *rows, strict=True)]
    widths = _widths(columns, width_limit - _GAP * (len(columns) - 1))
    grid = Table(box=None, pad_edge=False, padding=(0, _GAP, 0, 0), header_style="bold")
    for heading, width in zip(headings, widths, strict=True):
        grid.add_column(_wrapped(heading, width), overflow="fold", width=width)
    for row in rows:
        grid.add_row(*(escape(_wrapped(cell, width)) for cell, width in zip(row, widths, strict=True)))
    console = Console(width=sum(widths) + _GAP * len(widths), emoji=False)  # ":a:" is a name, not an emoji
    with console.capture() as capture:
        console.print(grid)
    return "\n".join(line.rstrip() for line in capture.get().rstrip().splitlines())


def _wrapped(cell: str, width: int) -> str:
    """Lines of a cell, each at most ``width`` terminal cells wide."""
    return "\n".join(part for line in cell.splitlines() for part in _lines(line, width))


def _lines(line: str, width: int) -> list[str]:
    lines, now = [], ""
    for piece in _PIECE.findall(line):
        parts = (
            [piece] if cell_len(piece) <= width else [cut for part in _PART.findall(piece) for cut in _cut(part, width)]
        )
        for part in parts:
            if now and not part.isspace() and cell_len(now) + cell_len(part) > width:
                lines.append(now.rstrip())
                now = ""
            now += part
    return [*lines, now.rstrip()]


def _parts(text: str) -> list[str]:
    return [part for piece in _PIECE.findall(text) for part in _PART.findall(piece)]


def _cut(part: str, width: int) -> list[str]:
    return [part] if cell_len(part) <= width else chop_cells(part, width)


def _widths(columns: Sequence[Sequence[str]], available: int) -> list[int]:
    """Width of each column: the full width if all fit, else a share of the space.

    The first cell is the heading; it takes no share, and its words may break.
    """
    wanted = [_longest(column) for column in columns]
    if sum(wanted) <= available:
        return wanted
    words = [_longest([*_parts(column[0]), *_PIECE.findall(" ".join(column[1:]))]) for column in columns]
    share = max(_LEAST, available // (len(columns) + 2))
    least = [min(share, max(word, _longest(column[1:]))) for word, column in zip(words, columns, strict=True)]
    whole = _shared(least, words, available)
    return _shared(whole, wanted, available)


def _longest(cells: Sequence[str]) -> int:
    return max((cell_len(line) for cell in cells for line in cell.splitlines()), default=0) or 1


def _shared(least: Sequence[int], most: Sequence[int], available: int) -> list[int]:
    """Widths between minimum and maximum; the widest are cut to one common limit so that all fit."""
    limit = max(most)
    while limit > 1 and sum(max(low, min(high, limit)) for low, high in zip(least, most, strict=True)) > available:
        limit -= 1
    return [max(low, min(high, limit)) for low, high in zip(least, most, strict=True)]


def heads(language: Language, *names: str) -> list[str]:
    """Column headings by name; an empty name is a column without heading."""
    return [translate(f"cli.head_{name}", language) if name else "" for name in names]


def entity(value: dict[str, Any] | None) -> str:
    """``kind/name`` of an entity in JSON."""
    return f"{value['kind']}/{value['name']}" if value else "-"


def short_entity(value: dict[str, Any] | None, language: Language) -> str:
    """Short name of an entity in JSON, long names cut."""
    if not value:
        return "-"
    ref = EntityRef(value["cluster"], EntityKind(value["kind"]), value["namespace"], value["name"])
    return entity_name(ref, language)


def alerts(items: list[dict[str, Any]], language: Language = "en") -> str:
    """Alerts, one per line."""
    rows = [[a["priority"], a["state"], a["starts_at"], a["summary"], a["fingerprint"]] for a in items]
    headings = heads(language, "", "state", "since", "what", "fingerprint")
    return table(headings, rows, empty=translate("cli.no_alerts", language))


def silences(items: list[dict[str, Any]], language: Language = "en") -> str:
    """Silences, one per line."""
    rows = []
    for item in items:
        selects = [*item["matchers"], *([f"rule={item['rule']}"] if item["rule"] else [])]
        selects += [entity(item["entity"])] if item["entity"] else []
        state = translate("cli.silence_in_force" if item["in_force"] else "cli.silence_waiting", language)
        times = [item["starts_at"] or "-", item["until"], _weekly(item["window"])]
        rows.append([item["id"], state, ", ".join(selects), *times, item["by"], item["comment"]])
    headings = heads(language, "id", "state", "selects", "from", "until", "weekly", "by", "comment")
    return table(headings, rows, empty=translate("cli.no_silences", language))


def _weekly(window: dict[str, Any] | None) -> str:
    """The part of each week of a silence: ``22:00-02:00 mon,tue Asia/Shanghai``."""
    if window is None:
        return "-"
    return f"{window['start']}-{window['end']} {','.join(window['days'])} {window['timezone']}"


def incidents(items: list[dict[str, Any]], language: Language = "en") -> str:
    """Incidents, one per line."""
    rows = []
    for incident in items:
        cause = incident["suspected_cause"]
        unknown = translate("cli.unknown", language)
        cause_text = f"{cause['fault']} {entity(cause['entity'])} ({cause['confidence']:.0%})" if cause else unknown
        ended = incident["resolved_at"] or translate("cli.open", language)
        rows.append([incident["priority"], incident["id"], incident["opened_at"], ended, cause_text])
    headings = heads(language, "", "incident", "opened", "resolved", "suspected_cause")
    return table(headings, rows, empty=translate("cli.no_incidents", language))


def _action_status(action: dict[str, Any], language: Language) -> str:
    """Status, with the approvals so far of an action that needs two, and a mark of a dry run."""
    notes = [translate("cli.dry_run", language)] if action["dry_run"] else []
    if action["status"] == "waiting_approval" and action["approvals_needed"] > 1:
        counts = {"n": len(action["approvals"]), "needed": action["approvals_needed"]}
        notes.append(translate("cli.approvals", language, **counts))
    return str(action["status"]) + (f" ({', '.join(notes)})" if notes else "")


def actions(items: list[dict[str, Any]], language: Language = "en") -> str:
    """Actions, one per line."""
    rows = [
        [
            a["kind"],
            entity(a["target"]),
            a["decision"],
            a["reason"],
            _action_status(a, language),
            a["id"],
        ]
        for a in items
    ]
    headings = heads(language, "action", "target", "decision", "reason", "status", "id")
    return table(headings, rows, empty=translate("cli.no_actions", language))


def dead_letters(items: list[dict[str, Any]], language: Language = "en") -> str:
    """Undelivered messages, one per line."""
    rows = [
        [letter["channel"], letter["title"], letter["failed_at"], str(letter["attempts"]), letter["error"],
         letter["id"]]
        for letter in items
    ]  # fmt: skip
    headings = heads(language, "channel", "message", "failed_at", "attempts", "error", "id")
    return table(headings, rows, empty=translate("cli.no_dead_letters", language))


def recommendations(items: list[dict[str, Any]], language: Language = "en") -> str:
    """Recommendations, one per line."""
    items = [r | {"reason": _reason(r, language)} for r in items]
    rows = [
        [
            r["service"],
            r["gpu_type"] or "-",
            f"{r['current_replicas']} -> {r['target_replicas']}" if r["target_replicas"] is not None else "-",
            str(r["gpus"]) if r["gpus"] is not None else "-",
            _nodes(r.get("nodes"), language),
            _start_by(r, language),
            _short_from(r, language),
            _next_day(r["derivation"].get("next_24h")),
            r["reason"],
        ]
        for r in items
    ]
    headings = heads(
        language, "service", "gpu", "replicas", "gpus", "nodes", "start_by", "need_at", "next_day", "reason"
    )
    return table(headings, rows, empty=translate("cli.no_services", language))


def _reason(item: dict[str, Any], language: Language) -> str:
    """The reason of a plan; that of an incident of load replaces one that it contradicts."""
    if item.get("load_incidents") and item.get("why") is None:
        return translate("dashboard.plan.load_incident", language)
    return word("plan_reason", item["reason"], language)


def _start_by(item: dict[str, Any], language: Language) -> str:
    """Start time, marked if overdue or if none is to be started before, or the reason why nothing is started."""
    short = item["derivation"].get("short") or {}  # a plan of an earlier version has none
    if item["needed_by"] is None:
        limit = short.get("limited_by")
        return "-" if limit is None else f"- ({word('binding', limit, language)})"
    mark = "past" if short.get("is_past") else "next_need" if _is_covered(item) else ""
    return str(item["needed_by"]) + (f" ({translate(f'cli.{mark}', language)})" if mark else "")


def _is_covered(item: dict[str, Any]) -> bool:
    """True while the replicas that run suffice: the time is that of the next need."""
    return bool(item["target_replicas"] <= item["current_replicas"])


def _short_from(item: dict[str, Any], language: Language) -> str:
    """Time of the shortage, marked if it is now."""
    is_now = (item["derivation"].get("short") or {}).get("is_now")
    return str(item["need_at"] or "-") + (f" ({translate('cli.now', language)})" if is_now else "")


def _next_day(need: dict[str, Any] | None) -> str:
    """``12 (48)``: replicas and GPUs at the peak of the next day."""
    return "-" if not need else f"{need['replicas']} ({need['gpus']})"


def _nodes(nodes: dict[str, Any] | None, language: Language) -> str:
    """``3 (24 GPUs, 2 idle)``: whole nodes and their idle GPUs."""
    if nodes is None:
        return "-"
    return translate("cli.whole_nodes", language, n=nodes["nodes"], gpus=nodes["gpus"], idle=nodes["idle_gpus"])


def story(records: list[dict[str, Any]], language: Language = "en") -> str:
    """Audit records of one incident as sentences, one per line."""
    rows = [[r["at"], r["text"]] for r in records]
    return table(heads(language, "at", "event"), rows, empty=translate("cli.no_audit", language))


def audit(records: list[dict[str, Any]], language: Language = "en") -> str:
    """Audit records, one per line."""
    rows = [[r["at"], r["event"], r["subject"], r["reason"], r["by"]] for r in records]
    headings = heads(language, "at", "event", "subject", "reason", "by")
    return table(headings, rows, empty=translate("cli.no_audit", language))
