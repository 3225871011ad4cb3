"""A private platform beside a simulated fleet: stores in memory, the real cycle, actions obeyed at once."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

from alerts.routing.routes import Messaging
from collectors.pipeline.scrape_manager import ScrapeManager
from outrider.clock import Clock, ManualClock
from outrider.errors import ActuationError, UsageError
from outrider.model import Action, Message, Outcome, OutcomeStatus
from outrider.ports import Collected, StateStore
from service.config.settings import Settings
from service.config.simulated import services_of
from service.drills.simulated_source import FleetSource
from service.engine.cycle import Cycle
from service.engine.dispatch import Dispatcher
from service.wiring import alerting as wiring_alerting
from service.wiring import platform
from simulator.backfill import fleet_history
from simulator.fleet import Fleet
from simulator.servers.control import Control
from simulator.spec.fleets import FleetSpec
from simulator.world import World
from store import factory, memory, migrate

INTERVAL = timedelta(seconds=15)
CHANNEL = "drill"
HISTORY_STEP = timedelta(minutes=5)


class Inbox:
    """A channel that keeps what it delivers."""

    def __init__(self) -> None:
        self.delivered: list[Message] = []

    def send(self, message: Message) -> None:
        """Take it."""
        self.delivered.append(message)


class FleetActuator:
    """Hands actions to the control doors of fleets in this process, as the HTTP door would."""

    def __init__(self, fleets: Sequence[Fleet], clock: Clock) -> None:
        """One door per cluster."""
        self._doors = {fleet.spec.cluster: Control(fleet) for fleet in fleets}
        self._clock = clock

    def perform(self, action: Action) -> Outcome:
        """Do it, or raise ActuationError for a target that is not there."""
        now = self._clock.now()
        door = self._doors.get(action.target.cluster)
        if door is None:
            raise ActuationError(f"no cluster is named {action.target.cluster!r}", retryable=False)
        try:
            answer = door.act(action.id, action.kind, action.target, action.params, dry_run=action.dry_run)
        except UsageError as error:
            raise ActuationError(error.message, retryable=False, hint=error.hint) from error
        return Outcome(action.id, OutcomeStatus(answer.status), answer.detail, now, now)


@dataclass(slots=True)
class PrivatePlatform:
    """A fleet, or several, with the platform that watches them."""

    world: World
    source: FleetSource
    clock: ManualClock
    cycle: Cycle
    dispatcher: Dispatcher
    state: StateStore
    inbox: Inbox = field(default_factory=Inbox)

    def step(self) -> Collected:
        """One interval of fleet time: the world moves, the cycle looks, the dispatcher acts. What was collected."""
        self.world.step(INTERVAL)
        now = self.world.now
        self.clock.set(now)
        collected = self.source.look(now)
        self.cycle.run_stages(now, collected)
        self.dispatcher.run_once()
        return collected

    def close(self) -> None:
        """Give everything back."""
        asyncio.run(self.source.close())
        self.cycle.parts.planning.close()


def open_platform(world: World, *, learned: bytes | None = None) -> PrivatePlatform:
    """A platform for a world. ``learned`` comes from ``learn``."""
    fleets = world.fleets
    settings = settings_of(fleets[0].spec)
    clock = ManualClock(world.now)
    source = FleetSource(world)
    messaging = Messaging(routes=dict.fromkeys(wiring_alerting.GROUPS, (CHANNEL,)))
    cycle = platform.cycle_in_memory(settings, source, clock, interval=INTERVAL, messaging=messaging)
    inbox, state = Inbox(), cycle.parts.state
    if learned is not None:
        state.save_detector_states(pickle.loads(learned), clock.now())  # noqa: S301  made by learn() in this program
        cycle.parts.detection.restore(state)
    dispatcher = Dispatcher(state, {CHANNEL: inbox}, FleetActuator(fleets, clock), clock, cycle)
    return PrivatePlatform(world, source, clock, cycle, dispatcher, state, inbox)


def settings_of(spec: FleetSpec) -> Settings:
    """The configuration of a private platform: it may act on everything the guard rails allow."""
    written: dict[str, Any] = {
        "cluster": spec.cluster,
        "collect": {"interval": f"{INTERVAL.total_seconds():.0f}s"},
        "services": services_of(spec),
        "remediation": {"autonomy": "act", "dry_run": False},
    }
    return Settings.model_validate(written)


@cache
def learn(specs: tuple[FleetSpec, ...], seed: int, until: datetime) -> bytes:
    """What the detectors know after 15 quiet days of these fleets, to be handed to ``open_platform``."""
    settings, state = settings_of(specs[0]), memory.MemoryStateStore()
    cycle = platform.cycle_in_memory(settings, ScrapeManager([]), ManualClock(until), interval=INTERVAL)
    with TemporaryDirectory(prefix="outrider-drill-") as folder:
        url = f"sqlite:///{folder}/past.db"
        migrate.upgrade(url)
        metrics = factory.open_metrics(factory.urls_of(url)[1])
        for block in _past(specs, seed, until):
            metrics.write_block(block.kind, block.times, block.keys, block.entities, block.values, block.status)
        cycle.parts.detection.warm(metrics, until, platform.HISTORY)
        metrics.close()
    cycle.parts.detection.checkpoint(state, until)
    return pickle.dumps(state.load_detector_states())


def _past(specs: Sequence[FleetSpec], seed: int, until: datetime) -> Iterator[fleet_history.HistoryBlock]:
    for spec in specs:
        yield from fleet_history.backfill(spec, seed, until - platform.HISTORY, until, HISTORY_STEP)
