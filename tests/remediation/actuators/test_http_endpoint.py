"""One request to one endpoint: deadlines, redirects, retries, credentials."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from outrider.errors import ActuationError
from outrider.model import ActionRequest
from outrider.wire.http_auth import Access
from remediation.actuators.http_endpoint import HttpEndpoint, origin_of
from tests.support.json_server import JsonServer, Response

SHORT = timedelta(seconds=0.3)


def refusal(server: JsonServer, response: Response, timeout: timedelta = timedelta(seconds=5)) -> ActuationError:
    server.responses["POST /x"] = response
    with pytest.raises(ActuationError) as caught:
        HttpEndpoint(timeout=timeout).send(ActionRequest("POST", f"{server.url}/x", {}))
    return caught.value


@pytest.mark.parametrize(
    ("status", "retryable"),
    [(400, False), (401, False), (404, False), (409, True), (429, True), (500, True), (503, True)],
)
def test_a_status_says_whether_a_retry_can_succeed(server: JsonServer, status: int, retryable: bool) -> None:
    error = refusal(server, Response(status, {"message": "because"}))
    assert (error.status, error.retryable) == (status, retryable)
    assert error.message.endswith(f"returned {status}: because")


@pytest.mark.parametrize(
    ("given", "wait"), [("7", timedelta(seconds=7)), ("86400", timedelta(minutes=5)), ("soon", None), ("", None)]
)
def test_the_requested_wait_is_kept_within_reason(server: JsonServer, given: str, wait: timedelta | None) -> None:
    assert refusal(server, Response(429, headers={"Retry-After": given})).retry_after == wait


def test_a_redirect_is_not_followed(server: JsonServer) -> None:
    server.responses["GET /other"] = server.responses["POST /other"] = Response()
    error = refusal(server, Response(307, headers={"Location": f"{server.url}/other"}))
    assert not error.retryable
    assert "not followed" in error.message
    assert server.sent("POST") == ["/x"]
    assert server.sent("GET") == []


def test_a_server_that_hangs_is_retried(server: JsonServer) -> None:
    error = refusal(server, Response(hangs=True), SHORT)
    assert error.retryable
    assert "did not respond within 0.3 s" in error.message


def test_a_response_that_is_too_long_is_cut_off(server: JsonServer) -> None:
    error = refusal(server, Response(raw=b"x" * 2_000_000))
    assert error.retryable
    assert "cannot be reached" in error.message


def test_garbage_in_an_error_is_one_short_line(server: JsonServer) -> None:
    error = refusal(server, Response(500, raw=b"<html>\n\n" + b"\xff" * 5000))
    assert "\n" not in error.message
    assert len(error.message) < 300


def test_credentials_are_read_for_each_request(server: JsonServer, tmp_path: Path) -> None:
    token, key = tmp_path / "token", tmp_path / "key"
    token.write_text("first\n")
    key.write_text("secret\n")
    server.responses["POST /x"] = Response()
    endpoint = HttpEndpoint(Access(bearer_token_file=token, header_files={"X-Key": key}))
    endpoint.send(ActionRequest("POST", f"{server.url}/x", {}))
    token.write_text("second\n")
    endpoint.send(ActionRequest("POST", f"{server.url}/x", {}))
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer first", "Bearer second"]
    assert server.requests[0].headers["X-Key"] == "secret"
    token.unlink()
    with pytest.raises(ActuationError, match="token") as caught:
        endpoint.send(ActionRequest("POST", f"{server.url}/x", {}))
    assert not caught.value.retryable


@pytest.mark.parametrize("url", ["nonsense", "ftp://host/x", "http://[::1", ""])
def test_another_text_than_a_url_is_final(url: str) -> None:
    with pytest.raises(ActuationError) as caught:
        HttpEndpoint(timeout=SHORT).get(url)
    assert not caught.value.retryable


def test_an_address_without_a_server_is_retried() -> None:
    with pytest.raises(ActuationError, match="cannot be reached") as caught:
        HttpEndpoint(timeout=SHORT).get("http://127.0.0.1:1/x")
    assert caught.value.retryable


def test_the_origin_of_a_url_has_no_credentials() -> None:
    assert origin_of("https://user:pass@host:8443/path?q") == "https://host:8443"
    assert origin_of("prometheus:job/instance") == ""
    assert origin_of("http://[") == ""
