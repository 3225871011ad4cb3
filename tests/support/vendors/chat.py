"""DingTalk, Feishu, WeCom, Slack and Teams as they document their robots, webhooks and bots."""

from __future__ import annotations

import base64
import hashlib
import hmac
import re
from collections import deque
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlsplit

from outrider.clock import Clock
from tests.support.json_server import Request, Response
from tests.support.vendors.server import SECRET, Vendor, check, only

MOBILE = re.compile(r"(\+86-?)?\d{11}|\+?\d{2,3}-?\d{5,14}")
SECOND = timedelta(seconds=1)
HTTP_URL = re.compile(r"https?://[^\s<>\"]+")


def bad(**body: Any) -> Response:
    return Response(200, body)


class Limited:
    """Counts requests in a window of the vendor's clock."""

    def __init__(self, clock: Clock, count: int, per: timedelta) -> None:
        self.clock, self.count, self.per = clock, count, per.total_seconds()
        self.times: deque[float] = deque()

    def exceeded(self) -> bool:
        now = self.clock.monotonic()
        while self.times and now - self.times[0] >= self.per:
            self.times.popleft()
        self.times.append(now)
        return len(self.times) > self.count


class DingTalk(Vendor):
    """Signed robot: 20 messages a minute, 20,000 bytes, an ``at`` only beside text and Markdown."""

    channel_type = "dingtalk"
    throttled = Response(200, {"errcode": 130101, "errmsg": "send too fast"})
    secret = f"SEC{SECRET}"

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.limit = Limited(self.clock, 20, timedelta(minutes=1))

    def settings(self) -> dict[str, Any]:
        return {"url": f"{self.url}/robot/send?access_token={SECRET}", "secret": self.secret}

    def answer(self, request: Request) -> Response:
        query = parse_qs(urlsplit(request.path).query)
        forbidden = bad(errcode=310000, errmsg="sign not match")
        check(query.get("access_token") == [SECRET], "token", bad(errcode=300001, errmsg="token is not exist"))
        timestamp = query.get("timestamp", ["0"])[0]
        digest = hmac.new(self.secret.encode(), f"{timestamp}\n{self.secret}".encode(), hashlib.sha256).digest()
        check(query.get("sign") == [base64.b64encode(digest).decode()], "sign", forbidden)
        check(abs(int(timestamp) / 1000 - self.now().timestamp()) <= 3600, "timestamp", forbidden)
        check("utf-8" in request.headers.get("content-type", ""), "charset", bad(errcode=40035, errmsg="charset"))
        check(not self.limit.exceeded(), "limit", self.throttled)
        self.check_schema(request)
        self.accepted.append(request.json)
        return Response(200, {"errcode": 0, "errmsg": "ok"})

    def check_schema(self, request: Request) -> None:
        invalid = bad(errcode=40035, errmsg="invalid parameter")
        check(len(request.content) <= 20_000, "size", bad(errcode=460101, errmsg="message too long"))
        document = request.json
        kind = document.get("msgtype")
        allowed = {"msgtype": str, "msgUuid": str, kind: dict, **({"at": dict} if kind != "actionCard" else {})}
        check(kind in ("text", "markdown", "actionCard"), "msgtype", invalid)
        only(document, allowed, invalid)
        if kind == "text":
            only(document["text"], {"content": str}, invalid, "text")
        elif kind == "markdown":
            only(document["markdown"], {"title": str, "text": str}, invalid, "markdown")
        else:
            self.check_card(document["actionCard"], invalid)
        if "at" in document:
            only(document["at"], {"atMobiles": list, "atUserIds": list, "isAtAll": bool}, invalid, "at")
            check(all(MOBILE.fullmatch(one) for one in document["at"]["atMobiles"]), "atMobiles", invalid)
            check(not document["at"]["isAtAll"], "isAtAll", invalid)
            text = document[kind]["text" if kind == "markdown" else "content"]
            mentioned = (*document["at"]["atMobiles"], *document["at"]["atUserIds"])
            check(all(f"@{one}" in text for one in mentioned), "mention in text", invalid)

    @staticmethod
    def check_card(card: Any, invalid: Response) -> None:
        keys = {"title": str, "text": str, "singleTitle": str, "singleURL": str, "btnOrientation": str, "btns": list}
        only(card, keys, invalid, "actionCard")
        check(card.get("title") and card.get("text"), "title and text", invalid)
        check(("singleTitle" in card and "singleURL" in card) != ("btns" in card), "single or btns", invalid)
        for button in card.get("btns", ()):
            only(button, {"title": str, "actionURL": str}, invalid, "btns")
            check(HTTP_URL.fullmatch(button["actionURL"]), "actionURL", invalid)

    def text_of(self, document: Any) -> str:
        kind = document["msgtype"]
        content = document[kind]
        return f"{content.get('title', '')}\n{content.get('text', content.get('content'))}"


