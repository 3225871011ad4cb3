"""Posts a degrade level to a gateway, signed.

Headers: ``Idempotency-Key`` is the action's id; ``X-Outrider-Signature`` is ``sha256=`` and the hex HMAC-SHA256 of
``timestamp.body``, with the timestamp of ``X-Outrider-Timestamp``. These are the headers of the notification webhook.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Mapping
from typing import Any

import httpx

from outrider.clock import Clock, SystemClock
from outrider.errors import ActuationError

TIMEOUT_SECONDS = 10.0


class GatewayWebhook:
    """One receiver. ``url`` is its address."""

    def __init__(self, url: str, secret: str = "", *, clock: Clock | None = None) -> None:
        """An empty ``secret`` sends no signature."""
        self.url, self._secret, self._clock = url, secret, clock or SystemClock()

    def post(self, action_id: str, document: Mapping[str, Any]) -> None:
        """Posts a document. Raises ActuationError: retryable if the gateway is away or answers 429 or 5xx."""
        body = json.dumps(document, sort_keys=True).encode()
        timestamp = str(int(self._clock.now().timestamp()))
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": action_id,
            "X-Outrider-Timestamp": timestamp,
        }
        if self._secret:
            signature = hmac.new(self._secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()
            headers["X-Outrider-Signature"] = f"sha256={signature}"
        try:
            host = httpx.URL(self.url).host
            response = httpx.post(
                self.url, content=body, headers=headers, timeout=TIMEOUT_SECONDS, follow_redirects=False
            )
        except httpx.InvalidURL as error:
            hint = "set remediation.degrade.webhook"
            raise ActuationError(f"{self.url!r} is not a URL", retryable=False, hint=hint) from error
        except httpx.HTTPError as error:
            raise ActuationError(f"{host} cannot be reached ({type(error).__name__})", retryable=True) from error
        if response.status_code // 100 != 2:
            retry = response.status_code >= 500 or response.status_code == httpx.codes.TOO_MANY_REQUESTS
            raise ActuationError(f"{host} returned {response.status_code} for a degrade level", retryable=retry)
