"""Lives of an engine through a night on call: page, escalations, a move to another team, the summary in the morning.

One channel refuses some messages for good, one fails at first, and one receives more than its limit. The state store
and the journals of the channels survive a life; everything else dies with the process.
"""

from __future__ import annotations

import json
import os
import time as system_time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import alembic.context  # noqa: F401  slow to import: loaded once, before the fork of each life

from alerts.oncall.roster import Person, Roster, Team
from alerts.oncall.rotation import Rotation
from alerts.oncall.schedule import Schedule
from alerts.routing import pipeline, shift_summary
from alerts.routing.routes import NotificationSettings
from outrider import log
from outrider.clock import ManualClock
from outrider.errors import DeliveryError, UnavailableError
from outrider.model import (
    ChannelPolicy,
    CycleRecord,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    Layer,
    Message,
    NotifyReason,
    Priority,
    RateLimit,
    Receipt,
    TimelineEntry,
)
from outrider.ports import CycleCommit
from outrider.vocabulary.time_spans import WeeklySpan
from service.engine import inputs as cycle_inputs
from service.engine.delivery import MessageDelivery
from service.runtime.leader import FileLeader, Leader, ServerLeader
from store import factory
from store.factory import SqlStateStore
from store.memory import MemoryMetricStore
from tests.service.engine.remediation_life import Kills

NIGHT = datetime(2026, 5, 6, 1, 0, tzinfo=UTC)
CYCLE = timedelta(seconds=30)
MINUTE = timedelta(minutes=1)
LAYER_CHANGES, ACKNOWLEDGED, STORM, RESOLVED = 12 * MINUTE, 22 * MINUTE, 30 * MINUTE, 40 * MINUTE
STORM_MESSAGES = 10
QUIET_FROM, QUIET_UNTIL = 46 * MINUTE, 7 * timedelta(hours=1) + 26 * MINUTE  # nothing happens in between
OVER = 7 * timedelta(hours=1) + 36 * MINUTE
INCIDENT = Incident(
    "inc-1", Layer.ENGINE, Priority.P0, NIGHT,
    (Hypothesis(EntityRef("c", EntityKind.REPLICA, "llm", "chat-0"), "engine-dead", 0.9),), (), (), (), NIGHT,
    services=("chat",),
)  # fmt: skip
_UTC = ZoneInfo("UTC")
_MODEL = Team(
    "model", ("li", "wang"), "wang", "model", layers=frozenset({Layer.ENGINE}), night=WeeklySpan(time(20), time(8, 30))
)
_HARDWARE = Team("hardware", ("zhao", "sun"), "zhao", layers=frozenset({Layer.HARDWARE}))
ROSTER = Roster(
    {name: Person(name) for name in ("li", "wang", "zhao", "sun")},
    (_MODEL, _HARDWARE),
    {"model": Schedule("model", (Rotation("r", ("li", "wang"), date(2026, 5, 4), time(9), 7, _UTC),))},
)
MESSAGING = NotificationSettings(routes={"phone": ("voice",), "im": ("ding",), "mail": ("mail",)})
POLICIES = {
    "voice": ChannelPolicy(fallback="backup"),
    "feed": ChannelPolicy(RateLimit(4, MINUTE)),
}
CHANNELS = ("voice", "backup", "ding", "mail", "feed")
MERGING = "feed"
_REFUSED_FOR_GOOD = ("voice", NotifyReason.REROUTED)
_FAILS_AT_FIRST = "ding"
_TRIES_FOR_THE_LEAD = 0.02  # seconds


class Deliveries:
    """What the channels delivered, in a file: it survives the engine."""

    def __init__(self, folder: Path) -> None:
        self._path, self._failures = folder / "delivered.jsonl", folder / "failures.jsonl"

    def add(self, message: Message) -> None:
        """Appends a delivered message in one write. One of several merged messages has the names of them all."""
        names = [_short(name, message.channel) for name in message.also] if message.id.startswith("merged:") else []
        with self._path.open("a") as file:
            file.write(json.dumps(names or [_name(message)]) + "\n")

    def fails_first(self, message: Message) -> bool:
        """True for the first attempt of a message."""
        tried = self._failures.read_text().splitlines() if self._failures.exists() else []
        if message.id in tried:
            return False
        with self._failures.open("a") as file:
            file.write(message.id + "\n")
        return True

    def counts(self) -> Counter[tuple[str, str]]:
        """How often each channel delivered each message."""
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        return Counter((name.split(":")[-1], name) for line in lines for name in json.loads(line))


def _name(message: Message) -> str:
    if message.channel == MERGING:
        return _short(message.incident or message.id, message.channel)
    return f"{message.id}:{message.channel}"


def _short(incident: str, channel: str) -> str:
    return f"{incident}:{channel}"


class JournalNotifier:
    """A channel that writes down what it delivers."""

    def __init__(self, deliveries: Deliveries, kills: Kills) -> None:
        self._deliveries, self._kills = deliveries, kills

    def send(self, message: Message) -> Receipt:
        """Delivers, refuses for good, or fails at first."""
        if (message.channel, message.reason) == _REFUSED_FOR_GOOD:
            raise DeliveryError("this number does not exist", retryable=False, reason="rejected")
        if message.channel == _FAILS_AT_FIRST and self._deliveries.fails_first(message):
            raise DeliveryError("DingTalk is busy", retryable=True, reason="http_503")
        self._deliveries.add(message)
        self._kills.point("sent", [message.id])
        return Receipt()


