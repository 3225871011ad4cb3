"""Notification channels, routes and fallbacks, and the checks of their keys."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator

from alerts.notify.registry import NOTIFIERS, Reach
from alerts.notify.settings import ChannelSettingError, SecretFileError
from alerts.notify.template import BodyTemplate
from outrider.errors import ConfigError, ConfigProblem, UsageError
from outrider.model import ChannelPolicy, RateLimit
from outrider.text import yaml_file
from outrider.vocabulary.units import parse_duration
from service.config.settings_base import Duration, Section, WebUrl, is_loopback_url

ChannelTypeName = Literal[
    "dingtalk", "feishu", "wecom", "slack", "slack_bot", "teams", "email", "webhook", "pagerduty", "opsgenie",
    "aliyun_sms", "aliyun_voice", "tencent_sms", "tencent_voice", "twilio_sms", "twilio_voice", "alertmanager",
    "apprise",
]  # fmt: skip
Group = Literal["phone", "sms", "im", "mail", "report"]
_OF_THE_DASHBOARD = "set it to the address of the dashboard"
_LIMIT = re.compile(r"(\d{1,6})\s*/\s*(\S+)")


class ChannelSettings(BaseModel):
    """A notification channel; the notifier of its type checks further keys."""

    model_config = ConfigDict(extra="allow", frozen=True)
    type: ChannelTypeName = Field(description="Channel type.")
    language: Literal["en", "zh"] | None = Field(None, description="Language of this channel. Default: that of notify.")
    limit: str | None = Field(
        None, description="Maximum messages in a time, such as 20/1m. Default: the limit of the channel type."
    )
    fallback: str | None = Field(None, description="Channel for what this one cannot deliver. Default: that of notify.")
    template: str | None = Field(None, description="Jinja template of the body of messages.")
    template_file: Path | None = Field(None, description="File with the template.")

    @field_validator("limit")
    @classmethod
    def _is_limit(cls, value: str | None) -> str | None:
        if value is not None:
            _limit(value)
        return value

    @property
    def keys(self) -> dict[str, Any]:
        """The keys that the notifier of the type reads."""
        return dict(self.model_extra or {})

    @property
    def rate_limit(self) -> RateLimit | None:
        """The limit of the channel; None: unlimited."""
        return NOTIFIERS[self.type].limit if self.limit is None else _limit(self.limit)

    def body_template(self, name: str) -> BodyTemplate | None:
        """The template, None if the channel has none. Raises ConfigError."""
        if self.template is not None:
            return BodyTemplate(name, self.template)
        if self.template_file is None:
            return None
        try:
            return BodyTemplate(name, self.template_file.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError) as error:
            detail = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
            raise ConfigError(f"template_file of the {name} channel cannot be read: {detail}") from error


class NotifySettings(Section):
    """Notification channels and routes."""

    language: Literal["en", "zh"] = Field("en", description="Language of messages and reports.")
    channels: dict[str, ChannelSettings] = Field({}, description="Map from name to a channel with its keys.")
    groups: dict[Group, list[str]] = Field({}, description="Map from a route of rules to channel names.")
    fallback: str | None = Field(
        None, description="Channel for what another one cannot deliver: pages at once, other messages later."
    )
    fallback_after: Duration = Field(
        timedelta(minutes=5), description="How long a channel fails before its other messages go to the fallback."
    )
    public_url: WebUrl = Field("http://127.0.0.1:8501", description="Base URL of links in messages.")

    def policies(self) -> dict[str, ChannelPolicy]:
        """How the messages of each channel are delivered."""
        return {
            name: ChannelPolicy(
                limit=channel.rate_limit,
                merges=NOTIFIERS[channel.type].merges,
                fallback=self.fallback_of(name),
                fallback_after=self.fallback_after,
                accepts=NOTIFIERS[channel.type].accepts,
                personal=NOTIFIERS[channel.type].reach is Reach.MAIL,
                per_number=NOTIFIERS[channel.type].reach in (Reach.PHONE, Reach.SMS),
            )
            for name, channel in self.channels.items()
        }

    def fallback_of(self, name: str) -> str | None:
        """The fallback of a channel; a channel is not its own."""
        chosen = self.channels[name].fallback or self.fallback
        return chosen if chosen != name else None


def _limit(text: str) -> RateLimit:
    match = _LIMIT.fullmatch(text.strip())
    try:
        limit = None if match is None else RateLimit(int(match[1]), parse_duration(match[2]))
    except UsageError:
        limit = None
    if limit is None or limit.count < 1 or limit.per <= timedelta(0):
        raise ValueError(f"expected a number and a duration such as 20/1m, not {text!r}")
    return limit


def notify_problems(settings: NotifySettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Unknown channels in groups and fallbacks, and keys that the notifiers reject."""
    known = settings.channels
    for group, names in settings.groups.items():
        for index, name in enumerate(names):
            if name not in known:
                yield document.problem(("notify", "groups", group, index), _unknown(name, known))
    if settings.fallback is not None and settings.fallback not in known:
        yield document.problem(("notify", "fallback"), _unknown(settings.fallback, known))
    for name, channel in known.items():
        path = ("notify", "channels", name)
        if channel.fallback == name:
            yield document.problem((*path, "fallback"), "a channel cannot be its own fallback")
        elif channel.fallback is not None and channel.fallback not in known:
            yield document.problem((*path, "fallback"), _unknown(channel.fallback, known))
        error = channel_error(name, channel)
        if error is not None and not isinstance(error, SecretFileError):
            yield document.problem(_path_of(error, path, channel), _sentence(error))


def channel_error(name: str, channel: ChannelSettings) -> ConfigError | None:
    """The first error in the keys of a channel. Nothing is sent."""
    try:
        NOTIFIERS[channel.type].build(channel.keys)
        channel.body_template(name)
    except ConfigError as error:
        return error
    return None


def notify_warnings(settings: NotifySettings, document: yaml_file.Document) -> Iterator[ConfigProblem]:
    """Warns of secret files that cannot be read here, and of links that people cannot open."""
    for name, channel in settings.channels.items():
        error = channel_error(name, channel)
        if isinstance(error, SecretFileError):
            yield document.problem(_path_of(error, ("notify", "channels", name), channel), error.message)
    if is_loopback_url(settings.public_url) and any(
        _leaves_this_host(channel) for channel in settings.channels.values()
    ):
        message = (
            f"links of messages lead to {settings.public_url}, which only this host can open; " + _OF_THE_DASHBOARD
        )
        yield document.problem(("notify", "public_url"), message)


def _path_of(error: ConfigError, path: yaml_file.Path_, channel: ChannelSettings) -> yaml_file.Path_:
    """The position of the key at fault; that of the channel if the key is missing."""
    key = error.key if isinstance(error, ChannelSettingError) else ""
    return (*path, key) if key in channel.keys else path


def _sentence(error: ConfigError) -> str:
    return f"{error.message}; {error.hint}" if error.hint else error.message


def _leaves_this_host(channel: ChannelSettings) -> bool:
    host = str(channel.keys.get("host") or "")
    address = f"smtp://{host}" if host else str(channel.keys.get("url") or "")
    return not is_loopback_url(address)


def _unknown(name: str, known: Mapping[str, ChannelSettings]) -> str:
    hint = yaml_file.near(name, known) or "; name it under notify.channels"
    return f"no channel is named {name!r}{hint}"
