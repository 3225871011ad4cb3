"""Renders a report as one self-contained HTML file, as Markdown, or as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from functools import cache
from math import isfinite
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined, select_autoescape
from markupsafe import Markup

from outrider.clock import rfc3339
from outrider.errors import UsageError
from reports.document import charts, words
from reports.document.model import BarChart, Cell, LineChart, ReportModel, Table

FORMATS = ("html", "md", "json")


def render(model: ReportModel, format: str) -> str:  # noqa: A002 - the name of the command-line option
    """Returns the text of a report. Raises UsageError for a format that is not one of ``FORMATS``."""
    if format not in FORMATS:
        raise UsageError(f"{format!r} is not a report format", hint=f"choose from {', '.join(FORMATS)}")
    if format == "json":
        return json.dumps(as_dict(model), ensure_ascii=False, indent=2, allow_nan=False) + "\n"
    template = _environment().get_template(f"report.{format}.j2")
    return template.render(report=model, text=lambda key, **more: words.text(key, model.language, **more))


def as_dict(model: ReportModel) -> dict[str, Any]:
    """The JSON form: raw values by column key, text only for names."""
    return {
        "report": model.report,
        "week": model.week,
        "start": rfc3339(model.start),
        "end": rfc3339(model.end),
        "made_at": rfc3339(model.made_at),
        "language": model.language,
        "empty": model.empty,
        "headlines": [
            {
                "measure": headline.measure or "incidents",
                "title": headline.title,
                "value": _plain(headline.cell.value),
                "text": headline.cell.text,
                "kept": headline.cell.kept,
            }
            for headline in model.headlines
        ],
        "sections": [
            {
                "id": section.id,
                "title": section.title,
                "tables": [{"id": table.id, "title": table.title, "rows": _rows(table)} for table in section.tables],
                "charts": [asdict(chart) for chart in section.charts],
            }
            for section in model.sections
        ],
    }


def _rows(table: Table) -> list[dict[str, Any]]:
    keys = [column.key for column in table.columns]
    return [dict(zip(keys, (_plain(cell.value) for cell in row), strict=True)) for row in table.rows]


def _plain(value: float | str | None) -> float | str | None:
    return None if isinstance(value, float) and not isfinite(value) else value


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("reports.document"),
        autoescape=select_autoescape(enabled_extensions=("html.j2",), default=False),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["svg"] = _svg
    environment.filters["md"] = _markdown
    return environment


def _svg(chart: BarChart | LineChart) -> Markup:
    # All text inside is escaped when the chart is built.
    return Markup(charts.svg(chart))  # noqa: S704


def _markdown(cell: Cell) -> str:
    """Escapes a table cell for Markdown: no pipe, no line break, no markup from names."""
    text = cell.text
    for sign in ("\\", "|", "*", "_", "`", "<", "["):
        text = text.replace(sign, f"\\{sign}")
    return " ".join(text.split())
