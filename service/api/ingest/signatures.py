"""HMAC signatures of webhooks: GitHub's form, Grafana's, and that of Outrider's own webhook channel."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from datetime import datetime, timedelta

MOST_SKEW = timedelta(minutes=5)
"""A signed timestamp further from now is a replay, or a wrong clock."""
_HUB = "x-hub-signature-256"
_GRAFANA, _GRAFANA_TIMES = (
    "x-grafana-alerting-signature",
    ("x-grafana-alerting-timestamp", "x-grafana-alerting-signature-timestamp"),
)
_OUTRIDER, _OUTRIDER_TIME = "x-outrider-signature", "x-outrider-timestamp"


def is_signed(headers: Mapping[str, str]) -> bool:
    """True if a request has a signature that ``verify`` reads."""
    return any(name in headers for name in (_HUB, _GRAFANA, _OUTRIDER))


def verify(headers: Mapping[str, str], body: bytes, secret: str, now: datetime) -> bool:
    """True if a signature matches the body, and its timestamp, if it has one, is recent."""
    if _GRAFANA in headers:
        stamp = next((headers[name] for name in _GRAFANA_TIMES if headers.get(name)), "")
        signed = stamp.encode() + b":" + body if stamp else body
        return (not stamp or _is_recent(stamp, now)) and _matches(headers[_GRAFANA], signed, secret)
    if _OUTRIDER in headers:
        stamp = headers.get(_OUTRIDER_TIME, "")
        return _is_recent(stamp, now) and _matches(headers[_OUTRIDER], stamp.encode() + b"." + body, secret)
    return _HUB in headers and _matches(headers[_HUB], body, secret)


def _matches(given: str, signed: bytes, secret: str) -> bool:
    expected = hmac.new(secret.encode(), signed, hashlib.sha256).hexdigest()
    return hmac.compare_digest(given.strip().lower().removeprefix("sha256=").encode(), expected.encode())


def _is_recent(stamp: str, now: datetime) -> bool:
    return stamp.isdecimal() and len(stamp) < 15 and abs(now.timestamp() - int(stamp)) <= MOST_SKEW.total_seconds()
