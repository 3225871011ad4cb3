"""The Kubernetes client: certificates and credentials as configured, one try a request, errors of one form."""

from __future__ import annotations

import json
import socket
import ssl
from base64 import b64encode
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import trustme

from outrider.errors import ActuationError
from outrider.model import ActionRequest
from outrider.wire.http_auth import Access, Tls
from remediation.actuators.api_server import MERGE_PATCH, ApiServer, ConflictError

PATH = "/apis/autoscaling/v2/namespaces/llm/horizontalpodautoscalers/chat"


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)


@dataclass
class Cluster:
    """An HTTPS server with one answer."""

    status: int = 200
    body: bytes = b'{"spec": {"minReplicas": 2}}'
    location: str = ""
    requests: list[tuple[str, str, dict[str, str], bytes]] = field(default_factory=list)
    url: str = ""
    ca_file: Path = Path()


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    result = Cluster()

    class Handler(BaseHTTPRequestHandler):
        def answer(self) -> None:
            sent = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            result.requests.append((self.command, self.path, dict(self.headers), sent))
            self.send_response(result.status)
            if result.location:
                self.send_header("Location", result.location)
            self.send_header("Content-Length", str(len(result.body)))
            self.end_headers()
            self.wfile.write(result.body)

        do_GET = do_PATCH = answer  # noqa: N815

        def log_message(self, *_args: object) -> None:
            pass

    authority = trustme.CA()
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    result.ca_file = tmp_path / "ca.crt"
    authority.cert_pem.write_to_path(str(result.ca_file))
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.handle_error = lambda *_args: None  # type: ignore[method-assign]
    server.socket = context.wrap_socket(server.socket, server_side=True)
    result.url = f"https://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield result
    server.shutdown()
    thread.join()
    server.server_close()


def trusting(cluster: Cluster) -> Access:
    return Access(tls=Tls(ca_file=cluster.ca_file))


def read(cluster: Cluster, access: Access | None = None) -> dict[str, object]:
    with ApiServer(cluster.url, access or trusting(cluster)) as server:
        return server.get(PATH)


def failure(call: Callable[[], object]) -> ActuationError:
    with pytest.raises(ActuationError) as caught:
        call()
    return caught.value


def test_a_token_of_a_file_and_the_authority_are_used(cluster: Cluster, tmp_path: Path) -> None:
    token = tmp_path / "token"
    access = Access(bearer_token_file=token, tls=Tls(ca_file=cluster.ca_file))
    for content in ("first", "second"):
        token.write_text(f"{content}\n", encoding="utf-8")
        assert read(cluster, access) == {"spec": {"minReplicas": 2}}
    assert [headers["Authorization"] for _, _, headers, _ in cluster.requests] == ["Bearer first", "Bearer second"]


@pytest.mark.parametrize("dry_run", [False, True])
def test_a_patch_is_a_merge_patch_of_our_field_manager(cluster: Cluster, *, dry_run: bool) -> None:
    change = {"spec": {"minReplicas": 5}, "metadata": {"resourceVersion": "17"}}
    with ApiServer(cluster.url, trusting(cluster)) as server:
        server.send(ActionRequest("PATCH", PATH, change, MERGE_PATCH), dry_run=dry_run)
    ((method, path, headers, body),) = cluster.requests
    assert (method, path) == ("PATCH", f"{PATH}?fieldManager=outrider{'&dryRun=All' if dry_run else ''}")
    assert headers["Content-Type"] == "application/merge-patch+json"
    assert json.loads(body) == change


def test_an_unknown_certificate_is_refused_unless_configured(cluster: Cluster) -> None:
    error = failure(lambda: read(cluster, Access(tls=Tls())))
    assert (error.retryable, error.message) == (True, "127.0.0.1 cannot be reached (SSLError)")
    assert read(cluster, Access(tls=Tls(insecure_skip_verify=True)))


def test_an_unreadable_file_is_named_before_a_request(cluster: Cluster, tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    for access in (Access(bearer_token_file=missing), Access(tls=Tls(ca_file=missing))):
        error = failure(lambda access=access: read(cluster, access))
        assert str(missing) in error.message
        assert not error.retryable
    assert cluster.requests == []


@pytest.mark.parametrize(
    ("status", "retryable", "hint"),
    [
        (302, False, ""),
        (400, False, ""),
        (401, True, "renew the token of its account"),
        (403, False, "grant its account the verb"),
        (409, True, ""),
        (429, True, ""),
        (503, True, ""),
    ],
)
def test_a_refusal_is_reported_after_one_request(cluster: Cluster, status: int, retryable: bool, hint: str) -> None:
    cluster.status, cluster.body, cluster.location = status, b'{"message": "not now"}', f"{cluster.url}/elsewhere"
    error = failure(lambda: read(cluster))
    assert error.message == f"GET {PATH} returned {status}: not now"
    assert (error.retryable, isinstance(error, ConflictError)) == (retryable, status == 409)
    assert error.hint.partition(",")[0] == hint
    assert len(cluster.requests) == 1, "neither retried nor redirected"


def test_a_missing_list_is_empty_if_so_requested(cluster: Cluster) -> None:
    cluster.status, cluster.body = 404, b"404 page not found\n"
    with ApiServer(cluster.url, trusting(cluster)) as server:
        assert server.get(PATH, missing_is_empty=True) == {}
    assert "returned 404: 404 page not found" in failure(lambda: read(cluster)).message


def test_a_server_that_cannot_be_reached_is_retried_later() -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = listener.getsockname()[1]
    error = failure(lambda: read(Cluster(url=f"http://127.0.0.1:{port}"), Access()))
    assert error.retryable
    assert error.message.startswith("127.0.0.1 cannot be reached (")


def test_credentials_of_a_proxy_are_sent_to_it(monkeypatch: pytest.MonkeyPatch) -> None:
    requests: list[tuple[str, str]] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            requests.append((self.path, self.headers["Proxy-Authorization"]))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")

        def log_message(self, *_args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Proxy) as server:
        Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}).start()
        monkeypatch.setenv("http_proxy", f"http://ops:a%40b@127.0.0.1:{server.server_port}")
        monkeypatch.setenv("no_proxy", "")
        assert read(Cluster(url="http://cluster.example"), Access()) == {}
        server.shutdown()
    assert requests == [(f"http://cluster.example{PATH}", "Basic " + b64encode(b"ops:a@b").decode())]


@pytest.mark.parametrize("url", ["http://[::1", "http://host:port", "http://"])
def test_what_is_not_a_url_is_final(url: str) -> None:
    error = failure(lambda: read(Cluster(url=url), Access()))
    assert (error.retryable, error.message) == (False, f"{url!r} is not a URL")


def test_no_url_is_final() -> None:
    error = failure(lambda: read(Cluster(), Access()))
    assert (error.retryable, error.message) == (False, "no Kubernetes API is configured")
