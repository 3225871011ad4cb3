"""A server of one vendor on loopback. It rejects what the vendor would reject, and records what it accepted."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from outrider.clock import Clock, SystemClock
from tests.support.json_server import Request, Response

SECRET = "s3cr3t-token"  # part of every address, key and password: it must never be logged


class Rejected(Exception):  # noqa: N818 - the answer of a vendor, not an error of the test
    """A request that the vendor rejects."""

    def __init__(self, why: str, response: Response) -> None:
        super().__init__(why)
        self.why = why
        self.response = response


class Vendor:
    """Base of all vendors. ``script`` are responses that replace the next answers."""

    channel_type = ""
    throttled = Response(429, {"error": "too many"}, headers={"Retry-After": "7"})

    def __init__(self, clock: Clock | None = None) -> None:
        self.clock = clock or SystemClock()
        self.url = ""
        self.script: list[Response] = []
        self.requests: list[Request] = []
        self.accepted: list[Any] = []
        self.rejected: list[str] = []
        self.stopped = threading.Event()

    # --- for a subclass -------------------------------------------------------------------------------

    def answer(self, request: Request) -> Response:
        """Checks a request, appends it to ``accepted`` and returns the response of the vendor; or raises Rejected."""
        raise NotImplementedError

    def settings(self) -> dict[str, Any]:
        """The keys of a channel of this vendor."""
        raise NotImplementedError

    def text_of(self, document: Any) -> str:
        """What a person reads of an accepted document."""
        return json.dumps(document, ensure_ascii=False)

    # --- for a test -----------------------------------------------------------------------------------

    @property
    def texts(self) -> list[str]:
        """What people read."""
        return [self.text_of(document) for document in self.accepted]

    def handle(self, request: Request) -> Response:
        """Answers one request."""
        self.requests.append(request)
        if self.script:
            return self.script.pop(0)
        try:
            return self.answer(request)
        except Rejected as error:
            self.rejected.append(error.why)
            return error.response

    def now(self) -> datetime:
        """The time of the vendor."""
        return self.clock.now().astimezone(UTC)


def check(condition: object, why: str, response: Response) -> None:
    """Rejects a request unless a condition holds."""
    if not condition:
        raise Rejected(why, response)


def only(document: Any, allowed: Mapping[str, type | tuple[type, ...]], response: Response, where: str = "") -> None:
    """Rejects a document with other keys than the documented ones, or with other types."""
    check(isinstance(document, dict), f"{where} is not an object", response)
    for key, value in document.items():
        check(key in allowed, f"{where}.{key} is not documented", response)
        check(isinstance(value, allowed[key]), f"{where}.{key} has another type", response)


@contextmanager
def serving(vendor: Vendor, tls: Any = None) -> Iterator[Vendor]:
    """Runs the server of a vendor. ``tls`` is a server-side SSL context."""

    class Handler(BaseHTTPRequestHandler):
        def handle_request(self) -> None:
            content = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            response = vendor.handle(Request(self.command, self.path, headers, content))
            if response.hangs:
                vendor.stopped.wait(10)
                return
            body = response.raw
            if body is None:
                body = b"" if response.body is None else json.dumps(response.body).encode()
            self.send_response(response.status)
            for name, value in response.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            with suppress(OSError):
                self.wfile.write(body)

        do_POST = do_PUT = handle_request  # noqa: N815 - the names of the base class

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    server.handle_error = lambda *_: None  # type: ignore[method-assign]
    scheme = "http"
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
        scheme = "https"
    vendor.url = f"{scheme}://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield vendor
    finally:
        vendor.stopped.set()
        server.shutdown()
        thread.join()
        server.server_close()
