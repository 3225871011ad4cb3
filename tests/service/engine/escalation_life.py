"""Lives of an engine through a night on call: page, escalations, a move to another team, the summary in the morning.

The state store and the journal of the channels survive a life; everything else dies with the process.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, date, datetime, time, timedelta
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import alembic.context  # noqa: F401  slow to import: loaded once, before the fork of each life

from alerts.oncall.roster import Person, Roster, Team
from alerts.oncall.rotation import DutyHours, Rotation
from alerts.oncall.schedule import Schedule
from alerts.routing import pipeline, shift_summary
from alerts.routing.routes import NotificationSettings
from outrider import log
from outrider.clock import ManualClock
from outrider.model import (
    CycleRecord,
    EntityKind,
    EntityRef,
    Hypothesis,
    Incident,
    Layer,
    Message,
    Priority,
    Receipt,
    TimelineEntry,
)
from outrider.ports import CycleCommit
from service.engine import inputs as cycle_inputs
from service.engine.delivery import MessageDelivery
from store.factory import SqlStateStore, open_state
from store.memory import MemoryMetricStore
from tests.service.engine.remediation_life import Kills

NIGHT = datetime(2026, 5, 6, 1, 0, tzinfo=UTC)
CYCLE = timedelta(seconds=30)
MINUTE = timedelta(minutes=1)
LAYER_CHANGES, ACKNOWLEDGED, RESOLVED = 12 * MINUTE, 22 * MINUTE, 40 * MINUTE
QUIET_FROM, QUIET_UNTIL = 46 * MINUTE, 7 * timedelta(hours=1) + 26 * MINUTE  # nothing happens in between
OVER = 7 * timedelta(hours=1) + 36 * MINUTE
INCIDENT = Incident(
    "inc-1", Layer.ENGINE, Priority.P0, NIGHT,
    (Hypothesis(EntityRef("c", EntityKind.REPLICA, "llm", "chat-0"), "engine-dead", 0.9),), (), (), (), NIGHT,
    services=("chat",),
)  # fmt: skip
_UTC = ZoneInfo("UTC")
_MODEL = Team(
    "model", ("li", "wang"), "wang", "model", layers=frozenset({Layer.ENGINE}), night=DutyHours(time(20), time(8, 30))
)
_HARDWARE = Team("hardware", ("zhao", "sun"), "zhao", layers=frozenset({Layer.HARDWARE}))
ROSTER = Roster(
    {name: Person(name) for name in ("li", "wang", "zhao", "sun")},
    (_MODEL, _HARDWARE),
    {"model": Schedule("model", (Rotation("r", ("li", "wang"), date(2026, 5, 4), time(9), 7, _UTC),))},
)
MESSAGING = NotificationSettings(routes={"phone": ("voice",), "im": ("ding",), "mail": ("mail",)})


class Deliveries:
    """What the channels delivered, in a file: it survives the engine."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "delivered.jsonl"

    def add(self, message: Message) -> None:
        with self._path.open("a") as file:
            file.write(json.dumps(message.id) + "\n")

    def counts(self) -> Counter[str]:
        """How often each message was delivered."""
        return (
            Counter(json.loads(line) for line in self._path.read_text().splitlines())
            if self._path.exists()
            else Counter()
        )


class JournalNotifier:
    """A channel that writes down what it delivers."""

    def __init__(self, deliveries: Deliveries, kills: Kills) -> None:
        self._deliveries, self._kills = deliveries, kills

    def send(self, message: Message) -> Receipt:
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
        """Records a delivery."""
        result = self._state.finish_message(message_id, **named)
        self._kills.point("recorded", [message_id])
        return result


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


def decide_cycle(state: Any, now: datetime) -> CycleCommit:
    """What one cycle decides from the stored state."""
    stored = cycle_inputs.read(state, MemoryMetricStore(), now, roster=ROSTER)
    after = incidents_at(stored.incidents, now)
    plan = pipeline.messages(stored.incidents, after, (), (), MESSAGING, now, responders=stored.responders)
    nights = shift_summary.due_nights(ROSTER, stored.previous_at, now)
    summaries = shift_summary.messages(nights, stored.night, stored.responders, MESSAGING, now)
    record = CycleRecord(now.isoformat(), now, 0.1, 1, 1, 1, 0, 0, len(after))
    return CycleCommit(record, incidents=plan.incidents, messages=(*plan.messages, *summaries))


class NightShift:
    """One process life of the engine."""

    def __init__(self, folder: Path, *, kills: bool) -> None:
        self._folder, points = folder, Kills(folder, armed=kills)
        self.state = KilledOutbox(open_state(f"sqlite:///{folder}/state.db"), points)
        self._clock = ManualClock(NIGHT)
        notifier = JournalNotifier(Deliveries(folder), points)
        channels = {name: notifier for names in MESSAGING.routes.values() for name in names}
        self._delivery = MessageDelivery(self.state, channels, self._clock, "engine")  # type: ignore[arg-type]

    def live(self) -> None:
        """Runs to the end of the night, then until nothing is left to deliver."""
        done = self._folder / "clock"
        last = datetime.fromisoformat(done.read_text()) if done.exists() else NIGHT - CYCLE
        for now in times():
            if now > last:
                self._cycle(now, done)
        for _ in range(10):  # longer than a lease
            self._clock.advance(CYCLE)
            self._delivery.run_once()

    def _cycle(self, now: datetime, done: Path) -> None:
        self._clock.set(now)
        if now >= NIGHT + ACKNOWLEDGED:
            self.state.acknowledge("inc-1", "zhao", now)
        self.state.commit(decide_cycle(self.state, now))
        self._delivery.run_once()
        new = done.with_suffix(".new")
        new.write_text(now.isoformat())
        new.replace(done)


def live(folder: str, *, kills: bool) -> None:
    """One life, to its end or to a kill."""
    log.configure(level="error")
    NightShift(Path(folder), kills=kills).live()
