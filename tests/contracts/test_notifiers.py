"""One suite for every sender, against small real servers on loopback."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
import http.server
import json
import socket
import ssl
import subprocess
import threading
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from email import message_from_bytes, policy
from urllib.parse import parse_qs, quote, urlsplit

import pytest
from aiosmtpd.controller import Controller
from aiosmtpd.smtp import SMTP

from alerts.notify import dingtalk, email, webhook
from alerts.notify.registry import NOTIFIERS
from outrider.clock import ManualClock
from outrider.errors import ConfigError, DeliveryError
from outrider.model import Message, NotifyReason, Priority
from tests.support.ports import free_port

NOW = datetime(2026, 5, 4, 12, 0, tzinfo=UTC)
TOKEN = "s3cr3t-token"  # part of every address and password: it must never be logged
HTTP_CHANNELS = ("webhook", "slack", "dingtalk")
CHANNELS = (*HTTP_CHANNELS, "email")


def a_message(**fields):
    made = {
        "id": "inc-1:opened:P1:im:0",
        "channel": "im",
        "reason": NotifyReason.OPENED,
        "priority": Priority.P1,
        "incident": "inc-1",
        "title": "[P1] 引擎卡死：副本 chat-0",
        "body": "疑似根因：副本 chat-0 发生 引擎卡死 <置信度 90 %>\n- running 6 & waiting 0",
        "created_at": NOW,
        "language": "zh",
        "link": "https://outrider.example/incident?incident=inc-1",
        "is_page": True,
        "labels": {"fault": "engine-hung"},
    }
    return Message(**{**made, **fields})


@pytest.fixture(autouse=True)
def no_proxy(monkeypatch):
    for name in ("http_proxy", "https_proxy", "all_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


class HttpEnd:
    """A web server with scripted responses that records requests."""

    def __init__(self) -> None:
        self.status, self.body, self.stall = 200, b'{"errcode":0,"errmsg":"ok"}', threading.Event()
        self.stalls = False
        self.requests = []
        end = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                end.requests.append((self.path, dict(self.headers), body))
                if end.stalls:
                    end.stall.wait(10)
                self.send_response(end.status)
                if end.status == 302:
                    self.send_header("Location", "/elsewhere")
                self.send_header("Content-Length", str(len(end.body)))
                self.end_headers()
                with contextlib.suppress(OSError):
                    self.wfile.write(end.body)

            def log_message(self, *_):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.thread = threading.Thread(target=self.server.serve_forever, kwargs={"poll_interval": 0.01})
        self.thread.start()

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server.server_address[1]}/robot?access_token={TOKEN}"

    def close(self):
        self.stall.set()
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


class MailEnd:
    """A mail server with scripted responses that records messages."""

    def __init__(self, **options) -> None:
        self.answer, self.refuse_receivers, self.mails = "250 OK", {}, []
        self.controller = _Mail(self, hostname="127.0.0.1", port=free_port(), **options)
        self.controller.start()
        self.port = self.controller.port

    async def handle_RCPT(self, server, session, envelope, address, options):  # noqa: N802 - aiosmtpd calls this name
        if address in self.refuse_receivers:
            return self.refuse_receivers[address]
        envelope.rcpt_tos.append(address)
        return "250 OK"

    async def handle_DATA(self, server, session, envelope):  # noqa: N802 - aiosmtpd calls this name
        if self.answer.startswith("250"):
            self.mails.append(envelope.content)
        return self.answer

    def close(self):
        self.controller.stop()


class _Mail(Controller):
    def __init__(self, handler, **options) -> None:
        self._options = options.pop("smtp", {})
        super().__init__(handler, **options)

    def factory(self):
        return SMTP(self.handler, **self._options)


@pytest.fixture
def http_end():
    end = HttpEnd()
    yield end
    end.close()


@pytest.fixture
def mail_end():
    end = MailEnd()
    yield end
    end.close()


@pytest.fixture(params=CHANNELS)
def channel(request, http_end, mail_end):
    """A notifier of each kind with its server, and ways to make that server fail."""
    return Channel(request.param, http_end, mail_end)


class Channel:
    def __init__(self, name, http_end, mail_end) -> None:
        self.name, self.http, self.mail = name, http_end, mail_end

    def notifier(self, *, dead=False, timeout="5s"):
        if self.name == "email":
            port = free_port() if dead else self.mail.port
            settings = {
                "host": "127.0.0.1",
                "port": port,
                "security": "plain",
                "from": "outrider@example.com",
                "to": ["oncall@example.com"],
            }
        else:
            url = f"http://127.0.0.1:{free_port()}/x?access_token={TOKEN}" if dead else self.http.url
            settings = {"url": url} | ({"secret": f"SEC{TOKEN}"} if self.name != "slack" else {})
        return NOTIFIERS[self.name]({**settings, "timeout": timeout})

    def answers(self, http_status, mail_answer):
        self.http.status, self.mail.answer = http_status, mail_answer

    @property
    def delivered(self):
        """The delivered content as one decoded text."""
        if self.name != "email":
            return [json.dumps(json.loads(body), ensure_ascii=False) for _, _, body in self.http.requests]
        mails = [message_from_bytes(content, policy=policy.default) for content in self.mail.mails]
        return [
            f"{mail['Subject']} " + " ".join(part.get_content() for part in mail.walk() if not part.is_multipart())
            for mail in mails
        ]


def failure(notifier, message=None):
    with pytest.raises(DeliveryError) as caught:
        notifier.send(message or a_message())
    error = caught.value
    assert TOKEN not in f"{error} {error.hint} {error.reason}"
    assert "127.0.0.1" not in str(error)
    return error


def test_chinese_text_is_delivered_unchanged(channel):
    channel.notifier().send(a_message())
    (text,) = channel.delivered
    assert "引擎卡死：副本 chat-0" in text
    assert "疑似根因" in text


def test_a_server_error_is_retried(channel):
    channel.answers(503, "451 try later")
    assert failure(channel.notifier()).retryable


def test_a_rejected_message_is_not_retried(channel):
    channel.answers(400, "554 no")
    error = failure(channel.notifier())
    assert not error.retryable
    assert error.reason in ("http_400", "smtp_554")


def test_a_refused_connection_is_retried(channel):
    error = failure(channel.notifier(dead=True))
    assert (error.retryable, error.reason) == (True, "refused")


def test_a_server_without_a_response_times_out(channel):
    with socket.socket() as mute:  # accepts connections and never responds
        mute.bind(("127.0.0.1", 0))
        mute.listen()
        port = mute.getsockname()[1]
        if channel.name == "email":
            settings = {"host": "127.0.0.1", "port": port, "security": "plain", "from": "a@b.c", "to": "d@e.f"}
        else:
            settings = {"url": f"http://127.0.0.1:{port}/?t={TOKEN}"}
        error = failure(NOTIFIERS[channel.name]({**settings, "timeout": "200ms"}))
    assert (error.retryable, error.reason) == (True, "timeout")
    assert "0.2 s" in str(error)


def test_a_long_body_is_truncated_only_if_the_channel_has_a_limit(channel):
    lines = "\n".join(f'第 {n} 行 "证据" <{n}>' for n in range(5000))
    channel.notifier().send(a_message(body=lines))
    (text,) = channel.delivered
    cut = channel.name in ("slack", "dingtalk")
    assert ("第 4999 行" in text) is not cut
    assert ("已截断" in text) is cut
    if channel.name == "dingtalk":
        assert len(channel.http.requests[0][2]) <= 20_000
    if channel.name == "slack":
        section = json.loads(channel.http.requests[0][2])["attachments"][0]["blocks"][1]
        assert len(section["text"]["text"]) <= 3000


def test_a_title_with_line_breaks_cannot_forge_a_header(channel):
    channel.notifier().send(a_message(title="broken\r\nBcc: thief@example.com"))
    if channel.name == "email":
        mail = message_from_bytes(channel.mail.mails[0], policy=policy.default)
        assert mail["Bcc"] is None
        assert mail["Subject"] == "broken Bcc: thief@example.com"
    else:
        assert len(channel.delivered) == 1


def test_the_same_message_again_is_the_same_delivery(channel):
    """A retry after a lost response is recognizable by the receiver if the channel supports it."""
    notifier = channel.notifier()
    notifier.send(a_message())
    notifier.send(a_message())
    if channel.name == "webhook":
        assert len({headers["Idempotency-Key"] for _, headers, _ in channel.http.requests}) == 1
    if channel.name == "email":
        assert len({message_from_bytes(mail)["Message-ID"] for mail in channel.mail.mails}) == 1


@pytest.mark.parametrize("name", CHANNELS)
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"url": "ftp://x", "host": "h", "from": "a"},
        {"urll": "x", "hots": "h"},
        {"url": "http://h", "host": "h", "from": "a", "to": "b", "timeout": "soon"},
    ],
)
def test_invalid_settings_are_rejected_with_the_key(name, settings):
    known = {"email": {"host", "from", "to", "timeout", "hots"}}.get(name, {"url", "timeout", "urll"})
    accepted = {key: value for key, value in settings.items() if key in known}
    with pytest.raises(ConfigError) as caught:
        NOTIFIERS[name](accepted)
    assert name in str(caught.value)


# --- specifics of each channel ----------------------------------------------------------------------


def test_secrets_may_come_from_files(tmp_path, http_end):
    (tmp_path / "url").write_text(http_end.url + "\n", encoding="utf-8")
    NOTIFIERS["slack"]({"url_file": str(tmp_path / "url")}).send(a_message())
    assert len(http_end.requests) == 1
    with pytest.raises(ConfigError):
        NOTIFIERS["slack"]({"url_file": str(tmp_path / "missing")})


@pytest.mark.parametrize("name", HTTP_CHANNELS)
@pytest.mark.parametrize(("status", "retryable"), [(408, True), (429, True), (500, True), (302, False), (404, False)])
def test_retryable_statuses(name, status, retryable, http_end):
    http_end.status = status
    error = failure(NOTIFIERS[name]({"url": http_end.url}))
    assert (error.retryable, error.reason) == (retryable, f"http_{status}")


def test_httpx_writes_no_address_to_the_log(http_end, caplog):
    with caplog.at_level("INFO"):
        NOTIFIERS["slack"]({"url": http_end.url}).send(a_message())
    assert TOKEN not in caplog.text


def test_webhook_signature_and_payload(http_end):
    webhook.WebhookNotifier(http_end.url, secret="k", clock=ManualClock(NOW)).send(a_message())
    _, headers, body = http_end.requests[0]
    stamp = str(int(NOW.timestamp()))
    expected = hmac.new(b"k", f"{stamp}.".encode() + body, hashlib.sha256).hexdigest()
    assert headers["X-Outrider-Signature"] == f"sha256={expected}"
    assert headers["X-Outrider-Timestamp"] == stamp
    assert headers["Idempotency-Key"] == "inc-1:opened:P1:im:0"
    payload = json.loads(body)
    assert (payload["priority"], payload["incident"], payload["page"], payload["reason"]) == (
        "P1",
        "inc-1",
        True,
        "opened",
    )
    assert payload["created_at"] == "2026-05-04T12:00:00Z"


def test_webhook_without_a_secret_sends_no_signature(http_end):
    NOTIFIERS["webhook"]({"url": http_end.url, "headers": {"X-Team": "gpu"}}).send(a_message())
    headers = http_end.requests[0][1]
    assert "X-Outrider-Signature" not in headers
    assert headers["X-Team"] == "gpu"


def test_slack_escapes_text_and_sets_the_color(http_end):
    NOTIFIERS["slack"]({"url": http_end.url}).send(a_message(reason=NotifyReason.RESOLVED))
    payload = json.loads(http_end.requests[0][2])
    assert payload["attachments"][0]["color"] == "#15803d"
    assert "&lt;置信度" in payload["attachments"][0]["blocks"][1]["text"]["text"]
    assert payload["attachments"][0]["blocks"][2]["elements"][0]["url"].endswith("inc-1")


def test_dingtalk_signature_as_documented(http_end):
    secret = "SECabc"
    dingtalk.DingTalkNotifier(http_end.url, secret=secret, clock=ManualClock(NOW)).send(a_message())
    query = urlsplit(http_end.requests[0][0]).query
    stamp = int(NOW.timestamp() * 1000)
    digest = hmac.new(secret.encode(), f"{stamp}\n{secret}".encode(), hashlib.sha256).digest()
    assert f"sign={quote(base64.b64encode(digest).decode(), safe='')}" in query
    assert parse_qs(query)["timestamp"] == [str(stamp)]
    assert parse_qs(query)["access_token"] == [TOKEN]


@pytest.mark.parametrize(("code", "retryable"), [(310000, False), (130101, True), (-1, True), (300001, False)])
def test_dingtalk_rejects_with_a_200(http_end, code, retryable):
    http_end.body = json.dumps({"errcode": code, "errmsg": "no"}).encode()
    error = failure(NOTIFIERS["dingtalk"]({"url": http_end.url}))
    assert (error.retryable, error.reason) == (retryable, f"errcode_{code}")


@pytest.mark.parametrize("body", [b"<html>login</html>", b"[]", b"{}"])
def test_a_response_that_is_not_from_dingtalk_is_a_failure(http_end, body):
    http_end.body = body
    assert not failure(NOTIFIERS["dingtalk"]({"url": http_end.url})).retryable


def test_dingtalk_sends_at_most_twenty_messages_a_minute(http_end):
    clock = ManualClock(NOW)
    robot = dingtalk.DingTalkNotifier(http_end.url, clock=clock)
    for _ in range(20):
        robot.send(a_message())
    error = failure(robot)
    assert (error.retryable, error.reason, len(http_end.requests)) == (True, "rate_limited", 20)
    clock.advance(timedelta(seconds=61))
    robot.send(a_message())


def test_dingtalk_calls_phones_on_a_page_only(http_end):
    robot = NOTIFIERS["dingtalk"]({"url": http_end.url, "at_mobiles": ["13800000000"]})
    robot.send(a_message())
    robot.send(a_message(is_page=False))
    called = [json.loads(body)["at"]["atMobiles"] for _, _, body in http_end.requests]
    assert called == [["13800000000"], []]


def test_email_is_threaded_by_incident_and_has_an_html_part(mail_end):
    notifier = NOTIFIERS["email"](
        {
            "host": "127.0.0.1",
            "port": mail_end.port,
            "security": "plain",
            "from": "o@example.com",
            "to": "a@example.com",
        }
    )
    notifier.send(a_message())
    notifier.send(replace(a_message(), id="other", reason=NotifyReason.RESOLVED))
    first, second = (message_from_bytes(mail, policy=policy.default) for mail in mail_end.mails)
    assert first["References"] == second["References"]
    assert first["Message-ID"] != second["Message-ID"]
    assert [part.get_content_type() for part in first.iter_parts()] == ["text/plain", "text/html"]
    assert "&lt;置信度 90 %&gt;" in first.get_body(("html",)).get_content()


@pytest.mark.parametrize(
    ("refused", "fails", "retryable"),
    [
        ({"a@example.com": "550 unknown"}, False, None),
        ({"a@example.com": "550 unknown", "b@example.com": "550 unknown"}, True, False),
        ({"a@example.com": "550 unknown", "b@example.com": "450 busy"}, True, True),
    ],
)
def test_email_to_several_people(mail_end, refused, fails, retryable):
    mail_end.refuse_receivers = refused
    server = email.Server("127.0.0.1", mail_end.port, "plain")
    notifier = email.EmailNotifier(server, "o@example.com", ("a@example.com", "b@example.com"))
    if fails:
        assert failure(notifier).retryable is retryable
    else:
        notifier.send(a_message())
        assert len(mail_end.mails) == 1


def test_email_is_not_sent_unencrypted_by_default(mail_end):
    server = email.Server("127.0.0.1", mail_end.port, "starttls", username="o", password=TOKEN)
    error = failure(email.EmailNotifier(server, "o@example.com", ("a@example.com",)))
    assert (error.retryable, error.reason) == (False, "not_supported")
    assert mail_end.mails == []


def test_a_wrong_password_is_final_and_not_quoted():
    def nobody(*_args):
        from aiosmtpd.smtp import AuthResult

        return AuthResult(success=False, handled=False)

    end = MailEnd(smtp={"authenticator": nobody, "auth_require_tls": False})
    try:
        server = email.Server("127.0.0.1", end.port, "plain", username="o", password=TOKEN)
        error = failure(email.EmailNotifier(server, "o@example.com", ("a@example.com",)))
    finally:
        end.close()
    assert (error.retryable, error.reason) == (False, "smtp_535")


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


def test_email_over_starttls_trusts_only_known_certificates(certificate):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(certificate / "cert.pem", certificate / "key.pem")
    end = MailEnd(smtp={"tls_context": context, "require_starttls": True})
    known = ssl.create_default_context(cafile=str(certificate / "cert.pem"))
    try:
        server = email.Server("127.0.0.1", end.port, "starttls", certificates=known)
        email.EmailNotifier(server, "o@example.com", ("a@example.com",)).send(a_message())
        stranger = email.Server("127.0.0.1", end.port, "starttls")
        error = failure(email.EmailNotifier(stranger, "o@example.com", ("a@example.com",)))
    finally:
        end.close()
    assert len(end.mails) == 1
    assert (error.retryable, error.reason) == (False, "tls")
