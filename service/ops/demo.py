"""The demo: a simulated fleet with HTTP exporters, the whole loop, and a fixed sequence of faults.

Only ``step`` moves fleet time. Headless runs step as fast as possible. With a dashboard the first minutes run that way,
so that it opens on a live incident. Then fleet time follows the clock.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import yaml

from collectors.mapping import target
from collectors.pipeline.scrape_manager import ScrapeManager
from outrider import log
from outrider.clock import ManualClock, SystemClock
from outrider.documents import serialization
from outrider.errors import ConfigError
from outrider.model import AlertReason, AlertState
from outrider.text.i18n import Language
from service.config.settings import GameDaySettings, Settings, load
from service.config.simulated import FIXED_FLEET, degrade_of, services_of
from service.ops.demo_limits import Limits, LimitsFile
from service.planning import hindsight
from service.runtime.game_days import GameDays
from service.runtime.leader import FileLeader
from service.wiring import alerting as wiring_alerting
from service.wiring import platform as wiring_platform
from simulator import story
from simulator.backfill import fleet_history
from simulator.fleet import Fleet
from simulator.servers import http
from simulator.servers.log_and_api_endpoints import event_settings
from simulator.spec.fleets import FleetSpec, default_spec

FOLDER = Path(".outrider")
LOCK = FOLDER / "demo.engine.lock"
KILL_SWITCH = FOLDER / "demo.stop"
HISTORY_STEP = timedelta(minutes=5)
LEAD_IN = timedelta(minutes=6)

Progress = Callable[[str, float], None]
_log = log.get("demo")


@dataclass(slots=True)
class Demo:
    """A running fleet with the platform that watches it.

    ``document`` is the configuration file for other processes, ``limits`` the file of a person who changes it.
    ``on_limits`` is called after a change of a limit that the API shows.
    """

    fleet: Fleet
    server: http.FleetServer
    clock: ManualClock
    platform: wiring_platform.Platform
    settings: Settings
    interval: timedelta
    leader: FileLeader
    game_days: GameDays
    document: dict[str, Any] = field(default_factory=dict)
    limits: LimitsFile | None = None
    on_limits: Callable[[], None] = lambda: None

    async def step(self) -> None:
        """Advances fleet time by one interval, starts due game days, and runs the cycle and the dispatcher once."""
        self.read_limits()
        self.fleet.step(self.interval)
        self.clock.set(self.fleet.now)
        await asyncio.to_thread(self.game_days.run_due, self.fleet.now)
        await self.server.sync()
        self.discover()
        await self.platform.cycle.run()
        await asyncio.to_thread(self.platform.dispatcher.run_once)

    def discover(self) -> None:
        """Updates the targets to those that the fleet lists now: replicas are added and removed.

        The configuration file is updated too, so that commands such as doctor know the same targets.
        """
        targets = self.server.targets()["targets"]
        listed = target.targets_of(self.settings.cluster, targets)
        collector = self.platform.collector.pages
        if isinstance(collector, ScrapeManager) and listed != collector.targets:
            collector.set_targets(listed)
            if self.document:
                self.document["collect"]["targets"] = targets
                _write_document(self.document)

    def read_limits(self) -> None:
        """Adopts the limits of remediation if their file changed. A file with a mistake changes nothing."""
        try:
            limits = self.limits.changed() if self.limits else None
        except ConfigError as error:
            _log.error("limits_refused", error=error.message, hint=error.hint)
            return
        if limits is None:
            return
        self.document["remediation"] = {**_of_fleet(self.fleet.spec, self.server.base_url), **limits.written}
        _write_document(self.document)
        before, after = self.platform.settings, limits.over(self.settings)
        self.platform.adopt(after, self.clock.now())
        if _shown(before) != _shown(after):
            self.on_limits()

    async def close(self) -> None:
        """Stops the fleet and releases the store."""
        await self.platform.close()
        await self.server.close()
        self.leader.release()


def _shown(settings: Settings) -> tuple[Any, ...]:
    """The limits that the API process shows."""
    remediation = settings.remediation
    return remediation.autonomy, remediation.dry_run, remediation.kill_switch_file


def settings_of(
    spec: FleetSpec, control_url: str, targets: list[dict[str, Any]], port: int, api_port: int
) -> dict[str, Any]:
    """Configuration of the demo, as an operator of this fleet would write it."""
    return {
        "cluster": spec.cluster,
        "store": {"url": f"sqlite:///{FOLDER}/demo.db"},
        "collect": {"interval": "15s", "targets": targets},
        "events": event_settings(control_url),
        "services": services_of(spec),
        "planner": FIXED_FLEET,
        "notify": {
            "channels": {"demo-inbox": {"type": "webhook", "url": f"{control_url}/control/inbox"}},
            "groups": {group: ["demo-inbox"] for group in wiring_alerting.GROUPS},
            "public_url": f"http://127.0.0.1:{port}",
        },
        "remediation": _of_fleet(spec, control_url),
        "api": {"port": api_port},
        "dashboard": {"port": port},
    }


def _of_fleet(spec: FleetSpec, control_url: str) -> dict[str, Any]:
    """Returns ``remediation`` of a configuration for a simulated fleet: everything is performed that guards allow."""
    return {
        "autonomy": "act",
        "dry_run": False,
        "kill_switch_file": str(KILL_SWITCH),
        "actuator": "simulated",
        "control_url": control_url,
        "degrade": degrade_of(spec),
    }


def game_days(config: Path | None) -> list[GameDaySettings]:
    """Returns the ``game_days`` of a configuration. Raises ConfigError."""
    return [] if config is None else load(config, fleet=default_spec().cluster).game_days


async def start(
    *,
    seed: int,
    start_at: datetime,
    port: int,
    api_port: int,
    progress: Progress,
    days: Sequence[GameDaySettings] = (),
    config: Path | None = None,
) -> Demo:
    """Starts the fleet with history and planned faults, and its platform on a new store."""
    spec = default_spec()
    fleet = Fleet(spec, seed=seed, start=start_at)
    demo = await monitor(fleet, port=port, api_port=api_port, days=days, config=config)
    _backfill(demo.platform, spec, seed, start_at, progress)
    demo.platform.warm(start_at)
    story.arrange(fleet, seed)
    return demo


async def monitor(
    fleet: Fleet,
    *,
    port: int = 8501,
    api_port: int = 8600,
    days: Sequence[GameDaySettings] = (),
    config: Path | None = None,
) -> Demo:
    """Serves a fleet and monitors it with a platform on a new store, without history or faults.

    ``config`` is a file with limits of remediation. Raises ConfigError if it has a mistake.
    """
    file = None if config is None else LimitsFile(config, fleet.spec.cluster)
    limits = (file.changed() if file else None) or Limits()
    leader = FileLeader(LOCK)
    leader.acquire()  # fails if another demo runs in this folder
    server = await http.serve(fleet)
    document = settings_of(fleet.spec, server.base_url, server.targets()["targets"], port, api_port)
    settings = Settings.model_validate(document)
    document["remediation"] |= limits.written
    _prepare_folder(document)
    clock = ManualClock(fleet.now)
    platform = wiring_platform.platform(limits.over(settings), clock, lockstep=True)
    scheduled = GameDays(platform.state, server.base_url, days)
    return Demo(fleet, server, clock, platform, settings, settings.collect.interval, leader, scheduled, document, file)


def _prepare_folder(document: dict[str, Any]) -> None:
    """Deletes the old store and kill switch, and writes the configuration for the other processes."""
    FOLDER.mkdir(exist_ok=True)
    for old in (*FOLDER.glob("demo*.db*"), *FOLDER.glob(KILL_SWITCH.name)):
        old.unlink()
    _write_document(document)


def _write_document(document: dict[str, Any]) -> None:
    text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True)
    part = FOLDER / "demo.yaml.part"  # a command may read the file at any time
    part.write_text(text, encoding="utf-8")
    part.replace(FOLDER / "demo.yaml")


def _backfill(
    platform: wiring_platform.Platform, spec: FleetSpec, seed: int, end: datetime, progress: Progress
) -> None:
    start_at = end - wiring_platform.HISTORY
    for block in fleet_history.backfill(spec, seed, start_at, end, HISTORY_STEP):
        platform.metrics.write_block(block.kind, block.times, block.keys, block.entities, block.values, block.status)
        done = (block.times[-1] - start_at.timestamp()) / wiring_platform.HISTORY.total_seconds()
        progress("history", min(1.0, float(done)))


async def headless(
    *,
    minutes: float,
    seed: int,
    language: Language,
    progress: Progress,
    days: Sequence[GameDaySettings] = (),
    config: Path | None = None,
) -> dict[str, Any]:
    """Runs N minutes of fleet time as fast as possible. Returns the JSON of ``outrider demo --headless``."""
    start_at = SystemClock().now().replace(microsecond=0) - timedelta(minutes=minutes)
    demo = await start(
        seed=seed, start_at=start_at, port=8501, api_port=8600, progress=progress, days=days, config=config
    )
    try:
        cycles = max(1, round(timedelta(minutes=minutes) / demo.interval))
        for cycle in range(cycles):
            await demo.step()
            progress("fleet", (cycle + 1) / cycles)
        return summary(demo, language)
    finally:
        await demo.close()


def summary(demo: Demo, language: Language) -> dict[str, Any]:
    """Returns cycles, alerts, incidents, plan and actions so far as JSON."""
    state = demo.platform.state
    records = state.cycles(limit=1_000_000)
    alerts = [
        alert
        for alert in state.alerts(limit=1_000_000)
        if alert.state is not AlertState.PENDING and alert.reason is not AlertReason.NEVER_FIRED
    ]
    plan = state.plan()
    return {
        "cycles": len(records),
        "targets": max((record.targets for record in records), default=0),
        "signals_written": sum(record.signals_written for record in records),
        "alerts": [serialization.alert(alert, language) for alert in reversed(alerts)],
        "incidents": [
            serialization.incident(incident, language) for incident in reversed(state.incidents(limit=10_000))
        ],
        "forecasts": len(plan.forecasts),
        "recommendations": [serialization.recommendation(item) for item in plan.recommendations],
        "looking_back": _looked_back(demo),
        "actions": [serialization.action(action) for action in reversed(state.actions(limit=10_000))],
    }


def _looked_back(demo: Demo) -> list[dict[str, Any]]:
    """Returns the hindsight results of each service: its last climb to a peak, with and without the plan."""
    kept = demo.platform.change_log.document(hindsight.DOCUMENT)
    return [] if kept is None else list(kept[1]["services"])


async def follow(demo: Demo, *, speed: float, stop: asyncio.Event) -> None:
    """Advances fleet time ``speed`` times as fast as the clock, until ``stop`` is set."""
    clock = SystemClock()
    due = clock.monotonic()
    while not stop.is_set():
        due += demo.interval.total_seconds() / speed
        await demo.step()
        wait = due - clock.monotonic()
        if wait < 0:
            due = clock.monotonic()  # too slow for this speed: do not catch up
            continue
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(stop.wait(), wait)
