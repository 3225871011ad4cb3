"""Builds a platform: the cycle, its dispatcher and its stores."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial

from alerts.routing.routes import NotificationSettings
from collectors.recording.ring_buffer import FlightRing
from outrider import log
from outrider.audit import AuditEvent, AuditRecord
from outrider.clock import Clock
from outrider.errors import StoreUnavailableError
from outrider.ports import MetricStore, Source, StateStore
from outrider.records.change_log import ChangeLog
from remediation.actuators.api_server import load_client
from service.config.settings import Settings
from service.config.tokens import flights_of, spool_of
from service.engine.cycle import Cycle, Parts
from service.engine.detector_memory import Detection
from service.engine.dispatch import WORKERS, Dispatcher
from service.engine.fast_path import FastPath
from service.engine.liveness import Liveness
from service.incidents import recent_feedback
from service.oncall.roster import RosterSource
from service.planning.planning import NoPlanning, Planning
from service.recorder.incident_recordings import IncidentRecorder
from service.sources import factory as sources_factory
from service.sources import receiving
from service.sources.composite_source import CompositeSource
from service.wiring.alerting import (
    GROUPS,
    AlertmanagerExchange,
    alertmanager,
    button_signer,
    messaging_of,
    notifiers,
)
from service.wiring.detectors import detection as detection_of
from service.wiring.detectors import rules
from service.wiring.planning import planning as planning_of
from service.wiring.remediation import actuator, kill_switch, playbooks, policy, procedures
from service.wiring.stores import open_change_log, open_stores
from store import factory, memory
from store.write_buffer.buffered_store import BufferedMetricStore

_log = log.get("engine")
HISTORY = timedelta(days=15)


@dataclass(slots=True)
class Platform:
    """Everything that the engine process runs. ``spool`` holds values until the store accepts them."""

    cycle: Cycle
    dispatcher: Dispatcher
    metrics: factory.SqlMetricStore
    state: StateStore
    collector: CompositeSource
    change_log: ChangeLog
    settings: Settings
    spool: BufferedMetricStore
    liveness: Liveness
    flight: IncidentRecorder | None = None
    fast_path: FastPath | None = None
    roster: RosterSource | None = None
    alertmanager: AlertmanagerExchange | None = None

    def warm(self, now: datetime) -> None:
        """Restores checkpoints, teaches the detectors the history, and audits the start."""
        remediation = self.settings.remediation
        if "kubernetes" in {remediation.actuator, *remediation.actuators.values()}:
            load_client()
        self.cycle.parts.detection.restore(self.state)
        try:
            self.cycle.parts.detection.warm(self.metrics, now, HISTORY, self.settings.store.retention.raw)
        except StoreUnavailableError as error:  # the metric server is unavailable: monitoring starts without warm-up
            _log.error("detector_warm_up_failed", error=error.message, hint=error.hint)
        loaded = AuditRecord(now, AuditEvent.CONFIG_LOADED, self.settings.cluster, "started")
        self.state.append_audit([loaded])

    def adopt(self, settings: Settings, now: datetime) -> None:
        """Replaces the limits of remediation by those of other settings, between two cycles, and audits it."""
        switch = kill_switch(settings)
        self.settings = settings
        self.cycle.parts = replace(
            self.cycle.parts,
            policy=policy(settings),
            playbooks=playbooks(settings),
            procedures=procedures(settings),
            kill_switch=switch.is_on,
        )
        self.dispatcher.limit(switch, self.cycle.parts.policy.time_limits)
        self.state.append_audit([AuditRecord(now, AuditEvent.CONFIG_LOADED, settings.cluster, "changed")])

    def checkpoint(self, now: datetime) -> None:
        """Writes the states of the detectors."""
        self.cycle.parts.detection.checkpoint(self.state, now)

    async def close(self) -> None:
        """Stops collecting and releases the stores."""
        if self.fast_path is not None:
            self.fast_path.close()
        if self.alertmanager is not None:
            self.alertmanager.emitter.close()
        await self.collector.close()
        if self.flight is not None:
            self.flight.close()
        self.cycle.parts.planning.close()
        self.state.close()
        self.metrics.close()


def platform(
    settings: Settings, clock: Clock, *, lockstep: bool = False, may_write: Callable[[], bool] = lambda: True
) -> Platform:
    """Returns a platform on the configured store. With ``lockstep`` the planner runs inside the cycle.

    In lockstep no time passes between a scrape and its cycle, so that there is no fast path. While ``may_write``
    returns False, values wait on disk.
    """
    state, metrics = open_stores(settings)
    recording, folder = settings.collect.flight, flights_of(settings.store.url)
    ring = None
    if recording.enabled:
        ring = FlightRing(folder.with_name("ring"), span=recording.before, limit_bytes=recording.ring_bytes)
    recorder = IncidentRecorder(ring, state, metrics, recording, folder) if ring else None
    pushed, change_log = receiving.pushed(settings), open_change_log(settings)
    source = sources_factory.source(settings, clock, ring.add if ring else None, pushed, change_log)
    buffered = BufferedMetricStore(metrics, spool_of(settings), settings.store.spool.limit_bytes, may_write)
    detection = detection_of(settings, rules(settings), clock.now())
    planning = planning_of(settings, detection, state, buffered, change_log=change_log, in_background=not lockstep)
    messaging, signer = messaging_of(settings), button_signer(settings)
    cycle = Cycle(_parts(settings, source, clock, state, buffered, detection, planning, messaging))
    dispatcher = Dispatcher(
        state,
        notifiers(settings, state.installation()),
        actuator(settings),
        clock,
        cycle,
        kill_switch(settings),
        cycle.parts.policy.time_limits,
        workers=WORKERS,
        policies=settings.notify.policies(),
        sign=signer.url if signer is not None else None,
    )
    liveness = Liveness(clock, settings.collect.interval)
    cycle.on_record = liveness.note
    fast_path = FastPath(cycle, clock) if settings.remediation.fast_path and not lockstep else None
    if fast_path is not None:
        source.on_early(fast_path.offer)
    roster = RosterSource(settings.oncall, state)
    cycle.parts.roster = roster
    return Platform(
        cycle,
        dispatcher,
        metrics,
        state,
        source,
        change_log,
        settings,
        buffered,
        liveness,
        recorder,
        fast_path,
        roster,
        alertmanager(settings, state, liveness),
    )


def cycle_in_memory(
    settings: Settings,
    source: Source,
    clock: Clock,
    *,
    interval: timedelta,
    messaging: NotificationSettings | None = None,
) -> Cycle:
    """Returns a cycle on stores in memory, without planning: for replays and drills.

    By default messages go to an outbox without a dispatcher, so that pages are counted as they would be sent.
    """
    state, metrics = memory.MemoryStateStore(), memory.MemoryMetricStore()
    detection = detection_of(settings, rules(settings), clock.now(), interval)
    messaging = messaging or NotificationSettings(routes=dict.fromkeys(GROUPS, ("replay",)))
    return Cycle(_parts(settings, source, clock, state, metrics, detection, NoPlanning(), messaging))


def _parts(
    settings: Settings,
    source: Source,
    clock: Clock,
    state: StateStore,
    metrics: MetricStore,
    detection: Detection,
    planning: Planning | NoPlanning,
    messaging: NotificationSettings,
) -> Parts:
    loaded = rules(settings)
    return Parts(
        clock=clock,
        source=source,
        metrics=metrics,
        state=state,
        detection=detection,
        planning=planning,
        rules=loaded,
        knowledge=settings.knowledge.catalog(),
        policy=policy(settings),
        messaging=messaging,
        playbooks=playbooks(settings),
        feedback=partial(recent_feedback.of, state, loaded),
        procedures=procedures(settings),
        cluster=settings.cluster,
        flaps_per_hour=settings.rules.flaps_per_hour,
        watchdogs=tuple(item.watchdog() for item in settings.watchdogs),
        maintenance=tuple(window.silence() for window in settings.maintenance),
        kill_switch=kill_switch(settings).is_on,
    )
