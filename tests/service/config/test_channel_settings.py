"""Wrong settings of channels, links and secrets: each one is reported with its line and key, and none is ignored."""

from __future__ import annotations

import pytest

from alerts.notify.registry import NOTIFIERS
from service.config import settings

CHANNELS = {
    "slack": "url: https://hooks.slack.example/x",
    "webhook": "url: https://hook.example",
    "email": "host: mail.example, from: a@example.org, to: b@example.org",
    "twilio_sms": 'account_sid: AC0, auth_token: t, from: "+15005550006", to: "+8613800000001"',
    "aliyun_voice": 'access_key_id: k, access_key_secret: s, tts_code: TTS_1, to: "13800000001"',
    "dingtalk": "url: 'https://oapi.dingtalk.example/robot/send?access_token=t'",
    "alertmanager": "url: http://alertmanager:9093",
}


def reviewed(folder, text):
    file = folder / "o.yaml"
    file.write_text(text, encoding="utf-8")
    _, problems, warnings = settings.review(file)
    return [(p.line, p.key, p.message) for p in problems], [(p.line, p.key, p.message) for p in warnings]


def channel(kind, key):
    """A channel of this type with one key, in line 7, that replaces its usual value."""
    name = key.split(":")[0].strip()
    usual = [part for part in CHANNELS[kind].split(", ") if not part.startswith(f"{name}:")]
    lines = ["notify:", "  public_url: https://o.example", "  channels:", "    c:", f"      type: {kind}"]
    return "\n".join([*lines, f"      <<: {{{', '.join(usual)}}}", f"      {key}", ""])


@pytest.mark.parametrize(
    ("kind", "key", "message"),
    [
        (
            "twilio_sms",
            "to: +8613800000001",
            "to of the twilio_sms channel must be a list of texts; write it in quotes",
        ),
        ("twilio_sms", "to: [+8613800000001]", "must be a list of texts; write each in quotes"),
        ("twilio_sms", "from: +15005550006", 'must be text; write it in quotes, such as "+8613800000000"'),
        ("aliyun_voice", "show_number: 057100001111", "must be text; write it in quotes"),
        ("dingtalk", "at_mobiles: 13800000001", "must be a list of texts; write it in quotes"),
        ("email", "port: abc", "port of the email channel must be a number from 1 to 65535"),
        ("email", "port: 0", "must be a number from 1 to 65535"),
        ("email", "to: {a: b}", "must be a list of texts"),
        ("webhook", "headers: [a]", "headers of the webhook channel must be a map from name to text"),
        ("webhook", "headers: {X-A: 1}", "must be a map from name to text; write each in quotes"),
        ("webhook", "headers: {X-A: 值}", "in one line of ASCII characters"),
        ("webhook", 'headers: {X-A: "a\\r\\nHost: x"}', "in one line of ASCII characters"),
        ("webhook", 'headers: {"X A": b}', "a name has letters, digits and hyphens"),
        ("slack", "timeout: 0s", "timeout of the slack channel must be longer than zero"),
        ("alertmanager", "keep: 0s", "keep of the alertmanager channel must be longer than zero"),
        ("slack", 'url: "https://"', "url of the slack channel must be a URL that starts with https:// or http://"),
        ("slack", "url: https://a:port/x", "must be a URL"),
        ("slack", "url: [a]", "url of the slack channel must be text"),
    ],
)
def test_a_wrong_key_of_a_channel_is_reported_at_its_line(tmp_path, kind, key, message):
    ((line, name, found),), _ = reviewed(tmp_path, channel(kind, key))
    assert (line, name) == (7, f"notify.channels.c.{key.split(':')[0]}")
    assert message in found


@pytest.mark.parametrize("kind", CHANNELS)
@pytest.mark.parametrize("key", ["timeout", "type"])
def test_a_file_for_a_key_that_is_no_text_is_rejected(tmp_path, kind, key):
    ((_, _, message),), _ = reviewed(tmp_path, channel(kind, f"{key}_file: /tmp/x"))
    assert f"the {kind} channel has no setting '{key}_file'" in message


