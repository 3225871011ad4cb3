"""The texts of emitted alerts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from service.alertmanager.emitted_alerts import watchdog

NOW = datetime(2026, 11, 26, 8, 0, tzinfo=UTC)


@pytest.mark.parametrize(("language", "text"), [("en", "Outrider is alive."), ("zh", "Outrider 运行正常。")])
def test_the_watchdog_explains_itself_in_the_language_of_messages(language, text):
    alert = watchdog("prod-1b6d9c40", "https://o.example", language, NOW, NOW, timedelta(seconds=30))
    assert alert.annotations["summary"].startswith(text)