class Feishu(Vendor):
    """Signed bot: 5 messages a second, 100 a minute, 20 KB, JSON 1.0 cards."""

    channel_type = "feishu"
    throttled = Response(200, {"code": 11232, "msg": "frequency limited"})
    secret = SECRET

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.limits = (Limited(self.clock, 5, SECOND), Limited(self.clock, 100, timedelta(minutes=1)))

    def settings(self) -> dict[str, Any]:
        return {"url": f"{self.url}/open-apis/bot/v2/hook/{SECRET}", "secret": self.secret}

    def answer(self, request: Request) -> Response:
        forbidden = bad(code=19021, msg="sign match fail or timestamp is not within one hour from current time")
        document = request.json
        timestamp = str(document.get("timestamp", "0"))
        key = f"{timestamp}\n{self.secret}".encode()
        expected = base64.b64encode(hmac.new(key, b"", hashlib.sha256).digest()).decode()
        check(document.get("sign") == expected, "sign", forbidden)
        check(abs(int(timestamp) - self.now().timestamp()) <= 3600, "timestamp", forbidden)
        exceeded = [limit.exceeded() for limit in self.limits]  # each one counts
        check(not any(exceeded), "limit", self.throttled)
        invalid = Response(400, {"code": 9499, "msg": "Bad Request", "data": {}})
        check(len(request.content) <= 20 * 1024, "size", invalid)
        only(document, {"timestamp": str, "sign": str, "msg_type": str, "card": dict, "content": dict}, invalid)
        if document["msg_type"] == "text":
            only(document["content"], {"text": str}, invalid, "content")
        else:
            check(document["msg_type"] == "interactive", "msg_type", invalid)
            self.check_card(document["card"], invalid)
        self.accepted.append(document)
        return Response(200, {"code": 0, "msg": "success", "data": {}, "StatusCode": 0, "StatusMessage": "success"})

    def check_card(self, card: Any, invalid: Response) -> None:
        only(card, {"config": dict, "header": dict, "elements": list}, invalid, "card")
        only(card["header"], {"template": str, "title": dict}, invalid, "header")
        colors = {"blue", "wathet", "turquoise", "green", "yellow", "orange", "red", "carmine", "violet", "grey"}
        check(card["header"]["template"] in colors, "template", invalid)
        self.check_text(card["header"]["title"], invalid)
        for element in card["elements"]:
            check(element.get("tag") in ("div", "action"), "tag", invalid)
            if element["tag"] == "div":
                only(element, {"tag": str, "text": dict}, invalid, "div")
                self.check_text(element["text"], invalid)
                continue
            only(element, {"tag": str, "actions": list}, invalid, "action")
            for button in element["actions"]:
                only(button, {"tag": str, "text": dict, "type": str, "url": str}, invalid, "button")
                check(button["type"] in ("default", "primary", "danger"), "button type", invalid)
                check(HTTP_URL.fullmatch(button["url"]), "button url", invalid)
                self.check_text(button["text"], invalid)

    @staticmethod
    def check_text(text: Any, invalid: Response) -> None:
        only(text, {"tag": str, "content": str}, invalid, "text")
        check(text["tag"] in ("plain_text", "lark_md"), "text tag", invalid)

    def text_of(self, document: Any) -> str:
        if document["msg_type"] == "text":
            return str(document["content"]["text"])
        card = document["card"]
        divs = [element["text"]["content"] for element in card["elements"] if element["tag"] == "div"]
        return "\n".join([card["header"]["title"]["content"], *divs])


