"""``/feedback``: verdicts on alerts, and the precision of rules."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field

from outrider.documents import serialization
from outrider.records.feedback import INCIDENT_ID, MOST_COMMENT, Feedback, Usefulness, by_rule
from service.api import paging
from service.api.context import Context, Ctx
from service.api.errors import ConflictError, NotFoundError
from service.api.routers import incidents
from service.api.security import Writer
from service.engine import fleet_state
from service.incidents import alert_feedback

router = APIRouter(tags=["feedback"])
Since = Annotated[AwareDatetime | None, Query(description="only verdicts given at or after this time")]


class Verdict(BaseModel):
    """Verdict of a person."""

    model_config = ConfigDict(extra="forbid")
    verdict: Usefulness
    cause: str | None = Field(None, description="fault id of the right cause, with wrong_cause; null if unknown")
    comment: str = Field("", max_length=MOST_COMMENT)
    by: str = Field("", max_length=64, description="name of the rater; empty: the name of the request's token")


class VerdictOnAlert(Verdict):
    """Verdict on one firing period of an alert."""

    starts_at: AwareDatetime | None = Field(None, description="start of the firing period; null: the newest")


@router.get("/feedback")
def feedback(
    ctx: Ctx,
    rule: Annotated[str | None, Query(description="only of this rule")] = None,
    incident: Annotated[str | None, Query(description="only of alerts of this incident")] = None,
    since: Since = None,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Verdicts, newest first."""
    verdicts, following = paging.by_key(
        lambda after, count: ctx.state.feedback(rule=rule, incident=incident, since=since, limit=count, after=after),
        None,
        cursor,
        limit,
    )
    return {"feedback": [serialization.feedback(verdict) for verdict in verdicts], "next_cursor": following}


@router.get("/feedback/precision")
def precision(ctx: Ctx, since: Since = None) -> list[dict[str, Any]]:
    """Precision of every judged rule with its 95 % interval, most judged first."""
    return [
        serialization.precision(rule) for rule in by_rule(ctx.state.feedback(since=since, limit=fleet_state.UNLIMITED))
    ]


@router.post("/alerts/{fingerprint:path}/feedback")
def judge_alert(fingerprint: str, body: VerdictOnAlert, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Record a verdict on one firing period of an alert. It replaces an earlier one of the same person."""
    spell = alert_feedback.occurrence_of(ctx.state, fingerprint, body.starts_at)
    if spell is None and fingerprint.startswith(INCIDENT_ID):
        raise NotFoundError(f"no incident has the id {fingerprint!r}", hint="GET /api/v1/incidents lists them")
    if spell is None:
        then = "" if body.starts_at is None else ", or no firing period of it began then"
        raise NotFoundError(f"no alert has the fingerprint {fingerprint!r}{then}", hint="GET /api/v1/alerts lists them")
    return _saved(ctx, alert_feedback.verdicts((spell,), body.verdict, at=ctx.as_of(), **_more(body, by)))


@router.post("/incidents/{incident_id}/feedback")
def judge_incident(incident_id: str, body: Verdict, ctx: Ctx, by: Writer) -> dict[str, Any]:
    """Record the same verdict on every fired alert of an incident."""
    incident = incidents.known(ctx, incident_id)
    alerts = alert_feedback.occurrences_in(ctx.state, incident)
    if not alerts:
        raise ConflictError("No alert of this incident is stored anymore.")
    more = {"incident": incident_id, **_more(body, by)}
    return _saved(ctx, alert_feedback.verdicts(alerts, body.verdict, at=ctx.as_of(), **more))


def _more(body: Verdict, by: str) -> dict[str, Any]:
    return {"by": body.by.strip() or by, "cause": body.cause or None, "comment": body.comment}


def _saved(ctx: Context, ratings: list[Feedback]) -> dict[str, Any]:
    values = alert_feedback.evaluated_values(ratings, ctx.settings.rules, ctx.state, ctx.metrics, ctx.settings.interval)
    changed = ctx.state.save_feedback(ratings, values)
    return {"changed": changed, "feedback": [serialization.feedback(rating) for rating in ratings]}
