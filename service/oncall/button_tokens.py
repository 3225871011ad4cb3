"""Signed tokens of buttons: what a button may do, for whom, and until when.

A token is ``payload.signature``, both base64url. The signature is the HMAC-SHA256 of the payload. Whoever has a token
can press its button: it is short-lived, acts once, and belongs into messages only.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import dataclass
from datetime import datetime

from outrider.clock import from_unix
from outrider.errors import OutriderError
from outrider.model import ButtonAction, ButtonClaim

PATH = "/api/v1/buttons/"
MOST_BYTES = 4096
_VERSION = 1


class ForgedTokenError(OutriderError):
    """A token that this platform did not sign."""


@dataclass(frozen=True, slots=True)
class ButtonSigner:
    """Signs and verifies claims with one key."""

    key: str
    base_url: str = ""

    def url(self, claim: ButtonClaim) -> str:
        """The URL of a button."""
        return f"{self.base_url.rstrip('/')}{PATH}{self.token(claim)}"

    def token(self, claim: ButtonClaim) -> str:
        """The token of a claim."""
        fields = [
            _VERSION,
            claim.action.value,
            claim.subject,
            claim.recipient,
            claim.channel,
            int(claim.expires_at.timestamp()),
            claim.nonce,
        ]
        payload = _encoded(json.dumps(fields, separators=(",", ":")).encode())
        return f"{payload}.{self._signature(payload)}"

    def claim(self, token: str) -> ButtonClaim:
        """The claim of a token, expired or not. Raises ForgedTokenError."""
        payload, _, signature = token.partition(".")
        if len(token) > MOST_BYTES or not hmac.compare_digest(_bytes(signature), self._signature(payload).encode()):
            raise _forged()
        version, action, subject, recipient, channel, expires, nonce = json.loads(_decoded(payload))
        if version != _VERSION:
            raise _forged()
        return ButtonClaim(ButtonAction(action), subject, recipient, channel, from_unix(expires), nonce)

    def _signature(self, payload: str) -> str:
        return _encoded(hmac.new(self.key.encode(), _bytes(payload), hashlib.sha256).digest())


def signer_of(public_url: str | None, key: str) -> ButtonSigner | None:
    """The signer with a key; None without a key or an address of the API."""
    return ButtonSigner(key, public_url) if public_url is not None and key else None


def expired(claim: ButtonClaim, now: datetime) -> bool:
    """True if a button no longer acts."""
    return now >= claim.expires_at


def _encoded(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _bytes(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _forged() -> ForgedTokenError:
    return ForgedTokenError("The link was not issued by this platform.", hint="open the incident on the dashboard")
