"""What is special about DingTalk, Feishu, WeCom, Slack and Teams."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
from dataclasses import replace
from datetime import timedelta
from urllib.parse import parse_qs, quote, urlsplit

import pytest

from alerts.notify import dingtalk, feishu
from alerts.notify.registry import NOTIFIERS
from outrider.clock import ManualClock
from outrider.errors import ConfigError, DeliveryError
from outrider.model import DeliveryNote, NotifyReason, Priority, Receipt, Recipient
from tests.support.json_server import Response
from tests.support.messages import NOW, a_message
from tests.support.vendors import chat
from tests.support.vendors.server import SECRET, serving

INVALID_BLOCKS = {"ok": False, "error": "invalid_blocks"}


def failure(notifier, message=None):
    with pytest.raises(DeliveryError) as caught:
        notifier.send(message or a_message())
    return caught.value


def notifier_of(vendor, **changes):
    return NOTIFIERS[vendor.channel_type].build({**vendor.settings(), **changes})


# --- DingTalk -----------------------------------------------------------------------------------------


def test_dingtalk_signature_as_documented():
    with serving(chat.DingTalk(ManualClock(NOW))) as vendor:
        url, secret = vendor.settings()["url"], vendor.settings()["secret"]
        dingtalk.DingTalkNotifier(url, secret=secret, clock=ManualClock(NOW)).send(a_message())
    query = urlsplit(vendor.requests[0].path).query
    stamp = int(NOW.timestamp() * 1000)
    digest = hmac.new(secret.encode(), f"{stamp}\n{secret}".encode(), hashlib.sha256).digest()
    assert f"sign={quote(base64.b64encode(digest).decode(), safe='')}" in query
    assert parse_qs(query)["timestamp"] == [str(stamp)]


def test_dingtalk_rejects_a_clock_that_is_an_hour_off_as_final():
    with serving(chat.DingTalk(ManualClock(NOW))) as vendor:
        settings, late = vendor.settings(), ManualClock(NOW + timedelta(hours=2))
        error = failure(dingtalk.DingTalkNotifier(settings["url"], secret=settings["secret"], clock=late))
    assert (error.retryable, error.reason) == (False, "errcode_310000")


@pytest.mark.parametrize(
    ("code", "retryable", "wait"),
    [(310000, False, None), (300001, False, None), (-1, True, None), (130101, True, 600), (410100, True, 600)],
)
def test_dingtalk_rejects_with_a_200(code, retryable, wait):
    with serving(chat.DingTalk()) as vendor:
        vendor.script = [Response(200, {"errcode": code, "errmsg": "no"})]
        error = failure(notifier_of(vendor))
    assert (error.retryable, error.reason) == (retryable, f"errcode_{code}")
    assert error.retry_after == (None if wait is None else timedelta(seconds=wait))


def test_dingtalk_mentions_phones_on_a_page_only_with_links_in_place_of_buttons():
    with serving(chat.DingTalk()) as vendor:
        robot = notifier_of(vendor, at_mobiles=["13800000000"])
        robot.send(a_message())
        robot.send(a_message(is_page=False))
        page, other = vendor.accepted
    assert page["msgtype"] == "markdown"
    assert page["at"]["atMobiles"] == ["13800000000"]
    assert page["markdown"]["text"].endswith("@13800000000")
    assert "[确认](https://outrider.example/buttons/acknowledge?token=" in page["markdown"]["text"]
    assert other["msgtype"] == "actionCard"


@pytest.mark.parametrize("plain", [False, True])
def test_dingtalk_mentions_user_ids_as_such_and_numbers_as_mobiles(plain):
    people = (
        Recipient("li", mentions=("13800000001", "manager4220")),
        Recipient("wang", mentions=("+86-13900000002",)),
    )
    with serving(chat.DingTalk()) as vendor:
        vendor.script = [Response(200, {"errcode": 40035, "errmsg": "invalid parameter"})] * plain
        notifier_of(vendor).send(a_message(recipients=people))
        (page,) = vendor.accepted
        assert vendor.rejected == []
    assert page["at"] == {
        "atMobiles": ["13800000001", "+86-13900000002"], "atUserIds": ["manager4220"], "isAtAll": False,
    }  # fmt: skip


def test_dingtalk_gives_the_plain_text_of_a_rejected_card_an_id_of_its_own_and_a_retry_the_same():
    with serving(chat.DingTalk()) as vendor:
        robot = notifier_of(vendor)
        for _ in range(2):
            vendor.script = [Response(200, {"errcode": 40035, "errmsg": "invalid parameter"})]
            robot.send(a_message())
        card, plain, *again = [request.json["msgUuid"] for request in vendor.requests]
    assert card != plain
    assert again == [card, plain]


def test_dingtalk_with_one_button_is_a_card_that_opens_it():
    with serving(chat.DingTalk()) as vendor:
        notifier_of(vendor).send(a_message(buttons=()))
        (card,) = vendor.accepted
    assert card["actionCard"]["singleTitle"] == "在 Outrider 中打开"
    assert card["actionCard"]["singleURL"].endswith("inc-20260504T1200-3f2a")


# --- Feishu -------------------------------------------------------------------------------------------


def test_feishu_signature_as_documented():
    key = b"1599360473\nSEC"
    assert feishu.signature("SEC", 1599360473) == base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()


@pytest.mark.parametrize(("code", "retryable"), [(19021, False), (19022, False), (19024, False), (11232, True)])
def test_feishu_codes(code, retryable):
    with serving(chat.Feishu()) as vendor:
        vendor.script = [Response(200, {"code": code, "msg": "no"})]
        error = failure(notifier_of(vendor))
        assert len(vendor.requests) == 1, "plain text would not help"
    assert (error.retryable, error.reason) == (retryable, f"code_{code}")


def test_feishu_mentions_users_on_a_page_only():
    with serving(chat.Feishu()) as vendor:
        bot = notifier_of(vendor, at_users=["ou_c99c"])
        bot.send(a_message())
        bot.send(a_message(is_page=False))
        page, other = vendor.accepted
    assert {"tag": "lark_md", "content": "<at id=ou_c99c></at>"} in [
        element.get("text") for element in page["card"]["elements"]
    ]
    assert "<at" not in json.dumps(other)
    with pytest.raises(ConfigError, match="open ids"):
        NOTIFIERS["feishu"].build({"url": "https://x", "at_users": ["all></at><at id=all"]})


@pytest.mark.parametrize(
    ("fields", "color"),
    [
        ({}, "red"),
        ({"priority": Priority.P1}, "orange"),
        ({"priority": Priority.P2}, "yellow"),
        ({"priority": None}, "grey"),
        ({"reason": NotifyReason.RESOLVED}, "green"),
    ],
)
def test_feishu_colors_the_header_by_priority(fields, color):
    assert feishu.payload(a_message(**fields))["card"]["header"]["template"] == color


# --- WeCom --------------------------------------------------------------------------------------------


def test_wecom_mentions_users_on_a_page_only():
    with serving(chat.WeCom()) as vendor:
        robot = notifier_of(vendor, at_users=["wangqing"])
        robot.send(a_message())
        robot.send(a_message(is_page=False))
        page, other = vendor.texts
    assert page.endswith("<@wangqing>")
    assert "<@" not in other


def test_wecom_keeps_the_links_of_a_message_that_is_too_long():
    with serving(chat.WeCom()) as vendor:
        notifier_of(vendor).send(a_message(body="长" * 5000))
        (text,) = vendor.texts
    assert len(text.encode()) <= 4096
    assert "已截断" in text
    assert "[在 Outrider 中打开](" in text


# --- plain text in place of a rejected card ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "rejection"),
    [
        (chat.DingTalk, Response(200, {"errcode": 40035, "errmsg": "invalid parameter"})),
        (chat.Feishu, Response(400, {"code": 9499, "msg": "Bad Request"})),
        (chat.Feishu, Response(200, {"code": 11246, "msg": "card content invalid"})),
        (chat.WeCom, Response(200, {"errcode": 40058, "errmsg": "invalid parameter"})),
        (chat.SlackWebhook, Response(400, raw=b"invalid_blocks")),
        (chat.SlackBot, Response(200, {"ok": False, "error": "invalid_blocks"})),
        (chat.Teams, Response(400, {"error": {"code": "BadRequest"}})),
    ],
)
def test_a_rejected_card_is_sent_as_plain_text_and_says_so(kind, rejection):
    with serving(kind()) as vendor:
        vendor.script = [rejection]
        receipt = notifier_of(vendor).send(a_message("en"))
        (text,) = vendor.texts
        assert vendor.rejected == []
    assert receipt.note is DeliveryNote.PLAIN_TEXT
    assert "The channel rejected the usual format" in text
    assert "Engine hung" in text


@pytest.mark.parametrize("kind", [chat.DingTalk, chat.Feishu, chat.WeCom, chat.SlackWebhook, chat.SlackBot, chat.Teams])
def test_plain_text_is_short_enough_and_inert(kind):
    rejections = {
        chat.DingTalk: Response(200, {"errcode": 40035}),
        chat.Feishu: Response(400, {"code": 9499}),
        chat.WeCom: Response(200, {"errcode": 40058}),
        chat.SlackWebhook: Response(400, raw=b"invalid_blocks"),
        chat.SlackBot: Response(200, {"ok": False, "error": "invalid_blocks"}),
        chat.Teams: Response(400, {}),
    }
    hostile = '<at user_id="all"></at> <!channel> @all <@all> [x](http://evil.example) ' * 2000
    with serving(kind()) as vendor:
        vendor.script = [rejections[kind]]
        notifier_of(vendor).send(a_message("en", title=hostile, body=hostile))
        (text,) = vendor.texts
        assert vendor.rejected == []
    if kind in (chat.SlackWebhook, chat.SlackBot):
        assert not any(active in text for active in ("<at", "<!", "<@"))
    elif kind is not chat.DingTalk:  # whose text type has no markup
        assert not any(active in text for active in ("<at", "<!", "<@", "](http"))


def test_a_message_whose_plain_text_is_rejected_too_fails_for_good():
    with serving(chat.Teams()) as vendor:
        vendor.script = [Response(400), Response(400)]
        assert not failure(notifier_of(vendor)).retryable


# --- Slack --------------------------------------------------------------------------------------------


def test_slack_webhook_that_was_removed_fails_for_good():
    with serving(chat.SlackWebhook()) as vendor:
        vendor.script = [Response(404, raw=b"no_service")]
        assert not failure(notifier_of(vendor)).retryable


@pytest.mark.parametrize("kind", [chat.SlackWebhook, chat.SlackBot])
@pytest.mark.parametrize("rejected", [True, False])
def test_slack_mentions_people_in_the_text_where_it_notifies_them(kind, rejected):
    named = (Recipient("wang", mentions=("U024BE7LH",)),)
    rejection = Response(400, raw=b"invalid_blocks") if kind is chat.SlackWebhook else Response(200, INVALID_BLOCKS)
    with serving(kind()) as vendor:
        vendor.script = [rejection] * rejected
        notifier_of(vendor).send(a_message("en", recipients=named))
        (document,) = vendor.accepted
        assert vendor.rejected == []
    assert document["text"].splitlines()[0].startswith("<@U024BE7LH> [P0]")
    assert "U024BE7LH" not in json.dumps(document.get("attachments", ()))


@pytest.mark.parametrize("kind", [chat.SlackWebhook, chat.SlackBot])
def test_slack_shows_the_title_once(kind):
    message = a_message("en")
    with serving(kind()) as vendor:
        notifier_of(vendor).send(message)
        assert vendor.texts[0].count(message.title) == 1


@pytest.mark.parametrize(
    ("title", "text"),
    [
        ("*bold* `code`", "＊bold＊ ｀code｀"),
        ("_node_1_ is ~gone~", "＿node_1＿ is ～gone～"),
        ("> 90 % <!here> & more", "＞ 90 % &lt;!here&gt; &amp; more"),
        ("TTFT > 2 s on gpu_lost", "TTFT &gt; 2 s on gpu_lost"),
    ],
)
def test_slack_shows_markup_in_a_title_as_it_is(title, text):
    with serving(chat.SlackWebhook()) as vendor:
        notifier_of(vendor).send(a_message("en", title=title))
        assert vendor.accepted[0]["text"] == text


def test_slack_bot_begins_a_new_thread_if_the_first_message_was_deleted():
    with serving(chat.SlackBot()) as vendor:
        bot = notifier_of(vendor)
        first = bot.send(a_message("en"))
        del vendor.messages[first.id.split(":")[1]]
        second = bot.follow_up(a_message("en", reason=NotifyReason.ESCALATED, title="escalated"), first)
        assert second.new_thread
        bot.follow_up(a_message("en", reason=NotifyReason.RESOLVED, title="[resolved]"), second)
        timestamp = second.id.split(":")[1]
        assert vendor.messages[timestamp]["text"] == "[resolved]"
        assert len(vendor.threads[timestamp]) == 1


def test_slack_bot_keeps_an_incident_in_one_thread_and_edits_the_first_message():
    with serving(chat.SlackBot()) as vendor:
        bot = notifier_of(vendor)
        first = bot.send(a_message("en"))
        raised = a_message("en", reason=NotifyReason.PRIORITY_RAISED, title="[P0, was P1] Engine hung")
        over = a_message("en", reason=NotifyReason.RESOLVED, title="[resolved] Engine hung", buttons=())
        bot.follow_up(raised, first)
        bot.follow_up(over, first)
        timestamp = first.id.split(":")[1]
        assert len(vendor.threads[timestamp]) == 2
        edited = vendor.messages[timestamp]
        replies = [vendor.messages[reply] for reply in vendor.threads[timestamp]]
        assert vendor.rejected == []
    assert edited["text"] == "[resolved] Engine hung"
    assert edited["attachments"][0]["color"] == "#15803d"
    labels = [button["text"]["text"] for button in edited["attachments"][0]["blocks"][1]["elements"]]
    assert labels == ["Open in Outrider"], "a resolved incident cannot be acknowledged"
    assert [reply.get("reply_broadcast") for reply in replies] == [True, None]


def test_slack_bot_does_not_edit_the_first_message_for_a_request_of_approval():
    with serving(chat.SlackBot()) as vendor:
        bot = notifier_of(vendor)
        first = bot.send(a_message("en"))
        bot.follow_up(a_message("en", reason=NotifyReason.APPROVAL_WANTED, title="approve?"), first)
        paths = [request.path for request in vendor.requests]
    assert paths == ["/api/chat.postMessage", "/api/chat.postMessage"]


def test_slack_bot_replies_even_if_the_first_message_can_no_longer_be_edited():
    with serving(chat.SlackBot()) as vendor:
        bot = notifier_of(vendor)
        first = bot.send(a_message("en"))
        vendor.script = [Response(200, {"ok": False, "error": "edit_window_closed"})]
        bot.follow_up(a_message("en", reason=NotifyReason.RESOLVED), first)
        assert len(vendor.threads[first.id.split(":")[1]]) == 1


@pytest.mark.parametrize(
    ("error", "retryable"),
    [("channel_not_found", False), ("token_revoked", False), ("ratelimited", True), ("internal_error", True)],
)
def test_slack_bot_errors(error, retryable):
    with serving(chat.SlackBot()) as vendor:
        vendor.script = [Response(200, {"ok": False, "error": error})]
        caught = failure(notifier_of(vendor))
    assert (caught.retryable, caught.reason) == (retryable, error)
    assert SECRET not in str(caught)


# --- Teams --------------------------------------------------------------------------------------------


def test_teams_returns_the_run_of_the_workflow_as_receipt():
    with serving(chat.Teams()) as vendor:
        assert notifier_of(vendor).send(a_message()) == Receipt("run-1")


def test_a_link_that_is_not_http_is_no_button():
    message = a_message("en", link="javascript:alert(1)")
    message = replace(message, buttons=tuple(replace(button, url="https://x/\n<b>") for button in message.buttons))
    with serving(chat.Teams()) as vendor:
        notifier_of(vendor).send(message)
        assert "actions" not in vendor.accepted[0]["attachments"][0]["content"]
