"""Requests of Twilio's REST API 2010-04-01: a form with basic authentication.

201 returns the ``sid`` of the message or call. Errors have a ``code``: 20429 asks for a pause. Source: Twilio docs,
"Message resource", "Call resource" and "error dictionary".
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any
from urllib.parse import quote, urlencode

from alerts.notify import http, settings
from outrider.errors import DeliveryError

API = "https://api.twilio.com"


@dataclass(frozen=True, slots=True)
class Account:
    """An account, its token or API key, and the sender."""

    account_sid: str
    user: str
    password: str
    sender: str
    api: str = API


def create(channel: str, account: Account, resource: str, form: Mapping[str, str], timeout: timedelta) -> str:
    """Creates a message or a call, and returns its sid."""
    url = f"{account.api.rstrip('/')}/2010-04-01/Accounts/{quote(account.account_sid, safe='')}/{resource}.json"
    headers = {"Content-Type": http.FORM}
    body = urlencode(form).encode()
    login = (account.user, account.password)
    response = http.send(channel, url, body, headers, timeout, returned=(400, 401, 403, 404), auth=login)
    answer = response.json_object()
    if response.status // 100 != 2:
        raise http.status_error(channel, response, f"code {answer['code']}" if "code" in answer else "")
    sid = answer.get("sid")
    if not isinstance(sid, str):
        text = f"the {channel} channel returned no sid; check the address"
        raise DeliveryError(text, retryable=False, reason="not_twilio")
    return sid


def account_of(channel: str, values: Mapping[str, Any]) -> Account:
    """``account_sid``, ``auth_token`` (or ``api_key`` and ``api_key_secret``), ``from``, ``url``."""
    sid = settings.required(channel, values, "account_sid")
    key = settings.optional(channel, values, "api_key")
    password = settings.required(channel, values, "api_key_secret" if key else "auth_token")
    sender = settings.number(channel, values, "from") or settings.required(channel, values, "from")
    return Account(sid, key or sid, password, sender, settings.url(channel, values, API))
