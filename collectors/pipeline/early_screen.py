"""Selects the scrapes that are read as soon as they arrive, because they may show a hard fault.

Parsing every page at once would delay the scrapes of the other targets. Only the few lines that hard-fault rules
read are compared with those of the target's last page. They change about as rarely as hardware breaks.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from collectors.mapping.model import Adapter
from collectors.scrape.result import Scrape
from outrider.errors import CollectReason

SIGNALS = ("hw_accel_ecc_uncorrectable_total",)


class EarlyScreen:
    """Remembers the lines of each target's last page as one number."""

    def __init__(self, adapter: Callable[[str], Adapter]) -> None:
        """``adapter`` returns an adapter by name."""
        self._adapter = adapter
        self._last: dict[str, int] = {}

    def selects(self, scrape: Scrape) -> bool:
        """True for a page with a new fault code, counter value or missing device, and for an engine in trouble.

        The first page of a target is a baseline.
        """
        adapter = self._adapter(scrape.target.adapter)
        if scrape.body is None:
            return bool(adapter.up) and scrape.error is not None and scrape.error.reason is CollectReason.REFUSED
        ill = bool(adapter.health) and scrape.probed and scrape.health not in (None, 200)
        names = _names(adapter)
        if not names:
            return ill
        lines = hash(tuple(_lines(scrape.body, names)))
        before = self._last.get(scrape.target.name)
        self._last[scrape.target.name] = lines
        return ill or (before is not None and before != lines)

    def forget(self, target_name: str) -> None:
        """Drops the state of a removed target."""
        self._last.pop(target_name, None)


def _names(adapter: Adapter) -> tuple[bytes, ...]:
    return _names_of(
        tuple(name for event in adapter.events for name in event.metrics),
        tuple(
            name
            for signal in SIGNALS
            for rule in adapter.rules.get(signal, ())
            for term in rule.terms
            for name in term.metrics.names
        ),
    )


@cache
def _names_of(codes: tuple[str, ...], counters: tuple[str, ...]) -> tuple[bytes, ...]:
    """Exact metric names; one with an index in its name is left to the cycle."""
    return tuple(dict.fromkeys(name.encode() for name in (*codes, *counters) if not name.startswith("~")))


def _lines(body: bytes, names: tuple[bytes, ...]) -> list[bytes]:
    lines = []
    for name in names:
        if body.startswith(name):
            lines.append(body[: _end(body, 0)])
        needle = b"\n" + name
        at = body.find(needle)
        while at >= 0:
            end = _end(body, at + 1)
            if body[at + len(needle) : at + len(needle) + 1] in (b"{", b" ", b"\t"):
                lines.append(body[at + 1 : end])
            at = body.find(needle, end)
    return lines


def _end(body: bytes, start: int) -> int:
    end = body.find(b"\n", start)
    return len(body) if end < 0 else end
