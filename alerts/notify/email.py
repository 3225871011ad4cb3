"""E-mail by SMTP: plain text with an HTML alternative, threaded by incident.

``security`` is ``starttls`` (default), ``tls`` or ``plain``. A server without STARTTLS is rejected; there is no silent
fallback to plain text.
"""

from __future__ import annotations

import hashlib
import html
import smtplib
import ssl
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any, Literal, get_args

from alerts.notify import recipients, settings
from alerts.notify.colors import color_of
from alerts.notify.text import buttons_of, clean, mark_of, one_line, shorten
from outrider import log
from outrider.errors import DeliveryError
from outrider.model import Message, Receipt

_NAME = "email"
KEYS = ("host", "port", "security", "from", "to", "username", "password")
_SUBJECT_LIMIT = 500  # characters; a header of any length is legal, but no reader shows it
_BODY_LIMIT = 100_000
_log = log.get("notify")
Security = Literal["starttls", "tls", "plain"]
_PORTS: dict[Security, int] = {"starttls": 587, "tls": 465, "plain": 25}


@dataclass(frozen=True, slots=True)
class Server:
    """The SMTP server. ``certificates`` None trusts the system's."""

    host: str
    port: int
    security: Security = "starttls"
    username: str = ""
    password: str = ""
    timeout: timedelta = settings.TIMEOUT
    certificates: ssl.SSLContext | None = None


class EmailNotifier:
    """Mails the people whom a message names, else one list of recipients."""

    def __init__(self, server: Server, sender: str, to: tuple[str, ...]) -> None:
        """``to`` must not be empty."""
        self._server = server
        self._sender = sender
        self._to = to

    def send(self, message: Message) -> Receipt:
        """Delivers to at least one recipient, or raises DeliveryError."""
        mail = compose(message, self._sender, recipients.addresses(message, self._to))
        try:
            with self._connect() as connection:
                refused = connection.send_message(mail)
        except smtplib.SMTPRecipientsRefused as error:
            codes = {code for code, _ in error.recipients.values()}
            raise _rejection("all recipients", max(codes), all(code >= 500 for code in codes)) from error
        except smtplib.SMTPResponseException as error:
            raise _rejection("the message", error.smtp_code, error.smtp_code >= 500) from error
        except smtplib.SMTPNotSupportedError as error:
            text = "the mail server does not support the configured STARTTLS or authentication"
            raise DeliveryError(
                text, retryable=False, reason="not_supported", hint="set security to tls or plain explicitly"
            ) from error
        except ssl.SSLCertVerificationError as error:
            text = f"the certificate of the mail server cannot be trusted: {error.verify_message}"
            raise DeliveryError(text, retryable=True, reason="tls", hint="renew or trust it") from error
        except ssl.SSLError as error:
            text = f"the TLS connection to the mail server failed: {error.reason or type(error).__name__}"
            raise DeliveryError(text, retryable=True, reason="tls", hint="check port and security") from error
        except (OSError, smtplib.SMTPException) as error:
            raise _unreachable(error, self._server.timeout) from error
        if refused:
            _log.warning("mail_receivers_refused", message=message.id, refused=len(refused), of=len(self._to))
        return Receipt(str(mail["Message-ID"]))

    def _connect(self) -> smtplib.SMTP:
        server, seconds = self._server, self._server.timeout.total_seconds()
        certificates = server.certificates or ssl.create_default_context()
        connection: smtplib.SMTP
        if server.security == "tls":
            connection = smtplib.SMTP_SSL(server.host, server.port, timeout=seconds, context=certificates)
        else:
            connection = smtplib.SMTP(server.host, server.port, timeout=seconds)
        try:
            if server.security == "starttls":
                connection.starttls(context=certificates)
            if server.username:
                connection.login(server.username, server.password)
        except BaseException:
            with suppress(OSError):
                connection.close()
            raise
        return connection


def _unreachable(error: Exception, timeout: timedelta) -> DeliveryError:
    # smtplib reports a timeout during a session as "disconnected"
    if isinstance(error, TimeoutError) or isinstance(error.__context__, TimeoutError):
        text = f"the mail server did not respond within {timeout.total_seconds():g} s"
        return DeliveryError(text, retryable=True, reason="timeout")
    text = f"the mail server cannot be reached: {type(error).__name__}"
    return DeliveryError(text, retryable=True, reason="refused")


def _rejection(subject: str, code: int, final: bool) -> DeliveryError:
    return DeliveryError(f"the mail server rejected {subject} with {code}", retryable=not final, reason=f"smtp_{code}")


def compose(message: Message, sender: str, to: tuple[str, ...]) -> EmailMessage:
    """The mail. Its id derives from the message's, so that a second delivery is recognized as a duplicate."""
    mail = EmailMessage()
    mail["Subject"] = shorten(one_line(message.title), _SUBJECT_LIMIT, "…")
    mail["From"] = sender
    mail["To"] = ", ".join(to)
    mail["Date"] = format_datetime(message.created_at)
    mail["Message-ID"] = _mail_id(message.id)
    mail["Auto-Submitted"] = "auto-generated"
    if message.incident:
        mail["References"] = _mail_id(message.incident)
    if message.priority:
        mail["X-Outrider-Priority"] = message.priority.value
    links = [f"{label}: {url}" for label, url in buttons_of(message)]
    mail.set_content("\n".join([_body(message), *([""] if links else []), *links]))
    mail.add_alternative(_html(message), subtype="html")
    return mail


def _mail_id(text: str) -> str:
    return f"<{hashlib.sha256(text.encode()).hexdigest()[:32]}@outrider>"


def _html(message: Message) -> str:
    color = color_of(message)
    lines = "<br>\n".join(html.escape(line) for line in _body(message).splitlines())
    style = f"display:inline-block;padding:6px 14px;margin:0 8px 8px 0;border:1px solid {color};color:{color}"
    links = "".join(
        f'<a style="{style};text-decoration:none" href="{html.escape(url, quote=True)}">{html.escape(label)}</a>\n'
        for label, url in buttons_of(message)
    )
    title = html.escape(shorten(one_line(message.title), _SUBJECT_LIMIT, "…"))
    return (
        f'<html lang="{html.escape(message.language)}"><body><h3 style="color:{color}">{title}</h3>\n'
        f"<p>{lines}</p>\n<p>{links}</p></body></html>"
    )


def _body(message: Message) -> str:
    return shorten(clean(message.body), _BODY_LIMIT, mark_of(message))


def from_settings(values: Mapping[str, Any]) -> EmailNotifier:
    """``host``, ``port``, ``security``, ``from``, ``to``, ``username``, ``password``, ``timeout``."""
    settings.accept(_NAME, values, KEYS)
    security: Security = values.get("security", "starttls")
    if security not in get_args(Security):
        raise settings.wrong(_NAME, "security", f"one of {', '.join(get_args(Security))}")
    to = settings.texts(_NAME, values, "to", needed=True)
    server = Server(
        host=settings.required(_NAME, values, "host"),
        port=settings.whole(_NAME, values, "port", _PORTS[security], 1, 65_535),
        security=security,
        username=settings.optional(_NAME, values, "username"),
        password=settings.optional(_NAME, values, "password"),
        timeout=settings.timeout(_NAME, values),
    )
    return EmailNotifier(server, settings.required(_NAME, values, "from"), to)
