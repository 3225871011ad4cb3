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
from outrider.records.change_log import CHANGE_CODES, ActorKind, Change, ChangeEnd, ChangeLog, ChangeStatus, event_of
from outrider.text import yaml_file, yaml_words
from outrider.topology import Topology
from service.api import paging, security
from service.api.bodies import read_body
from service.api.context import Context, Ctx
from service.api.errors import ConflictError, DeniedError

router = APIRouter(tags=["changes"])
announced = APIRouter(tags=["changes"])
MOST_BYTES = 4 * 1024 * 1024  # GitHub sends at most 25 MB; a larger push adds no information
MOST_AT_ONCE = 500
_GITHUB, _GITLAB, _ARGOCD = "github", "gitlab", "argocd"


class Announcement(BaseModel):
    """A change announced by a pipeline. Names one of service, workload or node."""

    model_config = ConfigDict(extra="forbid", str_strip_whitespace=True)
    code: Annotated[str, Field(description=", ".join(CHANGE_CODES))]
    id: Annotated[str | None, Field(max_length=200)] = Field(
        None, description="idempotency key: the same id is the same change"
    )
    service: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    workload: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    node: Annotated[str | None, Field(min_length=1, max_length=253)] = None
    namespace: Annotated[str | None, Field(pattern=r"^[^/]{1,253}$")] = None
    cluster: Annotated[str | None, Field(pattern=r"^[^/]{1,253}$")] = None
    at: AwareDatetime | None = Field(None, description="time of the change; default: now")
    actor: Annotated[str, Field(max_length=200)] = ""
    actor_kind: ActorKind | None = None
    before: Annotated[str, Field(max_length=2000)] = ""
    after: Annotated[str, Field(max_length=2000)] = ""
    url: Annotated[str, Field(max_length=2000, pattern=r"^(?:https?://\S+)?$")] = ""
    text: Annotated[str, Field(max_length=2000)] = ""
    outcome: Literal["succeeded", "failed", "rolled_back", "superseded"] | None = Field(
        None, description="outcome, once it ended; send the same id again to report it later"
    )


@dataclass(frozen=True, slots=True)
class _ReceivedChanges:
    """Changes and ends of one request; ``unknown`` names entities that are not in the topology."""

    changes: tuple[Change, ...] = ()
    ends: tuple[ChangeEnd, ...] = ()
    unknown: tuple[str, ...] = ()


def change_log_of(ctx: Context) -> ChangeLog:
    """The change log. Raises ConflictError if this API has none."""
    if ctx.extras.change_log is None:
        raise ConflictError("This API has no change log.", hint="outrider serve creates one next to the store")
    return ctx.extras.change_log


@router.get("/changes")
def changes(
    ctx: Ctx,
    since: Annotated[AwareDatetime | None, Query(description="changes at or after this time")] = None,
    until: Annotated[AwareDatetime | None, Query(description="changes before this time")] = None,
    service: Annotated[str | None, Query(description="of this service or workload")] = None,
    code: Annotated[str | None, Query(description="such as rollout, flags, scale, driver")] = None,
    limit: paging.Limit = 100,
    cursor: paging.Cursor = "",
) -> dict[str, Any]:
    """Changes with actor and outcome, newest first."""
    change_log = change_log_of(ctx)

    def keep(change: Change) -> bool:
        return (service is None or service in (change.service, change.workload)) and (
            code is None or change.code == code
        )

    selected, following = paging.by_key(
        lambda after, count: change_log.changes(since=since, until=until, limit=count, after=after), keep, cursor, limit
    )
    return {"changes": [change_row(change) for change in selected], "next_cursor": following}


def change_row(change: Change) -> dict[str, Any]:
    """A change as JSON."""
    return {
        "id": change.id,
        "code": change.code,
        "entity": serialization.entity(change.entity),
        "at": rfc3339(change.at),
        "source": change.source,
        "actor": change.actor or None,
        "actor_kind": change.actor_kind.value,
        "before": change.before or None,
        "after": change.after or None,
        "workload": change.workload or None,
        "service": change.service or None,
        "url": change.url or None,
        "text": change.text or None,
        "outcome": change.ended.value,
        "outcome_at": serialization.instant(change.ended_at),
        "outcome_because": change.ended_because or None,
    }


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
        expected = "sha256=" + hmac.new(secrets[_GITHUB].encode(), body, hashlib.sha256).hexdigest()
        if not hmac.compare_digest(expected.encode(), x_hub_signature_256.encode()):
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
    change_log, now = change_log_of(ctx), now_of(ctx)
    accepted = _read(request, ctx, body, by, now)
    new = change_log.append_changes(accepted.changes)
    change_log.post([event_of(change) for change in accepted.changes], now)
    change_log.append_ends(accepted.ends)
    unknown = {"unknown": list(accepted.unknown)} if accepted.unknown else {}
    return {"taken": new, "known": len(accepted.changes) - new, "ended": len(accepted.ends), **unknown}


def now_of(ctx: Context) -> datetime:
    """Time of the clock, or of the newest cycle if the fleet has its own time."""
    now, newest = ctx.extras.clock.now(), ctx.as_of()
    return now if abs(now - newest) < FIRST_LOOK or newest < now else newest


