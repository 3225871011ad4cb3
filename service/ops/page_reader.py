"""Reads exposition pages once: from files, from addresses, or from the configured targets."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

from collectors.mapping import registry
from collectors.mapping.target import Target, target_of
from collectors.recording import reader
from collectors.scrape.result import Scrape
from collectors.scrape.scraper import Scraper
from collectors.scrape.target_health import TargetHealth
from outrider.errors import CollectReason, UnavailableError, UsageError
from service.config.settings import Settings
from service.sources import discovery, factory

_INPUT_ERRORS = {
    CollectReason.NOT_METRICS,
    CollectReason.TRUNCATED,
    CollectReason.TOO_LARGE,
    CollectReason.TOO_MANY_SERIES,
}
_MAX_ERRORS = 3  # listed in one message
_ADDRESS = re.compile(r"((localhost|\d+(\.\d+){3}|\[[0-9a-fA-F:]+\])(:\d+)?|[\w.-]+:\d+)(/.*)?")


@dataclass(frozen=True, slots=True)
class TargetScrape:
    """One target with its only scrape."""

    target: Target
    scrape: Scrape


class TargetStatus(Protocol):
    """Result of reading a target, such as ``TargetHealth``."""

    @property
    def up(self) -> bool | None:
        """True if its page was read."""
        ...

    @property
    def error(self) -> str | None:
        """Message of the failure."""
        ...

    @property
    def reason(self) -> str | None:
        """Reason of the failure, a ``CollectReason``."""
        ...

    @property
    def hint(self) -> str:
        """Remedy."""
        ...


@dataclass(frozen=True, slots=True)
class ReadStatus:
    """Result of reading a target without a collector."""

    up: bool
    error: str | None = None
    reason: str | None = None
    hint: str = ""


def require_any_page(targets: Sequence[TargetStatus]) -> None:
    """Raises an error if there are targets and none of them returned a page.

    It is UsageError if every response is not a valid page (the arguments or the file are wrong), otherwise
    UnavailableError.
    """
    if not targets or any(target.up for target in targets):
        return
    errors = [target.error or "no page could be read" for target in targets]
    count = len(errors)
    message = errors[0] if count == 1 else f"none of {count} targets could be read: {'; '.join(errors[:_MAX_ERRORS])}"
    more = f"; and {count - _MAX_ERRORS} more" if count > _MAX_ERRORS else ""
    is_usage = all(target.reason in _INPUT_ERRORS for target in targets)
    hint = next((target.hint for target in targets if target.hint), "")
    raise (UsageError if is_usage else UnavailableError)(message + more, hint=hint or "check the target addresses")


async def scrape_pages(
    settings: Settings, pages: Sequence[tuple[str, str]], at: datetime
) -> tuple[list[TargetScrape], tuple[TargetHealth, ...]]:
    """Reads every page once. Also returns the health of the target sources. Raises UsageError without a target."""
    wanted = _with_unique_names([_target_of_page(settings.cluster, adapter, location) for adapter, location in pages])
    sources: tuple[TargetHealth, ...] = ()
    if not pages:
        snapshot = await discovery.discover_once(settings, factory.targets(settings), at)
        wanted, sources = [(target, None) for target in snapshot.targets], snapshot.health
        if not wanted and not sources:
            raise UsageError(
                "no targets are configured",
                hint="name a page, such as --page vllm=http://host:8000/metrics, or configure collect.targets,"
                " collect.discover or collect.prometheus: outrider config init",
            )
    scrapes = []
    to_fetch = [target for target, body in wanted if body is None]
    scraper = Scraper()
    try:
        fetched = {scrape.target.name: scrape for scrape in await scraper.scrape(to_fetch, at=at)}
    finally:
        await scraper.close()
    for target, body in wanted:
        scrape = fetched[target.name] if body is None else reader.page_scrape(target, body, at)
        scrapes.append(TargetScrape(target, scrape))
    return scrapes, sources


def _with_unique_names(wanted: Sequence[tuple[Target, bytes | None]]) -> list[tuple[Target, bytes | None]]:
    """Numbers targets with the same name, such as two files."""
    count: Counter[str] = Counter()
    renamed = []
    for target, body in wanted:
        count[target.name] += 1
        number = count[target.name]
        renamed.append((target if number == 1 else replace(target, name=f"{target.name}-{number}"), body))
    return renamed


def _target_of_page(cluster: str, adapter: str, location: str) -> tuple[Target, bytes | None]:
    registry.adapter(adapter)
    if location.startswith(("http://", "https://")):
        name = location.split("//", 1)[1].split("/", 1)[0]
        return target_of(cluster, {"name": name, "adapter": adapter, "url": location}), None
    path = Path(location)
    try:
        body = reader.decompressed(path.read_bytes(), location)
    except (OSError, ValueError) as error:
        message = error.strerror if isinstance(error, OSError) else "it is not a path"
        raise UsageError(f"{location} cannot be read: {message}", hint=_hint(adapter, location)) from error
    # Saved pages often lack the last line end, which over HTTP would mean a truncated page.
    page = body if not body or body.endswith(b"\n") else body + b"\n"
    return target_of(cluster, {"name": Path(path.name.removesuffix(".gz")).stem, "adapter": adapter}), page


def _hint(adapter: str, location: str) -> str:
    """Suggests the correct spelling of a location."""
    scheme, colon, _ = location.partition("://")
    if colon:
        return f"{scheme}:// is not supported; name a file, or an address that begins with http:// or https://"
    if _ADDRESS.fullmatch(location):
        return f"an address begins with http://: --page {adapter}=http://{location}"
    return "name a file or an http:// address"