@pytest.mark.parametrize("key", ["headers", "port", "play_times", "template_parameters", "labels", "keep"])
def test_a_file_for_headers_or_numbers_is_rejected(key):
    for kind in NOTIFIERS.values():
        if key in kind.keys:
            with pytest.raises(settings.ConfigError, match=f"has no setting '{key}_file'"):
                kind.build({f"{key}_file": "/tmp/x"})


def test_people_to_mention_may_come_from_a_file(tmp_path):
    (tmp_path / "mobiles").write_text("13800000001\n\n13800000002\n", encoding="utf-8")
    values = {"url": "https://x.example", "at_mobiles_file": str(tmp_path / "mobiles")}
    assert NOTIFIERS["dingtalk"].build(values)._at_mobiles == ("13800000001", "13800000002")


def test_a_binary_secret_file_is_reported_at_its_line(tmp_path):
    (tmp_path / "url").write_bytes(b"\x80\xff")
    ((line, key, message),), _ = reviewed(tmp_path, channel("slack", f"url_file: {tmp_path / 'url'}"))
    assert (line, key) == (7, "notify.channels.c.url_file")
    assert "must be a file of UTF-8 text" in message


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("oncall: {escalation: {P0: {after: 0s}}}", "oncall.escalation.P0.after"),
        ("oncall: {status_every: 0s}", "oncall.status_every"),
        ("watchdogs: [{name: a, within: 0s}]", "watchdogs[0].within"),
        ("heartbeat: {every: 0s}", "heartbeat.every"),
        ("heartbeat: {timeout: 0s}", "heartbeat.timeout"),
        ("alertmanager: {timeout: 0s}", "alertmanager.timeout"),
        ("receive: {alerts: {expire_after: 0s}}", "receive.alerts.expire_after"),
    ],
)
def test_a_time_of_zero_is_rejected(tmp_path, text, key):
    ((_, found, message),), _ = reviewed(tmp_path, text)
    assert found == key
    assert "0" in message


@pytest.mark.parametrize("section", ["notify", "api"])
@pytest.mark.parametrize("url", ["outrider.example", "https://", "ftp://outrider.example"])
def test_a_public_url_that_nobody_can_open_is_rejected(tmp_path, section, url):
    ((line, key, message),), _ = reviewed(tmp_path, f'{section}:\n  public_url: "{url}"\n')
    assert (line, key) == (2, f"{section}.public_url")
    assert "expected a URL that starts with https:// or http:// and names a host" in message


@pytest.mark.parametrize(
    ("kind", "values", "warned"),
    [
        ("slack", "url: https://hooks.slack.example/x", True),
        ("email", "host: mail.example, from: a@b.c, to: d@e.f", True),
        ("pagerduty", "routing_key: k", True),
        ("webhook", 'url: "http://127.0.0.1:9000"', False),
        ("email", "host: localhost, from: a@b.c, to: d@e.f", False),
    ],
)
def test_links_of_this_host_in_messages_that_leave_it_are_a_warning(tmp_path, kind, values, warned):
    text = f"notify:\n  channels: {{c: {{type: {kind}, {values}}}}}\n"
    _, warnings = reviewed(tmp_path, text)
    assert ("notify.public_url" in [key for _, key, _ in warnings]) is warned


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("oncall:\n  buttons: {key_file: FILE}\n", "oncall.buttons.key_file"),
        ("receive:\n  alerts: {secret_files: {grafana: FILE}}\n", "receive.alerts.secret_files.grafana"),
        ("changes:\n  github_secret_file: FILE\n", "changes.github_secret_file"),
    ],
)
def test_a_secret_file_that_is_missing_or_binary_is_a_warning(tmp_path, text, key):
    file = tmp_path / "secret"
    ((line, found, message),) = reviewed(tmp_path, text.replace("FILE", str(file)))[1]
    assert (line, found) == (2, key)
    assert message == f"{file} cannot be read: No such file or directory"
    file.write_bytes(b"\x80\xff")
    assert reviewed(tmp_path, text.replace("FILE", str(file)))[1] == [(2, key, f"{file} is not UTF-8 text")]
    file.write_text("a key of some length", encoding="utf-8")
    assert reviewed(tmp_path, text.replace("FILE", str(file))) == ([], [])
