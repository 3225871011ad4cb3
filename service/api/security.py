"""Access control: readers, writers, senders.

Reads are open on loopback. Every write requires ``Authorization: Bearer <admin token>``. Senders of metrics, KPIs and
logs may use a token for the ingest endpoints only (``receive.token_file``). Refused writes are audited, at most
``REFUSALS_PER_MINUTE`` per minute, so that an intruder cannot fill the disk.
"""

from __future__ import annotations

import hmac
import threading
from collections import deque
from typing import Annotated

from fastapi import Depends, Header, Request

from outrider.audit import AuditEvent, AuditRecord
from outrider.clock import Clock
from service.api.context import Context, Ctx
from service.api.errors import DeniedError

REFUSALS_PER_MINUTE = 60
_NAME_LIMIT = 64
ANONYMOUS = "admin"  # a writer who gives no name


class Limiter:
    """Rate limit of ``count`` per minute."""

    def __init__(self, clock: Clock, count: int) -> None:
        """Counts on the monotonic clock."""
        self._clock = clock
        self._count = count
        self._times: deque[float] = deque()
        self._lock = threading.Lock()

    def allow(self) -> bool:
        """Takes one slot; False if none is left in this minute."""
        with self._lock:
            now = self._clock.monotonic()
            while self._times and now - self._times[0] > 60:
                self._times.popleft()
            if len(self._times) >= self._count:
                return False
            self._times.append(now)
            return True


def reader(ctx: Ctx, authorization: Annotated[str, Header()] = "") -> None:
    """Allows a read. Raises DeniedError if reads require the token and it is missing."""
    if ctx.settings.reads_need_token and not _holds(authorization, ctx.settings.token):
        raise DeniedError("This API requires a token.", hint="send the header Authorization: Bearer <admin token>")


def writer(
    request: Request,
    ctx: Ctx,
    authorization: Annotated[str, Header()] = "",
    x_outrider_user: Annotated[str, Header()] = "",
) -> str:
    """Name under which a write is recorded. Raises DeniedError, audited, without the admin token."""
    if _holds(authorization, ctx.settings.token):
        return _person(x_outrider_user)[:_NAME_LIMIT] or ANONYMOUS
    audit_refusal(request, ctx, "wrong_token" if authorization else "no_token")
    if not ctx.settings.token:
        raise DeniedError("This API has no admin token, so writes are disabled.", hint="set api.token_file")
    raise DeniedError(
        "A change requires the admin token.",
        hint="send the header Authorization: Bearer <token>; the token file is next to the store",
    )


def _person(header: str) -> str:
    """A name from a header. Headers are read as Latin-1; names are sent as UTF-8."""
    try:
        return header.encode("latin-1").decode().strip()
    except UnicodeError:
        return header.strip()


def sender(
    request: Request,
    ctx: Ctx,
    authorization: Annotated[str, Header()] = "",
    x_scope_orgid: Annotated[str, Header()] = "",
) -> str:
    """Sender: its address, with the tenant it names. Raises DeniedError, audited, without a valid token."""
    ingest = ctx.settings.ingest
    push_token = ingest.token if ingest is not None else ""
    if not _holds(authorization, push_token) and not _holds(authorization, ctx.settings.token):
        audit_refusal(request, ctx, "wrong_token" if authorization else "no_token")
        raise DeniedError(
            "Ingestion requires the push token or the admin token.",
            hint="send the header Authorization: Bearer <token>; "
            + (
                "receive.token_file names the push token" if push_token else "name a push token with receive.token_file"
            ),
        )
    host = request.client.host if request.client else "unknown"
    return f"{host}/{x_scope_orgid[:64]}" if x_scope_orgid else host


def audit_refusal(request: Request, ctx: Context, reason: str) -> None:
    """Audits a refused write, unless too many were refused in this minute."""
    limiter: Limiter = request.app.state.refusals
    if limiter.allow():
        ctx.state.append_audit([_refusal(request, ctx, reason)])


def _holds(authorization: str, expected: str) -> bool:
    scheme, _, given = authorization.partition(" ")
    same = hmac.compare_digest(given.strip().encode(), expected.encode())
    return bool(expected) and scheme.lower() == "bearer" and same


def _refusal(request: Request, ctx: Context, reason: str) -> AuditRecord:
    client = request.client.host if request.client else "unknown"
    return AuditRecord(
        at=ctx.as_of(),
        event=AuditEvent.WRITE_REFUSED,
        subject=f"{request.method} {request.url.path}",
        reason=reason,
        by=client,
    )


Writer = Annotated[str, Depends(writer)]
Sender = Annotated[str, Depends(sender)]
