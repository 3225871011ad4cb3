r"""Signed requests of Tencent Cloud's API 3.0, signature method TC3-HMAC-SHA256.

The body is JSON. StringToSign is the algorithm, the timestamp, "date/service/tc3_request" and the hex SHA-256 of the
canonical request, joined by line breaks; the key is derived from the secret by date, service and "tc3_request". Errors
arrive with status 200 in ``Response.Error``. Source: Tencent Cloud, "signature method v3".
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import urlsplit

from alerts.notify import http
from alerts.notify.text import to_json
from outrider.clock import Clock
from outrider.errors import DeliveryError

_ALGORITHM = "TC3-HMAC-SHA256"
_CONTENT_TYPE = "application/json; charset=utf-8"
_RETRYABLE = ("InternalError", "RequestLimitExceeded", "LimitExceeded", "ResourceUnavailable")
_LIMITED = ("RequestLimitExceeded", "LimitExceeded")
_PAUSE = timedelta(seconds=30)


@dataclass(frozen=True, slots=True)
class Account:
    """A secret, and the endpoint of one API."""

    secret_id: str
    secret_key: str
    endpoint: str
    service: str
    version: str
    region: str


def call(
    channel: str, account: Account, action: str, document: Mapping[str, Any], timeout: timedelta, clock: Clock
) -> dict[str, Any]:
    """Calls an action and returns its ``Response``. Raises DeliveryError if it reports an error."""
    body = to_json(document)
    headers = signed_headers(account, action, body, clock.now())
    response = http.send(channel, account.endpoint, body, headers, timeout).json_object().get("Response")
    if not isinstance(response, dict):
        text = f"the {channel} channel returned no response; check the address"
        raise DeliveryError(text, retryable=False, reason="not_tencent")
    error = response.get("Error")
    if isinstance(error, dict):
        raise error_of(channel, str(error.get("Code", "")))
    return response


def error_of(channel: str, code: str) -> DeliveryError:
    """The error of a code, such as ``LimitExceeded.PhoneNumberThirtySecondLimit``."""
    retryable = code.startswith(_RETRYABLE)
    return DeliveryError(
        f"the {channel} channel rejected the message: {code[:100]}",
        retryable=retryable,
        reason=code[:100] or "other",
        hint="" if retryable else "check the secret, the application, the signature and the template",
        retry_after=_PAUSE if code.startswith(_LIMITED) else None,
    )


def signed_headers(account: Account, action: str, body: bytes, now: datetime) -> dict[str, str]:
    """All headers of a request."""
    timestamp = int(now.timestamp())
    signed = {
        "content-type": _CONTENT_TYPE,
        "host": urlsplit(account.endpoint).netloc,
        "x-tc-action": action.lower(),
    }
    return {
        "Content-Type": _CONTENT_TYPE,
        "Host": signed["host"],
        "Authorization": authorization_of(account, body, signed, timestamp),
        "X-TC-Action": action,
        "X-TC-Version": account.version,
        "X-TC-Timestamp": str(timestamp),
        "X-TC-Region": account.region,
    }


def authorization_of(account: Account, body: bytes, signed: Mapping[str, str], timestamp: int) -> str:
    """The Authorization header of a POST to the path /, over the ``signed`` headers."""
    date = datetime.fromtimestamp(timestamp, UTC).strftime("%Y-%m-%d")
    scope = f"{date}/{account.service}/tc3_request"
    names = ";".join(sorted(signed))
    lines = "".join(f"{name}:{signed[name]}\n" for name in sorted(signed))
    canonical = "\n".join(["POST", "/", "", lines, names, hashlib.sha256(body).hexdigest()])
    text = "\n".join([_ALGORITHM, str(timestamp), scope, hashlib.sha256(canonical.encode()).hexdigest()])
    key = f"TC3{account.secret_key}".encode()
    for part in (date, account.service, "tc3_request"):
        key = hmac.new(key, part.encode(), hashlib.sha256).digest()
    signature = hmac.new(key, text.encode(), hashlib.sha256).hexdigest()
    return f"{_ALGORITHM} Credential={account.secret_id}/{scope}, SignedHeaders={names}, Signature={signature}"
