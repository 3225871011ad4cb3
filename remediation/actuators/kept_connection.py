"""One connection to an API server for many actions: a TLS handshake costs more than a cordon."""

from __future__ import annotations

import threading
from datetime import timedelta

from outrider.clock import Clock, SystemClock
from outrider.wire.http_auth import Access
from remediation.actuators.api_server import ApiServer

RENEWED_AFTER = timedelta(minutes=1)  # as often as other clients read a token file that is rotated


class KeptConnection:
    """Hands out the same server to several threads. Credentials are read again every minute and after a refusal."""

    def __init__(self, url: str, access: Access, *, setting: str, clock: Clock | None = None) -> None:
        """``setting`` is the configuration key of ``url``."""
        self._url, self._access, self._setting = url, access, setting
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._server: ApiServer | None = None
        self._opened = 0.0

    def server(self) -> ApiServer:
        """Returns the server, opened anew if it is old. Raises ActuationError for an unreadable file."""
        with self._lock:
            now = self._clock.monotonic()
            if self._server is None or now - self._opened > RENEWED_AFTER.total_seconds():
                self._server = ApiServer(self._url, self._access, setting=self._setting)
                self._opened = now
            return self._server

    def drop(self) -> None:
        """Makes the next action read the credentials again. Requests in flight are not interrupted."""
        with self._lock:
            self._server = None
