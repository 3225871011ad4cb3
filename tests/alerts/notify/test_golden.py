"""The requests of every channel, compared with files; docs/images/channels shows the same requests.

``OUTRIDER_WRITE_GOLDEN=1 pytest tests/alerts/notify/test_golden.py`` writes the files anew. Read their diff.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from alerts.notify.registry import NOTIFIERS
from tests.support.mail_server import MailEnd
from tests.support.messages import a_message
from tests.support.vendors.registry import VENDORS
from tests.support.vendors.server import SECRET, serving

FOLDER = Path(__file__).parent / "golden"
VOLATILE = ("timestamp", "sign")


def request_of(name: str, language: str) -> Any:
    """What a channel sends for the first page of a P0."""
    if name == "email":
        end = MailEnd()
        try:
            NOTIFIERS[name].build(end.settings()).send(a_message(language))
        finally:
            end.close()
        (mail,) = end.parsed
        parts = {part.get_content_subtype(): part.get_content().replace("\r", "") for part in mail.iter_parts()}
        return {"subject": mail["Subject"], "from": mail["From"], "to": mail["To"], **parts}
    with serving(VENDORS[name]()) as vendor:
        NOTIFIERS[name].notifier(vendor.settings(), "prod-1b6d9c40").send(a_message(language))
        assert vendor.rejected == []
        document = vendor.accepted[0]
    return {key: value for key, value in document.items() if key not in VOLATILE} if name == "feishu" else document


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", [*NOTIFIERS])
def test_the_request_of_a_page_is_that_of_the_file(name, language):
    text = json.dumps(request_of(name, language), ensure_ascii=False, indent=2, sort_keys=True) + "\n"
    text = text.replace(SECRET.ljust(32, "0"), "ROUTING-KEY")
    assert SECRET not in text
    file = FOLDER / f"{name}.{language}.json"
    if os.environ.get("OUTRIDER_WRITE_GOLDEN"):
        file.write_text(text, encoding="utf-8")
    assert text == file.read_text(encoding="utf-8")


def test_every_file_belongs_to_a_channel():
    assert {file.name for file in FOLDER.iterdir()} == {
        f"{name}.{one}.json" for name in NOTIFIERS for one in ("en", "zh")
    }
