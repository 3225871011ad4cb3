"""Dead letters over the API."""

from __future__ import annotations

from datetime import timedelta

import pytest

from outrider.model import NotifyReason, Priority
from outrider.ports import CycleCommit
from outrider.testing.names import NOW
from outrider.testing.story import Story
from tests.service.api.test_api import World
from tests.support.messages import a_message


@pytest.fixture
def world():
    world = World(Story(history=timedelta(minutes=2)))
    messages = tuple(
        a_message("en", id=f"m/{number}", created_at=NOW - timedelta(seconds=number), priority=Priority.P1)
        for number in range(5)
    )
    world.state.commit(CycleCommit(world.state.cycles(limit=1)[0], messages=messages))
    world.state.claim_messages("test", NOW, timedelta(minutes=1), limit=1000)
    for message in messages:
        world.state.finish_message(message.id, delivered=False, now=NOW, error="http_410")
    return world


def test_dead_letters_are_listed_in_result_pages_newest_first(world):
    first = world.get("/notifications/dead-letters", limit=3)
    rest = world.get("/notifications/dead-letters", limit=3, cursor=first["next_cursor"])
    letters = [*first["dead_letters"], *rest["dead_letters"]]
    assert [letter["id"] for letter in letters] == [f"m/{number}" for number in range(5)]
    assert rest["next_cursor"] is None
    assert letters[0]["error"] == "http_410"
    assert letters[0]["reason"] == NotifyReason.OPENED
    assert letters[0]["failed_at"]


def test_a_dead_letter_is_retried_once(world):
    path = "/notifications/dead-letters/m%2F2/retry"
    assert world.post(path).json() == {"id": "m/2", "retried": True}
    assert "m/2" not in [letter["id"] for letter in world.get("/notifications/dead-letters")["dead_letters"]]
    assert world.post(path).status_code == 404
    (record,) = [record for record in world.state.audit() if record.event == "message_retried"]
    assert (record.subject, record.by) == ("m/2", "ada")
