"""Interrupts of a drill: never before the drill can be undone."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Self


class DeferredSignals:
    """Handles SIGTERM as Ctrl-C. Deferred at first: without the response to its request, a fault cannot be ended."""

    def __enter__(self) -> Self:
        """Installs the handlers."""
        self._deferred, self._received = True, False
        self._previous = {number: signal.signal(number, self._handle) for number in (signal.SIGINT, signal.SIGTERM)}
        return self

    def __exit__(self, *_: object) -> None:
        """Restores the previous handlers."""
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    def defer(self) -> None:
        """Defers signals from now on."""
        self._deferred = True

    def release(self) -> None:
        """Raises KeyboardInterrupt for deferred and for later signals."""
        self._deferred = False
        if self._received:
            raise KeyboardInterrupt

    def _handle(self, _number: int, _frame: FrameType | None) -> None:
        self._received = True
        if not self._deferred:
            raise KeyboardInterrupt