def _read(request: Request, ctx: Context, body: bytes, by: str, now: datetime) -> _ReceivedChanges:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise UsageError("the body is not valid JSON", hint="send application/json, not a form") from error
    for source, event in (
        (_GITHUB, request.headers.get("x-github-event")),
        (_GITLAB, request.headers.get("x-gitlab-event")),
        (_ARGOCD, request.headers.get("x-argocd-event")),
    ):
        if event is not None:
            delivery = webhooks.parse_delivery(source, event, document, now)
            return _ReceivedChanges() if delivery is None else _of_webhook(delivery, source, ctx, now)
    return _of_announcements(document, ctx, by, now)


def _of_webhook(delivery: Delivery, source: str, ctx: Context, now: datetime) -> _ReceivedChanges:
    ends = () if delivery.end is None else (delivery.end,)
    if delivery.change is None:
        return _ReceivedChanges(ends=ends)
    announced_change = delivery.change
    entity = _about(delivery.names, ctx)
    change = Change(
        id=announced_change.id,
        code=announced_change.code,
        entity=entity,
        at=min(announced_change.at or now, now),
        source=source,
        actor=announced_change.actor,
        actor_kind=announced_change.actor_kind,
        before=announced_change.before,
        after=announced_change.after,
        service=entity.name if entity.kind is EntityKind.SERVICE else "",
        url=announced_change.url,
        text=announced_change.text,
    )
    return _ReceivedChanges((change,), ends)


def _about(names: tuple[str, ...], ctx: Context) -> EntityRef:
    """Service that a repository is mapped to or named like; the cluster if there is none."""
    cluster, mapped = ctx.settings.cluster, ctx.settings.webhooks.services
    known = ctx.topology()
    for name in names:
        if name in mapped:
            return service_named(mapped[name], known, cluster)
    bare = names[-1].rsplit("/", 1)[-1]
    service = service_named(bare, known, cluster)
    return service if service in known.entities else EntityRef(cluster, EntityKind.CLUSTER, None, cluster)


def service_named(name: str, topology: Topology, cluster: str, namespace: str | None = None) -> EntityRef:
    """Service with that name; ``namespace/name`` names one exactly."""
    space, slash, bare = name.rpartition("/")
    wanted = space if slash else namespace
    matches = [
        service
        for service in topology.of_kind(EntityKind.SERVICE)
        if service.name == bare and service.cluster == cluster and wanted in (None, service.namespace)
    ]
    return matches[0] if len(matches) == 1 else EntityRef(cluster, EntityKind.SERVICE, wanted, bare)


def _of_announcements(document: Any, ctx: Context, by: str, now: datetime) -> _ReceivedChanges:
    entries = document if isinstance(document, list) else [document]
    if len(entries) > MOST_AT_ONCE:
        raise UsageError(f"{len(entries)} changes are more than {MOST_AT_ONCE}", hint="send fewer changes per request")
    changes, ends = [], []
    for index, entry in enumerate(entries):
        try:
            announcement = Announcement.model_validate(entry)
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            location = ".".join(str(part) for part in (index, *first["loc"]))
            hint = "GET /docs shows the fields; a delivery of a tool needs its own header, such as X-GitHub-Event"
            raise UsageError(f"change {location}: {yaml_words.describe(first)}", hint=hint) from error
        change = _of_announcement(index, announcement, ctx, by, now)
        changes.append(change)
        if announcement.outcome is not None:
            ends.append(
                ChangeEnd(change.id, ChangeStatus(announcement.outcome), now, redacted(announcement.text)[:400])
            )
    return _ReceivedChanges(tuple(changes), tuple(ends), _not_seen(changes, ctx.topology()))


def _not_seen(changes: Sequence[Change], topology: Topology) -> tuple[str, ...]:
    """Entities of changes that the topology lacks. Workloads are excluded: not all of them are in it."""
    entities = (item.entity for item in changes if item.entity.kind is not EntityKind.WORKLOAD)
    return tuple(dict.fromkeys(f"{item.kind.value} {item.name}" for item in entities if item not in topology.entities))


def _of_announcement(index: int, announcement: Announcement, ctx: Context, by: str, now: datetime) -> Change:
    if announcement.code not in CHANGE_CODES:
        message = f"no change has the code {announcement.code!r}{yaml_file.near(announcement.code, CHANGE_CODES)}"
        raise UsageError(f"change {index}.code: {message}", hint=f"codes are {', '.join(CHANGE_CODES)}")
    subjects = [name for name in ("service", "workload", "node") if getattr(announcement, name)]
    if len(subjects) != 1:
        raise UsageError("a change requires one of service, workload and node", hint='for example {"service": "chat"}')
    cluster = announcement.cluster or ctx.settings.cluster
    if announcement.service:
        entity = service_named(announcement.service, ctx.topology(), cluster, announcement.namespace)
    elif announcement.workload:
        entity = EntityRef(cluster, EntityKind.WORKLOAD, announcement.namespace, announcement.workload)
    else:
        entity = EntityRef(cluster, EntityKind.NODE, None, announcement.node or "")
    at = min(announcement.at or now, now)
    actor = announcement.actor or by
    change = Change(
        id="",
        code=announcement.code,
        entity=entity,
        at=at,
        source="api",
        actor=actor,
        actor_kind=announcement.actor_kind
        or kind_of(actor, otherwise=ActorKind.PERSON if announcement.actor else ActorKind.UNKNOWN),
        before=redacted(announcement.before)[:400],
        after=redacted(announcement.after)[:400],
        workload=announcement.workload or "",
        service=entity.name if announcement.service else "",
        url=announcement.url[:400],
        text=redacted(announcement.text)[:400],
    )
    identity = hashlib.sha256(f"{change}".encode()).hexdigest()[:16]
    return replace(change, id=f"api/{announcement.id or identity}")
