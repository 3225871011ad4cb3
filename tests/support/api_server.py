"""The API in a thread, on a free loopback port, for clients that are other programs."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from outrider.ports import StateStore
from service.api.app import create_app
from service.api.dependencies import ApiExtras
from service.config.api_settings import ApiSettings
from store.memory import MemoryMetricStore


@contextmanager
def serving(state: StateStore, settings: ApiSettings, extras: ApiExtras | None = None) -> Iterator[str]:
    """Yields the base URL."""
    app = create_app(state, MemoryMetricStore(), settings, extras or ApiExtras())
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", lifespan="off", ws="none"))
    thread = threading.Thread(target=server.run, kwargs={"sockets": [listening]})
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()
        listening.close()
