r"""Signed requests of Alibaba Cloud's APIs, signature method V3 (ACS3-HMAC-SHA256).

Parameters are in the query. StringToSign is "ACS3-HMAC-SHA256\n" and the hex SHA-256 of the canonical request: method,
path, query, headers, their names, hash of the body. Errors arrive with status 200 and a ``Code`` other than OK, or with
400 and above. Source: Alibaba Cloud, "request syntax and signature method V3", and "API error codes" of both.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote, urlsplit
from uuid import uuid4

from alerts.notify import http
from outrider.clock import Clock
from outrider.errors import DeliveryError

VERSION = "2017-05-25"  # of both APIs
_ALGORITHM = "ACS3-HMAC-SHA256"
_LIMITED = "isv.BUSINESS_LIMIT_CONTROL"  # too many messages or calls to one number
_PAUSE = timedelta(minutes=1)
# isp. are the codes of the provider; some, such as isp.RAM_PERMISSION_DENY, do not pass by themselves
_RETRYABLE = (
    "Throttling", "ServiceUnavailable", "InternalError", "isp.SYSTEM_ERROR", "isp.GATEWAY_ERROR", "isp.UNKNOWN",
    _LIMITED,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Account:
    """An access key, and the endpoint of one API."""

    key_id: str
    key_secret: str
    endpoint: str


def call(
    channel: str, account: Account, action: str, parameters: Mapping[str, str], timeout: timedelta, clock: Clock
) -> dict[str, Any]:
    """Calls an action and returns its response. Raises DeliveryError if it reports an error."""
    query = canonical_query(parameters)
    headers = signed_headers(account, action, query, clock.now(), uuid4().hex)
    url = f"{account.endpoint.rstrip('/')}/?{query}"
    response = http.send(channel, url, b"", headers, timeout, returned=(400, 403, 404))
    answer = response.json_object()
    code = answer.get("Code")
    if code == "OK":
        return answer
    if not isinstance(code, str):
        raise (
            http.status_error(channel, response)
            if response.status != 200
            else DeliveryError(
                f"the {channel} channel returned no code; check the address", retryable=False, reason="not_aliyun"
            )
        )
    retryable = code.startswith(_RETRYABLE)
    raise DeliveryError(
        f"the {channel} channel rejected the message: {code[:100]}",
        retryable=retryable,
        reason=code[:100],
        hint="" if retryable else "check the key, the signature name and the template",
        retry_after=_PAUSE if code == _LIMITED else None,
    )


def canonical_query(parameters: Mapping[str, str]) -> str:
    """The query, sorted and encoded by RFC 3986."""
    return "&".join(f"{quote(key, safe='~')}={quote(value, safe='~')}" for key, value in sorted(parameters.items()))


def signed_headers(account: Account, action: str, query: str, now: datetime, nonce: str) -> dict[str, str]:
    """All headers of a request without a body."""
    body_hash = hashlib.sha256(b"").hexdigest()
    headers = {
        "host": urlsplit(account.endpoint).netloc,
        "x-acs-action": action,
        "x-acs-content-sha256": body_hash,
        "x-acs-date": now.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
        "x-acs-signature-nonce": nonce,
        "x-acs-version": VERSION,
    }
    authorization = authorization_of(account, "POST", query, headers, body_hash)
    return {**headers, "Authorization": authorization}


def authorization_of(account: Account, method: str, query: str, headers: Mapping[str, str], body_hash: str) -> str:
    """The Authorization header of a request to the path /, over all ``headers``."""
    names = ";".join(sorted(headers))
    lines = "".join(f"{name}:{headers[name].strip()}\n" for name in sorted(headers))
    canonical = f"{method}\n/\n{query}\n{lines}\n{names}\n{body_hash}"
    text = f"{_ALGORITHM}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
    signature = hmac.new(account.key_secret.encode(), text.encode(), hashlib.sha256).hexdigest()
    return f"{_ALGORITHM} Credential={account.key_id},SignedHeaders={names},Signature={signature}"
