"""The message as Slack shows it: mentions and title as its text, body and buttons as blocks beside a colored bar.

Slack notifies a mentioned user only if the mention is in the text of the message, not in an attachment. The text is
mrkdwn, so the title is escaped; the blocks are ``plain_text``, in which nothing is markup. Limits of Slack (Block Kit
reference): 3,000 characters a section, 75 a button, 25 buttons, 40,000 a text.
"""

from __future__ import annotations

import re
from typing import Any

from alerts.notify import recipients
from alerts.notify.colors import color_of
from alerts.notify.text import buttons_of, clean, mark_of, one_line, shorten
from outrider.model import Message

TITLE_LIMIT = 500
SECTION_LIMIT = 3000
_BUTTON_LIMIT, _MOST_BUTTONS = 75, 25
_INERT = str.maketrans("*`", "＊｀")
_EMPHASIS = {"_": "＿", "~": "～"}
_EMPHASIS_EDGE = re.compile(r"(?<![^\W_~])[_~]|[_~](?![^\W_~])")  # inside of a word they are no markup
# what a first attempt may be rejected with although the plain text is accepted
CARD_ERRORS = frozenset(
    {"invalid_blocks", "invalid_blocks_format", "invalid_attachments", "invalid_payload", "msg_blocks_too_long",
     "msg_too_long", "too_many_attachments", "attachment_payload_limit_exceeded"}
)  # fmt: skip


def content(message: Message) -> dict[str, Any]:
    """``text`` has the mentions and the title, the attachment has body and buttons."""
    body = shorten(clean(message.body), SECTION_LIMIT, mark_of(message))
    blocks: list[dict[str, Any]] = [{"type": "section", "text": _plain(body or "…")}]
    buttons = buttons_of(message)[:_MOST_BUTTONS]
    if buttons:
        elements = [
            {
                "type": "button",
                "text": _plain(shorten(label, _BUTTON_LIMIT, "…")),
                "url": url,
                "action_id": f"link-{number}",
                **({} if number or len(buttons) == 1 else {"style": "primary"}),
            }
            for number, (label, url) in enumerate(buttons)
        ]
        blocks.append({"type": "actions", "elements": elements})
    return {"text": _headline(message), "attachments": [{"color": color_of(message), "blocks": blocks}]}


def plain_content(message: Message) -> dict[str, Any]:
    """Mentions, title and body as one text without blocks."""
    return {"text": f"{_headline(message)}\n{_escape(shorten(clean(message.body), SECTION_LIMIT, mark_of(message)))}"}


def _headline(message: Message) -> str:
    mentions = [f"<@{_escape(user)}>" for user in recipients.mentions(message, ())]
    return " ".join([*mentions, _escape(shorten(one_line(message.title), TITLE_LIMIT, "…"))])


def _escape(text: str) -> str:
    """The text without markup: ``<`` begins links and mentions, ``>`` a quotation."""
    lines = (_EMPHASIS_EDGE.sub(lambda found: _EMPHASIS[found[0]], line) for line in text.splitlines())
    inert = (f"＞{line[1:]}" if line.startswith(">") else line for line in lines)
    escaped = "\n".join(inert).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return escaped.translate(_INERT)


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}
