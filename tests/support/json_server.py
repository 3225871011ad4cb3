"""An HTTP server with scripted responses, for actuators that talk to one endpoint."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread
from typing import Any


@dataclass(frozen=True, slots=True)
class Response:
    """One response. ``body`` is sent as JSON, ``raw`` as it is; ``hangs`` until the server stops."""

    status: int = 200
    body: Any = None
    raw: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    hangs: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    """One received request. ``path`` includes the query."""

    method: str
    path: str
    headers: Mapping[str, str]
    content: bytes

    @property
    def json(self) -> Any:
        """The body as JSON."""
        return json.loads(self.content)


Handler = Response | Callable[[Request], Response]


@dataclass
class JsonServer:
    """Responses by ``"METHOD /path"``; a path without one is 404. ``requests`` are all received ones, oldest first."""

    url: str = ""
    responses: dict[str, Handler] = field(default_factory=dict)
    requests: list[Request] = field(default_factory=list)
    stopped: Event = field(default_factory=Event)

    def sent(self, method: str) -> list[str]:
        """The paths requested by this method."""
        return [request.path for request in self.requests if request.method == method]


@contextmanager
def json_server() -> Iterator[JsonServer]:
    """Yields a server on loopback."""
    result = JsonServer()

    class RequestHandler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            request = Request(self.command, self.path, dict(self.headers), content)
            result.requests.append(request)
            known = result.responses.get(f"{self.command} {self.path}", Response(404, {"detail": "Not Found"}))
            response = known(request) if callable(known) else known
            if response.hangs:
                result.stopped.wait()
                return
            body = response.raw
            if body is None:
                body = b"" if response.body is None else json.dumps(response.body).encode()
            self.send_response(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PUT = do_PATCH = answer  # noqa: N815

        def log_message(self, *_args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), RequestHandler)
    server.handle_error = lambda *_args: None  # type: ignore[method-assign]
    result.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield result
    finally:
        result.stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()
