"""Webhook deliveries from the tools' references, as changes and ends."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from collectors.receive import webhooks
from collectors.receive.json_paths import instant
from collectors.receive.webhooks import parse_delivery
from outrider.errors import UsageError
from outrider.records.change_log import ActorKind, ChangeStatus

AT = datetime(2026, 11, 18, 12, tzinfo=UTC)
REPOSITORY = {"name": "chat-70b", "full_name": "acme/chat-70b", "html_url": "https://github.com/acme/chat-70b"}
DEPLOYMENT: dict[str, Any] = {
    "action": "created",
    "deployment": {
        "id": 145988746, "sha": "f95f852bd8fca8fcc58a9a2d6c842781e32a215e", "ref": "main", "task": "deploy",
        "environment": "production", "description": "", "creator": {"login": "ada", "type": "User"},
        "created_at": "2026-11-18T11:59:00Z",
    },
    "repository": REPOSITORY,
    "sender": {"login": "ada", "type": "User"},
}  # fmt: skip
GITLAB = {
    "object_kind": "deployment", "status": "success", "status_changed_at": "2026-11-18 13:59:30 +0200",
    "deployment_id": 15, "deployable_url": "http://10.126.0.2/root/test/-/jobs/796", "environment": "staging",
    "project": {"name": "chat-70b", "path_with_namespace": "acme/chat-70b"}, "short_sha": "279484c0",
    "user": {"name": "Administrator", "username": "root"}, "commit_title": "Add new file", "ref": "1.0.0",
}  # fmt: skip


def test_a_github_deployment() -> None:
    reported = parse_delivery("github", "deployment", DEPLOYMENT, AT)
    assert reported is not None
    assert reported.change is not None
    assert reported.names == ("acme/chat-70b", "chat-70b")
    change = reported.change
    assert (change.id, change.code) == ("github/acme/chat-70b/deployment/145988746", "deploy")
    assert (change.actor, change.actor_kind) == ("ada", ActorKind.PERSON)
    assert change.after == "main f95f852bd8fca8fcc58a9a2d6c842781e32a215e"
    assert change.at == datetime(2026, 11, 18, 11, 59, tzinfo=UTC)
    assert change.text == "production"


@pytest.mark.parametrize(("login", "kind"), [("github-actions[bot]", "Bot"), ("renovate[bot]", "User")])
def test_a_bot_is_a_system_actor(login: str, kind: str) -> None:
    body = {**DEPLOYMENT, "deployment": {**DEPLOYMENT["deployment"], "creator": {"login": login, "type": kind}}}
    reported = parse_delivery("github", "deployment", body, AT)
    assert reported is not None
    assert reported.change is not None
    assert reported.change.actor_kind is ActorKind.SYSTEM


@pytest.mark.parametrize(
    ("state", "ended"),
    [
        ("success", ChangeStatus.SUCCEEDED),
        ("failure", ChangeStatus.FAILED),
        ("inactive", ChangeStatus.SUPERSEDED),
        ("in_progress", None),
    ],
)
def test_a_status_ends_the_deployment(state: str, ended: ChangeStatus | None) -> None:
    status = {"state": state, "created_at": "2026-11-18T11:59:30Z", "description": "rolled out"}
    reported = parse_delivery("github", "deployment_status", {**DEPLOYMENT, "deployment_status": status}, AT)
    assert reported is not None
    assert reported.change is None
    if ended is None:
        assert reported.end is None
    else:
        assert reported.end is not None
        assert (reported.end.change, reported.end.ended) == ("github/acme/chat-70b/deployment/145988746", ended)


def test_a_push_event_contains_no_email_addresses() -> None:
    body = {
        "ref": "refs/heads/main", "before": "a" * 40, "after": "b" * 40, "repository": REPOSITORY,
        "pusher": {"name": "ada", "email": "ada@mail.example"}, "sender": {"login": "ada", "type": "User"},
        "compare": "https://github.com/acme/chat-70b/compare/aa...bb",
        "head_commit": {"message": "Larger batches\n\nSigned-off-by: Ada <ada@mail.example>",
                        "timestamp": "2026-11-18T12:58:00+01:00"},
    }  # fmt: skip
    reported = parse_delivery("github", "push", body, AT)
    assert reported is not None
    assert reported.change is not None
    assert (reported.change.code, reported.change.text) == ("push", "Larger batches")
    assert reported.change.at is None  # it is pushed now, whenever it was written
    assert "mail.example" not in str(reported)


def test_a_gitlab_deployment_is_a_change_with_its_end() -> None:
    reported = parse_delivery("gitlab", "Deployment Hook", GITLAB, AT)
    assert reported is not None
    assert reported.change is not None
    assert reported.end is not None
    assert reported.change.id == reported.end.change == "gitlab/acme/chat-70b/deployment/15"
    assert (reported.change.actor, reported.change.after) == ("root", "1.0.0 279484c0")
    assert (reported.end.ended, reported.end.at) == (
        ChangeStatus.SUCCEEDED,
        datetime(2026, 11, 18, 11, 59, 30, tzinfo=UTC),
    )
    running = parse_delivery("gitlab", "Deployment Hook", {**GITLAB, "status": "running"}, AT)
    assert running is not None
    assert running.end is None


def test_an_argo_cd_sync() -> None:
    body = {
        "application": "chat-70b", "project": "serving", "revision": "53e28ff", "previous_revision": "1a2b3c4",
        "phase": "Failed", "message": "one or more objects failed to apply", "initiated_by": "",
        "started_at": "2026-11-18T11:58:00Z", "finished_at": "2026-11-18T11:59:00Z", "url": "https://argocd.example/x",
    }  # fmt: skip
    reported = parse_delivery("argocd", "sync", body, AT)
    assert reported is not None
    assert reported.change is not None
    assert reported.end is not None
    assert (reported.change.actor, reported.change.actor_kind) == ("argocd-automated", ActorKind.SYSTEM)
    assert (reported.change.before, reported.change.after, reported.end.ended) == (
        "1a2b3c4",
        "53e28ff",
        ChangeStatus.FAILED,
    )
    unfilled = parse_delivery("argocd", "sync", {**body, "initiated_by": "<no value>"}, AT)
    assert unfilled == reported
    by_hand = parse_delivery("argocd", "sync", {**body, "initiated_by": "ada"}, AT)
    assert by_hand is not None
    assert by_hand.change is not None
    assert by_hand.change.actor_kind is ActorKind.PERSON


def test_other_webhook_events_are_ignored() -> None:
    assert parse_delivery("github", "ping", {"zen": "Keep it logically awesome."}, AT) is None
    release = {"action": "deleted", "release": {"id": 1, "tag_name": "v1"}, "repository": REPOSITORY}
    assert parse_delivery("github", "release", release, AT) is None
    assert parse_delivery("github", "release", {**release, "action": "published"}, AT) is not None


def test_a_body_of_another_tool_is_rejected_with_a_message() -> None:
    with pytest.raises(UsageError, match=r"needs one of \{repository.full_name\}"):
        parse_delivery("github", "deployment", {"hello": 1}, AT)
    with pytest.raises(UsageError, match="not a JSON object"):
        parse_delivery("gitlab", "Push Hook", [1], AT)


def test_time_formats_of_webhooks() -> None:
    expected = datetime(2021, 4, 28, 19, 50, tzinfo=UTC)
    for expected_text in ("2021-04-28 21:50:00 +0200", "2021-04-28 19:50:00 UTC", "2021-04-28T19:50:00Z"):
        assert instant(expected_text) == expected
    assert instant("yesterday") is None


ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@given(st.sampled_from(("github", "gitlab", "argocd")), ANYTHING)
def test_arbitrary_bodies_do_not_raise(source: str, body: Any) -> None:
    for event in webhooks.events(source):
        base = DEPLOYMENT if source == "github" else {**GITLAB, "application": "x"}
        for expected_text in (
            body,
            {**base, "deployment": body, "project": body, "head_commit": body, "commits": body},
        ):
            try:
                reported = parse_delivery(source, event, expected_text, AT)
            except UsageError:
                continue
            assert reported is None or reported.names
