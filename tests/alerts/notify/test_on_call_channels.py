"""What is special about PagerDuty, Opsgenie, webhooks, e-mail, phones, Apprise and templates."""

from __future__ import annotations

import hashlib
import json
import ssl
import xml.etree.ElementTree as ET
from dataclasses import replace
from datetime import timedelta

import pytest
import trustme

from alerts.notify import email, phone
from alerts.notify.aliyun import api as aliyun_api
from alerts.notify.registry import NOTIFIERS
from alerts.notify.template import BodyTemplate, templated
from alerts.notify.tencent import api as tencent_api
from alerts.notify.text import short_text
from outrider.errors import ConfigError, DeliveryError
from outrider.model import DeliveryNote, Fact, NotifyReason, Priority, Receipt
from outrider.ports import ThreadingNotifier
from tests.support.json_server import Response
from tests.support.mail_server import MailEnd
from tests.support.messages import a_message
from tests.support.ports import free_port
from tests.support.vendors import chat, on_call, phones
from tests.support.vendors.server import SECRET, serving

INCIDENT = "inc-20260504T1200-3f2a"


def failure(notifier, message=None):
    with pytest.raises(DeliveryError) as caught:
        notifier.send(message or a_message())
    return caught.value


def notifier_of(vendor, **changes):
    return NOTIFIERS[vendor.channel_type].build({**vendor.settings(), **changes})


# --- PagerDuty and Opsgenie ----------------------------------------------------------------------------


def test_pagerduty_follows_an_incident_by_its_key():
    with serving(on_call.PagerDuty()) as vendor:
        service = notifier_of(vendor)
        assert service.send(a_message()).id == INCIDENT
        assert vendor.alerts == {INCIDENT: "triggered"}
        service.send(a_message(reason=NotifyReason.ACKNOWLEDGED))
        assert vendor.alerts == {INCIDENT: "acknowledged"}
        service.send(a_message(reason=NotifyReason.RESOLVED))
        assert vendor.alerts == {INCIDENT: "resolved"}


def test_pagerduty_is_not_sent_a_status_which_could_open_a_new_alert():
    with serving(on_call.PagerDuty()) as vendor:
        receipt = notifier_of(vendor).send(a_message(reason=NotifyReason.STATUS))
        assert vendor.requests == []
    assert receipt.note is DeliveryNote.NOT_NEEDED


def test_a_test_leaves_nothing_open():
    message = a_message(reason=NotifyReason.TEST, incident=None)
    with serving(on_call.PagerDuty()) as pagerduty, serving(on_call.Opsgenie()) as opsgenie:
        notifier_of(pagerduty).send(message)
        notifier_of(opsgenie).send(message)
        assert set(pagerduty.alerts.values()) == {"resolved"}
        assert set(opsgenie.alerts.values()) == {"closed"}


def test_a_key_that_is_too_long_is_hashed():
    message = a_message(incident="i" * 600)
    with serving(on_call.PagerDuty()) as vendor:
        service = notifier_of(vendor)
        service.send(message)
        service.send(replace(message, reason=NotifyReason.RESOLVED))
        assert list(vendor.alerts.values()) == ["resolved"]


def test_opsgenie_follows_an_incident_by_its_alias():
    with serving(on_call.Opsgenie()) as vendor:
        service = notifier_of(vendor, teams=["gpu"])
        service.send(a_message(priority=Priority.P1))
        assert vendor.accepted[0]["responders"] == [{"name": "gpu", "type": "team"}]
        service.send(a_message(priority=Priority.P0, reason=NotifyReason.PRIORITY_RAISED))
        assert vendor.priorities == {INCIDENT: "P1"}
        service.send(a_message(reason=NotifyReason.STATUS))
        service.send(a_message(reason=NotifyReason.ACKNOWLEDGED))
        assert vendor.alerts == {INCIDENT: "acknowledged"}
        service.send(a_message(reason=NotifyReason.RESOLVED))
        assert vendor.alerts == {INCIDENT: "closed"}
        assert vendor.rejected == []


# --- webhook --------------------------------------------------------------------------------------------


def test_webhook_returns_the_id_of_the_receiver_as_receipt():
    with serving(on_call.Webhook()) as vendor:
        assert notifier_of(vendor).send(a_message()) == Receipt("ticket-1")


def test_webhook_with_a_wrong_secret_is_rejected():
    with serving(on_call.Webhook()) as vendor:
        assert not failure(notifier_of(vendor, secret="other")).retryable


