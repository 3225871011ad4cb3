"""Loopback ports, each reserved for one target: a dead one refuses connections and returns on the same port."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Coroutine
from typing import Any


class Port:
    """A permanently bound port that listens only while its target is up."""

    def __init__(self, host: str) -> None:
        self._host = host
        self._keeper = _bound(host, 0)
        self.number = int(self._keeper.getsockname()[1])
        self._listener: socket.socket | None = None
        self._server: asyncio.Server | None = None

    @property
    def listening(self) -> bool:
        """True if connections are accepted, or will be as soon as the loop runs."""
        return self._listener is not None

    def open(self, handler: Any) -> Coroutine[Any, Any, None]:
        """Starts listening; await the result to handle connections."""
        listener = _bound(self._host, self.number)
        listener.listen(128)
        self._listener = listener
        return self._handle(listener, handler)

    async def _handle(self, listener: socket.socket, handler: Any) -> None:
        server = await asyncio.get_running_loop().create_server(handler, sock=listener)
        if self._listener is listener:
            self._server = server
        else:
            server.close()

    def close(self) -> None:
        """Refuses connections from now on."""
        if self._server is not None:
            self._server.close()
        elif self._listener is not None:
            self._listener.close()
        self._listener = self._server = None

    def release(self) -> None:
        """Releases the port."""
        self.close()
        self._keeper.close()


def _bound(host: str, port: int) -> socket.socket:
    # The kernel refuses connections to a bound socket that does not listen, and no other process can reuse the port.
    # With SO_REUSEADDR a second socket may listen on it.
    bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    bound.bind((host, port))
    return bound
