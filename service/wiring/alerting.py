"""Builds routes, notifiers and the explainer of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from alerts.notify.registry import NOTIFIERS
from alerts.routing.routes import NotificationSettings
from detectors.rca import explanation, explanation_text
from detectors.rca.fault_catalogue import Knowledge
from outrider.model import Incident
from outrider.ports import Notifier, StateStore
from outrider.text.i18n import Language
from service.alertmanager.client import AlertmanagerClient
from service.alertmanager.emitter import AlertEmitter, EmitOptions
from service.alertmanager.silence_sync import SilenceSync, SyncOptions
from service.config import knowledge_overlay
from service.config.settings import Settings
from service.engine.liveness import Liveness
from service.incidents.llm_narrative import Explainer, LlmEndpoint, NoExplainer, OpenAiExplainer

GROUPS = ("phone", "sms", "im", "mail", "report")


def messaging_of(settings: Settings, language: Language | None = None) -> NotificationSettings:
    """Returns the configured routes of messages. ``language`` overrides the configured language."""
    notify = settings.notify
    return NotificationSettings(
        routes={group: tuple(names) for group, names in notify.groups.items()},
        base_url=notify.public_url,
        language=language or notify.language,
        languages={name: channel.language for name, channel in notify.channels.items() if channel.language},
        explain=partial(explained, knowledge_overlay.of(settings.knowledge.folder)),
    )


def explained(knowledge: Knowledge, incident: Incident, language: Language) -> list[str]:
    """Returns the lines of a message that explain the cause beyond its evidence."""
    return explanation_text.page_lines(explanation.explain(incident, knowledge), language)


def notifiers(settings: Settings) -> dict[str, Notifier]:
    """Returns a notifier for each configured channel."""
    return {
        name: NOTIFIERS[channel.type](channel.model_dump(exclude={"type", "language"}))
        for name, channel in settings.notify.channels.items()
    }


def explainer(settings: Settings) -> Explainer:
    """Returns the language model that summarizes incidents; one that does nothing if no URL is configured."""
    endpoint = settings.explainer
    if endpoint.url is None:
        return NoExplainer()
    return OpenAiExplainer(LlmEndpoint(endpoint.url, endpoint.model, endpoint.key_file, endpoint.timeout))


@dataclass(frozen=True, slots=True)
class AlertmanagerExchange:
    """The tasks that exchange alerts and silences with Alertmanagers."""

    emitter: AlertEmitter
    silences: SilenceSync


def alertmanager(settings: Settings, state: StateStore, liveness: Liveness) -> AlertmanagerExchange | None:
    """Returns the exchange with the configured Alertmanagers, None if none is configured."""
    options = settings.alertmanager
    if not options.urls:
        return None
    clients = [AlertmanagerClient(url, options.access, options.timeout) for url in options.urls]
    emit = EmitOptions(
        origin=settings.cluster,
        base_url=settings.notify.public_url.rstrip("/"),
        language=settings.notify.language,
        interval=options.every,
        priorities=frozenset(options.priorities),
        alerts=options.alerts,
        watchdog=options.watchdog,
    )
    sync = SyncOptions(
        settings.cluster,
        read=options.read_silences,
        write=options.write_silences,
        maintenance=tuple(window.silence() for window in settings.maintenance),
    )
    emitter = AlertEmitter(state, clients, emit, liveness.is_alive)
    return AlertmanagerExchange(emitter, SilenceSync(state, clients, sync))
