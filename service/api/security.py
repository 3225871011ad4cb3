"""Who may read and who may write.

Reads are open on loopback. Every write needs ``Authorization: Bearer <admin token>``; who pushes metrics, KPIs
and logs may bring a token that opens those doors alone (``receive.token_file``). A refused write is
audited, at most ``REFUSALS_PER_MINUTE`` a minute, so that a stranger cannot fill the disk.
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


class Limiter:
    """True at most ``count`` times a minute."""

    def __init__(self, clock: Clock, count: int) -> None:
        """Counts on the monotonic clock."""
        self._clock = clock
        self._count = count
        self._times: deque[float] = deque()
        self._lock = threading.Lock()

    def allow(self) -> bool:
        """Take one turn; False when there is none left in this minute."""
        with self._lock:
            now = self._clock.monotonic()
            while self._times and now - self._times[0] > 60:
                self._times.popleft()
            if len(self._times) >= self._count:
                return False
            self._times.append(now)
            return True


def reader(ctx: Ctx, authorization: Annotated[str, Header()] = "") -> None:
    """Let a read pass. Raises DeniedError when reads need the token and it is not there."""
    if ctx.settings.reads_need_token and not _holds(authorization, ctx.settings.token):
        raise DeniedError("This API asks for its token.", hint="send the header Authorization: Bearer <admin token>")


def writer(
    request: Request,
    ctx: Ctx,
    authorization: Annotated[str, Header()] = "",
    x_outrider_user: Annotated[str, Header()] = "",
) -> str:
    """The name a write is recorded under. Raises DeniedError, audited, without the admin token."""
    if _holds(authorization, ctx.settings.token):
        return x_outrider_user.strip()[:_NAME_LIMIT] or "admin"
    _audit_refusal(request, ctx, authorization)
    if not ctx.settings.token:
        raise DeniedError("This API has no admin token, so it changes nothing.", hint="set api.token_file")
    raise DeniedError(
        "A change needs the admin token.",
        hint="send the header Authorization: Bearer <token>; the token lies beside the store",
    )


def sender(
    request: Request,
    ctx: Ctx,
    authorization: Annotated[str, Header()] = "",
    x_scope_orgid: Annotated[str, Header()] = "",
) -> str:
    """Who pushes: its address, with the tenant it names. Raises DeniedError, audited, without a token for that."""
    doors = ctx.settings.doors
    own = doors.token if doors is not None else ""
    if not _holds(authorization, own) and not _holds(authorization, ctx.settings.token):
        _audit_refusal(request, ctx, authorization)
        raise DeniedError(
            "What is pushed needs the push token or the admin token.",
            hint="send the header Authorization: Bearer <token>; "
            + ("receive.token_file names the push token" if own else "name a push token with receive.token_file"),
        )
    host = request.client.host if request.client else "unknown"
    return f"{host}/{x_scope_orgid[:64]}" if x_scope_orgid else host


def _audit_refusal(request: Request, ctx: Context, authorization: str) -> None:
    limiter: Limiter = request.app.state.refusals
    if limiter.allow():
        ctx.state.append_audit([_refusal(request, ctx, "wrong_token" if authorization else "no_token")])


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
