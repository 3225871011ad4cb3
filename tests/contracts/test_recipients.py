"""Channels deliver to the people whom a message names."""

from __future__ import annotations

from dataclasses import replace
from email import message_from_bytes, policy

from alerts.notify import email, webhook
from outrider.model import Recipient
from tests.contracts.test_notifiers import a_message, mail_end  # noqa: F401 - a fixture

LI = Recipient("li", ("13800000001",), "+8613800000001", "li@example.com")
WANG = Recipient("wang", phone="+8613800000002")


def addressed(mail_end, *recipients):  # noqa: F811
    """The addresses of a mail about a message with these recipients."""
    server = email.Server("127.0.0.1", mail_end.port, "plain")
    email.EmailNotifier(server, "o@example.com", ("team@example.com",)).send(
        replace(a_message(), recipients=recipients)
    )
    return message_from_bytes(mail_end.mails[-1], policy=policy.default)["To"]


def test_a_mail_goes_to_the_named_people_and_to_nobody_else(mail_end):  # noqa: F811
    assert addressed(mail_end, LI, WANG) == "li@example.com"


def test_a_mail_to_people_without_an_address_goes_to_the_configured_list(mail_end):  # noqa: F811
    assert addressed(mail_end, WANG) == "team@example.com"
    assert addressed(mail_end) == "team@example.com"


def test_a_webhook_has_the_recipients_with_their_addresses():
    payload = webhook.payload(replace(a_message(), recipients=(LI, WANG)))
    assert payload["recipients"] == [
        {"name": "li", "mentions": ["13800000001"], "phone": "+8613800000001", "email": "li@example.com"},
        {"name": "wang", "mentions": [], "phone": "+8613800000002", "email": ""},
    ]
