"""PagerDuty, Opsgenie and a generic webhook as documented."""

from __future__ import annotations

import hashlib
import hmac
import re
from typing import Any
from urllib.parse import unquote, urlsplit

from outrider.clock import Clock, parse_rfc3339
from tests.support.json_server import Request, Response
from tests.support.vendors.server import SECRET, Vendor, check, only


class PagerDuty(Vendor):
    """Events API v2. ``alerts`` are the states by deduplication key."""

    channel_type = "pagerduty"

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.alerts: dict[str, str] = {}

    def settings(self) -> dict[str, Any]:
        return {"url": f"{self.url}/v2/enqueue", "routing_key": SECRET.ljust(32, "0")}

    def answer(self, request: Request) -> Response:
        invalid = Response(400, {"status": "invalid event", "message": "Event object is invalid", "errors": []})
        check(request.path == "/v2/enqueue", "path", Response(404))
        check(len(request.content) <= 512 * 1024, "size", Response(413))
        event = request.json
        keys = {
            "routing_key": str, "event_action": str, "dedup_key": str, "payload": dict, "links": list, "client": str,
            "client_url": str,
        }  # fmt: skip
        only(event, keys, invalid)
        check(len(event["routing_key"]) == 32, "routing_key", invalid)
        check(len(event["dedup_key"]) <= 255, "dedup_key", invalid)
        action = event["event_action"]
        check(action in ("trigger", "acknowledge", "resolve"), "event_action", invalid)
        if action == "trigger":
            self.check_payload(event["payload"], invalid)
            for link in event["links"]:
                only(link, {"href": str, "text": str}, invalid, "links")
            self.alerts[event["dedup_key"]] = "triggered"
        elif self.alerts.get(event["dedup_key"]) not in (None, "resolved"):
            self.alerts[event["dedup_key"]] = {"acknowledge": "acknowledged", "resolve": "resolved"}[action]
        self.accepted.append(event)
        body = {"status": "success", "message": "Event processed", "dedup_key": event["dedup_key"]}
        return Response(202, body)

    @staticmethod
    def check_payload(payload: Any, invalid: Response) -> None:
        keys = {
            "summary": str, "source": str, "severity": str, "timestamp": str, "component": str, "group": str,
            "class": str, "custom_details": dict,
        }  # fmt: skip
        only(payload, keys, invalid, "payload")
        check(1 <= len(payload["summary"]) <= 1024 and payload["source"], "summary", invalid)
        check(payload["severity"] in ("critical", "error", "warning", "info"), "severity", invalid)
        parse_rfc3339(payload["timestamp"])

    def text_of(self, document: Any) -> str:
        payload = document.get("payload", {"summary": "", "custom_details": {}})
        return f"{payload['summary']}\n{payload['custom_details'].get('text', '')}"


class Opsgenie(Vendor):
    """Alert API. ``alerts`` are the states by alias."""

    channel_type = "opsgenie"

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.alerts: dict[str, str] = {}
        self.priorities: dict[str, str] = {}

    def settings(self) -> dict[str, Any]:
        return {"url": self.url, "api_key": SECRET}

    def answer(self, request: Request) -> Response:
        invalid = Response(422, {"message": "Request body is not processable. Please check the errors.", "errors": {}})
        allowed = Response(403, {"message": "You are not authorized to access the API."})
        check(request.headers.get("authorization") == f"GenieKey {SECRET}", "key", allowed)
        path = urlsplit(request.path)
        if path.path == "/v2/alerts":
            self.create(request.json, invalid)
        else:
            match = re.fullmatch(r"/v2/alerts/([^/]+)/(close|acknowledge|notes|priority)", path.path)
            check(match and path.query == "identifierType=alias", "path", Response(404))
            assert match is not None
            alias, action = unquote(match[1]), match[2]
            check(request.method == ("PUT" if action == "priority" else "POST"), "method", Response(405))
            if action == "priority":
                only(request.json, {"priority": str}, invalid)
                self.priorities[alias] = request.json["priority"]
            elif action == "notes":
                only(request.json, {"note": str}, invalid)
                check(len(request.json["note"]) <= 25_000, "note", invalid)
            else:
                only(request.json, {"source": str}, invalid)
                self.alerts[alias] = {"close": "closed", "acknowledge": "acknowledged"}[action]
        self.accepted.append(request.json)
        request_id = f"43a29c5c-3dbf-4fa4-9c26-{len(self.accepted):012}"
        return Response(202, {"result": "Request will be processed", "took": 0.302, "requestId": request_id})

    def create(self, alert: Any, invalid: Response) -> None:
        keys = {
            "message": str, "alias": str, "description": str, "priority": str, "source": str, "tags": list,
            "details": dict, "entity": str, "responders": list,
        }  # fmt: skip
        only(alert, keys, invalid)
        check(1 <= len(alert["message"]) <= 130, "message", invalid)
        check(len(alert["alias"]) <= 512 and len(alert.get("entity", "")) <= 512, "alias", invalid)
        check(len(alert["description"]) <= 15_000, "description", invalid)
        check(len(alert["tags"]) <= 20 and all(len(tag) <= 50 for tag in alert["tags"]), "tags", invalid)
        check(sum(len(key) + len(text) for key, text in alert["details"].items()) <= 8000, "details", invalid)
        check(alert["priority"] in ("P1", "P2", "P3", "P4", "P5"), "priority", invalid)
        if self.alerts.get(alert["alias"]) in (None, "closed"):
            self.alerts[alert["alias"]] = "open"
            self.priorities[alert["alias"]] = alert["priority"]

    def text_of(self, document: Any) -> str:
        return f"{document.get('message', '')}\n{document.get('description', document.get('note', ''))}"


