"""Tells the log what is odd about the pages of a target: once, and again when it comes back after it was over."""

from __future__ import annotations

from collectors.exposition.parser import Page
from collectors.pipeline.page_lint import named_doubles
from collectors.scrape.result import Scrape
from outrider import log

_EXPLODED, _DOUBLED = "series_exploded", "series_more_than_once"


class OncePerTargetLogger:
    """What was told of each target."""

    def __init__(self) -> None:
        self._types: dict[str, set[str]] = {}
        self._standing: dict[str, set[str]] = {}  # events that hold for the target's newest page

    def forget(self, target: str) -> None:
        """Drop what is known of a target that is configured no more."""
        self._types.pop(target, None)
        self._standing.pop(target, None)

    def limited(self, scrape: Scrape) -> None:
        """Tell of a page that was cut down to what its adapter reads."""
        found, target = scrape.exploded, scrape.target.name
        if self._is_news(target, _EXPLODED, holds=found is not None) and found is not None:
            log.get("collect").warning(
                _EXPLODED,
                target=target,
                series=found.samples,
                limit=found.limit,
                kept=found.kept,
                family=found.family,
                label=found.label,
            )

    def parsed(self, target: str, page: Page) -> None:
        """Tell of series that stand on a page twice, and of metrics that it gives two types of, each once."""
        if self._is_news(target, _DOUBLED, holds=bool(page.layout.repeats)):
            log.get("collect").warning(
                _DOUBLED, target=target, lines_left_out=page.layout.repeats, series=named_doubles(page)
            )
        told = self._types.setdefault(target, set()) if page.layout.contradicted else set()
        for metric in page.layout.contradicted:
            if metric not in told:
                told.add(metric)
                log.get("collect").warning(
                    "two_types_of_a_metric", target=target, metric=metric, read_as=page.types[metric]
                )

    def _is_news(self, target: str, event: str, *, holds: bool) -> bool:
        standing = self._standing.get(target)
        if not holds:
            if standing is not None:
                standing.discard(event)
            return False
        standing = self._standing.setdefault(target, set())
        known = event in standing
        standing.add(event)
        return not known
