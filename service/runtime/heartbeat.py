"""Heartbeats to a dead man's switch: a URL that is requested while cycles complete with fresh values.

A service such as healthchecks.io or Dead Man's Snitch alerts if the requests stop. They stop if the engine is dead,
cannot read its store, has no targets left, or has lost the network.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from urllib.parse import urlsplit

import httpx

from outrider import log
from service.engine.liveness import Liveness

_log = log.get("heartbeat")


class HeartbeatSender:
    """The periodic task that requests the URLs. A failure is logged once, until it is over."""

    def __init__(self, urls: Sequence[str], liveness: Liveness, timeout: timedelta = timedelta(seconds=10)) -> None:
        """The path and query of a URL are a secret: only its host is logged."""
        self._urls, self._liveness, self._timeout = tuple(urls), liveness, timeout
        self._failing: set[str] = set()
        self._silent = False

    def run_due(self, _now: datetime) -> None:
        """Requests every URL, unless the loop does not run."""
        alive = self._liveness.is_alive()
        if not alive and not self._silent:
            _log.error("heartbeat_withheld", hint="cycles do not complete, or no target has values")
        self._silent = not alive
        if alive:
            for url in self._urls:
                self._send(url)

    def _send(self, url: str) -> None:
        host = ""
        try:
            host = urlsplit(url).hostname or ""
            response = httpx.get(url, timeout=self._timeout.total_seconds(), follow_redirects=True)
            problem = "" if response.is_success else f"status {response.status_code}"
        except (httpx.HTTPError, httpx.InvalidURL, ValueError) as error:
            problem = type(error).__name__
        if problem and url not in self._failing:
            _log.error("heartbeat_failed", host=host, error=problem)
            self._failing.add(url)
        elif not problem and url in self._failing:
            _log.info("heartbeat_sent_again", host=host)
            self._failing.discard(url)