class KilledOutbox:
    """The state store, with a point for a kill after every write that concerns a message."""

    def __init__(self, state: SqlStateStore, kills: Kills) -> None:
        self._state, self._kills = state, kills

    def __getattr__(self, name: str) -> Any:
        return getattr(self._state, name)

    def commit(self, commit: CycleCommit) -> None:
        """Writes a cycle."""
        self._state.commit(commit)
        if commit.messages:
            self._kills.point("committed", [message.id for message in commit.messages])

    def claim_messages(self, *arguments: Any, **named: Any) -> tuple[Message, ...]:
        """Claims messages."""
        claimed = self._state.claim_messages(*arguments, **named)
        for message in claimed:
            self._kills.point("claimed", [message.id])
        return claimed

    def finish_message(self, message_id: str, **named: Any) -> Any:
        """Records a failure."""
        result = self._state.finish_message(message_id, **named)
        self._kills.point("failed", [message_id])
        return result

    def deliver_messages(self, message_ids: Sequence[str], *arguments: Any) -> None:
        """Records a delivery."""
        self._state.deliver_messages(message_ids, *arguments)
        self._kills.point("delivered", message_ids)


def times() -> Iterator[datetime]:
    """The times of all cycles of the night."""
    now = NIGHT
    while now <= NIGHT + OVER:
        yield now
        now += CYCLE
        if NIGHT + QUIET_FROM <= now < NIGHT + QUIET_UNTIL:
            now = NIGHT + QUIET_UNTIL


def incidents_at(stored: Sequence[Incident], now: datetime) -> tuple[Incident, ...]:
    """The incident as root-cause analysis leaves it at a time."""
    if not stored:
        return (INCIDENT,) if now < NIGHT + RESOLVED else ()
    [incident] = stored
    if incident.layer is Layer.ENGINE and now >= NIGHT + LAYER_CHANGES:
        changed = TimelineEntry(now, "incidents.timeline.cause_changed", {"fault": "gpu-lost"})
        incident = replace(incident, layer=Layer.HARDWARE, timeline=(*incident.timeline, changed))
    if now >= NIGHT + RESOLVED:
        incident = replace(incident, resolved_at=now)
    return (incident,)


def storm_at(now: datetime) -> tuple[Message, ...]:
    """More messages in one cycle than the limit of their channel."""
    if now != NIGHT + STORM:
        return ()
    return tuple(
        Message(
            f"other-{number}:opened", MERGING, NotifyReason.OPENED, Priority.P2, f"other-{number}", "title", "body", now
        )
        for number in range(STORM_MESSAGES)
    )


def decide_cycle(state: Any, now: datetime) -> CycleCommit:
    """What one cycle decides from the stored state."""
    stored = cycle_inputs.read(state, MemoryMetricStore(), now, roster=ROSTER)
    after = incidents_at(stored.incidents, now)
    plan = pipeline.messages(stored.incidents, after, (), (), MESSAGING, now, responders=stored.responders)
    nights = shift_summary.due_nights(ROSTER, stored.previous_at, now)
    summaries = shift_summary.messages(nights, stored.night, stored.responders, MESSAGING, now)
    record = CycleRecord(now.isoformat(), now, 0.1, 1, 1, 1, 0, 0, len(after))
    return CycleCommit(record, incidents=plan.incidents, messages=(*plan.messages, *summaries, *storm_at(now)))


class NightShift:
    """One process life of the engine."""

    def __init__(self, folder: Path, url: str, *, kills: bool) -> None:
        """``kills``: a kill after each write and delivery; the channels then deliver one after another."""
        self._folder, points = folder, Kills(folder, armed=kills)
        self.state = KilledOutbox(factory.open_state(url), points)
        self.state.take_over(f"process {os.getpid()}")
        self._clock = ManualClock(NIGHT)
        notifier = JournalNotifier(Deliveries(folder), points)
        delivery = MessageDelivery(
            self.state,  # type: ignore[arg-type]
            dict.fromkeys(CHANNELS, notifier),
            self._clock,
            f"process {os.getpid()}",
            POLICIES,
        )
        self._deliver: Callable[[], int] = delivery.run_once if kills else delivery.run

    def live(self) -> None:
        """Runs to the end of the night, then until nothing is left to deliver."""
        done = self._folder / "clock"
        last = datetime.fromisoformat(done.read_text()) if done.exists() else NIGHT - CYCLE
        for now in times():
            if now > last:
                self._cycle(now, done)
        self._clock.set(NIGHT + OVER)
        for _ in range(20):  # longer than a lease and a retry after it
            self._clock.advance(CYCLE)
            self._deliver()

    def _cycle(self, now: datetime, done: Path) -> None:
        self._clock.set(now)
        if now >= NIGHT + ACKNOWLEDGED:
            self.state.acknowledge("inc-1", "zhao", now)
        self.state.commit(decide_cycle(self.state, now))
        self._deliver()
        new = done.with_suffix(".new")
        new.write_text(now.isoformat())
        new.replace(done)


def live(folder: str, url: str, *, kills: bool) -> None:
    """One life as a stand-by and as the engine, to its end or to a kill."""
    log.configure(level="critical")
    with_lock: Leader = ServerLeader(url) if factory.on_server(url) else FileLeader(Path(folder) / "lock")
    while not _leads(with_lock):
        system_time.sleep(_TRIES_FOR_THE_LEAD)
    NightShift(Path(folder), url, kills=kills).live()


def _leads(leader: Leader) -> bool:
    try:
        leader.acquire()
    except UnavailableError:
        return False
    return True
