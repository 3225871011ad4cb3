"""Builds a platform from settings: the one place that picks implementations."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

from alerts.notify.registry import NOTIFIERS
from alerts.routing.routes import Messaging
from alerts.rules import files as rule_files
from alerts.rules import slo_rules
from collectors.recording.ring_buffer import FlightRing
from detectors import registry as detector_registry
from detectors.rca import explanation, explanation_text
from detectors.rca.fault_catalogue import Knowledge
from detectors.rules import burn_rate, threshold
from outrider import log
from outrider.audit import AuditEvent, AuditRecord
from outrider.clock import Clock
from outrider.errors import StoreUnavailableError
from outrider.model import CycleRecord, EntityKind, EntityRef, Incident, Plan
from outrider.ports import Actuator, MetricStore, Notifier, StateReader, StateStore
from outrider.records.change_log import Ledger, Startup
from outrider.text.i18n import Language
from outrider.topology import Topology
from outrider.vocabulary.rules import Rule
from remediation.actuators.registry import ACTUATORS
from remediation.decide.policy import Policy
from service.config import knowledge_overlay, revisions
from service.config import settings as settings_file
from service.config.api_settings import LOOPBACK_NAMES, ApiSettings, Webhooks
from service.config.settings import Settings
from service.config.tokens import admin_token, flights_of, spool_of
from service.engine import fleet_state
from service.engine.cycle import Cycle, Parts, Source
from service.engine.detection import Detection
from service.engine.dispatch import Dispatcher
from service.incidents.llm_narrative import Door, Explainer, NoExplainer, OpenAiExplainer
from service.planning.planning import NoPlanning, Planning
from service.planning.slo_inputs import Asked, Promises
from service.recorder.incident_recordings import FlightKeeper
from service.scaling import emitting
from service.sources import factory as sources_factory
from service.sources import receiving
from service.sources.change_log_source import Recorded
from store import factory, memory, migrate
from store.remote.metric_store import Remote
from store.sql import urls
from store.write_buffer.buffered_store import BufferedMetricStore
from store.write_buffer.segments import CycleFiles

_log = log.get("engine")
HISTORY = timedelta(days=15)
GROUPS = ("phone", "sms", "im", "mail", "report")


@dataclass(slots=True)
class Platform:
    """Everything the engine process runs."""

    cycle: Cycle
    dispatcher: Dispatcher
    metrics: factory.SqlMetricStore
    state: StateStore
    collector: Source
    settings: Settings
    spool: BufferedMetricStore
    flight: FlightKeeper | None = None

    def warm(self, now: datetime) -> None:
        """Take up check-points, teach the detectors from history, and say so in the audit."""
        self.cycle.parts.detection.restore(self.state)
        try:
            self.cycle.parts.detection.warm(self.metrics, now, HISTORY, self.settings.store.retention.raw)
        except StoreUnavailableError as error:  # values on a server that is away: better to watch untaught than not at all
            _log.error("not_warmed", error=error.message, hint=error.hint)
        loaded = AuditRecord(now, AuditEvent.CONFIG_LOADED, self.settings.cluster, "started")
        self.state.append_audit([loaded])

    def checkpoint(self, now: datetime) -> None:
        """Write what the detectors remember."""
        self.cycle.parts.detection.checkpoint(self.state, now)

    async def close(self) -> None:
        """Stop collecting and release the store."""
        await self.collector.close()
        if self.flight is not None:
            self.flight.close()
        self.cycle.parts.planning.close()
        self.state.close()
        self.metrics.close()


def upgrade(settings: Settings) -> str:
    """Create or upgrade both databases; returns their revision."""
    return revisions.text(migrate.upgrade(settings.store.url))


def has_store(settings: Settings) -> bool:
    """False where the file of a SQLite store is not there yet; a command that only reads then makes none."""
    url = urls.parsed(settings.store.url)
    return url.get_backend_name() != urls.SQLITE or Path(str(url.database)).exists()


@contextmanager
def state_reader(settings: Settings) -> Iterator[StateReader]:
    """The decisions of a store, for reading; an empty store is made when there is none."""
    with stores(settings) as (state, _):
        yield state


@contextmanager
def stores(settings: Settings) -> Iterator[tuple[StateStore, factory.SqlMetricStore]]:
    """Both stores, opened and closed."""
    state, metrics = _open(settings)
    try:
        yield state, metrics
    finally:
        state.close()
        metrics.close()


def _open(settings: Settings) -> tuple[StateStore, factory.SqlMetricStore]:
    """Both stores at this program's schema; closing them stays with the caller."""
    upgrade(settings)
    state_url, metrics_url = factory.urls_of(settings.store.url)
    return factory.open_state(state_url), factory.open_metrics(metrics_url, remote_of(settings))


