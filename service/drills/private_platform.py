"""A private platform for a simulated fleet: stores in memory, the real cycle, actions performed at once."""

from __future__ import annotations

import asyncio
import pickle
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import cache
from tempfile import TemporaryDirectory
from typing import Any

from alerts.routing.routes import NotificationSettings
from collectors.pipeline.scrape_manager import ScrapeManager
from outrider.clock import Clock, ManualClock
from outrider.errors import ActuationError, UsageError
from outrider.model import Action, ActionRequest, Message, Outcome, OutcomeStatus, Receipt
from outrider.ports import Collected, StateStore
from service.config.settings import Settings
from service.config.simulated import FIXED_FLEET, degrade_of, services_of
from service.drills.simulated_source import FleetSource
from service.engine.cycle import Cycle
from service.engine.dispatch import Dispatcher
from service.wiring import alerting as wiring_alerting
from service.wiring import platform
from simulator.backfill import fleet_history
from simulator.servers.control import Control
from simulator.spec.fleets import FleetSpec
from simulator.world import World
from store import factory, memory, migrate

INTERVAL = timedelta(seconds=15)
CHANNEL = "drill"
HISTORY_STEP = timedelta(minutes=5)


class Inbox:
    """A channel that stores its messages."""

    def __init__(self) -> None:
        self.delivered: list[Message] = []

    def send(self, message: Message) -> Receipt:
        """Stores the message."""
        self.delivered.append(message)
        return Receipt()


class FleetActuator:
    """Performs actions on the fleets of a world in this process, as their HTTP control endpoint does."""

    def __init__(self, world: World, clock: Clock) -> None:
        self._controls = {fleet.spec.cluster: Control(fleet, world) for fleet in world.fleets}
        self._clock = clock

    def perform(self, action: Action) -> Outcome:
        """Performs the action. Raises ActuationError for an unknown target."""
        now = self._clock.now()
        control = self._controls.get(action.target.cluster)
        if control is None:
            raise ActuationError(f"no cluster is named {action.target.cluster!r}", retryable=False)
        try:
            result = control.act(action.id, action.kind, action.target, action.params, dry_run=action.dry_run)
        except UsageError as error:
            raise ActuationError(error.message, retryable=False, hint=error.hint) from error
        return Outcome(action.id, OutcomeStatus(result.status), result.detail, now, now)

    def requests(self, action: Action) -> tuple[ActionRequest, ...]:
        """No requests: the fleet is in this process."""
        del action
        return ()


@dataclass(slots=True)
class PrivatePlatform:
    """One or more fleets with the platform that monitors them."""

    world: World
    source: FleetSource
    clock: ManualClock
    cycle: Cycle
    dispatcher: Dispatcher
    state: StateStore
    inbox: Inbox = field(default_factory=Inbox)

    def step(self) -> Collected:
        """Advances fleet time by one interval; runs the cycle and the dispatcher. Returns the collected values."""
        self.world.step(INTERVAL)
        now = self.world.now
        self.clock.set(now)
        collected = self.source.collect_now(now)
        self.cycle.run_stages(now, collected)
        self.dispatcher.run_once()
        return collected

    def close(self) -> None:
        """Closes source and planner."""
        asyncio.run(self.source.close())
        self.cycle.parts.planning.close()


def open_platform(world: World, *, learned: bytes | None = None) -> PrivatePlatform:
    """Opens a platform for a world. ``learned`` is the result of ``learn``."""
    settings = settings_of(world.home.spec)
    clock = ManualClock(world.now)
    source = FleetSource(world)
    messaging = NotificationSettings(routes=dict.fromkeys(wiring_alerting.GROUPS, (CHANNEL,)))
    cycle = platform.cycle_in_memory(settings, source, clock, interval=INTERVAL, messaging=messaging)
    inbox, state = Inbox(), cycle.parts.state
    if learned is not None:
        state.save_detector_states(pickle.loads(learned), clock.now())  # noqa: S301  made by learn() in this program
        cycle.parts.detection.restore(state)
    limits = cycle.parts.policy.time_limits
    dispatcher = Dispatcher(state, {CHANNEL: inbox}, FleetActuator(world, clock), clock, cycle, time_limits=limits)
    return PrivatePlatform(world, source, clock, cycle, dispatcher, state, inbox)


def settings_of(spec: FleetSpec) -> Settings:
    """Configuration of a private platform, which may perform all actions that the guard rails allow."""
    document: dict[str, Any] = {
        "cluster": spec.cluster,
        "collect": {"interval": f"{INTERVAL.total_seconds():.0f}s"},
        "services": services_of(spec),
        "planner": FIXED_FLEET,
        "remediation": {"autonomy": "act", "dry_run": False, "degrade": degrade_of(spec)},
    }
    return Settings.model_validate(document)


@cache
def learn(specs: tuple[FleetSpec, ...], seed: int, until: datetime) -> bytes:
    """Returns detector state after 15 days of these fleets without faults, for ``open_platform``."""
    settings, state = settings_of(specs[0]), memory.MemoryStateStore()
    cycle = platform.cycle_in_memory(settings, ScrapeManager([]), ManualClock(until), interval=INTERVAL)
    with TemporaryDirectory(prefix="outrider-drill-") as folder:
        url = f"sqlite:///{folder}/past.db"
        migrate.upgrade(url)
        metrics = factory.open_metrics(factory.urls_of(url)[1])
        for block in _history(specs, seed, until):
            metrics.write_block(block.kind, block.times, block.keys, block.entities, block.values, block.status)
        cycle.parts.detection.warm(metrics, until, platform.HISTORY)
        metrics.close()
    cycle.parts.detection.checkpoint(state, until)
    return pickle.dumps(state.load_detector_states())


def _history(specs: Sequence[FleetSpec], seed: int, until: datetime) -> Iterator[fleet_history.HistoryBlock]:
    for spec in specs:
        yield from fleet_history.backfill(spec, seed, until - platform.HISTORY, until, HISTORY_STEP)
