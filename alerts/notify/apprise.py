"""Every other service, by Apprise: one URL per service.

Apprise reports success or failure per service, but not whether a retry can succeed, so a failure is retried. Its log
lines may contain addresses and are not used. Source: Apprise wiki, "notification services".
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from alerts.notify import settings
from alerts.notify.text import buttons_of, inert, mark_of, one_line, shorten
from outrider import log
from outrider.errors import DeliveryError
from outrider.model import Message, NotifyReason, Priority, Receipt

if TYPE_CHECKING:
    from apprise import Apprise, NotifyType

_NAME = "apprise"
KEYS = ("urls",)
_log = log.get("notify")
_TITLE_LIMIT = 250
_BODY_LIMIT = 8000  # Apprise shortens further to the limit of each service


class AppriseNotifier:
    """Sends to all URLs of one channel."""

    def __init__(self, services: Apprise, *, timeout: timedelta = settings.TIMEOUT) -> None:
        """``services`` holds at least one service."""
        self._services = services
        self._timeout = timeout

    def send(self, message: Message) -> Receipt:
        """Delivers to at least one service, or raises DeliveryError."""
        title, body = content(message)
        result = self._services.notify(
            body=body,
            title=title,
            notify_type=_type_of(message),
            body_format="text",
            interpret_escapes=False,
            timeout=self._timeout.total_seconds(),
        )
        if result.success_count == 0:
            timed_out = result.timeout_count > 0
            text = "no service of the apprise channel accepted the message"
            raise DeliveryError(text, retryable=True, reason="timeout" if timed_out else "not_accepted")
        if result.failed_count:
            of = len(self._services)
            _log.warning("apprise_services_failed", message=message.id, failed=result.failed_count, of=of)
        return Receipt(f"{result.success_count} of {len(self._services)}")


def content(message: Message) -> tuple[str, str]:
    """Title and body. Services render Markdown and mentions of their own, so both are inert."""
    links = [f"{label}: {url}" for label, url in buttons_of(message)]
    body = shorten(inert(message.body), _BODY_LIMIT, mark_of(message))
    return inert(shorten(one_line(message.title), _TITLE_LIMIT, "…")), "\n".join([body, *links])


def _type_of(message: Message) -> NotifyType:
    from apprise import NotifyType  # noqa: PLC0415 - seconds that only this channel needs

    if message.reason is NotifyReason.RESOLVED:
        return NotifyType.SUCCESS
    if message.rank <= Priority.P1.rank:
        return NotifyType.FAILURE
    return NotifyType.WARNING if message.priority is Priority.P2 else NotifyType.INFO


def _empty() -> Apprise:
    from apprise import Apprise  # noqa: PLC0415 - seconds that only this channel needs

    return Apprise()


def _add(services: Apprise, url: str) -> bool:
    with warnings.catch_warnings():  # loading all services imports modules that Python 3.13 has removed
        warnings.simplefilter("ignore", DeprecationWarning)
        return services.add(url)


def from_settings(values: Mapping[str, Any]) -> AppriseNotifier:
    """``urls`` (or ``urls_file`` with one a line), ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    urls = settings.texts(_NAME, values, "urls", needed=True)
    services = _empty()
    for number, url in enumerate(urls, start=1):
        if not _add(services, url):
            raise settings.ChannelSettingError(
                f"URL {number} of the {_NAME} channel is not one that Apprise knows",
                "urls",
                hint="see https://appriseit.com/services/",
            )
    return AppriseNotifier(services, timeout=settings.timeout(_NAME, values))