def remote_of(settings: Settings) -> Remote | None:
    """The server that keeps the values, None when the database does."""
    given = settings.store.metrics
    return None if given is None else given.remote(settings.cluster)


def platform(
    settings: Settings, clock: Clock, *, lockstep: bool = False, may_write: Callable[[], bool] = lambda: True
) -> Platform:
    """A platform on its store. In ``lockstep`` the planner runs inside the cycle.

    While ``may_write`` says no, values wait on disk.
    """
    state, metrics = _open(settings)
    flight, kept = settings.collect.flight, flights_of(settings.store.url)
    ring = (
        FlightRing(kept.with_name("ring"), span=flight.before, limit_bytes=flight.ring_bytes)
        if flight.enabled
        else None
    )
    keeper = FlightKeeper(ring, state, metrics, flight, kept) if ring else None
    source = sources_factory.source(settings, clock, ring.add if ring else None, receiving.pushed(settings))
    collector = Recorded(source, factory.open_ledger(factory.urls_of(settings.store.url)[0]))
    spooled = BufferedMetricStore(metrics, spool_of(settings), settings.store.spool.limit_bytes, may_write)
    cycle = _cycle(settings, collector, clock, state, spooled, in_background=not lockstep, ledger=collector.ledger)
    dispatcher = Dispatcher(state, notifiers(settings), actuator(settings), clock, cycle)
    return Platform(cycle, dispatcher, metrics, state, collector, settings, spooled, keeper)


def cycle_in_memory(
    settings: Settings, source: Source, clock: Clock, *, interval: timedelta, messaging: Messaging | None = None
) -> Cycle:
    """A cycle on stores in memory, without planning: for replays and drills.

    By default messages go to an outbox that nobody empties, so that pages are counted as they would be sent.
    """
    return _cycle(
        settings,
        source,
        clock,
        memory.MemoryStateStore(),
        memory.MemoryMetricStore(),
        interval=interval,
        plans=False,
        messaging=messaging or Messaging(routes=dict.fromkeys(GROUPS, ("replay",))),
    )


def _cycle(
    settings: Settings,
    source: Source,
    clock: Clock,
    state: StateStore,
    metrics: MetricStore,
    *,
    interval: timedelta | None = None,
    in_background: bool = False,
    plans: bool = True,
    messaging: Messaging | None = None,
    ledger: Ledger | None = None,
) -> Cycle:
    loaded = rules(settings)
    detectors = (
        *detector_registry.make_all(settings.detect.budgets, settings.detect.holiday_spans, settings.detect.zone),
        *threshold.compile_rules(loaded),
        *burn_rate.compile_slos(settings.promises),
    )
    detection = Detection(detectors, interval or settings.collect.interval, fleet_state.NEEDS, settings.detect.trial)
    planning: Planning | NoPlanning = NoPlanning()
    if plans:
        planning = Planning(
            metrics,
            settings.planner,
            settings.services,
            _counter(detection, state),
            in_background=in_background,
            ledger=ledger,
            tests=state.load_tests,
            promises=Promises(settings.slos, settings.cluster),
        )
    return Cycle(
        Parts(
            clock=clock,
            source=source,
            metrics=metrics,
            state=state,
            detection=detection,
            planning=planning,
            rules=loaded,
            knowledge=knowledge_overlay.of(settings.knowledge.folder),
            policy=policy(settings),
            messaging=messaging or messaging_of(settings),
        )
    )


def _counter(detection: Detection, state: StateStore) -> fleet_state.ReplicaCounter:
    def count(service: EntityRef, topology: Topology) -> tuple[int, int]:
        return fleet_state.replicas(service, topology, detection, fleet_state.active_alerts(state))

    return count


def rules(settings: Settings) -> tuple[Rule, ...]:
    """The packaged rules with those of the configuration, and one for each SLO."""
    return (*rule_files.load_rules(settings.rules.files or None), *slo_rules.rules_of(settings.promises))


def policy(settings: Settings) -> Policy:
    """The guard rails as configured."""
    given = settings.remediation
    return Policy(
        autonomy=given.autonomy,
        dry_run=given.dry_run,
        max_cordoned_nodes=given.max_cordoned_nodes,
        max_cordoned_ratio=given.max_cordoned_ratio,
        max_actions_per_hour=given.max_actions_per_hour,
        cooldown=given.cooldown,
        min_confidence=given.min_confidence,
        ask_for=frozenset(given.ask_for),
        plan_acts=not settings.planner.scaling.shadow,
    )


