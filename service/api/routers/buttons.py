"""``/buttons``: the buttons of messages. They need no token: each link is signed, expires, and acts once.

A GET only shows what the button would do, because chat programs open links to preview them. The POST of that page acts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, tzinfo
from urllib.parse import parse_qs
from uuid import uuid4

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse
from starlette.concurrency import run_in_threadpool

from alerts.routing.buttons import nonce_of
from outrider import log
from outrider.audit import AuditEvent, AuditRecord
from outrider.errors import StoreError
from outrider.model import AlertState, ButtonAction, ButtonClaim, EntityRef, Incident
from outrider.ports import Silence
from outrider.records.on_call import ButtonPress, PressResult
from outrider.records.response import IncidentNote, NoteKind
from outrider.text.i18n import Language
from service.api.bodies import read_body
from service.api.context import Context, Ctx, Lang
from service.api.routers import actions, button_page
from service.api.routers.button_page import RefusedPressError
from service.api.security import Limiter
from service.oncall import view
from service.oncall.button_tokens import ButtonSigner, ForgedTokenError, expired

router = APIRouter(tags=["buttons"])
SILENCE = timedelta(hours=1)
_MOST_BODY = 4096
_MOST_NAME = 64
_FORGED = "forged"
_NOT_AUDITED = ("name_needed", "failed")
_log = log.get("api")
_HEADERS = {
    "Cache-Control": "no-store",
    "Referrer-Policy": "no-referrer",
    "X-Robots-Tag": "noindex, nofollow",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": (
        "default-src 'none'; style-src 'unsafe-inline'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    ),
}


@dataclass(frozen=True, slots=True)
class _Press:
    """A genuine claim, with the incidents or the action that it is about."""

    claim: ButtonClaim
    incidents: tuple[Incident, ...]

    @property
    def open_incidents(self) -> list[Incident]:
        """Those of the incidents that are open."""
        return [incident for incident in self.incidents if incident.resolved_at is None]


@router.get("/buttons/{token}", response_class=HTMLResponse)
def show(token: str, request: Request, ctx: Ctx, lang: Lang) -> HTMLResponse:
    """Show what a button would do. Changes nothing."""

    def page() -> HTMLResponse:
        press = _checked(token, ctx)
        return _response(button_page.question(_subject(press, ctx, lang), _people(ctx), lang))

    return _answered(token, request, ctx, lang, page)


@router.post("/buttons/{token}", response_class=HTMLResponse)
async def press(token: str, request: Request, ctx: Ctx, lang: Lang) -> HTMLResponse:
    """Do what a button claims, once, under the name of its recipient or of the person who gives one."""
    try:
        body = await read_body(request, _MOST_BODY, RefusedPressError("too_large", 400))
    except RefusedPressError as error:
        return _response(button_page.refusal(error, ctx.settings.dashboard_url, lang), error.status)
    fields = parse_qs(body.decode(errors="replace"))
    name = next(iter(fields.get("name", [])), "").strip()[:_MOST_NAME]

    def act() -> HTMLResponse:
        checked = _checked(token, ctx)
        by = _person(checked, name, ctx)
        _act(checked, by, ctx)
        return _response(button_page.answer(_subject(checked, ctx, lang), by, ctx.settings.dashboard_url, lang))

    return await run_in_threadpool(_answered, token, request, ctx, lang, act)


def _answered(
    token: str, request: Request, ctx: Context, lang: Language, page: Callable[[], HTMLResponse]
) -> HTMLResponse:
    """The page, or the reason of a refusal as a page. A refusal is audited unless the same press may succeed."""
    try:
        return page()
    except RefusedPressError as error:
        refused = error
    except StoreError as error:
        _log.error("button_failed", error=error.message, hint=error.hint)
        refused = RefusedPressError("failed", 503)
    if refused.reason not in _NOT_AUDITED:
        _audit_refusal(refused.reason, token, request, ctx)
    return _response(button_page.refusal(refused, ctx.settings.dashboard_url, lang), refused.status)


def _response(html: str, status: int = 200) -> HTMLResponse:
    return HTMLResponse(html, status, headers=_HEADERS)


def _checked(token: str, ctx: Context) -> _Press:
    """The press of a genuine button that has not expired. Raises RefusedPressError."""
    signer: ButtonSigner | None = ctx.signer
    if signer is None:
        raise RefusedPressError("off", 409)
    try:
        claim = signer.claim(token)
    except ForgedTokenError as error:
        raise RefusedPressError(_FORGED, 403) from error
    if expired(claim, _now(ctx)):
        raise RefusedPressError("expired", 410)
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
        raise RefusedPressError("unknown", 404)
    return known


def _subject(press: _Press, ctx: Context, lang: Language) -> button_page.Subject:
    """What the button is about, in the time zone of the team that responds."""
    zone: tzinfo = view.zone_of(press.incidents[0], ctx.roster(ctx.as_of())) if press.incidents else UTC
    return button_page.Subject(press.claim, press.incidents, lang, zone)


def _people(ctx: Context) -> list[str]:
    return [person.name for person in ctx.settings.oncall.people]


def _person(press: _Press, name: str, ctx: Context) -> str:
    """The recipient of a personal message, else the given name. Raises RefusedPressError without one."""
    if press.claim.recipient:
        return press.claim.recipient
    people = _people(ctx)
    if not name or (people and name not in people):
        raise RefusedPressError("name_needed", 422)
    return name


def _act(press: _Press, by: str, ctx: Context) -> None:
    """Uses the button, acts and audits, in one transaction. A button that cannot act stays unused."""
    claim, now = press.claim, _now(ctx)
    if ctx.state.button_used(claim.nonce):  # before other reasons, which its use may have caused
        raise RefusedPressError("used", 409)
    if claim.action is not ButtonAction.APPROVE and not press.open_incidents:
        raise RefusedPressError("resolved", 409)
    detail = {"action": claim.action.value, "channel": claim.channel, "personal": str(bool(claim.recipient))}
    record = AuditRecord(now, AuditEvent.BUTTON_USED, claim.subject, claim.action.value, by=by, detail=detail)
    changes = _CHANGES[claim.action](press, ButtonPress(claim.nonce, by, now), ctx)
    result = ctx.state.press_button(replace(changes, audit=(record, *changes.audit)))
    if result is PressResult.USED:
        raise RefusedPressError("used", 409)
    if result is PressResult.NOT_POSSIBLE:
        raise RefusedPressError("not_waiting" if claim.action is ButtonAction.APPROVE else "resolved", 409)


def _approve(press: _Press, made: ButtonPress, ctx: Context) -> ButtonPress:
    """Approves an action. A name that must be certain is that of the recipient."""
    action = ctx.state.action(press.claim.subject)
    if action is None:
        raise RefusedPressError("unknown_action", 404)
    if action.approvals_needed > 1 and not press.claim.recipient:
        raise RefusedPressError("two_people", 409)
    objection = actions.approval_objection(action, made.by)
    if objection is not None:
        raise RefusedPressError(objection.value, 409, name=made.by)
    return replace(made, approves=action.id)


def _acknowledge(press: _Press, made: ButtonPress, _ctx: Context) -> ButtonPress:
    waiting = [incident for incident in press.open_incidents if incident.acknowledged_at is None]
    if not waiting:
        raise RefusedPressError("acknowledged", 409, name=press.open_incidents[0].acknowledged_by or "")
    return replace(made, acknowledges=tuple(incident.id for incident in waiting))


def _escalate(press: _Press, made: ButtonPress, _ctx: Context) -> ButtonPress:
    notes = (
        IncidentNote(f"{made.nonce}:{incident.id}", incident.id, NoteKind.ESCALATION, made.by, made.at)
        for incident in press.open_incidents
    )
    return replace(made, notes=tuple(notes))


def _silence(press: _Press, made: ButtonPress, ctx: Context) -> ButtonPress:
    """Silences every firing alert of the incidents on its own entity: other faults still notify."""
    silences, audit = [], []
    for rule, entity in _firing(press.incidents, ctx):
        silence = Silence(uuid4().hex, rule, entity, made.at + SILENCE, made.by, press.claim.subject)
        detail = {"rule": rule, "entity": entity.key, "comment": press.claim.subject}
        silences.append(silence)
        audit.append(AuditRecord(made.at, AuditEvent.SILENCED, silence.id, "button", by=made.by, detail=detail))
    if not silences:
        raise RefusedPressError("nothing_fires", 409)
    return replace(made, silences=tuple(silences), audit=tuple(audit))


def _firing(incidents: Sequence[Incident], ctx: Context) -> list[tuple[str, EntityRef]]:
    alerts = [ctx.state.alert(fingerprint) for incident in incidents for fingerprint in incident.alerts]
    firing = [(alert.rule, alert.entity) for alert in alerts if alert is not None and alert.state is AlertState.FIRING]
    return list(dict.fromkeys(firing))


_CHANGES: Mapping[ButtonAction, Callable[[_Press, ButtonPress, Context], ButtonPress]] = {
    ButtonAction.ACKNOWLEDGE: _acknowledge,
    ButtonAction.SILENCE_1H: _silence,
    ButtonAction.ESCALATE: _escalate,
    ButtonAction.APPROVE: _approve,
}


def _audit_refusal(reason: str, token: str, request: Request, ctx: Context) -> None:
    """Records a forged, expired or used button, or one that cannot act. Refusals above their limit are not recorded."""
    limiter: Limiter = request.app.state.refusals
    if not limiter.allow():
        return
    client = request.client.host if request.client else "unknown"
    subject, detail = "button", {"method": request.method}
    if ctx.signer is not None and reason != _FORGED:
        claim = ctx.signer.claim(token)
        subject = claim.subject
        detail |= {"action": claim.action.value, "channel": claim.channel, "recipient": claim.recipient}
    record = AuditRecord(ctx.as_of(), AuditEvent.BUTTON_REFUSED, subject, reason, by=client, detail=detail)
    ctx.state.append_audit([record])
