"""One suite for every channel, against small real servers that check what each vendor documents."""

from __future__ import annotations

import socket
import ssl
import subprocess
from contextlib import ExitStack
from dataclasses import replace
from datetime import timedelta

import pytest

from alerts.notify.registry import NOTIFIERS, Reach
from outrider.clock import SystemClock
from outrider.errors import ConfigError, DeliveryError
from outrider.model import DeliveryNote, Fact, NotifyReason, Priority, Receipt
from tests.support.json_server import Response
from tests.support.mail_server import MailEnd
from tests.support.messages import a_message
from tests.support.ports import free_port
from tests.support.vendors.registry import VENDORS
from tests.support.vendors.server import SECRET, serving

HTTP_CHANNELS = tuple(VENDORS)
CHANNELS = (*HTTP_CHANNELS, "email")
KNOWN_BY_STATUS = ("apprise", "webhook", "slack", "teams", "alertmanager")  # their answer has no other sign
HOSTILE = (
    "# heading\n**bold** `code` [click](http://evil.example/x) ![i](http://evil.example/i.png)",
    '<script>alert(1)</script><a href="http://evil.example">x</a><img src=x onerror=alert(1)>',
    '@all @everyone @here <!channel> <!here> <@all> <@U123> <at user_id="all">x</at> <at id=all></at>',
    '{"errcode": 0}", "isAtAll": true, "x": "\\u0000 \x00 \ud800 \u202e',
    "a\r\nBcc: thief@example.com\r\n\r\n<Response><Hangup/></Response> & ]]> &lt;",
    "x" * 1_000_000,
    "引" * 400_000,
    '"' * 100_000 + "\n" * 100_000,
)


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


class Channel:
    """A notifier of one type with its server, and ways to make that server fail."""

    def __init__(self, name, stack, tls=None) -> None:
        self.name = name
        self.mail = self.vendor = None
        if name == "email":
            self.mail = MailEnd()
            stack.callback(self.mail.close)
        else:
            self.vendor = stack.enter_context(serving(VENDORS[name](SystemClock()), tls))

    @property
    def settings(self):
        return self.mail.settings() if self.mail else self.vendor.settings()

    def notifier(self, timeout="5s", **changes):
        return NOTIFIERS[self.name].build({**self.settings, "timeout": timeout, **changes})

    def at_port(self, port):
        """A notifier whose server would listen at another port."""
        if self.mail:
            return self.notifier(timeout="300ms", port=port)
        self.vendor.url = f"http://127.0.0.1:{port}"
        return self.notifier(timeout="300ms")

    def fails_with(self, status, mail_answer, headers=None):
        if self.mail:
            self.mail.answer = mail_answer
        else:
            self.vendor.script = [Response(status, {"error": "no"}, headers=headers or {})] * 5

    @property
    def texts(self):
        """What people read."""
        if self.vendor:
            return self.vendor.texts
        return [
            f"{mail['Subject']} " + " ".join(part.get_content() for part in mail.walk() if not part.is_multipart())
            for mail in self.mail.parsed
        ]


@pytest.fixture(params=CHANNELS)
def channel(request):
    with ExitStack() as stack:
        yield Channel(request.param, stack)


def failure(notifier, message=None):
    with pytest.raises(DeliveryError) as caught:
        notifier.send(message or a_message())
    error = caught.value
    assert SECRET not in f"{error} {error.hint} {error.reason}"
    assert "127.0.0.1" not in str(error)
    assert "1380000" not in f"{error} {error.hint}"
    return error


def test_the_suite_covers_every_channel_type():
    assert set(CHANNELS) == set(NOTIFIERS)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_page_is_accepted_as_documented_and_names_fault_and_place(channel, language):
    message = a_message(language)
    receipt = channel.notifier().send(message)
    assert isinstance(receipt, Receipt)
    assert receipt.note is None
    assert not channel.vendor or channel.vendor.rejected == []
    assert message.facts[Fact.WHAT] in channel.texts[0]
    assert message.facts[Fact.WHERE].split()[-1] in channel.texts[0]


@pytest.mark.parametrize("reason", list(NotifyReason))
@pytest.mark.parametrize("buttons", [True, False])
def test_every_kind_of_message_is_accepted(channel, reason, buttons):
    message = a_message("en", reason=reason, is_page=False, incident=None)
    message = message if buttons else replace(message, buttons=(), link=None, facts={}, labels={}, priority=None)
    channel.notifier().send(message)
    assert not channel.vendor or channel.vendor.rejected == []


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda text: ascii(text[:12]))
def test_hostile_labels_are_accepted_and_inert(channel, hostile):
    fields = {
        "title": f"[P0] {hostile}",
        "body": f"Suspected cause: {hostile}\nSince: now",
        "facts": dict.fromkeys(Fact, hostile),
        "labels": {"entity": hostile, "fault": hostile, "services": hostile, "layer": hostile},
    }
    receipt = channel.notifier().send(a_message("en", **fields))
    assert receipt.note is None
    if channel.mail:
        (mail,) = channel.mail.parsed
        assert mail["Bcc"] is None
        assert "<script" not in mail.get_body(("html",)).get_content()
        assert "<img" not in mail.get_body(("html",)).get_content()
        return
    assert channel.vendor.rejected == []
    if channel.name in ("dingtalk", "wecom", "apprise"):  # the text of these is markup
        markup = channel.texts[0].replace("[Acknowledge](", "").replace("[Open in Outrider](", "")
        for active in ("](http://evil", "<script", "<img", "<at", "<@", "@all", "**bold**", "\n# heading", "`code`"):
            assert active not in markup
    if channel.name in ("slack", "slack_bot"):
        notification = channel.vendor.accepted[0]["text"]
        assert "<!" not in notification
        assert "<@" not in notification


