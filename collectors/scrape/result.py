"""What one attempt to read a target brought, whoever made it: scraper, recording or Prometheus."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from collectors.exposition import writer
from collectors.exposition.parser import Page
from collectors.mapping.target import Target
from outrider.errors import CollectError


@dataclass(frozen=True, slots=True)
class Explosion:
    """What makes a page too large: the family with most series, and its label with most values (None: no label).

    ``samples`` are the series of the whole page, of which ``limit`` are allowed and ``kept`` are read.
    """

    family: str
    series: int
    label: str | None
    samples: int = 0
    limit: int = 0
    kept: int = 0

    def __str__(self) -> str:
        """One sentence that says what to do."""
        return (
            f"only {self.kept} of its {self.samples} series are read, since {self.limit} are allowed; {self.what}: "
            "drop the label at the exporter, or raise limit_series of the target"
        )

    @property
    def what(self) -> str:
        """The family and the label, in words."""
        return f"{self.series} of them are {self.family}" + (f", most by label {self.label}" if self.label else "")


@dataclass(frozen=True, slots=True)
class Scrape:
    """One attempt. Of ``body`` and ``error`` at most one is set; neither when the page comes parsed.

    ``at`` is when the scrape began, ``duration_seconds`` connect to last byte. ``health`` is the HTTP
    code of GET /health, None when nothing answered; ``load`` the requests in flight by GET /load,
    None when the engine does not tell. Both mean something only when ``probed``. ``openmetrics`` is
    what the Content-Type said, None when there was none. ``samples`` is set when the page handed on is
    only a part of the target's, ``exploded`` says why when that is because it had more series than it may have.
    ``saved``: a page from a file, whose lines may be about any time. ``page`` is what came parsed, for those who
    keep it.
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
        """The page as it came, or as it reads when it came parsed; None when there is none."""
        return self.body if self.page is None or self.body is not None else writer.text(self.page)
