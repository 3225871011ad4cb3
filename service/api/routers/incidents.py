"""``/incidents``: incidents with evidence, timeline and actions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import AwareDatetime

from alerts.routing.recurrence import earlier_follow_ups
from detectors.rca import explanation, explanation_text
from outrider.clock import parse_rfc3339
from outrider.documents import serialization
from outrider.documents.summaries import incident_summary
from outrider.model import EntityKind, Incident
from outrider.records.change_log import Change
from outrider.records.response import IncidentNote
from service.api import paging
from service.api.context import Context, Ctx, Lang
from service.api.errors import ConflictError, NotFoundError
from service.api.queries import entity_location
from service.api.routers import evidence
from service.api.routers.changes import change_row
from service.api.security import Writer
from service.config.tokens import flights_of
from service.engine import drill_marking
from service.incidents import incident_actions
from service.incidents.llm_narrative import Narrative, NoExplainer
from service.oncall import view

router = APIRouter(tags=["incidents"])
_FIRST_ALERTS, _MOST_CHANGES, _MOST_VERDICTS = 50, 200, 100


@router.get("/incidents")
def incidents(
    ctx: Ctx,
    lang: Lang,
    open_only: Annotated[bool, Query(alias="open", description="only those not resolved")] = False,
    since: Annotated[AwareDatetime | None, Query(description="only those open at or after this time")] = None,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Incidents, newest first."""
    selected, following = paging.by_key(
        lambda after, count: ctx.state.incidents(open_only=open_only, since=since, limit=count, after=after),
        None,
        cursor,
        limit,
    )
    topology, drills = ctx.topology(), ctx.drills_around(selected)
    notes = _notes_of(ctx, selected)
    rows = [
        entity_location.incident_json(item, topology, lang, drills) | view.responding_json(item, notes[item.id])
        for item in selected
    ]
    return {"incidents": rows, "next_cursor": following}


