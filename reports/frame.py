"""The frame of every report of a week: title, period, notice and footer around its sections."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from outrider.text.i18n import Language
from reports.document import words
from reports.document.model import Headline, ReportModel, Section
from reports.inputs.week import Week, week_of, week_range


def frame_report(
    report: str,
    read: Week,
    week: str,
    now: datetime,
    language: Language,
    *,
    headlines: tuple[Headline, ...] = (),
    sections: tuple[Section, ...] = (),
    empty: bool = False,
) -> ReportModel:
    """Returns the report around its sections; ``report`` is the prefix of its text keys."""
    start, end = week_range(week)
    last = (end - timedelta(days=1)).date()
    period = words.text("period_running" if read.end < end else "period", language, start=start.date(), end=last)
    return ReportModel(
        report=report,
        week=week_of(start),
        title=words.text(f"{report}_title", language),
        description=words.text(f"{report}_description", language),
        period=period,
        start=start,
        end=end,
        made_at=now,
        made=words.text("made_at", language, at=f"{now.astimezone(UTC):%Y-%m-%d %H:%M}"),
        language=language,
        empty=empty,
        notice=words.text("no_data", language) if empty else "",
        headlines=headlines,
        sections=sections,
        footer=words.text("footer", language),
    )
