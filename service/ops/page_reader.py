"""Pages read once, by hand: from files, from addresses, or from the targets of a configuration."""

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

_MEND = {CollectReason.NOT_METRICS, CollectReason.TRUNCATED, CollectReason.TOO_LARGE, CollectReason.TOO_MANY_SERIES}
_TOLD = 3  # errors that one sentence holds
_ADDRESS = re.compile(r"((localhost|\d+(\.\d+){3}|\[[0-9a-fA-F:]+\])(:\d+)?|[\w.-]+:\d+)(/.*)?")


@dataclass(frozen=True, slots=True)
class Look:
    """One target with its one scrape."""

    target: Target
    scrape: Scrape


class Fared(Protocol):
    """How a target fared; ``TargetHealth`` is one."""

    @property
    def up(self) -> bool | None:
        """Whether a page of it was read."""
        ...

    @property
    def error(self) -> str | None:
        """Why not, in a sentence."""
        ...

    @property
    def reason(self) -> str | None:
        """Why not, as one of ``CollectReason``."""
        ...

    @property
    def hint(self) -> str:
        """What to do about it."""
        ...


@dataclass(frozen=True, slots=True)
class Fate:
    """How a target fared where no collector keeps its health."""

    up: bool
    error: str | None = None
    reason: str | None = None
    hint: str = ""


def none_answered(found: Sequence[Fared]) -> None:
    """Refuse to call it done when there are targets and none of them gave a page.

    Raises UsageError when each answered with what is no page of it (the call or the file is to be mended),
    UnavailableError otherwise.
    """
    if not found or any(one.up for one in found):
        return
    said = [one.error or "no page could be read" for one in found]
    told = said[0] if len(said) == 1 else f"none of {len(said)} targets could be read: {'; '.join(said[:_TOLD])}"
    more = f"; and {len(said) - _TOLD} more" if len(said) > _TOLD else ""
    mend = all(one.reason in _MEND for one in found)
    hint = next((one.hint for one in found if one.hint), "")
    raise (UsageError if mend else UnavailableError)(told + more, hint=hint or "check the addresses of the targets")


async def looks_of(
    settings: Settings, pages: Sequence[tuple[str, str]], at: datetime
) -> tuple[list[Look], tuple[TargetHealth, ...]]:
    """Every page once, and how each source of targets fares. Raises UsageError when there is nothing to look at."""
    wanted = _named_apart([_of_page(settings.cluster, adapter, place) for adapter, place in pages])
    sources: tuple[TargetHealth, ...] = ()
    if not pages:
        found = await discovery.discover_once(settings, factory.targets(settings), at)
        wanted, sources = [(target, None) for target in found.targets], found.health
        if not wanted and not sources:
            raise UsageError(
                "no targets are configured",
                hint="name a page, such as --page vllm=http://host:8000/metrics, or write a configuration with"
                " collect.targets, collect.discover or collect.prometheus in it: outrider config init",
            )
    looks = []
    to_fetch = [target for target, body in wanted if body is None]
    scraper = Scraper()
    try:
        fetched = {scrape.target.name: scrape for scrape in await scraper.scrape(to_fetch, at=at)}
    finally:
        await scraper.close()
    for target, body in wanted:
        scrape = fetched[target.name] if body is None else reader.page_scrape(target, body, at)
        looks.append(Look(target, scrape))
    return looks, sources


def _named_apart(wanted: Sequence[tuple[Target, bytes | None]]) -> list[tuple[Target, bytes | None]]:
    """Two files or servers of one name are two targets, though they speak about what they are named after."""
    count: Counter[str] = Counter()
    found = []
    for target, body in wanted:
        count[target.name] += 1
        times = count[target.name]
        found.append((target if times == 1 else replace(target, name=f"{target.name}-{times}"), body))
    return found


def _of_page(cluster: str, adapter: str, place: str) -> tuple[Target, bytes | None]:
    registry.adapter(adapter)
    if place.startswith(("http://", "https://")):
        name = place.split("//", 1)[1].split("/", 1)[0]
        return target_of(cluster, {"name": name, "adapter": adapter, "url": place}), None
    path = Path(place)
    try:
        body = reader.decompressed(path.read_bytes(), place)
    except (OSError, ValueError) as error:
        said = error.strerror if isinstance(error, OSError) else "it is no path"
        raise UsageError(f"{place} cannot be read: {said}", hint=_hint(adapter, place)) from error
    # A page that was saved by hand often lacks the end of its last line, which over HTTP would mean a cut.
    whole = body if not body or body.endswith(b"\n") else body + b"\n"
    return target_of(cluster, {"name": Path(path.name.removesuffix(".gz")).stem, "adapter": adapter}), whole


def _hint(adapter: str, place: str) -> str:
    """What somebody who wrote this may have meant."""
    scheme, colon, _ = place.partition("://")
    if colon:
        return f"{scheme}:// is not read; name a file, or an address that begins with http:// or https://"
    if _ADDRESS.fullmatch(place):
        return f"an address begins with http://: --page {adapter}=http://{place}"
    return "name a file or an http:// address"
