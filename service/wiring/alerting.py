"""Builds routes, notifiers and the explainer of a configuration."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from alerts.notify.registry import NOTIFIERS
from alerts.notify.template import templated
from alerts.routing.routes import NotificationSettings
from detectors.rca import explanation, explanation_text
from detectors.rca.fault_catalogue import Knowledge
from outrider.model import Incident, Priority
from outrider.ports import Notifier, StateStore
from outrider.text.i18n import Language
from outrider.wire.alertmanager import origin_of
from service.alertmanager.client import AlertmanagerClient
from service.alertmanager.emitter import AlertEmitter, EmitOptions
from service.alertmanager.silence_sync import SilenceSync, SyncOptions
from service.config.notify_settings import ChannelSettings
from service.config.settings import Settings
from service.config.tokens import button_key
from service.engine.liveness import Liveness
from service.incidents.llm_narrative import Explainer, LlmEndpoint, NoExplainer, OpenAiExplainer
from service.oncall.button_tokens import ButtonSigner, signer_of

GROUPS = ("phone", "sms", "im", "mail", "report")


def messaging_of(settings: Settings, language: Language | None = None) -> NotificationSettings:
    """Returns the configured routes of messages. ``language`` overrides the configured language."""
    notify, oncall = settings.notify, settings.oncall
    return NotificationSettings(
        routes={group: tuple(names) for group, names in notify.groups.items()},
        base_url=notify.public_url,
        language=language or notify.language,
        languages={name: channel.language for name, channel in notify.channels.items() if channel.language},
        explain=partial(explained, settings.knowledge.catalog()),
        ladders=oncall.ladders,
        settle=oncall.settle,
        status_every={Priority.P0: oncall.status_every},
        recurs_within=oncall.recurs_within,
        summary_groups=tuple(oncall.summary_groups),
        buttons_valid=oncall.buttons.valid if settings.api.public_url is not None else None,
        personal=frozenset(name for name, policy in notify.policies().items() if policy.personal),
        separate=frozenset(name for name, policy in notify.policies().items() if not policy.merges),
        tracking=frozenset(name for name, channel in notify.channels.items() if NOTIFIERS[channel.type].tracks),
    )


def button_signer(settings: Settings) -> ButtonSigner | None:
    """Returns the signer of buttons; None if people cannot reach the API. Raises ConfigError."""
    return signer_of(settings.api.public_url, button_key(settings))


def explained(knowledge: Knowledge, incident: Incident, language: Language) -> list[str]:
    """Returns the lines of a message that explain the cause beyond its evidence."""
    return explanation_text.page_lines(explanation.explain(incident, knowledge), language)


def notifiers(settings: Settings, installation: str) -> dict[str, Notifier]:
    """Returns a notifier for each configured channel. ``installation`` is the id of the store."""
    origin = origin_of(settings.cluster, installation)
    return {name: notifier(name, channel, origin) for name, channel in settings.notify.channels.items()}


def notifier(name: str, channel: ChannelSettings, origin: str) -> Notifier:
    """Returns the notifier of one channel, with its template. Raises ConfigError."""
    built, template = NOTIFIERS[channel.type].notifier(channel.keys, origin), channel.body_template(name)
    return built if template is None else templated(built, template)


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
    origin = origin_of(settings.cluster, state.installation())
    emit = EmitOptions(
        origin=origin,
        base_url=settings.notify.public_url.rstrip("/"),
        language=settings.notify.language,
        interval=options.every,
        priorities=frozenset(options.priorities),
        alerts=options.alerts,
        watchdog=options.watchdog,
    )
    sync = SyncOptions(
        origin,
        read=options.read_silences,
        write=options.write_silences,
        maintenance=tuple(window.silence() for window in settings.maintenance),
    )
    emitter = AlertEmitter(state, clients, emit, liveness.is_alive)
    return AlertmanagerExchange(emitter, SilenceSync(state, clients, sync))