class Webhook(Vendor):
    """A receiver that verifies the signature of docs/reference/channels.md."""

    channel_type = "webhook"
    secret = SECRET

    def settings(self) -> dict[str, Any]:
        return {"url": f"{self.url}/hook?token={SECRET}", "secret": self.secret}

    def answer(self, request: Request) -> Response:
        timestamp = request.headers.get("x-outrider-timestamp", "")
        signed = timestamp.encode() + b"." + request.content
        expected = "sha256=" + hmac.new(self.secret.encode(), signed, hashlib.sha256).hexdigest()
        given = request.headers.get("x-outrider-signature", "")
        check(hmac.compare_digest(given, expected), "signature", Response(401))
        check(abs(int(timestamp) - self.now().timestamp()) < 300, "timestamp", Response(401))
        document = request.json
        check(request.headers["idempotency-key"] == document["id"], "idempotency key", Response(400))
        self.accepted.append(document)
        return Response(200, {"id": f"ticket-{len(self.accepted)}"})

    def text_of(self, document: Any) -> str:
        return f"{document['title']}\n{document['text']}"


class Alertmanager(Vendor):
    """The schema of ``/api/v2/alerts``; the real server is used in its own test."""

    channel_type = "alertmanager"

    def settings(self) -> dict[str, Any]:
        return {"url": self.url, "token": SECRET}

    def answer(self, request: Request) -> Response:
        check(request.headers.get("authorization") == f"Bearer {SECRET}", "token", Response(401))
        invalid = Response(400, {"code": 601, "message": "invalid"})
        check(request.path == "/api/v2/alerts", "path", Response(404))
        for alert in request.json:
            keys = {"labels": dict, "annotations": dict, "startsAt": str, "endsAt": str, "generatorURL": str}
            only(alert, keys, invalid)
            check(alert["labels"].get("alertname"), "alertname", invalid)
            check(all(re.fullmatch(r"[a-zA-Z_]\w*", name) for name in alert["labels"]), "label name", invalid)
            check(all(isinstance(text, str) for text in alert["labels"].values()), "label value", invalid)
            check(parse_rfc3339(alert["startsAt"]) <= parse_rfc3339(alert["endsAt"]), "times", invalid)
        self.accepted.append(request.json)
        return Response(200)

    def text_of(self, document: Any) -> str:
        return f"{document[0]['annotations']['summary']}\n{document[0]['annotations']['description']}"


class AppriseService(Vendor):
    """What Apprise's ``json://`` service sends."""

    channel_type = "apprise"
    throttled = Response(429)

    def settings(self) -> dict[str, Any]:
        return {"urls": [self.url.replace("http://", "json://") + f"/{SECRET}"]}

    def answer(self, request: Request) -> Response:
        check(request.path.rstrip("/") == f"/{SECRET}", "path", Response(404))
        self.accepted.append(request.json)
        return Response(200)

    def text_of(self, document: Any) -> str:
        return f"{document['title']}\n{document['message']}"
