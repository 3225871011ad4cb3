"""Heartbeats to a dead man's switch, and watchdogs of other monitors that are expected here."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import timedelta

from pydantic import Field

from outrider.errors import ConfigProblem, UsageError
from outrider.records.heartbeats import Watchdog
from outrider.records.silences import parse_matcher, selects_everything
from outrider.text import yaml_file
from service.config.settings_base import PositiveDuration, Section, duplicate_names, is_web_url


class HeartbeatSettings(Section):
    """Requests to a dead man's switch while cycles complete with fresh values."""

    urls: list[str] = Field([], description="URLs to request with GET, for example of healthchecks.io.")
    every: PositiveDuration = Field(timedelta(minutes=1), description="Time between two requests.")
    timeout: PositiveDuration = Field(timedelta(seconds=10), description="Timeout of a request.")


class WatchdogSettings(Section):
    """An expected heartbeat of another monitor. Its absence opens an incident that names what is silent."""

    name: str = Field(description="Name of what is watched, in pages.", min_length=1, max_length=100)
    match: list[str] = Field(
        [], description="Matchers of the received alert that is the heartbeat, such as alertname=Watchdog."
    )
    within: PositiveDuration = Field(
        timedelta(minutes=10), description="Time without a heartbeat after which it is absent."
    )

    def watchdog(self) -> Watchdog:
        """Returns the watchdog."""
        return Watchdog(self.name, tuple(parse_matcher(text) for text in self.match), self.within)


def heartbeat_problems(settings: HeartbeatSettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Checks the URLs."""
    for index, url in enumerate(settings.urls):
        if not is_web_url(url):
            yield document.problem(("heartbeat", "urls", index), "expected a URL such as https://hc-ping.com/UUID")


def watchdog_problems(watchdogs: list[WatchdogSettings], document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Checks the matchers and names."""
    yield from duplicate_names([item.name for item in watchdogs], ("watchdogs",), document)
    for index, item in enumerate(watchdogs):
        matchers = []
        for number, text in enumerate(item.match):
            try:
                matchers.append(parse_matcher(text))
            except UsageError as error:
                yield document.problem(("watchdogs", index, "match", number), f"{error.message}; {error.hint}")
        if matchers and selects_everything(matchers):
            yield document.problem(("watchdogs", index, "match"), "selects every alert; add alertname=Watchdog")