def test_webhook_without_a_secret_sends_no_signature():
    with serving(on_call.Webhook()) as vendor:
        vendor.script = [Response(200)]
        notifier_of(vendor, secret="", headers={"X-Team": "gpu"}).send(a_message())
        headers = vendor.requests[0].headers
    assert "x-outrider-signature" not in headers
    assert headers["x-team"] == "gpu"


# --- phones ---------------------------------------------------------------------------------------------


def test_the_aliyun_signature_is_that_of_the_documented_example():
    account = aliyun_api.Account("YourAccessKeyId", "YourAccessKeySecret", "https://ecs.cn-shanghai.aliyuncs.com")
    empty = hashlib.sha256(b"").hexdigest()
    image = "win2019_1809_x64_dtc_zh-cn_40G_alibase_20230811.vhd"
    query = aliyun_api.canonical_query({"RegionId": "cn-shanghai", "ImageId": image})
    headers = {
        "host": "ecs.cn-shanghai.aliyuncs.com",
        "x-acs-action": "RunInstances",
        "x-acs-content-sha256": empty,
        "x-acs-date": "2023-10-26T10:22:32Z",
        "x-acs-signature-nonce": "3156853299f313e23d1673dc12e1703d",
        "x-acs-version": "2014-05-26",
    }
    authorization = aliyun_api.authorization_of(account, "POST", query, headers, empty)
    assert authorization.endswith("Signature=06563a9e1b43f5dfe96b81484da74bceab24a1d853912eee15083a6f0f3283c0")


def test_the_tencent_signature_is_that_of_the_documented_example():
    account = tencent_api.Account(
        "AKIDz8krbsJ5yKBZQpn74WFkmLPx3EXAMPLE", "Gu5t9xGARNpq86cd98joQYCN3EXAMPLE",
        "https://cvm.tencentcloudapi.com", "cvm", "2017-03-12", "ap-guangzhou",
    )  # fmt: skip
    body = rb'{"Limit": 1, "Filters": [{"Values": ["\u672a\u547d\u540d"], "Name": "instance-name"}]}'
    signed = {"content-type": "application/json; charset=utf-8", "host": "cvm.tencentcloudapi.com"}
    authorization = tencent_api.authorization_of(account, body, signed, 1551113065)
    assert authorization.endswith("Signature=72e494ea809ad7a8c8f7a4507b9bddcbaa8e581f516e8da2f66e2c5a96525168")


def test_template_parameters_are_named_by_the_operator():
    names = {"level": "priority", "msg": "text"}
    with serving(phones.AliyunSms()) as vendor:
        notifier_of(vendor, template_parameters=names).send(a_message("en"))
        values = json.loads(vendor.accepted[0]["TemplateParam"])
    assert values == {"level": "P0", "msg": "P0: Engine hung on replica chat-0.…"[:34] + "…"}
    with serving(phones.TencentSms()) as vendor:
        notifier_of(vendor, template_parameters=["incident", "alerts"], parameter_limit=12).send(a_message("en"))
        assert vendor.accepted[0]["TemplateParamSet"] == ["inc-2026050…", "3"]
    with pytest.raises(ConfigError, match="no value 'nothing'"):
        NOTIFIERS["tencent_sms"].build({**vendor.settings(), "template_parameters": ["nothing"]})


@pytest.mark.parametrize(
    ("kind", "code", "retryable"),
    [
        (phones.AliyunSms, "isv.BUSINESS_LIMIT_CONTROL", True),
        (phones.AliyunSms, "isv.AMOUNT_NOT_ENOUGH", False),
        (phones.AliyunSms, "isp.SYSTEM_ERROR", True),
        (phones.AliyunSms, "isp.GATEWAY_ERROR", True),
        (phones.AliyunSms, "isp.RAM_PERMISSION_DENY", False),
        (phones.AliyunVoice, "isp.RES_OWNER_ID_UNKNOWN", False),
        (phones.AliyunVoice, "isv.TTS_TEMPLATE_ILLEGAL", False),
        (phones.AliyunVoice, "Throttling.User", True),
        (phones.TencentSms, "FailedOperation.TemplateIncorrectOrUnapproved", False),
        (phones.TencentSms, "LimitExceeded.PhoneNumberThirtySecondLimit", True),
        (phones.TencentVoice, "InternalError.Timeout", True),
    ],
)
def test_codes_of_the_clouds(kind, code, retryable):
    with serving(kind()) as vendor:
        vendor.script = [kind.error(code)] * 2
        error = failure(notifier_of(vendor))
    assert (error.retryable, error.reason) == (retryable, code)


