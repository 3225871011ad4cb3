"""One POST with an overall deadline, and the classification of failures."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import httpx

from outrider.clock import SystemClock
from outrider.errors import DeliveryError

_RESPONSE_LIMIT_BYTES = 64 * 1024
_RETRYABLE = frozenset({408, 425, 429})  # 5xx as well


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """Status and body of a response."""

    status: int
    body: bytes

    def json(self) -> Any:
        """The body as JSON, None if it is not JSON."""
        try:
            return json.loads(self.body)
        except ValueError:
            return None


def post(channel: str, url: str, body: bytes, headers: Mapping[str, str], timeout: timedelta) -> HttpResponse:
    """Sends the request and returns a 2xx response.

    Raises DeliveryError: retryable on a refused connection, a timeout (also of a slowly arriving body), 408, 425, 429
    and 5xx; final on any other status, redirects included, and on an unusable address.
    """
    # httpx logs the full address of each request at INFO, and the address of a webhook is a secret
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        response = _exchange(channel, url, body, headers, timeout)
    except httpx.TimeoutException as error:
        raise timeout_error(channel, timeout) from error
    except httpx.ConnectError as error:
        raise DeliveryError(f"the {channel} channel cannot be reached", retryable=True, reason="refused") from error
    except httpx.TransportError as error:
        error_name = type(error).__name__
        retryable = not isinstance(error, httpx.UnsupportedProtocol)
        raise DeliveryError(
            f"the {channel} channel closed the connection: {error_name}", retryable=retryable, reason="broken"
        ) from error
    except httpx.InvalidURL:
        # not chained, since its message contains the address
        raise DeliveryError(
            f"the address of the {channel} channel is not a URL", retryable=False, reason="address"
        ) from None
    if response.status // 100 != 2:
        retryable = response.status in _RETRYABLE or response.status >= 500
        raise DeliveryError(
            f"the {channel} channel returned HTTP {response.status}",
            retryable=retryable,
            reason=f"http_{response.status}",
            hint="" if retryable else "check the address and the token of the channel",
        )
    return response


def timeout_error(channel: str, timeout: timedelta) -> DeliveryError:
    """Returns the error for a missed deadline."""
    text = f"the {channel} channel did not respond within {timeout.total_seconds():g} s"
    return DeliveryError(text, retryable=True, reason="timeout")


def _exchange(channel: str, url: str, body: bytes, headers: Mapping[str, str], timeout: timedelta) -> HttpResponse:
    clock = SystemClock()  # an I/O deadline uses real time, regardless of the simulated clock
    deadline = clock.monotonic() + timeout.total_seconds()
    received = b""
    with (
        httpx.Client(timeout=timeout.total_seconds(), follow_redirects=False) as client,
        client.stream("POST", url, content=body, headers=dict(headers)) as response,
    ):
        for chunk in response.iter_bytes():
            received += chunk
            if len(received) > _RESPONSE_LIMIT_BYTES:
                break
            if clock.monotonic() > deadline:
                raise timeout_error(channel, timeout)
        return HttpResponse(response.status_code, received)
