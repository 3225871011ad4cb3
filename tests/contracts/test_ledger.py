"""What every ledger must do: the same tests over memory, SQLite and PostgreSQL."""

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
    Ended,
    PhaseTime,
    StartPhase,
    Startup,
    change_of,
    event_of,
    lead_time_quantile,
)
from store.factory import open_change_log, open_state, urls_of
from store.memory import MemoryChangeLog
from store.state import change_log as ledgers

T0 = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
MINUTE = timedelta(minutes=1)
SERVICE = EntityRef("c", EntityKind.SERVICE, "serving", "chat")
POD = EntityRef("c", EntityKind.POD, "serving", "chat-0")


def url_of(request: pytest.FixtureRequest, folder: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{folder}/x.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture(params=["memory", "sqlite", "postgresql"])
def ledger(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[ChangeLog]:
    if request.param == "memory":
        yield MemoryChangeLog()
        return
    found = open_change_log(url_of(request, tmp_path))
    yield found
    assert found.connections_in_use == 0
    found.close()


def change(name: str = "a", ago: int = 0, **more: object) -> Change:
    made = Change(name, "image", SERVICE, T0 - ago * MINUTE, "kubernetes", "ada", ActorKind.PERSON, "v1", "v2")
    return replace(made, **more)  # type: ignore[arg-type]


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


def test_changes_are_kept_once_and_told_newest_first(ledger: ChangeLog) -> None:
    assert ledger.append_changes([change("a", 5), change("b", 1)]) == 2
    assert ledger.append_changes([change("b", 1, after="v9"), change("c", 3)]) == 1
    assert [one.id for one in ledger.changes()] == ["b", "c", "a"]
    assert ledger.changes()[0] == change("b", 1)
    assert [one.id for one in ledger.changes(since=T0 - 3 * MINUTE, until=T0 - 2 * MINUTE)] == ["c"]
    assert [one.id for one in ledger.changes(limit=1)] == ["b"]


def test_the_newest_end_of_a_change_counts_and_may_come_before_the_change(ledger: ChangeLog) -> None:
    ledger.append_ends([ChangeEnd("a", Ended.SUCCEEDED, T0, "all pods are new")])
    ledger.append_changes([change("a", 5), change("b", 6)])
    ledger.append_ends([ChangeEnd("a", Ended.ROLLED_BACK, T0 + MINUTE, "revision 3 came back")])
    a, b = ledger.changes()
    assert (a.ended, a.ended_at, a.ended_because) == (Ended.ROLLED_BACK, T0 + MINUTE, "revision 3 came back")
    assert (b.ended, b.ended_at) == (Ended.OPEN, None)


def test_a_startup_is_written_again_as_it_goes_on(ledger: ChangeLog) -> None:
    ledger.save_startups([startup("s", 0), startup("t", 2)])
    ledger.save_startups([startup("s", 0, ready=4)])
    assert [one.id for one in ledger.startups()] == ["t", "s"]
    assert ledger.startups()[1] == startup("s", 0, ready=4)
    assert [one.id for one in ledger.startups(since=T0 + MINUTE)] == ["t"]
    assert ledger.startups(limit=1)[0].id == "t"


def test_where_replicas_ran_at_an_instant(ledger: ChangeLog) -> None:
    ledger.save_startups([startup("early", 0, 1, gone=5), startup("late", 4, 6)])
    names = [[one.id for one in ledger.placed_at(T0 + minute * MINUTE)] for minute in (-1, 0, 4, 5, 60)]
    assert names == [[], ["early"], ["late", "early"], ["late"], ["late"]]


def test_events_wait_for_the_engine_in_order_and_once(ledger: ChangeLog) -> None:
    assert ledger.post([event("a"), event("b"), event("a")], T0) == 2
    assert ledger.post([event("b"), event("c")], T0 + MINUTE) == 1
    found = ledger.posted(0, T0 - MINUTE)
    assert [one.id for _, one in found] == ["a", "b", "c"]
    assert found[0][1] == event("a")
    assert [one.id for _, one in ledger.posted(found[1][0], T0 - MINUTE)] == ["c"]
    assert [one.id for _, one in ledger.posted(0, T0 + MINUTE)] == ["c"]


def test_what_waits_too_long_or_is_too_much_goes(ledger: ChangeLog, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledgers, "MOST_POSTED", 3)
    ledger.post([event(name) for name in "abcd"], T0)
    assert [one.id for _, one in ledger.posted(0, T0)] == ["b", "c", "d"]
    ledger.post([event("x")], T0 + timedelta(hours=25))
    assert [one.id for _, one in ledger.posted(0, T0)] == ["x"]


def test_a_paper_takes_the_place_of_the_one_before(ledger: ChangeLog) -> None:
    assert ledger.document("audit") is None
    ledger.put_document("audit", {"findings": [1]}, T0)
    ledger.put_document("audit", {"findings": [1, 2], "text": "显存"}, T0 + MINUTE)
    assert ledger.document("audit") == (T0 + MINUTE, {"findings": [1, 2], "text": "显存"})


def test_the_ledger_shares_its_database_with_the_decisions(tmp_path: Path) -> None:
    state_url, _ = urls_of(f"sqlite:///{tmp_path}/x.db")
    state, ledger = open_state(state_url), open_change_log(state_url)
    ledger.append_changes([change("a")])
    assert state.topology().entities == frozenset()
    again = open_change_log(state_url)
    assert [one.id for one in again.changes()] == ["a"]
    for one in (state, ledger, again):
        one.close()


# --- the words themselves -------------------------------------------------------------------------


def test_a_change_goes_through_its_event_and_back() -> None:
    told = change("a", workload="chat", service="chat", url="https://ci.example/7", text="why")
    assert change_of(event_of(told)) == told
    assert change_of(event()) is None
    ours = Event("z", EventKind.CHANGE, POD, T0, "kubernetes", "restart", {"by": "outrider"})
    read = change_of(ours)
    assert read is not None
    assert (read.id, read.actor, read.actor_kind) == ("z", "outrider", ActorKind.SYSTEM)
    odd = change_of(Event("z", EventKind.CHANGE, POD, T0, "x", "restart", {"actor_kind": "alien"}))
    assert odd is not None
    assert odd.actor_kind is ActorKind.UNKNOWN


def test_lead_time_is_that_of_a_start_that_was() -> None:
    assert lead_time_quantile([startup("s", 0)]) is None
    starts = [startup(str(n), 0, ready=n) for n in range(1, 21)]
    assert lead_time_quantile(starts, 0.95) == 19 * MINUTE
    assert lead_time_quantile(starts, 0.5) == 10 * MINUTE
