"""Refuses a page that is another system's: what its adapter reads is not on it, and somebody else's metrics are.

A page without anything of its adapter is no proof by itself: a gateway that served no request yet has
none. What settles it is that the page speaks for another adapter, or says nothing at all.
"""

from __future__ import annotations

from collectors.exposition.parser import Page
from collectors.mapping.model import Adapter
from collectors.mapping.registry import ADAPTERS
from collectors.mapping.signatures import looks_like
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind


def refusal(target: str, own: Adapter, page: Page, *, had_one: bool) -> CollectError | None:
    """Why this is not the page of a target; None when it may be. ``had_one``: an earlier page of it was read.

    An empty page of a device exporter that had devices says that they are gone, which is for others to judge.
    """
    if not page.series:
        if had_one and own.target is not EntityKind.REPLICA:
            return None
        hint = f"expected the page of {own.title}; see whether it publishes metrics at this address"
        return CollectError(f"{target}: the page is empty", reason=CollectReason.NOT_METRICS, hint=hint)
    other = looks_like(own.name, frozenset(page.names)) if own.name in ADAPTERS else None
    if other is None:
        return None
    return CollectError(
        f"{target}: this page has no metric of {own.name}; it looks like {other}",
        reason=CollectReason.NOT_METRICS,
        hint=f"read it with the adapter {other}, or check the address",
    )
