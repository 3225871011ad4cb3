"""``/changes``: the change log, and the endpoint where pipelines announce changes."""

from __future__ import annotations

import hashlib
import hmac
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Annotated, Any, Literal

import pydantic
from fastapi import APIRouter, Depends, Header, Query, Request
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field
from starlette.concurrency import run_in_threadpool

from collectors.events.redact import redacted
from collectors.events.unresolved_event import FIRST_LOOK
from collectors.kubernetes.actors import kind_of
from collectors.receive import webhooks
from collectors.receive.webhooks import Delivery
from outrider.clock import rfc3339
from outrider.documents import serialization
from outrider.errors import UsageError
from outrider.model import EntityKind, EntityRef
from outrider.records.change_log import CHANGE_CODES, ActorKind, Change, ChangeEnd, ChangeLog, Ended, event_of
from outrider.text import yaml_file, yaml_words
from outrider.topology import Topology
from service.api import paging, security
from service.api.bodies import read_body
from service.api.context import Context, Ctx
from service.api.errors import ConflictError, DeniedError

router = APIRouter(tags=["changes"])
announced = APIRouter(tags=["changes"])
MOST_BYTES = 4 * 1024 * 1024  # GitHub sends 25 MB at most; a push of that size says nothing more
MOST_AT_ONCE = 500
_GITHUB, _GITLAB, _ARGOCD = "github", "gitlab", "argocd"


class Announcement(BaseModel):
    """A change announced by a pipeline. Names one of service, workload or node."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    code: Annotated[str, Field(description=", ".join(CHANGE_CODES))]
    id: Annotated[str | None, Field(max_length=200)] = Field(None, description="the same id again is the same change")
    service: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    workload: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    node: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    namespace: Annotated[str | None, Field(pattern=r"^[^/]{1,253}$")] = None
    cluster: Annotated[str | None, Field(pattern=r"^[^/]{1,253}$")] = None
    at: AwareDatetime | None = Field(None, description="when it happened; now when not given")
    actor: Annotated[str, Field(max_length=200)] = ""
    actor_kind: ActorKind | None = None
    before: Annotated[str, Field(max_length=2000)] = ""
    after: Annotated[str, Field(max_length=2000)] = ""
    url: Annotated[str, Field(max_length=2000, pattern=r"^(?:https?://\S+)?$")] = ""
    text: Annotated[str, Field(max_length=2000)] = ""
    outcome: Literal["succeeded", "failed", "rolled_back", "superseded"] | None = Field(
        None, description="how it ended, when it has; send the same id again later to say so"
    )


@dataclass(frozen=True, slots=True)
class _Taken:
    """Counts of one request."""

    changes: tuple[Change, ...] = ()
    ends: tuple[ChangeEnd, ...] = ()
    unknown: tuple[str, ...] = ()


def ledger_of(ctx: Context) -> ChangeLog:
    """The change log. Raises ConflictError if this API has none."""
    if ctx.extras.ledger is None:
        raise ConflictError("This API has no change log.", hint="outrider serve creates one next to the store")
    return ctx.extras.ledger


@router.get("/changes")
def changes(
    ctx: Ctx,
    since: Annotated[AwareDatetime | None, Query(description="changes at or after it")] = None,
    until: Annotated[AwareDatetime | None, Query(description="changes before it")] = None,
    service: Annotated[str | None, Query(description="of this service or workload")] = None,
    code: Annotated[str | None, Query(description="such as rollout, flags, scale, driver")] = None,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Changes with actor and outcome, newest first."""
    ledger = ledger_of(ctx)

    def keep(one: Change) -> bool:
        return (service is None or service in (one.service, one.workload)) and (code is None or one.code == code)

    found, following = paging.by_key(
        lambda after, count: ledger.changes(since=since, until=until, limit=count, after=after), keep, cursor, limit
    )
    return {"changes": [change_row(one) for one in found], "next_cursor": following}


def change_row(one: Change) -> dict[str, Any]:
    """A change as JSON."""
    return {
        "id": one.id,
        "code": one.code,
        "entity": serialization.entity(one.entity),
        "at": rfc3339(one.at),
        "source": one.source,
        "actor": one.actor or None,
        "actor_kind": one.actor_kind.value,
        "before": one.before or None,
        "after": one.after or None,
        "workload": one.workload or None,
        "service": one.service or None,
        "url": one.url or None,
        "text": one.text or None,
        "outcome": one.ended.value,
        "outcome_at": serialization.instant(one.ended_at),
        "outcome_because": one.ended_because or None,
    }