class WeCom(Vendor):
    """Robot: 20 messages a minute, 4,096 bytes of Markdown, 2,048 of text."""

    channel_type = "wecom"
    throttled = Response(200, {"errcode": 45009, "errmsg": "api freq out of limit"})

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.limit = Limited(self.clock, 20, timedelta(minutes=1))

    def settings(self) -> dict[str, Any]:
        return {"url": f"{self.url}/cgi-bin/webhook/send?key={SECRET}"}

    def answer(self, request: Request) -> Response:
        key = parse_qs(urlsplit(request.path).query).get("key")
        check(key == [SECRET], "key", bad(errcode=93000, errmsg="invalid webhook url"))
        check(not self.limit.exceeded(), "limit", self.throttled)
        invalid = bad(errcode=40058, errmsg="invalid request parameter")
        document = request.json
        kind = document.get("msgtype")
        check(kind in ("text", "markdown"), "msgtype", invalid)
        only(document, {"msgtype": str, kind: dict}, invalid)
        keys = {"content": str, **({"mentioned_list": list} if kind == "text" else {})}
        only(document[kind], keys, invalid, kind)
        limit = 4096 if kind == "markdown" else 2048
        check(0 < len(document[kind]["content"].encode()) <= limit, "size", invalid)
        self.accepted.append(document)
        return Response(200, {"errcode": 0, "errmsg": "ok"})

    def text_of(self, document: Any) -> str:
        return str(document[document["msgtype"]]["content"])


def check_blocks(document: Any, invalid: Response) -> None:
    """Block Kit: section 3,000, button 75, URL 3,000, 25 elements, 50 blocks.

    A mention in an attachment notifies nobody, and a title there would stand a second time below the text.
    """
    for attachment in document.get("attachments", ()):
        only(attachment, {"color": str, "blocks": list}, invalid, "attachment")
        check(len(attachment["blocks"]) <= 50, "blocks", invalid)
        for block in attachment["blocks"]:
            kind = block.get("type")
            check(kind in ("section", "actions"), "block type", invalid)
            if kind != "actions":
                only(block, {"type": str, "text": dict}, invalid, kind)
                only(block["text"], {"type": str, "text": str, "emoji": bool}, invalid, f"{kind}.text")
                check(block["text"]["type"] == "plain_text", "text type", invalid)
                check(1 <= len(block["text"]["text"]) <= 3000, f"{kind} size", invalid)
                continue
            only(block, {"type": str, "elements": list}, invalid, kind)
            check(1 <= len(block["elements"]) <= 25, "elements", invalid)
            for button in block["elements"]:
                keys = {"type": str, "text": dict, "url": str, "action_id": str, "style": str}
                only(button, keys, invalid, "button")
                check(1 <= len(button["text"]["text"]) <= 75 and len(button["url"]) <= 3000, "button size", invalid)


def slack_text(document: Any) -> str:
    blocks = [block for attachment in document.get("attachments", ()) for block in attachment["blocks"]]
    texts = [block["text"]["text"] for block in blocks if block["type"] != "actions"]
    return "\n".join([document["text"], *texts])


def check_text(document: Any, empty: Response, long: Response) -> None:
    """The text on top, which notifies: Slack truncates it after 40,000 characters."""
    check(document.get("text"), "text", empty)
    check(len(document["text"]) <= 40_000, "text size", long)


class SlackWebhook(Vendor):
    """Incoming webhook: answers ``ok`` or an error name. One message a second, in short bursts more."""

    channel_type = "slack"

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.limit = Limited(self.clock, 5, 5 * SECOND)

    def settings(self) -> dict[str, Any]:
        return {"url": f"{self.url}/services/T0/B0/{SECRET}"}

    def answer(self, request: Request) -> Response:
        check(request.path == f"/services/T0/B0/{SECRET}", "address", Response(404, raw=b"no_service"))
        check(not self.limit.exceeded(), "limit", self.throttled)
        document = request.json
        invalid = Response(400, raw=b"invalid_blocks")
        only(document, {"text": str, "attachments": list, "mrkdwn": bool}, Response(400, raw=b"invalid_payload"))
        check_text(document, Response(400, raw=b"no_text"), Response(400, raw=b"msg_too_long"))
        check_blocks(document, invalid)
        self.accepted.append(document)
        return Response(200, raw=b"ok")

    text_of = staticmethod(slack_text)  # type: ignore[assignment]


