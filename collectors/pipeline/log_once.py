"""Logs each page anomaly of a target once per occurrence."""

from __future__ import annotations

from collectors.exposition.parser import Page
from collectors.pipeline.page_lint import repeated_series
from collectors.scrape.result import Scrape
from outrider import log

_EXPLODED, _REPEATED = "series_exploded", "series_more_than_once"


class OncePerTargetLogger:
    """Anomalies logged for each target."""

    def __init__(self) -> None:
        self._types: dict[str, set[str]] = {}
        self._active: dict[str, set[str]] = {}  # events that apply to the target's newest page

    def forget(self, target: str) -> None:
        """Drops the state of a target that is no longer configured."""
        self._types.pop(target, None)
        self._active.pop(target, None)

    def limited(self, scrape: Scrape) -> None:
        """Logs a page that was cut down to the metrics its adapter reads."""
        explosion, target = scrape.exploded, scrape.target.name
        if self._is_new(target, _EXPLODED, holds=explosion is not None) and explosion is not None:
            log.get("collect").warning(
                _EXPLODED,
                target=target,
                series=explosion.samples,
                limit=explosion.limit,
                kept=explosion.kept,
                family=explosion.family,
                label=explosion.label,
            )

    def parsed(self, target: str, page: Page) -> None:
        """Logs repeated series and metrics with contradicting types."""
        if self._is_new(target, _REPEATED, holds=bool(page.layout.repeats)):
            log.get("collect").warning(
                _REPEATED, target=target, lines_left_out=page.layout.repeats, series=repeated_series(page)
            )
        logged = self._types.setdefault(target, set()) if page.layout.contradicted else set()
        for metric in page.layout.contradicted:
            if metric not in logged:
                logged.add(metric)
                log.get("collect").warning(
                    "two_types_of_a_metric", target=target, metric=metric, read_as=page.types[metric]
                )

    def _is_new(self, target: str, event: str, *, holds: bool) -> bool:
        active = self._active.get(target)
        if not holds:
            if active is not None:
                active.discard(event)
            return False
        active = self._active.setdefault(target, set())
        known = event in active
        active.add(event)
        return not known
