"""Buttons end to end: links that the engine signs, opened and pressed at an API process with a store in a file."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import httpx
import pytest
import yaml

from outrider.audit import AuditEvent
from outrider.clock import SystemClock
from outrider.model import ButtonAction, ButtonClaim
from outrider.testing.story import Story
from outrider.testing.trouble import INCIDENT
from service.config import settings as settings_file
from service.wiring import alerting as wiring_alerting
from store import factory
from tests.support import on_call
from tests.support.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "NO_COLOR": "1"}


class Platform:
    """An API process on a filled store, and the signer of an engine on the same store."""

    def __init__(self, folder: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as free:
            port = free.getsockname()[1]
        config = folder / "outrider.yaml"
        config.write_text(
            yaml.safe_dump(
                {
                    "store": {"url": f"sqlite:///{folder}/o.db"},
                    "api": {"port": port, "public_url": f"http://127.0.0.1:{port}"},
                    "oncall": {"people": on_call.PEOPLE, "teams": on_call.TEAMS, "schedules": [on_call.SCHEDULE]},
                }
            )
        )
        settings = settings_file.load(config)
        state_url, metrics_url = factory.urls_of(settings.store.url)
        self.state, metrics = factory.open_state(state_url), factory.open_metrics(metrics_url)
        Story(history=timedelta(minutes=2)).fill(self.state, metrics)
        metrics.close()
        signer = wiring_alerting.button_signer(settings)
        assert signer is not None
        self.signer = signer
        with (folder / "api.log").open("wb") as log:
            command = [sys.executable, "-m", "service.cli", "run-api", "--config", str(config)]
            self._process = subprocess.Popen(command, cwd=folder, env=ENVIRONMENT, stdout=log, stderr=log)
        until(lambda: _listens(port), "the API listens", seconds=60)

    def refused(self) -> list[str]:
        """The reasons of the audited refusals, oldest first."""
        records = [record for record in self.state.audit() if record.event is AuditEvent.BUTTON_REFUSED]
        return [record.reason for record in reversed(records)]

    def close(self) -> None:
        self._process.terminate()
        self._process.wait(30)
        self.state.close()


def _listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_a_signed_link_acts_once_and_a_forged_expired_or_used_one_is_refused_and_audited(tmp_path):
    platform, now = Platform(tmp_path), SystemClock().now()
    claim = ButtonClaim(ButtonAction.ACKNOWLEDGE, INCIDENT, "li", "mail", now + timedelta(hours=1), "1")
    link = platform.signer.url(claim)
    try:
        assert "You act as li." in httpx.get(link).text
        assert platform.state.incident(INCIDENT).acknowledged_by is None
        assert "Acknowledged by li" in httpx.post(link).text
        assert platform.state.incident(INCIDENT).acknowledged_by == "li"
        assert httpx.post(link).status_code == 409
        head, _, signature = link.rpartition(".")
        other = platform.signer.token(replace(claim, recipient="wang", nonce="2")).partition(".")[0]
        assert httpx.post(f"{head}.{signature[::-1]}").status_code == 403
        assert httpx.post(f"{platform.signer.base_url}/api/v1/buttons/{other}.{signature}").status_code == 403
        expired = replace(claim, expires_at=now - timedelta(seconds=1), nonce="3")
        assert httpx.post(platform.signer.url(expired)).status_code == 410
        assert platform.refused() == ["used", "forged", "forged", "expired"]
        assert "/api/v1/buttons/" not in (tmp_path / "api.log").read_text(), "a link is in no log"
    finally:
        platform.close()
