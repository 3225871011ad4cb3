"""An operator's template of the message body. If it fails, the usual text is sent with a line about that."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jinja2 import StrictUndefined, TemplateError
from jinja2.sandbox import SandboxedEnvironment

from alerts.notify.text import buttons_of, one_line, shorten
from outrider import log
from outrider.clock import rfc3339
from outrider.errors import ConfigError
from outrider.model import DeliveryNote, Message, Receipt
from outrider.ports import Notifier, ThreadingNotifier
from outrider.text.i18n import supported, translate

_log = log.get("notify")
_BODY_LIMIT = 100_000
_ERROR_LIMIT = 200
_ERRORS = (TemplateError, ArithmeticError, LookupError, TypeError, ValueError, AttributeError, RecursionError)


class BodyTemplate:
    """A Jinja template of the body. Channels escape its result as they do the usual body."""

    def __init__(self, channel: str, source: str) -> None:
        """Raises ConfigError for a syntax error."""
        try:
            environment = SandboxedEnvironment(undefined=StrictUndefined, keep_trailing_newline=False)
            self._template = environment.from_string(source)
        except TemplateError as error:
            line = getattr(error, "lineno", None)
            where = f" in line {line}" if line else ""
            raise ConfigError(f"the template of the {channel} channel has a syntax error{where}: {error}") from error

    def apply(self, message: Message) -> tuple[Message, bool]:
        """The message with its rendered body; the usual body with a note, and False, if the template fails."""
        try:
            body = self._template.render(_variables(message))
        except _ERRORS as error:
            _log.warning("template_failed", message=message.id, channel=message.channel, error=type(error).__name__)
            text = shorten(one_line(str(error)) or type(error).__name__, _ERROR_LIMIT, "…")
            note = translate("notify.line.template_failed", supported(message.language), error=text)
            return replace(message, body=f"{note}\n{message.body}"), False
        return replace(message, body=shorten(body, _BODY_LIMIT, "…")), True


def _variables(message: Message) -> dict[str, Any]:
    return {
        "id": message.id,
        "title": message.title,
        "body": message.body,
        "priority": message.priority.value if message.priority else "",
        "reason": message.reason.value,
        "incident": message.incident or "",
        "created_at": rfc3339(message.created_at),
        "link": message.link or "",
        "page": message.is_page,
        "labels": dict(message.labels),
        "facts": {fact.value: text for fact, text in message.facts.items()},
        "buttons": [{"text": text, "url": url} for text, url in buttons_of(message)],
    }


class TemplatedNotifier:
    """A notifier whose messages have the body of a template."""

    def __init__(self, notifier: Notifier, template: BodyTemplate) -> None:
        """Wraps one notifier."""
        self._notifier = notifier
        self._template = template

    def send(self, message: Message) -> Receipt:
        """Delivers the message, or raises DeliveryError."""
        rendered, succeeded = self._template.apply(message)
        return _noted(self._notifier.send(rendered), succeeded=succeeded)


class TemplatedThreadingNotifier(TemplatedNotifier):
    """The same for a notifier with threads."""

    def __init__(self, notifier: ThreadingNotifier, template: BodyTemplate) -> None:
        """Wraps one notifier."""
        super().__init__(notifier, template)
        self._threading = notifier

    def follow_up(self, message: Message, first: Receipt) -> Receipt:
        """Delivers a later message of an incident, or raises DeliveryError."""
        rendered, succeeded = self._template.apply(message)
        return _noted(self._threading.follow_up(rendered, first), succeeded=succeeded)


def templated(notifier: Notifier, template: BodyTemplate) -> Notifier:
    """The notifier with a template."""
    if isinstance(notifier, ThreadingNotifier):
        return TemplatedThreadingNotifier(notifier, template)
    return TemplatedNotifier(notifier, template)


def _noted(receipt: Receipt, *, succeeded: bool) -> Receipt:
    return receipt if succeeded or receipt.note else replace(receipt, note=DeliveryNote.TEMPLATE_FAILED)
