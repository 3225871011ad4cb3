"""Hook as a signed webhook: a POST, and a status URL that is polled if the receiver takes longer.

Headers as in notifications: ``Idempotency-Key`` is the action id; ``X-Outrider-Signature`` is ``sha256=`` and the hex
HMAC-SHA256 of ``timestamp.body``, with the timestamp of ``X-Outrider-Timestamp``. Responses:

- 200 ``{"status": "done" | "failed", "detail"}``: the action has ended; without a body it is done.
- 202 with ``Location`` or ``{"status_url"}``: GET of that URL returns ``{"status": "in_progress" | "done" | "failed",
  "detail"}``. It must have the origin of the webhook.
"""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urljoin

from outrider.clock import rfc3339
from outrider.documents import serialization
from outrider.errors import ActuationError
from outrider.model import Action, ActionRequest, OutcomeStatus
from outrider.wire.http_auth import Access
from remediation.actuators.hook.actuator import Progress, gpus_of, node_of
from remediation.actuators.http_endpoint import TIMEOUT, HttpEndpoint, Reply, host_of, origin_of

_STATUSES = {
    "done": OutcomeStatus.DONE,
    "failed": OutcomeStatus.FAILED,
    "in_progress": OutcomeStatus.IN_PROGRESS,
}
_DETAIL_CHARACTERS = 600


class WebhookHook:
    """Posts an action once per process and polls its status.

    After a restart it posts again with the same idempotency key, which the receiver must honour.
    """

    def __init__(
        self,
        url: str,
        *,
        secret_file: Path | None = None,
        access: Access | None = None,
        timeout: timedelta = TIMEOUT,
        check: Callable[[Action], None] | None = None,
    ) -> None:
        """``secret_file`` holds the signing secret; None sends no signature.

        ``check`` raises ActuationError for an action that must not begin; None leaves that to the receiver.
        """
        self._url, self._secret_file, self._check = url, secret_file, check
        self._endpoint = HttpEndpoint(access, timeout)
        self._status_urls: dict[str, str] = {}

    def attempt(self, action: Action, now: datetime) -> Progress:
        """Posts the action, or polls its status. Raises ActuationError. A dry run sends nothing."""
        if action.dry_run:
            return Progress(OutcomeStatus.DRY_RUN, f"would send POST {host_of(self._url)}")
        url = self._status_urls.get(action.id)
        if url is None:
            if self._check is not None:
                self._check(action)
            return self._started(action, self._posted(action, now))
        return self._ended(action, self._endpoint.get(url))

    def requests(self, action: Action, now: datetime) -> tuple[ActionRequest, ...]:
        """Returns the POST, nothing once the receiver has accepted it."""
        return () if action.id in self._status_urls else (self._request(action, now),)

    def _request(self, action: Action, now: datetime) -> ActionRequest:
        return ActionRequest("POST", self._url, _payload(action, now))

    def _posted(self, action: Action, now: datetime) -> Reply:
        request = self._request(action, now)
        body = json.dumps(request.body, ensure_ascii=False, sort_keys=True).encode()
        timestamp = str(int(now.timestamp()))
        headers = {"Idempotency-Key": action.id, "X-Outrider-Timestamp": timestamp}
        secret = self._secret()
        if secret:
            headers["X-Outrider-Signature"] = f"sha256={signature(secret, timestamp, body)}"
        return self._endpoint.send(request, headers, body)

    def _started(self, action: Action, reply: Reply) -> Progress:
        if reply.status != 202:
            return self._ended(action, reply)
        given = reply.location or str(reply.body.get("status_url") or "")
        url = urljoin(self._url, given) if given else ""
        host = host_of(self._url)
        if not url:
            raise ActuationError(f"{host} returned 202 without a status URL", retryable=False, hint="send Location")
        if origin_of(url) != origin_of(self._url):
            sentence = f"{host} returned a status URL of another origin, {origin_of(url) or 'none'}"
            raise ActuationError(sentence, retryable=False, hint="serve the status from the webhook's origin")
        self._status_urls[action.id] = url
        return Progress(OutcomeStatus.IN_PROGRESS, f"{host} has accepted the action")

    def _ended(self, action: Action, reply: Reply) -> Progress:
        host = host_of(self._url)
        if not reply.text.strip():
            status: OutcomeStatus | None = OutcomeStatus.DONE if reply.status in (200, 204) else None
        else:
            status = _STATUSES.get(str(reply.body.get("status")))
        if status is None:
            sentence = f"{host} returned no status; expected one of {', '.join(_STATUSES)}"
            raise ActuationError(sentence, retryable=False, hint="check that the URL is that of the hook")
        if status is not OutcomeStatus.IN_PROGRESS:
            self._status_urls.pop(action.id, None)
        detail = str(reply.body.get("detail") or "")[:_DETAIL_CHARACTERS]
        return Progress(status, f"{host}: {detail or status.value}")

    def _secret(self) -> str:
        if self._secret_file is None:
            return ""
        try:
            secret = self._secret_file.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            sentence = f"the secret file {self._secret_file} cannot be read"
            raise ActuationError(sentence, retryable=False, hint="check its path and permissions") from error
        if not secret:
            raise ActuationError(f"the secret file {self._secret_file} is empty", retryable=False)
        return secret


def signature(secret: str, timestamp: str, body: bytes) -> str:
    """Hex HMAC-SHA256 of ``timestamp.body``; the timestamp prevents replay of a captured body."""
    return hmac.new(secret.encode(), timestamp.encode() + b"." + body, hashlib.sha256).hexdigest()


def _payload(action: Action, now: datetime) -> Mapping[str, Any]:
    return {
        "id": action.id,
        "kind": action.kind.value,
        "target": serialization.entity(action.target),
        "node": node_of(action),
        "gpus": list(gpus_of(action)),
        "session": action.session,
        "incident": action.because,
        "requested_at": rfc3339(now),
    }