# --- the door -------------------------------------------------------------------------------------


async def signed_body(
    request: Request,
    ctx: Ctx,
    authorization: Annotated[str, Header()] = "",
    x_outrider_user: Annotated[str, Header()] = "",
    x_hub_signature_256: Annotated[str, Header()] = "",
    x_gitlab_token: Annotated[str, Header()] = "",
) -> tuple[bytes, str]:
    """Body and sender. Raises DeniedError without the admin token or a valid signature."""
    too_large = UsageError(f"the body is larger than {MOST_BYTES} bytes", hint="send fewer changes per request")
    body = await read_body(request, MOST_BYTES, too_large)
    secrets = ctx.settings.webhooks.secrets
    if x_hub_signature_256 and _GITHUB in secrets:
        right = "sha256=" + hmac.new(secrets[_GITHUB].encode(), body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(right.encode(), x_hub_signature_256.encode()):
            raise DeniedError(
                "The signature X-Hub-Signature-256 does not match the body.",
                hint="set the same secret in the webhook and in changes.github_secret_file",
            )
        return body, _GITHUB
    if x_gitlab_token and _GITLAB in secrets:
        if not hmac.compare_digest(secrets[_GITLAB].encode(), x_gitlab_token.encode()):
            raise DeniedError(
                "X-Gitlab-Token does not match.",
                hint="set the same secret token in the webhook and in changes.gitlab_secret_file",
            )
        return body, _GITLAB
    return body, security.writer(request, ctx, authorization, x_outrider_user)


@announced.post("/changes")
async def announce(
    request: Request, ctx: Ctx, sent: Annotated[tuple[bytes, str], Depends(signed_body)]
) -> dict[str, Any]:
    """Announce changes: a list of them, or a webhook delivery of GitHub, GitLab or Argo CD.

    ``taken`` counts new changes, ``known`` those announced before, ``ended`` reported outcomes. ``unknown`` lists
    services and nodes that no source has reported: accepted, but possibly misspelled.
    """
    return await run_in_threadpool(_announce, request, ctx, *sent)


def _announce(request: Request, ctx: Context, body: bytes, by: str) -> dict[str, Any]:
    ledger, now = ledger_of(ctx), now_of(ctx)
    found = _read(request, ctx, body, by, now)
    new = ledger.append_changes(found.changes)
    ledger.post([event_of(one) for one in found.changes], now)
    ledger.append_ends(found.ends)
    unknown = {"unknown": list(found.unknown)} if found.unknown else {}
    return {"taken": new, "known": len(found.changes) - new, "ended": len(found.ends), **unknown}


def now_of(ctx: Context) -> datetime:
    """Time of the clock, or of the newest cycle if the fleet has its own time."""
    now, newest = ctx.extras.clock.now(), ctx.as_of()
    return now if abs(now - newest) < FIRST_LOOK or newest < now else newest


def _read(request: Request, ctx: Context, body: bytes, by: str, now: datetime) -> _Taken:
    try:
        said = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UsageError("the body is not valid JSON", hint="send application/json, not a form") from error
    for source, event in (
        (_GITHUB, request.headers.get("x-github-event")),
        (_GITLAB, request.headers.get("x-gitlab-event")),
        (_ARGOCD, request.headers.get("x-argocd-event")),
    ):
        if event is not None:
            told = webhooks.parse_delivery(source, event, said, now)
            return _Taken() if told is None else _of_webhook(told, source, ctx, now)
    return _of_announcements(said, ctx, by, now)


def _of_webhook(told: Delivery, source: str, ctx: Context, now: datetime) -> _Taken:
    ends = () if told.end is None else (told.end,)
    if told.change is None:
        return _Taken(ends=ends)
    one = told.change
    entity = _about(told.names, ctx)
    made = Change(
        id=one.id,
        code=one.code,
        entity=entity,
        at=min(one.at or now, now),
        source=source,
        actor=one.actor,
        actor_kind=one.actor_kind,
        before=one.before,
        after=one.after,
        service=entity.name if entity.kind is EntityKind.SERVICE else "",
        url=one.url,
        text=one.text,
    )
    return _Taken((made,), ends)


def _about(names: tuple[str, ...], ctx: Context) -> EntityRef:
    """Service that a repository is mapped to or named like; the cluster if there is none."""
    cluster, mapped = ctx.settings.cluster, ctx.settings.webhooks.services
    known = ctx.topology()
    for name in names:
        if name in mapped:
            return service_named(mapped[name], known, cluster)
    bare = names[-1].rsplit("/", 1)[-1]
    found = service_named(bare, known, cluster)
    return found if found in known.entities else EntityRef(cluster, EntityKind.CLUSTER, None, cluster)


def service_named(name: str, topology: Topology, cluster: str, namespace: str | None = None) -> EntityRef:
    """Service with that name; ``namespace/name`` names one exactly."""
    space, slash, bare = name.rpartition("/")
    wanted = space if slash else namespace
    found = [
        one
        for one in topology.of_kind(EntityKind.SERVICE)
        if one.name == bare and one.cluster == cluster and wanted in (None, one.namespace)
    ]
    return found[0] if len(found) == 1 else EntityRef(cluster, EntityKind.SERVICE, wanted, bare)


def _of_announcements(said: Any, ctx: Context, by: str, now: datetime) -> _Taken:
    entries = said if isinstance(said, list) else [said]
    if len(entries) > MOST_AT_ONCE:
        raise UsageError(f"{len(entries)} changes are more than {MOST_AT_ONCE}", hint="send fewer changes per request")
    made, ends = [], []
    for place, entry in enumerate(entries):
        try:
            one = Announcement.model_validate(entry)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in (place, *first["loc"]))
            hint = "GET /docs shows the fields; a delivery of a tool needs its own header, such as X-GitHub-Event"
            raise UsageError(f"change {where}: {yaml_words.describe(first)}", hint=hint) from error
        change = _of_announcement(place, one, ctx, by, now)
        made.append(change)
        if one.outcome is not None:
            ends.append(ChangeEnd(change.id, Ended(one.outcome), now, redacted(one.text)[:400]))
    return _Taken(tuple(made), tuple(ends), _not_seen(made, ctx.topology()))


