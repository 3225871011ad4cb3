"""Plain text in place of a card that the vendor rejected."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from outrider import log
from outrider.errors import CardRejectedError
from outrider.model import DeliveryNote, Message, Receipt
from outrider.text.i18n import supported, translate

_log = log.get("notify")


def send_card(message: Message, card: Callable[[Message], Receipt], plain: Callable[[Message], Receipt]) -> Receipt:
    """Sends the card. If the vendor rejects its format, sends the text with a line about that."""
    try:
        return card(message)
    except CardRejectedError as error:
        _log.warning("card_rejected", message=message.id, channel=message.channel, reason=error.reason)
    note = translate("notify.line.card_rejected", supported(message.language))
    return replace(plain(replace(message, body=f"{note}\n{message.body}")), note=DeliveryNote.PLAIN_TEXT)
