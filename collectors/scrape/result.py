"""Result of one attempt to read a target, by the scraper, a recording or Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from collectors.exposition import writer
from collectors.exposition.parser import Page
from collectors.mapping.target import Target
from outrider.errors import CollectError


@dataclass(frozen=True, slots=True)
class Explosion:
    """Cause of a page that is too large: its largest family, and the label with most values there (None: no label).

    ``samples`` are the series of the whole page. ``limit`` of them are allowed, and ``kept`` are read.
    """

    family: str
    series: int
    label: str | None
    samples: int = 0
    limit: int = 0
    kept: int = 0

    def __str__(self) -> str:
        """The error and its remedy in one sentence."""
        return (
            f"only {self.kept} of {self.samples} series are read (limit {self.limit}); {self.what}: "
            "drop the label at the exporter, or increase limit_series of the target"
        )

    @property
    def what(self) -> str:
        """The family and the label in words."""
        return f"{self.series} of them are {self.family}" + (f", most by label {self.label}" if self.label else "")


@dataclass(frozen=True, slots=True)
class Scrape:
    """One attempt. At most one of ``body`` and ``error`` is set; neither if the page arrives parsed.

    ``at`` is the start of the scrape, ``duration_seconds`` the time from connect to last byte. ``health`` is the HTTP
    code of GET /health, None without a response. ``load`` is the number of requests in flight from GET /load, None if
    the engine does not report it. Both are meaningful only if ``probed``. ``openmetrics`` follows the Content-Type,
    None without one. ``samples`` is set if the page is only a part of the target's; ``exploded`` is set if the reason
    is the series limit. ``saved``: a page from a file, with lines of any age. ``page`` is the page if it arrived
    parsed.
    """

    target: Target
    at: datetime
    body: bytes | None
    error: CollectError | None
    duration_seconds: float
    health: int | None = None
    load: float | None = None
    probed: bool = False
    openmetrics: bool | None = None
    samples: int | None = None
    exploded: Explosion | None = None
    saved: bool = False
    page: Page | None = None

    @property
    def text(self) -> bytes | None:
        """The page as received, or written from its parsed form; None without a page."""
        return self.body if self.page is None or self.body is not None else writer.text(self.page)