def _not_seen(made: Sequence[Change], topology: Topology) -> tuple[str, ...]:
    """Entities of changes that the topology lacks. Workloads are excluded: not all of them are in it."""
    told = (one.entity for one in made if one.entity.kind is not EntityKind.WORKLOAD)
    return tuple(dict.fromkeys(f"{one.kind.value} {one.name}" for one in told if one not in topology.entities))


def _of_announcement(place: int, one: Announcement, ctx: Context, by: str, now: datetime) -> Change:
    if one.code not in CHANGE_CODES:
        said = f"no change has the code {one.code!r}{yaml_file.near(one.code, CHANGE_CODES)}"
        raise UsageError(f"change {place}.code: {said}", hint=f"codes are {', '.join(CHANGE_CODES)}")
    about = [name for name in ("service", "workload", "node") if getattr(one, name)]
    if len(about) != 1:
        raise UsageError("a change requires one of service, workload and node", hint='for example {"service": "chat"}')
    cluster = one.cluster or ctx.settings.cluster
    if one.service:
        entity = service_named(one.service, ctx.topology(), cluster, one.namespace)
    elif one.workload:
        entity = EntityRef(cluster, EntityKind.WORKLOAD, one.namespace, one.workload)
    else:
        entity = EntityRef(cluster, EntityKind.NODE, None, one.node or "")
    at = min(one.at or now, now)
    actor = one.actor or by
    change = Change(
        id="",
        code=one.code,
        entity=entity,
        at=at,
        source="api",
        actor=actor,
        actor_kind=one.actor_kind or kind_of(actor, otherwise=ActorKind.PERSON if one.actor else ActorKind.UNKNOWN),
        before=redacted(one.before)[:400],
        after=redacted(one.after)[:400],
        workload=one.workload or "",
        service=entity.name if one.service else "",
        url=one.url[:400],
        text=redacted(one.text)[:400],
    )
    identity = hashlib.sha256(f"{change}".encode()).hexdigest()[:16]
    return replace(change, id=f"api/{one.id or identity}")
