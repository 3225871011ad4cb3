"""Registry of the reports. A new report is a new row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from outrider.ports import MetricStore, StateReader
from outrider.text.i18n import Language, translate
from reports.capacity import capacity
from reports.document.model import ReportModel
from reports.weekly import weekly


class Build(Protocol):
    """Builds a report of one week from the read ports."""

    def __call__(
        self, state: StateReader, metrics: MetricStore, week: str, now: datetime, language: Language = "en"
    ) -> ReportModel:
        """Returns the report; it is ``empty`` if nothing was collected."""
        ...


@dataclass(frozen=True, slots=True)
class ReportDefinition:
    """One kind of report. Its title and description are texts of the area ``reports``."""

    name: str
    build: Build

    def title(self, language: Language = "en") -> str:
        """Display name."""
        return translate(f"reports.{self.name}_title", language)

    def description(self, language: Language = "en") -> str:
        """Short description."""
        return translate(f"reports.{self.name}_description", language)


_ROWS = (ReportDefinition("weekly", weekly), ReportDefinition("capacity", capacity))
REPORTS: dict[str, ReportDefinition] = {row.name: row for row in _ROWS}
