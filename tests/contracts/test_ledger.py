"""Contract of every change log: memory, SQLite and PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from outrider.model import EntityKind, EntityRef, Event, EventKind
from outrider.records.change_log import (
    ActorKind,
    Change,
    ChangeEnd,
    ChangeLog,
    ChangeStatus,
    PhaseTime,
    StartPhase,
    Startup,
    change_of,
    event_of,
    lead_time_quantile,
)
from store.factory import open_change_log, open_state, urls_of
from store.memory import MemoryChangeLog
from store.state import change_log as change_log_module

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SERVICE = EntityRef("c", EntityKind.SERVICE, "serving", "chat")
POD = EntityRef("c", EntityKind.POD, "serving", "chat-0")


def url_of(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{folder}/x.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def change_log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChangeLog]:
    if request.param == "memory":
        yield MemoryChangeLog()
        return
    store = open_change_log(url_of(request, tmp_path))
    yield store
    assert store.connections_in_use == 0
    store.close()


def change(name: str = "a", ago: int = 0, **more: object) -> Change:
    base = Change(name, "image", SERVICE, T0 - ago * MINUTE, "kubernetes", "ada", ActorKind.PERSON, "v1", "v2")
    return replace(base, **more)  # type: ignore[arg-type]


def event(name: str = "e") -> Event:
    return Event(name, EventKind.LOG, POD, T0, "otlp_logs", "cuda_oom", {"text": "x"}, name)


def startup(name: str, began: int, ready: int | None = None, gone: int | None = None) -> Startup:
    return Startup(
        name,
        POD,
        T0 + began * MINUTE,
        node="n1",
        phases=(PhaseTime(StartPhase.PULL, 41.5, "event Pulled"),),
        ready_at=None if ready is None else T0 + ready * MINUTE,
        gone_at=None if gone is None else T0 + gone * MINUTE,
    )


def test_changes_are_stored_once_and_listed_newest_first(change_log: ChangeLog) -> None:
    assert change_log.append_changes([change("a", 5), change("b", 1)]) == 2
    assert change_log.append_changes([change("b", 1, after="v9"), change("c", 3)]) == 1
    assert [item.id for item in change_log.changes()] == ["b", "c", "a"]
    assert change_log.changes()[0] == change("b", 1)
    assert [item.id for item in change_log.changes(since=T0 - 3 * MINUTE, until=T0 - 2 * MINUTE)] == ["c"]
    assert [item.id for item in change_log.changes(limit=1)] == ["b"]


def test_the_newest_end_of_a_change_counts_and_may_arrive_before_the_change(change_log: ChangeLog) -> None:
    change_log.append_ends([ChangeEnd("a", ChangeStatus.SUCCEEDED, T0, "all pods are new")])
    change_log.append_changes([change("a", 5), change("b", 6)])
    change_log.append_ends([ChangeEnd("a", ChangeStatus.ROLLED_BACK, T0 + MINUTE, "revision 3 came back")])
    a, b = change_log.changes()
    assert (a.ended, a.ended_at, a.ended_because) == (ChangeStatus.ROLLED_BACK, T0 + MINUTE, "revision 3 came back")
    assert (b.ended, b.ended_at) == (ChangeStatus.OPEN, None)


def test_a_startup_is_updated_as_it_progresses(change_log: ChangeLog) -> None:
    change_log.save_startups([startup("s", 0), startup("t", 2)])
    change_log.save_startups([startup("s", 0, ready=4)])
    assert [item.id for item in change_log.startups()] == ["t", "s"]
    assert change_log.startups()[1] == startup("s", 0, ready=4)
    assert [item.id for item in change_log.startups(since=T0 + MINUTE)] == ["t"]
    assert change_log.startups(limit=1)[0].id == "t"


def test_startups_of_pods_that_existed_at_a_time(change_log: ChangeLog) -> None:
    change_log.save_startups([startup("early", 0, 1, gone=5), startup("late", 4, 6)])
    names = [[item.id for item in change_log.placed_at(T0 + minute * MINUTE)] for minute in (-1, 0, 4, 5, 60)]
    assert names == [[], ["early"], ["late", "early"], ["late"], ["late"]]


def test_events_wait_for_the_engine_in_order_and_once(change_log: ChangeLog) -> None:
    assert change_log.post([event("a"), event("b"), event("a")], T0) == 2
    assert change_log.post([event("b"), event("c")], T0 + MINUTE) == 1
    posted = change_log.posted(0, T0 - MINUTE)
    assert [item.id for _, item in posted] == ["a", "b", "c"]
    assert posted[0][1] == event("a")
    assert [item.id for _, item in change_log.posted(posted[1][0], T0 - MINUTE)] == ["c"]
    assert [item.id for _, item in change_log.posted(0, T0 + MINUTE)] == ["c"]


def test_old_and_excess_queued_events_are_deleted(change_log: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_log_module, "MOST_POSTED", 3)
    change_log.post([event(name) for name in "abcd"], T0)
    assert [item.id for _, item in change_log.posted(0, T0)] == ["b", "c", "d"]
    change_log.post([event("x")], T0 + timedelta(hours=25))
    assert [item.id for _, item in change_log.posted(0, T0)] == ["x"]


def test_a_document_replaces_the_previous_one(change_log: ChangeLog) -> None:
    assert change_log.document("audit") is None
    change_log.put_document("audit", {"findings": [1]}, T0)
    change_log.put_document("audit", {"findings": [1, 2], "text": "显存"}, T0 + MINUTE)
    assert change_log.document("audit") == (T0 + MINUTE, {"findings": [1, 2], "text": "显存"})


def test_the_change_log_shares_its_database_with_the_decisions(tmp_path: Path) -> None:
    state_url, _ = urls_of(f"sqlite:///{tmp_path}/x.db")
    state, change_log = open_state(state_url), open_change_log(state_url)
    change_log.append_changes([change("a")])
    assert state.topology().entities == frozenset()
    reopened = open_change_log(state_url)
    assert [item.id for item in reopened.changes()] == ["a"]
    for item in (state, change_log, reopened):
        item.close()


# --- events and lead time ---------------------------------------------------------------------------


def test_a_change_converts_to_an_event_and_back() -> None:
    original = change("a", workload="chat", service="chat", url="https://ci.example/7", text="why")
    assert change_of(event_of(original)) == original
    assert change_of(event()) is None
    ours = Event("z", EventKind.CHANGE, POD, T0, "kubernetes", "restart", {"by": "outrider"})
    read = change_of(ours)
    assert read is not None
    assert (read.id, read.actor, read.actor_kind) == ("z", "outrider", ActorKind.SYSTEM)
    unknown_actor = change_of(Event("z", EventKind.CHANGE, POD, T0, "x", "restart", {"actor_kind": "alien"}))
    assert unknown_actor is not None
    assert unknown_actor.actor_kind is ActorKind.UNKNOWN


def test_lead_time_is_measured_on_finished_startups() -> None:
    assert lead_time_quantile([startup("s", 0)]) is None
    starts = [startup(str(n), 0, ready=n) for n in range(1, 21)]
    assert lead_time_quantile(starts, 0.95) == 19 * MINUTE
    assert lead_time_quantile(starts, 0.5) == 10 * MINUTE
