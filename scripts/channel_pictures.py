"""Draws docs/images/channels: what people see of each channel, from the requests that the tests compare.

    python scripts/channel_pictures.py --chromium /usr/bin/chromium

A drawing imitates the client of a vendor; it shows the content of the request, in English and Chinese. It needs a font
with Chinese characters, such as fonts-noto-cjk.
"""

from __future__ import annotations

import argparse
import html
import io
import json
import re
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright
from screenshots import FLAGS

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "alerts" / "notify" / "golden"
STYLE = Path(__file__).with_suffix(".css")
WIDTH = 1180
COLORS = 48
# templates as docs/reference/channels.md proposes them
_TEMPLATES = {"en": "{0}: {1} on {2}", "zh": "{0}：{2} 发生 {1}"}
_SINCE = {"en": ", since {3}", "zh": "，始于 {3}"}


def main() -> int:
    """Draws all pictures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chromium", default="/usr/bin/chromium", help="Path of Chromium. Default: /usr/bin/chromium.")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "channels", help="Folder to write to.")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=options.chromium, args=FLAGS)
        page = browser.new_page(viewport={"width": WIDTH, "height": 300})
        for name, draw in DRAWINGS.items():
            page.set_content(document(draw, name))
            picture = Image.open(io.BytesIO(page.locator("main").screenshot()))
            picture.convert("RGB").quantize(COLORS).save(options.out / f"{name}.png", optimize=True)
        browser.close()
    return 0


def document(draw: Callable[[Any, str], str], name: str) -> str:
    """One page with the drawing in both languages."""
    columns = "".join(
        f'<section class="{name}" lang="{language}">{draw(request_of(name, language), language)}</section>'
        for language in ("en", "zh")
    )
    style = STYLE.read_text(encoding="utf-8")
    return f"<html><head><style>{style}</style></head><body><main>{columns}</main></body></html>"


def request_of(name: str, language: str) -> Any:
    """The request of the golden file."""
    return json.loads((GOLDEN / f"{name}.{language}.json").read_text(encoding="utf-8"))


def markdown(text: str) -> str:
    """HTML of the Markdown that DingTalk and WeCom show: headings, links, colors, line breaks."""
    escaped = html.escape(text, quote=False).replace('&lt;font color="', '<b class="').replace("&lt;/font&gt;", "</b>")
    escaped = re.sub(r'(<b class="\w+")&gt;', r"\1>", escaped)
    escaped = re.sub(r"\[([^\]]+)\]\((https?://[^)]+)\)", r'<a href="\2">\1</a>', escaped)
    escaped = re.sub(r"^### (.*)$", r"<h3>\1</h3>", escaped, flags=re.MULTILINE)
    return "<br>".join(line for line in escaped.splitlines() if line).replace("</h3><br>", "</h3>")


def lines(text: str) -> str:
    """Text with its line breaks."""
    return html.escape(text).replace("\n", "<br>")


def buttons(pairs: list[tuple[str, str]], kind: str = "button") -> str:
    """Buttons with these texts."""
    return (
        f'<div class="{kind}s">'
        + "".join(f"<span class={kind}>{html.escape(text)}</span>" for text, _ in pairs)
        + "</div>"
    )


def dingtalk(request: Any, _language: str) -> str:
    """An action card."""
    card = request["actionCard"]
    pairs = [(button["title"], button["actionURL"]) for button in card.get("btns", ())]
    return f'<div class="bot">Outrider</div><div class="card">{markdown(card["text"])}{buttons(pairs, "row")}</div>'


def feishu(request: Any, _language: str) -> str:
    """An interactive card."""
    card, parts = request["card"], []
    for element in card["elements"]:
        if element["tag"] == "div":
            parts.append(f"<p>{lines(element['text']['content'])}</p>")
        else:
            parts.append(buttons([(item["text"]["content"], item["url"]) for item in element["actions"]]))
    header = f'<header class="{card["header"]["template"]}">{lines(card["header"]["title"]["content"])}</header>'
    return f'<div class="bot">Outrider</div><div class="card">{header}<div class="inner">{"".join(parts)}</div></div>'


def wecom(request: Any, _language: str) -> str:
    """Markdown."""
    return f'<div class="bot">Outrider</div><div class="card">{markdown(request["markdown"]["content"])}</div>'


def slack(request: Any, _language: str) -> str:
    """The text, and blocks beside a colored bar."""
    (attachment,) = request["attachments"]
    section, actions = attachment["blocks"]
    pairs = [(element["text"]["text"], element["url"]) for element in actions["elements"]]
    bar = f'style="border-color:{attachment["color"]}"'
    return (
        f'<div class="bot">Outrider <small>APP</small></div>{lines(html.unescape(request["text"]))}'
        f'<div class="card" {bar}><p>{lines(section["text"]["text"])}</p>{buttons(pairs)}</div>'
    )


def teams(request: Any, _language: str) -> str:
    """An Adaptive Card."""
    card = request["attachments"][0]["content"]
    parts = []
    for block in card["body"]:
        (run,) = block["inlines"]
        style = f"{run.get('weight', '')} {run.get('color', '')} {run.get('size', '')}"
        parts.append(f'<div class="{style}">{lines(run["text"])}</div>')
    pairs = [(action["title"], action["url"]) for action in card["actions"]]
    return f'<div class="bot">Workflows</div><div class="card">{"".join(parts)}{buttons(pairs)}</div>'


def email(request: Any, _language: str) -> str:
    """Subject and HTML part."""
    head = "".join(f"<div><b>{key}</b> {html.escape(request[key])}</div>" for key in ("from", "to", "subject"))
    return f'<div class="card"><header>{head}</header>{request["html"]}</div>'


def fields(pairs: dict[str, str]) -> str:
    """A table of names and values."""
    rows = "".join(f"<tr><th>{html.escape(key)}</th><td>{lines(value)}</td></tr>" for key, value in pairs.items())
    return f"<table>{rows}</table>"


def pagerduty(request: Any, _language: str) -> str:
    """An alert with its details and links."""
    event = request["payload"]
    links = " · ".join(f'<a href="#">{html.escape(link["text"])}</a>' for link in request["links"])
    details = {"key": request["dedup_key"], **{key: event[key] for key in ("severity", "source", "class", "group")}}
    return (
        f'<div class="card"><span class="status">TRIGGERED</span><h3>{lines(event["summary"])}</h3>'
        f"{fields(details)}<p>{links}</p><h4>Custom details</h4>{fields(event['custom_details'])}</div>"
    )


def opsgenie(request: Any, _language: str) -> str:
    """An alert with its tags and description."""
    tags = "".join(f"<span class=tag>{html.escape(tag)}</span>" for tag in request["tags"])
    ids = fields({key: request[key] for key in ("alias", "entity")})
    return (
        f'<div class="card"><span class="status">{request["priority"]}</span><h3>{lines(request["message"])}</h3>{tags}'
        f"<p>{lines(request['description'])}</p>{ids}</div>"
    )


def sms(text: str) -> str:
    """A bubble on a phone."""
    return f'<div class="phone"><div class="bubble">{lines(text)}</div></div>'


def call(text: str) -> str:
    """A call that reads a text aloud."""
    return f'<div class="phone calling"><div class="who">☎ Outrider</div><div class="speech">{lines(text)}</div></div>'


def aliyun_sms(request: Any, language: str) -> str:
    """The proposed template, filled."""
    text = _TEMPLATES[language] + _SINCE[language]
    return sms("【Outrider】" + text.format(*json.loads(request["TemplateParam"]).values()))


def aliyun_voice(request: Any, language: str) -> str:
    """The proposed template, read aloud."""
    return call(_TEMPLATES[language].format(*json.loads(request["TtsParam"]).values()))


def tencent_sms(request: Any, language: str) -> str:
    """The proposed template, filled."""
    return sms("【Outrider】" + _TEMPLATES[language].format(*request["TemplateParamSet"]))


def tencent_voice(request: Any, language: str) -> str:
    """The proposed template, read aloud."""
    return call(_TEMPLATES[language].format(*request["TemplateParamSet"]))


def twilio_sms(request: Any, _language: str) -> str:
    """The whole text."""
    return sms(request["Body"])


def twilio_voice(request: Any, _language: str) -> str:
    """The text of the TwiML."""
    return call(ET.fromstring(request["Twiml"])[0].text or "")


def alertmanager(request: Any, _language: str) -> str:
    """Labels and annotations of the alert."""
    (alert,) = request
    labels = "".join(f'<span class=tag>{key}="{html.escape(text)}"</span>' for key, text in alert["labels"].items())
    times = {"startsAt": alert["startsAt"], "endsAt": alert["endsAt"]}
    return f'<div class="card">{labels}{fields(alert["annotations"] | times)}</div>'


def webhook(request: Any, _language: str) -> str:
    """The JSON."""
    return f"<pre>{html.escape(json.dumps(request, ensure_ascii=False, indent=2))}</pre>"


def apprise(request: Any, _language: str) -> str:
    """Title and text, as a chat service shows them."""
    title, text = lines(request["title"]), lines(request["message"])
    return f'<div class="bot">Outrider</div><div class="card"><h3>{title}</h3>{text}</div>'


DRAWINGS: dict[str, Callable[[Any, str], str]] = {
    "dingtalk": dingtalk,
    "feishu": feishu,
    "wecom": wecom,
    "slack": slack,
    "slack_bot": slack,
    "teams": teams,
    "email": email,
    "webhook": webhook,
    "pagerduty": pagerduty,
    "opsgenie": opsgenie,
    "aliyun_sms": aliyun_sms,
    "aliyun_voice": aliyun_voice,
    "tencent_sms": tencent_sms,
    "tencent_voice": tencent_voice,
    "twilio_sms": twilio_sms,
    "twilio_voice": twilio_voice,
    "alertmanager": alertmanager,
    "apprise": apprise,
}


if __name__ == "__main__":
    sys.exit(main())