class SlackBot(Vendor):
    """``chat.postMessage`` and ``chat.update``. ``messages`` are the channel by timestamp.

    One message a second in a channel, in short bursts more; 50 updates a minute (tier 3).
    """

    channel_type = "slack_bot"
    channel = "C024BE91L"

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.messages: dict[str, Any] = {}
        self.threads: dict[str, list[str]] = {}
        self.limits = {
            "/api/chat.postMessage": Limited(self.clock, 5, 5 * SECOND),
            "/api/chat.update": Limited(self.clock, 50, timedelta(minutes=1)),
        }

    def settings(self) -> dict[str, Any]:
        return {"url": f"{self.url}/api", "token": f"xoxb-{SECRET}", "channel": self.channel}

    def answer(self, request: Request) -> Response:
        check(
            request.headers.get("authorization") == f"Bearer xoxb-{SECRET}",
            "token",
            bad(ok=False, error="invalid_auth"),
        )
        check(not self.limits[request.path].exceeded(), "limit", self.throttled)
        document = request.json
        check(document.get("channel") == self.channel, "channel", bad(ok=False, error="channel_not_found"))
        keys = {
            "channel": str, "text": str, "attachments": list, "mrkdwn": bool, "unfurl_links": bool,
            "unfurl_media": bool, "thread_ts": str, "reply_broadcast": bool, "ts": str,
        }  # fmt: skip
        only(document, keys, bad(ok=False, error="invalid_arguments"))
        check_text(document, bad(ok=False, error="no_text"), bad(ok=False, error="msg_too_long"))
        check_blocks(document, bad(ok=False, error="invalid_blocks"))
        if request.path == "/api/chat.update":
            check(document.get("ts") in self.messages, "ts", bad(ok=False, error="message_not_found"))
            timestamp = document["ts"]
        else:
            check(request.path == "/api/chat.postMessage", "method", bad(ok=False, error="unknown_method"))
            timestamp = f"1700000000.{len(self.accepted):06}"
            thread = document.get("thread_ts")
            if thread is not None:
                check(thread in self.messages, "thread_ts", bad(ok=False, error="thread_not_found"))
                self.threads.setdefault(thread, []).append(timestamp)
            self.accepted.append(document)
        self.messages[timestamp] = document
        return Response(200, {"ok": True, "channel": self.channel, "ts": timestamp, "message": {}})

    text_of = staticmethod(slack_text)  # type: ignore[assignment]


class Teams(Vendor):
    """Webhook of a workflow: an Adaptive Card of 28 KB at most, 4 a second; answers 202."""

    channel_type = "teams"

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.limit = Limited(self.clock, 4, SECOND)

    def settings(self) -> dict[str, Any]:
        return {"url": f"{self.url}/workflows/0/triggers/manual/paths/invoke?sig={SECRET}"}

    def answer(self, request: Request) -> Response:
        check(
            f"sig={SECRET}" in request.path, "sig", Response(401, {"error": {"code": "DirectApiAuthorizationRequired"}})
        )
        check(not self.limit.exceeded(), "limit", self.throttled)
        invalid = Response(400, {"error": {"code": "TriggerInputSchemaMismatch"}})
        check(len(request.content) <= 28 * 1024, "size", Response(413))
        document = request.json
        only(document, {"type": str, "attachments": list}, invalid)
        (attachment,) = document["attachments"]
        only(attachment, {"contentType": str, "contentUrl": type(None), "content": dict}, invalid, "attachment")
        check(attachment["contentType"] == "application/vnd.microsoft.card.adaptive", "contentType", invalid)
        card = attachment["content"]
        keys = {"$schema": str, "type": str, "version": str, "msteams": dict, "body": list, "actions": list}
        only(card, keys, invalid, "card")
        check((card["type"], card["version"]) == ("AdaptiveCard", "1.4"), "card", invalid)
        for block in card["body"]:
            check(block["type"] in ("RichTextBlock", "TextBlock"), "block", invalid)
            for run in block.get("inlines", ()):
                only(run, {"type": str, "text": str, "size": str, "weight": str, "color": str}, invalid, "run")
        for action in card.get("actions", ()):
            only(action, {"type": str, "title": str, "url": str}, invalid, "action")
            check(action["type"] == "Action.OpenUrl" and HTTP_URL.fullmatch(action["url"]), "action", invalid)
        self.accepted.append(document)
        return Response(202, headers={"x-ms-workflow-run-id": f"run-{len(self.accepted)}"})

    def text_of(self, document: Any) -> str:
        body = document["attachments"][0]["content"]["body"]
        return "\n".join(block.get("text") or "".join(run["text"] for run in block["inlines"]) for block in body)
