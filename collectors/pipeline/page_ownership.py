"""Rejects a page of another system: it has no metric of its adapter and those of another adapter.

A page without any metric of its adapter proves nothing: a gateway that has served no request has none.
It is rejected only if it matches another adapter, or is empty.
"""

from __future__ import annotations

from collectors.exposition.parser import Page
from collectors.mapping.model import Adapter
from collectors.mapping.registry import ADAPTERS
from collectors.mapping.signatures import other_adapter
from outrider.errors import CollectError, CollectReason
from outrider.model import EntityKind


def refusal(target: str, own: Adapter, page: Page, *, had_one: bool) -> CollectError | None:
    """Returns the error of a page that is not the target's; None if it may be. ``had_one``: an earlier page was read.

    An empty page of a device exporter that had devices means that they are gone; detectors judge that.
    """
    if not page.series:
        if had_one and own.target is not EntityKind.REPLICA:
            return None
        hint = f"expected metrics of {own.title}; check that it publishes them at this address"
        return CollectError(f"{target}: the metrics page is empty", reason=CollectReason.NOT_METRICS, hint=hint)
    other = other_adapter(own.name, frozenset(page.names)) if own.name in ADAPTERS else None
    if other is None:
        return None
    return CollectError(
        f"{target}: this page has no metric of {own.name}; it matches {other}",
        reason=CollectReason.NOT_METRICS,
        hint=f"set adapter {other} for this target, or check the address",
    )