@router.get("/incidents/{incident_id}")
def incident(incident_id: str, ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """One incident: hypotheses with evidence, explanation, timeline, grouped alerts, actions, messages."""
    incident = known(ctx, incident_id)
    story = entity_location.with_place(
        serialization.incident_story(incident, lang), incident, ctx.topology_of(incident), lang
    )
    zone = view.zone_of(incident, ctx.roster(ctx.as_of()))
    story["timezone"], story["summary"] = zone.key, incident_summary(incident, lang, zone=zone)
    first = _folded(ctx, incident, "", _FIRST_ALERTS, lang)
    story["folded"], story["folded_next_cursor"] = first["alerts"], first["next_cursor"]
    actions = incident_actions.of_incident(ctx.state, incident, ctx.topology())
    story["actions"] = [serialization.action(item, lang) for item in actions]
    story["messages"] = [serialization.message(item) for item in ctx.state.messages(incident=incident_id, limit=100)]
    ratings = ctx.state.feedback(incident=incident_id, limit=_MOST_VERDICTS)
    story["feedback"] = [serialization.feedback(item) for item in ratings]
    story["drill"] = drill_marking.name_of(incident, ctx.drills_around([incident]))
    recording = flights_of(ctx.settings.store_url) / incident.id
    story["recording"] = str(recording) if recording.is_dir() else None
    story["explanation"] = explanation_text.as_json(explanation.explain(incident, ctx.extras.knowledge, actions), lang)
    story["may_be_retold"] = not isinstance(ctx.extras.explainer, NoExplainer)
    story["as_of"] = serialization.instant(ctx.as_of())
    return story | _responses(ctx, incident)


def _notes_of(ctx: Context, selected: Sequence[Incident]) -> dict[str, list[IncidentNote]]:
    notes: dict[str, list[IncidentNote]] = {item.id: [] for item in selected}
    for note in ctx.state.notes(list(notes)) if notes else ():
        notes[note.incident].append(note)
    return notes


def _responses(ctx: Context, incident: Incident) -> dict[str, Any]:
    """Who responds, what people added, and follow-ups of this incident and of earlier ones with the same cause."""
    now, within = ctx.as_of(), ctx.settings.oncall.recurs_within
    notes = ctx.state.notes([incident.id])
    recent = ctx.state.follow_ups(since=incident.opened_at - within)
    return {
        **view.responding_json(incident, notes),
        "notes": [view.note_json(note) for note in notes],
        "follow_ups": [view.follow_up_json(item, now) for item in ctx.state.follow_ups(incident=incident.id)],
        "recurrences": [view.follow_up_json(item, now) for item in earlier_follow_ups(incident, recent, within)],
    }


@router.get("/incidents/{incident_id}/narrative")
def narrative(incident_id: str, ctx: Ctx, lang: Lang) -> dict[str, Any]:
    """Explanation rewritten by the configured language model, unverified; ``text`` is null with a ``reason`` otherwise.

    Nothing depends on it. It is requested again after the incident changes.
    """
    incident = known(ctx, incident_id)
    actions = incident_actions.of_incident(ctx.state, incident, ctx.topology())
    facts = explanation.explain(incident, ctx.extras.knowledge, actions)
    key = ("narrative", incident.id, incident.updated_at, lang)
    reply: Narrative = ctx.result_cache.peek(key) or ctx.extras.explainer.summarize(facts, lang)
    if reply.text is not None:
        ctx.result_cache.get(key, lambda: reply)
    return {"text": reply.text, "reason": reply.reason or None, "model": reply.model or None}


@router.get("/incidents/{incident_id}/alerts")
def folded(
    incident_id: str, ctx: Ctx, lang: Lang, limit: paging.Limit = 100, cursor: paging.Cursor = ""
) -> dict[str, Any]:
    """Alerts grouped into an incident, in order of arrival."""
    return _folded(ctx, known(ctx, incident_id), cursor, limit, lang)


@router.get("/incidents/{incident_id}/evidence")
def charts(incident_id: str, ctx: Ctx) -> dict[str, Any]:
    """Series around the incident: signals of the suspected cause and of the services it affects."""
    incident = known(ctx, incident_id)
    drawn = evidence.charts(incident, ctx.topology_of(incident), ctx.metrics, ctx.as_of(), ctx.settings.interval)
    return {**drawn, "changes": [change_row(change) for change in _changes(ctx, incident, drawn)]}


def _changes(ctx: Context, incident: Incident, drawn: dict[str, Any]) -> list[Change]:
    """Changes on the path of the incident within the charts, oldest first; its deploy markers."""
    if ctx.extras.change_log is None:
        return []
    start, end = (parse_rfc3339(drawn[name]) for name in ("start", "end"))
    topology = ctx.topology_of(incident)
    cause = incident.suspected_cause
    near = {
        entity
        for entity in topology.of_kind(EntityKind.SERVICE)
        if {entity.key, str(entity), entity.name} & set(incident.services)
    }
    near |= {cause.entity} if cause else set()
    path = (
        frozenset().union(*(topology.causes_of(entity) | topology.affected_by(entity) for entity in near))
        if near
        else set()
    )
    names = {entity.name for entity in near}
    recorded = ctx.extras.change_log.changes(since=start, until=end, limit=_MOST_CHANGES)
    mine = [change for change in recorded if change.entity in path or change.entity in near or change.service in names]
    return sorted(mine, key=lambda change: change.at)


@router.post("/incidents/{incident_id}/ack")
def acknowledge(incident_id: str, ctx: Ctx, lang: Lang, by: Writer) -> dict[str, Any]:
    """Acknowledge: repeats and escalation stop."""
    incident = known(ctx, incident_id)
    if not ctx.state.acknowledge(incident_id, by, ctx.as_of()):
        raise ConflictError(
            "The incident is already resolved." if incident.resolved_at else "It cannot be acknowledged."
        )
    return serialization.incident(known(ctx, incident_id), lang)


def known(ctx: Context, incident_id: str) -> Incident:
    """Incident with that id. Raises NotFoundError."""
    incident = ctx.state.incident(incident_id)
    if incident is None:
        raise NotFoundError(f"no incident has the id {incident_id!r}", hint="GET /api/v1/incidents lists them")
    return incident


def _folded(ctx: Context, incident: Incident, cursor: str, limit: int, lang: Lang) -> dict[str, Any]:
    wanted, following = paging.page(lambda count: incident.alerts[:count], None, cursor, limit)
    alerts = [ctx.state.alert(fingerprint) for fingerprint in wanted]
    return {
        "alerts": [serialization.alert(item, lang) for item in alerts if item is not None],
        "next_cursor": following,
    }
