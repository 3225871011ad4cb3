"""Builds routes, notifiers and the explainer of a configuration."""

from __future__ import annotations

from functools import partial

from alerts.notify.registry import NOTIFIERS
from alerts.notify.template import templated
from alerts.routing.routes import NotificationSettings
from detectors.rca import explanation, explanation_text
from detectors.rca.fault_catalogue import Knowledge
from outrider.model import Incident
from outrider.ports import Notifier
from outrider.text.i18n import Language
from service.config import knowledge_overlay
from service.config.notify_settings import ChannelSettings
from service.config.settings import Settings
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
        tracking=frozenset(name for name, channel in notify.channels.items() if NOTIFIERS[channel.type].tracks),
    )


def explained(knowledge: Knowledge, incident: Incident, language: Language) -> list[str]:
    """Returns the lines of a message that explain the cause beyond its evidence."""
    return explanation_text.page_lines(explanation.explain(incident, knowledge), language)


def notifiers(settings: Settings) -> dict[str, Notifier]:
    """Returns a notifier for each configured channel."""
    return {name: notifier(name, channel) for name, channel in settings.notify.channels.items()}


def notifier(name: str, channel: ChannelSettings) -> Notifier:
    """Returns the notifier of one channel, with its template. Raises ConfigError."""
    built, template = NOTIFIERS[channel.type].build(channel.keys), channel.body_template(name)
    return built if template is None else templated(built, template)


def explainer(settings: Settings) -> Explainer:
    """Returns the language model that summarizes incidents; one that does nothing if no URL is configured."""
    endpoint = settings.explainer
    if endpoint.url is None:
        return NoExplainer()
    return OpenAiExplainer(LlmEndpoint(endpoint.url, endpoint.model, endpoint.key_file, endpoint.timeout))