def messaging_of(settings: Settings, language: Language | None = None) -> Messaging:
    """Who is told what, as configured, in another language when one is given."""
    given = settings.notify
    return Messaging(
        routes={group: tuple(names) for group, names in given.groups.items()},
        base_url=given.public_url,
        language=language or given.language,
        languages={name: channel.language for name, channel in given.channels.items() if channel.language},
        explain=partial(explained, knowledge_overlay.of(settings.knowledge.folder)),
    )


def explained(known: Knowledge, incident: Incident, language: Language) -> list[str]:
    """What a page says of a cause beyond its evidence."""
    return explanation_text.page_lines(explanation.explain(incident, known), language)


def notifiers(settings: Settings) -> dict[str, Notifier]:
    """A sender for each configured channel."""
    return {
        name: NOTIFIERS[channel.type](channel.model_dump(exclude={"type", "language"}))
        for name, channel in settings.notify.channels.items()
    }


def actuator(settings: Settings) -> Actuator:
    """What performs actions."""
    given = settings.remediation
    if given.actuator == "autoscalers":
        return emitting.actuator(settings.planner.scaling)
    return ACTUATORS[given.actuator]({"control_url": given.control_url})


def api_settings(settings: Settings) -> ApiSettings:
    """The values that the API needs."""
    return ApiSettings(
        token=admin_token(settings),
        host=settings.api.host,
        port=settings.api.port,
        hosts=(*LOOPBACK_NAMES, settings.api.host, *settings.api.hosts),
        interval=settings.collect.interval,
        language=settings.notify.language,
        cluster=settings.cluster,
        store_url=settings.store.url,
        spool=CycleFiles(spool_of(settings), settings.store.spool.limit_bytes),
        metrics=remote_of(settings),
        control_url=settings.remediation.control_url if settings.remediation.actuator == "simulated" else None,
        doors=receiving.doors(settings),
        webhooks=webhooks(settings),
        slos=settings.promises,
        external_scaler_port=settings.planner.scaling.external_scaler_port,
        rules=rules(settings),
    )


def explainer(settings: Settings) -> Explainer:
    """Who retells incidents: nobody unless an address is configured."""
    given = settings.explainer
    if given.url is None:
        return NoExplainer()
    return OpenAiExplainer(Door(given.url, given.model, given.key_file, given.timeout))


def webhooks(settings: Settings) -> Webhooks:
    """Who may announce changes, and what their repositories are called here. Raises ConfigError for a lost secret."""
    given = settings.changes
    return Webhooks(
        secrets={
            name: settings_file.read_secret(file)
            for name, file in (("github", given.github_secret_file), ("gitlab", given.gitlab_secret_file))
            if file is not None
        },
        services=dict(given.services),
    )


STARTS_READ = 1000
"""The newest, of which what is asked of starts is told."""


def startups(settings: Settings, limit: int) -> tuple[Startup, ...]:
    """The newest start-ups that the store knows."""
    with stores(settings):  # says so when it is away or not ours
        ledger = factory.open_ledger(factory.urls_of(settings.store.url)[0])
        try:
            return ledger.startups(limit=limit)
        finally:
            ledger.close()


def plan_now(settings: Settings, at: datetime | None, asked: Asked | None = None) -> Plan:
    """A fresh plan from what the store knows, as of the newest cycle or ``at``.

    ``asked`` is what a command promises in place of the configuration.
    """
    with stores(settings) as (state, metrics):
        newest: tuple[CycleRecord, ...] = state.cycles(limit=1)
        if at is None and not newest:
            return Plan()
        instant = at or newest[0].at
        # what ran and what was broken then, not now
        topology = state.topology() if at is None else state.topology(at)
        active = fleet_state.active_alerts(state) if at is None else fleet_state.alerts_at(state, at)

        def count(service: EntityRef, known: Topology) -> tuple[int, int]:
            members = known.below(service, EntityKind.REPLICA)
            broken = {alert.entity for alert in active if alert.fault in fleet_state.NOT_SERVING}
            return len(members), len(set(members) - broken)

        ledger = factory.open_ledger(factory.urls_of(settings.store.url)[0])
        try:
            planning = Planning(
                metrics, settings.planner, settings.services, count,
                ledger=ledger, looks_back=False, tests=state.load_tests,
                promises=Promises(settings.slos, settings.cluster, asked or Asked()),
            )  # fmt: skip
            return planning.plan_if_due(instant, topology) or Plan()
        finally:
            ledger.close()
