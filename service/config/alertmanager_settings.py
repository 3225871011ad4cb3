"""Alertmanagers that receive our alerts and share silences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from datetime import timedelta

from pydantic import Field

from outrider.errors import ConfigProblem
from outrider.model import Priority
from outrider.text import yaml_file
from service.config.access_settings import AccessSettings
from service.config.notify_settings import ChannelSettings
from service.config.settings_base import Duration, PositiveDuration, is_web_url

_LEAST = timedelta(seconds=5)


class AlertmanagerSettings(AccessSettings):
    """The members of one Alertmanager cluster. Every member receives every alert."""

    urls: list[str] = Field([], description="URLs of all members, for example http://alertmanager-0:9093.")
    alerts: bool = Field(default=True, description="Send firing alerts, and their ends.")
    priorities: list[Priority] = Field(list(Priority), description="Priorities of the alerts to send.")
    watchdog: bool = Field(default=True, description="Send the always firing alert Watchdog while cycles complete.")
    read_silences: bool = Field(default=True, description="Silences of Alertmanager also mute our alerts.")
    write_silences: bool = Field(default=True, description="Create our silences in Alertmanager.")
    every: Duration = Field(
        timedelta(seconds=30), description="Time between two deliveries; an alert ends after four without one."
    )
    timeout: PositiveDuration = Field(timedelta(seconds=5), description="Timeout of a request.")


def alertmanager_problems(settings: AlertmanagerSettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Checks the URLs and the interval."""
    for index, url in enumerate(settings.urls):
        if not is_web_url(url):
            yield document.problem(("alertmanager", "urls", index), "expected a URL such as http://alertmanager:9093")
        elif "/api/v" in url:
            yield document.problem(("alertmanager", "urls", index), "expected a URL without /api/v2")
    if settings.every < _LEAST:
        yield document.problem(("alertmanager", "every"), "is too short; expected 5s or more")


def alertmanager_warnings(
    settings: AlertmanagerSettings, channels: Mapping[str, ChannelSettings], document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """Warns of a channel to an Alertmanager that receives every alert already: it would notify people twice."""
    known = {url.rstrip("/") for url in settings.urls if settings.alerts}
    for name, channel in channels.items():
        if channel.type == "alertmanager" and str(channel.keys.get("url", "")).rstrip("/") in known:
            message = "this Alertmanager also receives every alert by alertmanager.urls; set alertmanager.alerts: false"
            yield document.problem(("notify", "channels", name), message)
