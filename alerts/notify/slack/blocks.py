"""The message as Block Kit. Texts are ``plain_text``, in which nothing is markup; only mentions are.

Limits of Slack (Block Kit reference): 150 characters a header, 3,000 a section, 75 a button, 25 buttons.
"""

from __future__ import annotations

from typing import Any

from alerts.notify import recipients
from alerts.notify.text import buttons_of, clean, mark_of, one_line, shorten
from outrider.model import Message, NotifyReason, Priority

HEADER_LIMIT = 150
SECTION_LIMIT = 3000
_BUTTON_LIMIT, _MOST_BUTTONS = 75, 25
_COLORS = {Priority.P0: "#b91c1c", Priority.P1: "#c2410c", Priority.P2: "#a16207", Priority.P3: "#475569"}
_GOOD = "#15803d"
# what a first attempt may be rejected with although the plain text is accepted
CARD_ERRORS = frozenset(
    {"invalid_blocks", "invalid_blocks_format", "invalid_attachments", "invalid_payload", "msg_blocks_too_long",
     "msg_too_long", "too_many_attachments", "attachment_payload_limit_exceeded"}
)  # fmt: skip


def content(message: Message) -> dict[str, Any]:
    """``text`` is for notifications, the blocks are for the channel."""
    title = one_line(message.title)
    resolved = message.reason is NotifyReason.RESOLVED
    color = _GOOD if resolved else _COLORS.get(message.priority or Priority.P3, _COLORS[Priority.P3])
    body = shorten(clean(message.body), SECTION_LIMIT, mark_of(message))
    blocks: list[dict[str, Any]] = [
        {"type": "header", "text": _plain(shorten(title, HEADER_LIMIT, "…"))},
        {"type": "section", "text": _plain(body or "…")},
    ]
    mentioned = recipients.mentions(message, ())
    if mentioned:
        users = " ".join(f"<@{escape(user)}>" for user in mentioned)
        blocks.append({"type": "section", "text": {"type": "mrkdwn", "text": users}})
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
    return {"text": escape(shorten(title, SECTION_LIMIT, "…")), "attachments": [{"color": color, "blocks": blocks}]}


def plain_content(message: Message) -> dict[str, Any]:
    """Title and body as one text without blocks."""
    text = f"{one_line(message.title)}\n{clean(message.body)}"
    return {"text": escape(shorten(text, SECTION_LIMIT, mark_of(message))), "mrkdwn": False}


def escape(text: str) -> str:
    """Escapes ``&``, ``<`` and ``>``, with which Slack's links and mentions begin."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}
