"""Writes and sends reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from outrider.errors import UnavailableError, UsageError
from outrider.model import Message, NotifyReason
from outrider.ports import MetricStore, StateReader
from outrider.text.i18n import Language, translate
from reports.definitions import REPORTS
from reports.document import render
from service.config.settings import Settings
from service.wiring import alerting as wiring_alerting
from service.wiring import stores as wiring_stores

FORMATS = ("html", "md", "json")


@dataclass(frozen=True, slots=True)
class WrittenReport:
    """The files of one report, and its content as text."""

    paths: tuple[Path, ...]
    empty: bool
    title: str
    text: str


def weekly(
    settings: Settings,
    week: str | None,
    formats: Sequence[str],
    out: Path,
    language: Language,
    now: datetime,
    *,
    send: bool = False,
    report: str = "weekly",
) -> WrittenReport:
    """Writes one of ``REPORTS`` from a store. ``week`` defaults to the last whole week before the newest cycle.

    Raises UsageError for an invalid week or format, UnavailableError if no channel is configured to send to.
    """
    unknown = [name for name in formats if name not in FORMATS]
    if unknown:
        raise UsageError(f"{unknown[0]!r} is not a report format", hint=f"formats are {', '.join(FORMATS)}")
    with wiring_stores.stores(settings) as (state, metrics):
        newest = state.cycles(limit=1)
        as_of = newest[0].at if newest else now
        written = write(state, metrics, week or week_before(as_of), formats, out, language, as_of, report)
    if send:
        _send(settings, written, now, language, state.installation())
    return written


def write(
    state: StateReader,
    metrics: MetricStore,
    week: str,
    formats: Sequence[str],
    out: Path,
    language: Language,
    now: datetime,
    report: str = "weekly",
) -> WrittenReport:
    """Writes the report of one week in each format."""
    model = REPORTS[report].build(state, metrics, week, now, language)
    paths = []
    try:
        out.mkdir(parents=True, exist_ok=True)
        for name in formats:
            path = out / f"{report}-{week}-{language}.{name}"
            path.write_text(render.render(model, name), encoding="utf-8")
            paths.append(path)
    except OSError as error:
        raise UsageError(f"{out} cannot be written: {error.strerror}", hint="name another folder with --out") from error
    return WrittenReport(tuple(paths), model.empty, model.title, render.render(model, "md"))


def week_before(instant: datetime) -> str:
    """Returns the ISO week before the week of a timestamp: ``2026-W46``."""
    year, week, _ = (instant - timedelta(days=7)).isocalendar()
    return f"{year}-W{week:02d}"


def _send(settings: Settings, written: WrittenReport, now: datetime, language: Language, installation: str) -> None:
    senders = wiring_alerting.notifiers(settings, installation)
    channels = settings.notify.groups.get("report", [])
    if not channels:
        raise UnavailableError("no channel is configured for reports", hint="name one under notify.groups.report")
    for channel in channels:
        body = written.text if not written.empty else translate("cli.report_empty", language)
        senders[channel].send(
            Message(
                id=f"report:{written.paths[0].stem}:{channel}",
                channel=channel,
                reason=NotifyReason.REPORT,
                priority=None,
                incident=None,
                title=written.title,
                body=body,
                created_at=now,
                language=language,
                link=settings.notify.public_url,
            )
        )
