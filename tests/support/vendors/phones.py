"""Alibaba Cloud, Tencent Cloud and Twilio as they document SMS and calls. Signatures are verified independently."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import re
import xml.etree.ElementTree as ET
from datetime import UTC, datetime
from typing import Any
from urllib.parse import parse_qsl, quote, urlsplit

from outrider.clock import Clock
from tests.support.json_server import Request, Response
from tests.support.vendors.server import SECRET, Vendor, check, only

NUMBERS = ("13800000001", "13800000002")
E164 = ("+8613800000001", "+8613800000002")


class Aliyun(Vendor):
    """Signature V3, nonce and date."""

    action = ""

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.nonces: set[str] = set()

    def answer(self, request: Request) -> Response:
        path = urlsplit(request.path)
        parameters = dict(parse_qsl(path.query, keep_blank_values=True))
        self.verify(request, path.query, parameters)
        check(request.headers["x-acs-action"] == self.action, "action", self.error("InvalidAction.NotFound", 404))
        check(request.headers["x-acs-version"] == "2017-05-25", "version", self.error("InvalidVersion", 400))
        self.check_parameters(parameters)
        self.accepted.append(parameters)
        return Response(200, self.success())

    def verify(self, request: Request, query: str, parameters: dict[str, str]) -> None:
        wrong = self.error("SignatureDoesNotMatch", 400)
        match = re.fullmatch(
            r"ACS3-HMAC-SHA256 Credential=([^,]+),SignedHeaders=([^,]+),Signature=([0-9a-f]{64})",
            request.headers.get("authorization", ""),
        )
        check(match, "authorization", wrong)
        assert match is not None
        names = match[2].split(";")
        required = {
            "host",
            "x-acs-action",
            "x-acs-content-sha256",
            "x-acs-date",
            "x-acs-signature-nonce",
            "x-acs-version",
        }
        check(names == sorted(names) and required <= set(names), "signed headers", wrong)
        body_hash = hashlib.sha256(request.content).hexdigest()
        check(request.headers["x-acs-content-sha256"] == body_hash, "content hash", wrong)
        canonical_query = "&".join(
            f"{quote(key, safe='-_.~')}={quote(parameters[key], safe='-_.~')}" for key in sorted(parameters)
        )
        check(query == canonical_query, "canonical query", wrong)
        headers = "".join(f"{name}:{request.headers[name].strip()}\n" for name in names)
        canonical = f"{request.method}\n/\n{canonical_query}\n{headers}\n{match[2]}\n{body_hash}"
        text = f"ACS3-HMAC-SHA256\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        expected = hmac.new(SECRET.encode(), text.encode(), hashlib.sha256).hexdigest()
        check((match[1], match[3]) == ("LTAI0", expected), "signature", wrong)
        date = datetime.strptime(request.headers["x-acs-date"], "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
        check(abs((date - self.now()).total_seconds()) <= 900, "date", self.error("InvalidTimeStamp.Expired", 400))
        nonce = request.headers["x-acs-signature-nonce"]
        check(nonce not in self.nonces, "nonce", self.error("SignatureNonceUsed", 400))
        self.nonces.add(nonce)

    @staticmethod
    def error(code: str, status: int = 200) -> Response:
        return Response(status, {"Code": code, "Message": "no", "RequestId": "D9CB3933"})

    def check_parameters(self, parameters: dict[str, str]) -> None:
        raise NotImplementedError

    def success(self) -> dict[str, str]:
        raise NotImplementedError


class AliyunSms(Aliyun):
    """``SendSms``."""

    channel_type, action = "aliyun_sms", "SendSms"
    throttled = Response(200, {"Code": "isv.BUSINESS_LIMIT_CONTROL", "Message": "触发分钟级流控", "RequestId": "1"})

    def settings(self) -> dict[str, Any]:
        return {
            "url": self.url, "access_key_id": "LTAI0", "access_key_secret": SECRET, "sign_name": "Outrider",
            "template_code": "SMS_154950909", "to": list(NUMBERS),
        }  # fmt: skip

    def check_parameters(self, parameters: dict[str, str]) -> None:
        illegal = self.error("isv.TEMPLATE_PARAMS_ILLEGAL")
        keys = {"PhoneNumbers", "SignName", "TemplateCode", "TemplateParam", "OutId"}
        check(set(parameters) <= keys, "parameters", self.error("InvalidParameter", 400))
        check(
            re.fullmatch(r"\d+(,\d+){0,999}", parameters["PhoneNumbers"]),
            "phones",
            self.error("isv.MOBILE_NUMBER_ILLEGAL"),
        )
        check(re.fullmatch(r"SMS_\d+", parameters["TemplateCode"]), "template", self.error("isv.SMS_TEMPLATE_ILLEGAL"))
        values = json.loads(parameters["TemplateParam"])
        check(all(isinstance(value, str) and 1 <= len(value) <= 35 for value in values.values()), "values", illegal)
        check(not any("://" in value for value in values.values()), "link", self.error("isv.PARAM_NOT_SUPPORT_URL"))

    def success(self) -> dict[str, str]:
        return {
            "Code": "OK",
            "Message": "OK",
            "RequestId": "F655A8D5",
            "BizId": f"900619746936498440^{len(self.accepted)}",
        }

    def text_of(self, document: Any) -> str:
        return " ".join(json.loads(document["TemplateParam"]).values())


class AliyunVoice(Aliyun):
    """``SingleCallByTts``: variables of fewer than 250 characters in all."""

    channel_type, action = "aliyun_voice", "SingleCallByTts"
    throttled = AliyunSms.throttled

    def settings(self) -> dict[str, Any]:
        return {
            "url": self.url, "access_key_id": "LTAI0", "access_key_secret": SECRET, "tts_code": "TTS_100001",
            "to": list(NUMBERS),
        }  # fmt: skip

    def check_parameters(self, parameters: dict[str, str]) -> None:
        keys = {"CalledShowNumber", "CalledNumber", "TtsCode", "TtsParam", "PlayTimes", "Volume", "Speed", "OutId"}
        check(set(parameters) <= keys, "parameters", self.error("InvalidParameter", 400))
        check(re.fullmatch(r"\d{5,20}", parameters["CalledNumber"]), "number", self.error("isv.MOBILE_NUMBER_ILLEGAL"))
        check(re.fullmatch(r"TTS_\d+", parameters["TtsCode"]), "template", self.error("isv.TTS_TEMPLATE_ILLEGAL"))
        check(1 <= int(parameters["PlayTimes"]) <= 3, "PlayTimes", self.error("isv.INVALID_PARAMETERS"))
        check(1 <= len(parameters["OutId"].encode()) <= 15, "OutId", self.error("isv.INVALID_PARAMETERS"))
        values = json.loads(parameters["TtsParam"]).values()
        check(sum(map(len, values)) < 250 and all(values), "TtsParam", self.error("isv.INVALID_PARAMETERS"))

    def success(self) -> dict[str, str]:
        return {"Code": "OK", "Message": "OK", "RequestId": "D9CB3933", "CallId": f"116012354148^{len(self.accepted)}"}

    def text_of(self, document: Any) -> str:
        return " ".join(json.loads(document["TtsParam"]).values())


class Tencent(Vendor):
    """TC3-HMAC-SHA256."""

    action, service, version = "", "", ""
    throttled = Response(
        200, {"Response": {"Error": {"Code": "RequestLimitExceeded", "Message": "no"}, "RequestId": "1"}}
    )

    def answer(self, request: Request) -> Response:
        self.verify(request)
        check(request.headers["x-tc-action"] == self.action, "action", self.error("InvalidAction"))
        check(request.headers["x-tc-version"] == self.version, "version", self.error("NoSuchVersion"))
        check(request.headers.get("x-tc-region"), "region", self.error("MissingParameter"))
        document = request.json
        result = self.result(document)
        self.accepted.append(document)
        return Response(200, {"Response": {**result, "RequestId": "a0aabda6"}})

    def verify(self, request: Request) -> None:
        wrong = self.error("AuthFailure.SignatureFailure")
        timestamp = request.headers["x-tc-timestamp"]
        check(
            abs(int(timestamp) - self.now().timestamp()) <= 300, "timestamp", self.error("AuthFailure.SignatureExpire")
        )
        match = re.fullmatch(
            r"TC3-HMAC-SHA256 Credential=([^/]+)/(\d{4}-\d\d-\d\d)/(\w+)/tc3_request, "
            r"SignedHeaders=([^,]+), Signature=([0-9a-f]{64})",
            request.headers.get("authorization", ""),
        )
        check(match, "authorization", wrong)
        assert match is not None
        date = datetime.fromtimestamp(int(timestamp), UTC).strftime("%Y-%m-%d")
        check((match[1], match[2], match[3]) == ("AKID0", date, self.service), "scope", wrong)
        check({"content-type", "host"} <= set(match[4].split(";")), "signed headers", wrong)
        headers = "".join(
            f"{name}:{request.headers[name].lower() if name != 'content-type' else request.headers[name]}\n"
            for name in match[4].split(";")
        )
        canonical = f"POST\n/\n\n{headers}\n{match[4]}\n{hashlib.sha256(request.content).hexdigest()}"
        scope = f"{date}/{self.service}/tc3_request"
        text = f"TC3-HMAC-SHA256\n{timestamp}\n{scope}\n{hashlib.sha256(canonical.encode()).hexdigest()}"
        key = hmac.new(f"TC3{SECRET}".encode(), date.encode(), hashlib.sha256).digest()
        key = hmac.new(key, self.service.encode(), hashlib.sha256).digest()
        key = hmac.new(key, b"tc3_request", hashlib.sha256).digest()
        check(match[5] == hmac.new(key, text.encode(), hashlib.sha256).hexdigest(), "signature", wrong)

    @staticmethod
    def error(code: str) -> Response:
        return Response(200, {"Response": {"Error": {"Code": code, "Message": "no"}, "RequestId": "ed93f3cb"}})

    def result(self, document: Any) -> dict[str, Any]:
        raise NotImplementedError

    def text_of(self, document: Any) -> str:
        return " ".join(document["TemplateParamSet"])


class TencentSms(Tencent):
    """``SendSms`` of 2021-01-11. ``statuses`` are codes other than Ok by number."""

    channel_type, action, service, version = "tencent_sms", "SendSms", "sms", "2021-01-11"

    def __init__(self, clock: Clock | None = None) -> None:
        super().__init__(clock)
        self.statuses: dict[str, str] = {}

    def settings(self) -> dict[str, Any]:
        return {
            "url": self.url, "secret_id": "AKID0", "secret_key": SECRET, "app_id": "1400006666",
            "sign_name": "Outrider", "template_id": "1110", "to": list(E164),
        }  # fmt: skip

    def result(self, document: Any) -> dict[str, Any]:
        keys = {
            "PhoneNumberSet": list, "SmsSdkAppId": str, "TemplateId": str, "SignName": str, "TemplateParamSet": list,
            "SessionContext": str,
        }  # fmt: skip
        only(document, keys, self.error("UnknownParameter"))
        numbers = document["PhoneNumberSet"]
        check(1 <= len(numbers) <= 200, "numbers", self.error("LimitExceeded.PhoneNumberCountLimit"))
        check(
            all(re.fullmatch(r"\+\d{6,20}", number) for number in numbers),
            "E.164",
            self.error("InvalidParameterValue.IncorrectPhoneNumber"),
        )
        check(len(document["SessionContext"].encode()) < 512, "context", self.error("InvalidParameterValue"))
        fits = all(1 <= len(value) <= 12 and "://" not in value for value in document["TemplateParamSet"])
        check(fits, "values", self.error("InvalidParameterValue.TemplateParameterLengthLimit"))
        statuses = [
            {
                "SerialNo": f"5000:{index}", "PhoneNumber": number, "Fee": 1, "Code": self.statuses.get(number, "Ok"),
                "Message": "", "IsoCode": "CN", "SessionContext": document["SessionContext"],
            }
            for index, number in enumerate(numbers)
        ]  # fmt: skip
        return {"SendStatusSet": statuses}


class TencentVoice(Tencent):
    """``SendTtsVoice`` of 2020-09-02: 350 characters."""

    channel_type, action, service, version = "tencent_voice", "SendTtsVoice", "vms", "2020-09-02"

    def settings(self) -> dict[str, Any]:
        return {
            "url": self.url, "secret_id": "AKID0", "secret_key": SECRET, "app_id": "1400006666", "template_id": "4356",
            "to": list(E164),
        }  # fmt: skip

    def result(self, document: Any) -> dict[str, Any]:
        keys = {
            "TemplateId": str, "CalledNumber": str, "VoiceSdkAppid": str, "TemplateParamSet": list, "PlayTimes": int,
            "SessionContext": str,
        }  # fmt: skip
        only(document, keys, self.error("UnknownParameter"))
        check(
            re.fullmatch(r"\+86\d{11}", document["CalledNumber"]),
            "number",
            self.error("InvalidParameterValue.CalledNumberVerifyFail"),
        )
        check(1 <= document["PlayTimes"] <= 3, "PlayTimes", self.error("InvalidParameter"))
        total = sum(map(len, document["TemplateParamSet"]))
        check(total <= 350, "length", self.error("LimitExceeded.VoiceContentLengthLimit"))
        return {
            "SendStatus": {"CallId": f"12582bce-{len(self.accepted)}", "SessionContext": document["SessionContext"]}
        }


class Twilio(Vendor):
    """Basic authentication and forms."""

    resource = ""
    throttled = Response(
        429, {"code": 20429, "message": "Too Many Requests", "status": 429}, headers={"Retry-After": "7"}
    )

    def settings(self) -> dict[str, Any]:
        return {"url": self.url, "account_sid": "AC0", "auth_token": SECRET, "from": "+15005550006", "to": list(E164)}

    def answer(self, request: Request) -> Response:
        login = base64.b64encode(f"AC0:{SECRET}".encode()).decode()
        wrong = Response(401, {"code": 20003, "message": "Authenticate", "status": 401})
        check(request.headers.get("authorization") == f"Basic {login}", "login", wrong)
        path = f"/2010-04-01/Accounts/AC0/{self.resource}.json"
        check(request.path == path, "path", Response(404, {"code": 20404, "status": 404}))
        content_type = request.headers["content-type"]
        check(content_type.startswith("application/x-www-form-urlencoded"), "content type", self.error(20001))
        form = dict(parse_qsl(request.content.decode(), keep_blank_values=True))
        check(re.fullmatch(r"\+\d{6,15}", form["To"]), "To", self.error(21211))
        self.check_form(form)
        self.accepted.append(form)
        return Response(201, {"sid": f"SM{len(self.accepted):032}", "status": "queued", "error_code": None})

    @staticmethod
    def error(code: int) -> Response:
        return Response(400, {"code": code, "message": "no", "status": 400, "more_info": "https://www.twilio.com"})

    def check_form(self, form: dict[str, str]) -> None:
        raise NotImplementedError


class TwilioSms(Twilio):
    """Messages: 1,600 characters."""

    channel_type, resource = "twilio_sms", "Messages"

    def check_form(self, form: dict[str, str]) -> None:
        check(set(form) <= {"To", "From", "MessagingServiceSid", "Body"}, "form", self.error(20001))
        check(1 <= len(form["Body"]) <= 1600, "Body", self.error(21617))

    def text_of(self, document: Any) -> str:
        return str(document["Body"])


class TwilioVoice(Twilio):
    """Calls: TwiML of 4,000 characters."""

    channel_type, resource = "twilio_voice", "Calls"

    def check_form(self, form: dict[str, str]) -> None:
        check(set(form) <= {"To", "From", "Twiml"}, "form", self.error(20001))
        check(len(form["Twiml"]) <= 4000, "Twiml", self.error(21218))
        root = ET.fromstring(form["Twiml"])
        spoken = root.tag == "Response" and [child.tag for child in root] == ["Say"]
        check(spoken and set(root[0].attrib) <= {"language", "loop", "voice"}, "TwiML", self.error(12100))

    def text_of(self, document: Any) -> str:
        return str(ET.fromstring(document["Twiml"])[0].text)
