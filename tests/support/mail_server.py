"""A mail server with scripted answers that records messages."""

from __future__ import annotations

from email import message_from_bytes, policy
from email.message import EmailMessage
from typing import Any, cast

from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP

from tests.support.ports import free_port


class MailEnd:
    """Accepts mails, unless ``answer`` or ``refuse_receivers`` name another reply."""

    def __init__(self, **options: Any) -> None:
        self.answer, self.refuse_receivers, self.mails = "250 OK", dict[str, str](), list[bytes]()
        self.controller = _Mail(self, hostname="127.0.0.1", port=free_port(), **options)
        self.controller.start()
        self.port = self.controller.port

    @property
    def parsed(self) -> list[EmailMessage]:
        """The received mails."""
        return [cast("EmailMessage", message_from_bytes(mail, policy=policy.default)) for mail in self.mails]

    def settings(self, **more: Any) -> dict[str, Any]:
        """The keys of an e-mail channel."""
        base = {"host": "127.0.0.1", "port": self.port, "security": "plain", "from": "outrider@example.com"}
        return {**base, "to": ["oncall@example.com"], **more}

    async def handle_RCPT(self, server, session, envelope, address, options):  # noqa: N802 - aiosmtpd calls this name
        if address in self.refuse_receivers:
            return self.refuse_receivers[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):  # noqa: N802 - aiosmtpd calls this name
        if self.answer.startswith("250"):
            self.mails.append(envelope.content)
        return self.answer

    def close(self) -> None:
        self.controller.stop()


class _Mail(Controller):
    def __init__(self, handler: MailEnd, **options: Any) -> None:
        self._options = options.pop("smtp", {})
        super().__init__(handler, **options)

    def factory(self) -> SMTP:
        return SMTP(self.handler, **self._options)
