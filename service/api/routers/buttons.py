"""``/buttons``: the buttons of messages. They need no token: each link is signed, expires, and acts once.

A GET only shows what the button would do, because chat programs open links to preview them. The POST of that page acts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from urllib.parse import parse_qs
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool

from alerts.routing.buttons import nonce_of
from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import OutriderError, UsageError
from outrider.model import AlertState, ButtonAction, ButtonClaim, EntityRef, Incident
from outrider.ports import Silence
from outrider.records.response import IncidentNote, NoteKind
from outrider.text.i18n import Language
from service.api.bodies import read_body
from service.api.context import Context, Ctx, Lang
from service.api.errors import ConflictError, NotFoundError
from service.api.routers import actions, button_page
from service.api.security import Limiter
from service.oncall.button_tokens import ButtonSigner, ForgedTokenError, expired

router = APIRouter(tags=["buttons"])
SILENCE = timedelta(hours=1)
_MOST_BODY = 4096
_MOST_NAME = 64
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex, nofollow",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
}


class ExpiredError(UsageError):
    """The button no longer acts."""


class NameNeededError(UsageError):
    """The button does not show who pressed it."""


_STATUS: tuple[tuple[type[OutriderError], int], ...] = (
    (ForgedTokenError, 403),
    (NotFoundError, 404),
    (ConflictError, 409),
    (ExpiredError, 410),
    (NameNeededError, 422),
)


@dataclass(frozen=True, slots=True)
class _Press:
    """A genuine claim, with the incidents or the action that it is about."""

    claim: ButtonClaim
    incidents: tuple[Incident, ...]


@router.get("/buttons/{token}", response_class=HTMLResponse)
def show(token: str, request: Request, ctx: Ctx, lang: Lang) -> HTMLResponse:
    """Show what a button would do. Changes nothing."""

    def page() -> HTMLResponse:
        press = _checked(token, ctx)
        return _response(button_page.question(_subject(press, lang), _people(ctx), lang))

    return _answered(token, request, ctx, lang, page)


@router.post("/buttons/{token}", response_class=HTMLResponse)
async def press(token: str, request: Request, ctx: Ctx, lang: Lang) -> HTMLResponse:
    """Do what a button claims, once, under the name of its recipient or of the person who gives one."""
    body = await read_body(request, _MOST_BODY, UsageError("The form is too large."))
    fields = parse_qs(body.decode(errors="replace"))
    name = next(iter(fields.get("name", [])), "").strip()[:_MOST_NAME]

    def act() -> HTMLResponse:
        checked = _checked(token, ctx)
        by = _person(checked, name, ctx)
        _use(checked, by, ctx)
        return _response(button_page.answer(_subject(checked, lang), by, ctx.settings.dashboard_url, lang))

    return await run_in_threadpool(_answered, token, request, ctx, lang, act)


def _answered(
    token: str, request: Request, ctx: Context, lang: Language, page: Callable[[], HTMLResponse]
) -> HTMLResponse:
    """The page, or the reason of a refusal as a page. A refusal is audited, except that of a missing name."""
    try:
        return page()
    except (UsageError, ForgedTokenError) as error:
        refused: OutriderError = error
    if not isinstance(refused, NameNeededError):
        _audit_refusal(refused, token, request, ctx)
    status = next((code for kind, code in _STATUS if isinstance(refused, kind)), 400)
    shown = button_page.refusal(refused, ctx.settings.dashboard_url, lang)
    return _response(shown, status)


def _response(html: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(html, status, headers=_HEADERS)


def _checked(token: str, ctx: Context) -> _Press:
    """The press of a genuine button that has not expired. Raises ForgedTokenError, ExpiredError or NotFoundError."""
    signer: ButtonSigner | None = ctx.signer
    if signer is None:
        raise ConflictError("Buttons are switched off.", hint="set api.public_url")
    claim = signer.claim(token)
    if expired(claim, _now(ctx)):
        raise ExpiredError("button.expired")
    if claim.action is ButtonAction.APPROVE:
        return _Press(claim, ())
    return _Press(claim, _incidents(claim, ctx))


def _now(ctx: Context) -> datetime:
    """Fleet time while cycles run. Without an engine the clock counts, so that buttons expire all the same."""
    as_of = ctx.as_of()
    return as_of if ctx.watch.is_fresh(ctx.newest_cycle()) else max(as_of, ctx.extras.clock.now())


def _incidents(claim: ButtonClaim, ctx: Context) -> tuple[Incident, ...]:
    """The incidents of the message: several if it is about the same fault on several entities."""
    sent = ctx.state.messages(incident=claim.subject, limit=1000)
    also = next((message.also for message in sent if nonce_of(message.id, claim.action) == claim.nonce), ())
    found = [ctx.state.incident(name) for name in (claim.subject, *also)]
    known = tuple(incident for incident in found if incident is not None)
    if not known:
        raise NotFoundError("button.unknown")
    return known


def _subject(press: _Press, lang: Language) -> button_page.Subject:
    return button_page.Subject(press.claim, press.incidents, lang)


def _people(ctx: Context) -> list[str]:
    return [person.name for person in ctx.settings.oncall.people]


def _person(press: _Press, name: str, ctx: Context) -> str:
    """The recipient of a personal message, else the given name. Raises NameNeededError without one."""
    if press.claim.recipient:
        return press.claim.recipient
    people = _people(ctx)
    if not name or (people and name not in people):
        raise NameNeededError("button.name_needed")
    return name


def _use(press: _Press, by: str, ctx: Context) -> None:
    """Marks the button as used, audits it, and acts. A button that cannot act stays unused."""
    claim, now = press.claim, ctx.as_of()
    if claim.action is ButtonAction.APPROVE:
        _check_approval(claim, by, ctx)
    elif not any(incident.resolved_at is None for incident in press.incidents):
        raise ConflictError("button.resolved")
    if not ctx.state.use_button(claim.nonce, now):
        raise ConflictError("button.used")
    detail = {"action": claim.action.value, "channel": claim.channel, "personal": str(bool(claim.recipient))}
    record = AuditRecord(now, AuditEvent.BUTTON_USED, claim.subject, claim.action.value, by=by, detail=detail)
    ctx.state.append_audit([record])
    _ACTS[claim.action](press, by, ctx)


def _check_approval(claim: ButtonClaim, by: str, ctx: Context) -> None:
    """Raises ConflictError if the approval would not count, and if a name must be certain that is not."""
    action = actions.known(ctx, claim.subject)
    if action.approvals_needed > 1 and not claim.recipient:
        raise ConflictError("button.two_people")
    actions.check_approval(action, by)


def _approve(press: _Press, by: str, ctx: Context) -> None:
    actions.decide(ctx, press.claim.subject, ctx.settings.language, by, approved=True)


def _acknowledge(press: _Press, by: str, ctx: Context) -> None:
    for incident in press.incidents:
        ctx.state.acknowledge(incident.id, by, ctx.as_of())


def _escalate(press: _Press, by: str, ctx: Context) -> None:
    now = ctx.as_of()
    for incident in press.incidents:
        if incident.resolved_at is None:
            number = f"{press.claim.nonce}:{incident.id}"
            ctx.state.add_note(IncidentNote(number, incident.id, NoteKind.ESCALATION, by, now))


def _silence(press: _Press, by: str, ctx: Context) -> None:
    """Silences every firing alert of the incidents on its own entity: other faults still notify."""
    now = ctx.as_of()
    for rule, entity in _firing(press.incidents, ctx):
        silence = Silence(uuid4().hex, rule, entity, now + SILENCE, by, press.claim.subject)
        ctx.state.add_silence(silence)
        detail = {"rule": rule, "entity": entity.key, "comment": press.claim.subject}
        ctx.state.append_audit([AuditRecord(now, AuditEvent.SILENCED, silence.id, "button", by=by, detail=detail)])


def _firing(incidents: Sequence[Incident], ctx: Context) -> list[tuple[str, EntityRef]]:
    alerts = [ctx.state.alert(fingerprint) for incident in incidents for fingerprint in incident.alerts]
    firing = [(alert.rule, alert.entity) for alert in alerts if alert is not None and alert.state is AlertState.FIRING]
    return list(dict.fromkeys(firing))


_ACTS: Mapping[ButtonAction, Callable[[_Press, str, Context], None]] = {
    ButtonAction.ACKNOWLEDGE: _acknowledge,
    ButtonAction.SILENCE_1H: _silence,
    ButtonAction.ESCALATE: _escalate,
    ButtonAction.APPROVE: _approve,
}


def _audit_refusal(refused: OutriderError, token: str, request: Request, ctx: Context) -> None:
    """Records a forged, expired or used button, or one that cannot act. Refusals above their limit are not recorded."""
    limiter: Limiter = request.app.state.refusals
    if not limiter.allow():
        return
    client = request.client.host if request.client else "unknown"
    reason = "forged" if isinstance(refused, ForgedTokenError) else "not_possible"
    if refused.message.startswith(button_page.TEXT_ID):
        reason = refused.message.removeprefix(button_page.TEXT_ID)
    subject, detail = "button", {"method": request.method}
    if ctx.signer is not None and not isinstance(refused, ForgedTokenError):
        claim = ctx.signer.claim(token)
        subject = claim.subject
        detail |= {"action": claim.action.value, "channel": claim.channel, "recipient": claim.recipient}
    ctx.state.append_audit(
        [AuditRecord(ctx.as_of(), AuditEvent.BUTTON_REFUSED, subject, reason, by=client, detail=detail)]
    )