def test_one_of_two_numbers_is_enough():
    with serving(phones.TencentSms()) as vendor:
        vendor.statuses = {phones.E164[0]: "FailedOperation.PhoneNumberInBlacklist"}
        receipt = notifier_of(vendor).send(a_message())
        assert (receipt.id, receipt.unreached) == ("5000:1", ()), "a number on the blacklist stays there"
        vendor.statuses = {phones.E164[0]: "LimitExceeded.PhoneNumberThirtySecondLimit"}
        assert notifier_of(vendor).send(a_message()).unreached == (phones.E164[0],)
        vendor.statuses[phones.E164[1]] = "LimitExceeded.PhoneNumberDailyLimit"
        assert failure(notifier_of(vendor)).retryable
    with serving(phones.TwilioVoice()) as vendor:
        vendor.script = [phones.Twilio.error(21211)]
        assert notifier_of(vendor).send(a_message()).id.startswith("SM")


@pytest.mark.parametrize("number", ["13800000001", "+86 138", "tel:+861380", "", "+123"])
def test_a_number_that_is_not_international_is_rejected(number):
    settings = {"account_sid": "AC0", "auth_token": "t", "from": "+15005550006", "to": number}
    with pytest.raises(ConfigError, match="twilio_sms"):
        NOTIFIERS["twilio_sms"].build(settings)


def test_a_call_reads_a_hostile_name_as_text():
    hostile = 'chat</Say><Dial>+1900</Dial><Say>&"'
    message = a_message("en", facts={Fact.WHAT: "Engine hung", Fact.WHERE: hostile})
    with serving(phones.TwilioVoice()) as vendor:
        notifier_of(vendor).send(message)
        root = ET.fromstring(vendor.accepted[0]["Twiml"])
    assert [child.tag for child in root] == ["Say"]
    assert hostile in root[0].text


def test_the_short_text_names_fault_place_impact_and_start():
    assert short_text(a_message("en"), 500) == (
        "P0: Engine hung on replica chat-0. Affected: chat; SLO at risk. Since 2026-05-04 12:00 UTC. "
        "Please acknowledge."
    )
    assert short_text(a_message("en", reason=NotifyReason.RESOLVED), 500).startswith("Resolved: Engine hung")
    assert short_text(a_message("en", facts={}, title="[P1] Remediation stopped"), 500) == "[P1] Remediation stopped"
    assert len(short_text(a_message("zh"), 20)) == 20


def test_the_end_of_a_name_is_kept_where_it_must_be_shortened():
    message = a_message("en", facts={Fact.WHERE: "replica llm-chat-70b-prod-eu-17"})
    assert phone.template_value(message, "where", 12) == "…-prod-eu-17"


# --- e-mail -----------------------------------------------------------------------------------------------


@pytest.fixture
def mail_end():
    end = MailEnd()
    yield end
    end.close()


def test_email_is_threaded_by_incident_and_has_an_html_part(mail_end):
    notifier = NOTIFIERS["email"].build(mail_end.settings(to="a@example.com"))
    receipt = notifier.send(a_message())
    notifier.send(a_message(id="other", reason=NotifyReason.RESOLVED))
    first, second = mail_end.parsed
    assert first["Message-ID"] == receipt.id
    assert first["References"] == second["References"]
    assert first["Message-ID"] != second["Message-ID"]
    assert [part.get_content_type() for part in first.iter_parts()] == ["text/plain", "text/html"]
    assert ">确认</a>" in first.get_body(("html",)).get_content()
    assert "确认: https://outrider.example/buttons/acknowledge?token=" in first.get_body(("plain",)).get_content()


def test_a_title_with_line_breaks_cannot_forge_a_header(mail_end):
    NOTIFIERS["email"].build(mail_end.settings()).send(a_message(title="broken\r\nBcc: thief@example.com"))
    (mail,) = mail_end.parsed
    assert mail["Bcc"] is None
    assert mail["Subject"] == "broken Bcc: thief@example.com"


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
    server = email.Server("127.0.0.1", mail_end.port, "starttls", username="o", password=SECRET)
    error = failure(email.EmailNotifier(server, "o@example.com", ("a@example.com",)))
    assert (error.retryable, error.reason) == (False, "not_supported")
    assert mail_end.mails == []


def test_a_wrong_password_is_final_and_not_quoted():
    def nobody(*_args):
        from aiosmtpd.smtp import AuthResult

        return AuthResult(success=False, handled=False)

    end = MailEnd(smtp={"authenticator": nobody, "auth_require_tls": False})
    try:
        server = email.Server("127.0.0.1", end.port, "plain", username="o", password=SECRET)
        error = failure(email.EmailNotifier(server, "o@example.com", ("a@example.com",)))
    finally:
        end.close()
    assert (error.retryable, error.reason) == (False, "smtp_535")
    assert SECRET not in str(error)


