"""One HTTP request with an overall deadline, and the classification of failures."""

from __future__ import annotations

import json
import logging
import ssl
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.utils import parsedate_to_datetime
from typing import Any

import httpx

from outrider.clock import SystemClock
from outrider.errors import DeliveryError

JSON = "application/json; charset=utf-8"
FORM = "application/x-www-form-urlencoded; charset=utf-8"
LONGEST_WAIT = timedelta(hours=1)  # of a Retry-After: a longer one is a mistake of the server
_RESPONSE_LIMIT_BYTES = 64 * 1024
_RETRYABLE = frozenset({408, 425, 429})  # 5xx as well


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Status, body and headers of a response."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def json(self) -> Any:
        """The body as JSON, None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None

    def json_object(self) -> dict[str, Any]:
        """The body as a JSON object, empty if it is not one."""
        parsed = self.json()
        return parsed if isinstance(parsed, dict) else {}


def send(
    channel: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    timeout: timedelta,
    *,
    method: str = "POST",
    returned: Collection[int] = (),
    auth: tuple[str, str] | None = None,
) -> HttpResponse:
    """Sends the request and returns a 2xx response, or one whose status is among ``returned``.

    Raises DeliveryError: retryable on a refused connection, a TLS failure, a timeout (also of a slowly arriving body),
    408, 425, 429 and 5xx; final on any other status, redirects included, and on an unusable address.
    """
    # httpx logs the full address of each request at INFO, and the address of a webhook is a secret
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        response = _exchange(channel, method, url, body, headers, timeout, auth)
    except httpx.TimeoutException as error:
        raise timeout_error(channel, timeout) from error
    except httpx.ConnectError as error:
        raise _connect_error(channel, error) from error
    except httpx.TransportError as error:
        error_name = type(error).__name__
        retryable = not isinstance(error, httpx.UnsupportedProtocol)
        raise DeliveryError(
            f"the {channel} channel closed the connection: {error_name}", retryable=retryable, reason="broken"
        ) from error
    except (httpx.InvalidURL, UnicodeError):
        # not chained, since its message contains the address
        raise DeliveryError(
            f"the address of the {channel} channel is not a URL", retryable=False, reason="address"
        ) from None
    if response.status // 100 != 2 and response.status not in returned:
        raise status_error(channel, response)
    return response


def status_error(channel: str, response: HttpResponse, detail: str = "") -> DeliveryError:
    """The error for a status other than 2xx. ``detail`` is a code of the vendor."""
    retryable = response.status in _RETRYABLE or response.status >= 500
    code = f" ({detail})" if detail else ""
    return DeliveryError(
        f"the {channel} channel returned HTTP {response.status}{code}",
        retryable=retryable,
        reason=f"http_{response.status}",
        hint="" if retryable else "check the address and the token of the channel",
        retry_after=retry_after(response.headers, SystemClock().now()) if retryable else None,
    )


def timeout_error(channel: str, timeout: timedelta) -> DeliveryError:
    """Returns the error for a missed deadline."""
    text = f"the {channel} channel did not respond within {timeout.total_seconds():g} s"
    return DeliveryError(text, retryable=True, reason="timeout")


def retry_after(headers: Mapping[str, str], now: datetime) -> timedelta | None:
    """The wait that a Retry-After header requests, in seconds or until a date; None without a usable one."""
    text = headers.get("retry-after", "").strip()
    if text.isascii() and text.isdigit():
        wait = timedelta(seconds=int(text)) if len(text) < len("1000000") else LONGEST_WAIT
    else:
        try:
            wait = parsedate_to_datetime(text).astimezone(UTC) - now
        except (ValueError, OverflowError):
            return None
    return max(timedelta(0), min(wait, LONGEST_WAIT))


def _connect_error(channel: str, error: httpx.ConnectError) -> DeliveryError:
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, ssl.SSLError):
            detail = cause.reason or type(cause).__name__
            if isinstance(cause, ssl.SSLCertVerificationError):
                detail = cause.verify_message
            text = f"the TLS connection to the {channel} channel failed: {detail}"
            return DeliveryError(text, retryable=True, reason="tls", hint="check the certificate of the server")
        cause = cause.__cause__ or cause.__context__
    return DeliveryError(f"the {channel} channel cannot be reached", retryable=True, reason="refused")


def _exchange(
    channel: str,
    method: str,
    url: str,
    body: bytes,
    headers: Mapping[str, str],
    timeout: timedelta,
    auth: tuple[str, str] | None,
) -> HttpResponse:
    clock = SystemClock()  # an I/O deadline uses real time, regardless of the simulated clock
    deadline = clock.monotonic() + timeout.total_seconds()
    received = b""
    with (
        httpx.Client(timeout=timeout.total_seconds(), follow_redirects=False, auth=auth) as client,
        client.stream(method, url, content=body, headers=dict(headers)) as response,
    ):
        for chunk in response.iter_bytes():
            received += chunk
            if len(received) > _RESPONSE_LIMIT_BYTES:
                break
            if clock.monotonic() > deadline:
                raise timeout_error(channel, timeout)
        lowered = {name.lower(): value for name, value in response.headers.items()}
        return HttpResponse(response.status_code, received, lowered)