def test_a_long_body_is_shortened_and_says_so(channel):
    lines = "\n".join(f'第 {n} 行 "证据" <{n}>' for n in range(20_000))
    channel.notifier().send(a_message(body=lines))
    assert not channel.vendor or channel.vendor.rejected == []
    if NOTIFIERS[channel.name].reach not in (Reach.PHONE, Reach.SMS) and channel.name != "webhook":
        assert "已截断" in channel.texts[0]
        assert "第 19999 行" not in channel.texts[0]


def test_a_server_error_is_retried(channel):
    channel.fails_with(503, "451 try later")
    assert failure(channel.notifier()).retryable


@pytest.mark.parametrize("name", [name for name in HTTP_CHANNELS if name != "apprise"])
@pytest.mark.parametrize(
    ("headers", "wait"), [({"Retry-After": "90"}, 90), ({"Retry-After": "9" * 40}, 3600), ({}, None)]
)
def test_a_requested_pause_is_reported(name, headers, wait):
    with ExitStack() as stack:
        channel = Channel(name, stack)
        channel.fails_with(503, "", headers)
        error = failure(channel.notifier())
    assert error.retryable
    assert error.retry_after == (None if wait is None else timedelta(seconds=wait))


@pytest.mark.parametrize("name", HTTP_CHANNELS)
def test_the_rate_limit_of_the_vendor_is_recognized(name):
    with ExitStack() as stack:
        channel = Channel(name, stack)
        channel.vendor.script = [channel.vendor.throttled] * 5
        error = failure(channel.notifier())
    assert error.retryable
    assert error.retry_after is not None or name == "apprise", "Apprise does not report why a service failed"


def test_a_rejected_message_is_not_retried(channel):
    channel.fails_with(404, "554 no")
    error = failure(channel.notifier())
    assert not error.retryable or channel.name == "apprise"


def test_a_refused_connection_is_retried(channel):
    assert failure(channel.at_port(free_port())).retryable


def test_a_server_without_a_response_times_out(channel):
    with socket.socket() as mute:  # accepts connections and never responds
        mute.bind(("127.0.0.1", 0))
        mute.listen(10)
        error = failure(channel.at_port(mute.getsockname()[1]))
    assert (error.retryable, error.reason) == (True, "timeout")


@pytest.mark.parametrize("name", [name for name in HTTP_CHANNELS if name not in KNOWN_BY_STATUS])
@pytest.mark.parametrize("body", [b"<html>login</html>", b"[]", b"null"])
def test_a_server_that_is_not_the_vendor_is_a_failure(name, body):
    with ExitStack() as stack:
        channel = Channel(name, stack)
        channel.vendor.script = [Response(200, raw=body)] * 5
        assert not failure(channel.notifier()).retryable


def test_the_same_message_again_is_recognizable(channel):
    """A retry after a lost response, if the channel supports it."""
    notifier = channel.notifier()
    notifier.send(a_message())
    notifier.send(a_message())
    keys = {"webhook": "id", "dingtalk": "msgUuid", "pagerduty": "dedup_key", "opsgenie": "alias"}
    if channel.name in keys:
        assert len({document[keys[channel.name]] for document in channel.vendor.accepted}) == 1
    if channel.mail:
        assert len({mail["Message-ID"] for mail in channel.mail.parsed}) == 1


@pytest.mark.parametrize("name", [name for name, kind in NOTIFIERS.items() if kind.reach is Reach.PHONE])
@pytest.mark.parametrize(
    ("fields", "calls"),
    [
        ({}, True),
        ({"priority": Priority.P1}, False),
        ({"reason": NotifyReason.REPEAT, "is_page": False}, True),
        ({"reason": NotifyReason.PRIORITY_RAISED, "is_page": False}, True),
        ({"reason": NotifyReason.RESOLVED, "is_page": False}, False),
        ({"reason": NotifyReason.STATUS, "is_page": False}, False),
        ({"reason": NotifyReason.APPROVAL_WANTED, "is_page": False}, False),
    ],
)
def test_only_pages_of_a_p0_call(name, fields, calls):
    with ExitStack() as stack:
        channel = Channel(name, stack)
        receipt = channel.notifier().send(a_message(**fields))
        assert len(channel.vendor.accepted) == (2 if calls else 0), "one call for each number"
    assert receipt.note is (None if calls else DeliveryNote.NOT_NEEDED)


@pytest.mark.parametrize("name", CHANNELS)
def test_settings_without_the_address_or_with_an_unknown_key_are_rejected(name):
    with ExitStack() as stack:
        settings = Channel(name, stack).settings
    for broken in ({}, {**settings, "urll": "x"}, {**settings, "timeout": "soon"}):
        with pytest.raises(ConfigError) as caught:
            NOTIFIERS[name].build(broken)
        assert name in str(caught.value)
        assert SECRET not in f"{caught.value} {caught.value.hint}"


@pytest.fixture(scope="module")
def certificate(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tls")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=IP:127.0.0.1", "-keyout", "key.pem", "-out", "cert.pem"]
    try:
        subprocess.run([*command, *names], cwd=folder, check=True, capture_output=True)
    except FileNotFoundError:
        pytest.skip("missing: openssl, which makes the certificate")
    return folder


@pytest.mark.parametrize("name", HTTP_CHANNELS)
def test_an_unknown_certificate_is_named_and_retried(name, certificate):
    """It may be renewed within the hours in which a message is retried."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    with ExitStack() as stack:
        channel = Channel(name, stack, context)
        if name == "apprise":
            channel.vendor.url = channel.vendor.url.replace("https://", "jsons://")
        error = failure(channel.notifier())
    assert error.retryable
    assert error.reason == "tls" or name == "apprise"