@pytest.fixture(scope="module")
def authority():
    return trustme.CA()


def test_email_over_starttls_trusts_only_known_certificates(authority):
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    known = ssl.create_default_context()
    authority.configure_trust(known)
    end = MailEnd(smtp={"tls_context": context, "require_starttls": True})
    try:
        server = email.Server("127.0.0.1", end.port, "starttls", certificates=known)
        email.EmailNotifier(server, "o@example.com", ("a@example.com",)).send(a_message())
        stranger = email.Server("127.0.0.1", end.port, "starttls")
        error = failure(email.EmailNotifier(stranger, "o@example.com", ("a@example.com",)))
    finally:
        end.close()
    assert len(end.mails) == 1
    assert (error.retryable, error.reason) == (True, "tls"), "it may be renewed while the message is retried"


def test_secrets_may_come_from_files(tmp_path):
    with serving(chat.SlackWebhook()) as vendor:
        (tmp_path / "url").write_text(vendor.settings()["url"] + "\n", encoding="utf-8")
        NOTIFIERS["slack"].build({"url_file": str(tmp_path / "url")}).send(a_message())
        assert len(vendor.accepted) == 1
    with pytest.raises(ConfigError):
        NOTIFIERS["slack"].build({"url_file": str(tmp_path / "missing")})


def test_httpx_writes_no_address_to_the_log(caplog):
    with serving(chat.SlackWebhook()) as vendor, caplog.at_level("INFO"):
        notifier_of(vendor).send(a_message())
    assert SECRET not in caplog.text


# --- Apprise -------------------------------------------------------------------------------------------------


def test_apprise_delivers_if_one_service_accepts(caplog):
    with serving(on_call.AppriseService()) as vendor:
        dead = f"json://127.0.0.1:{free_port()}/{SECRET}"
        receipt = notifier_of(vendor, urls=[dead, *vendor.settings()["urls"]]).send(a_message())
    assert receipt.id == "1 of 2"
    assert vendor.accepted[0]["type"] == "failure"


def test_apprise_names_the_url_that_it_does_not_know_by_its_number(tmp_path):
    (tmp_path / "urls").write_text(f"json://127.0.0.1/{SECRET}\nnosuch://{SECRET}\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="URL 2") as caught:
        NOTIFIERS["apprise"].build({"urls_file": str(tmp_path / "urls")})
    assert SECRET not in str(caught.value)


# --- templates --------------------------------------------------------------------------------------------------


def test_a_template_replaces_the_body():
    with serving(chat.Feishu()) as vendor:
        template = BodyTemplate("im", "{{ priority }} {{ facts.what }} ({{ labels.layer }})\n{{ link }}")
        receipt = templated(notifier_of(vendor), template).send(a_message("en"))
        (text,) = vendor.texts
    assert text.splitlines()[1] == "P0 Engine hung (engine)"
    assert receipt.note is None


@pytest.mark.parametrize(
    "source", ["{{ nothing }}", "{{ 1 // 0 }}", "{{ title.x.y }}", "{{ ''.__class__.__mro__[1] }}"]
)
def test_a_template_that_fails_sends_the_usual_text_and_says_so(source):
    with serving(chat.Feishu()) as vendor:
        receipt = templated(notifier_of(vendor), BodyTemplate("im", source)).send(a_message("en"))
        (text,) = vendor.texts
    assert receipt.note is DeliveryNote.TEMPLATE_FAILED
    assert "The template of this channel has an error" in text
    assert "Suspected cause: Engine hung" in text


def test_a_template_with_a_syntax_error_is_rejected_with_its_line():
    with pytest.raises(ConfigError, match="syntax error in line 2"):
        BodyTemplate("im", "a\n{% if %}")


def test_a_template_keeps_the_threads_of_a_notifier():
    with serving(chat.SlackBot()) as vendor:
        bot = templated(notifier_of(vendor), BodyTemplate("im", "{{ reason }}"))
        assert isinstance(bot, ThreadingNotifier)
        first = bot.send(a_message())
        bot.follow_up(a_message(reason=NotifyReason.RESOLVED), first)
        assert len(vendor.threads) == 1
    with serving(chat.Teams()) as vendor:
        assert not isinstance(templated(notifier_of(vendor), BodyTemplate("im", "x")), ThreadingNotifier)


def test_a_pause_of_a_vendor_is_bounded():
    with serving(on_call.Opsgenie()) as vendor:
        vendor.script = [Response(429, headers={"Retry-After": "Wed, 21 Oct 2099 07:28:00 GMT"})]
        assert failure(notifier_of(vendor)).retry_after == timedelta(hours=1)
