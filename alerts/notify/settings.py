"""Reads the settings of a channel. Errors name keys, never values, which may be secrets."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from outrider.errors import ConfigError, UsageError
from outrider.text.yaml_file import near
from outrider.vocabulary.units import parse_duration

TIMEOUT = timedelta(seconds=10)
_HEADER_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_HEADER_VALUE = re.compile(r"[\x20-\x7e\t]*")
_IN_QUOTES = "write it in quotes"
# these are no texts, so no file can hold them
_WITHOUT_FILE = frozenset(
    {"type", "timeout", "port", "security", "headers", "labels", "keep", "play_times", "parameter_limit",
     "template_parameters"}
)  # fmt: skip


class ChannelSettingError(ConfigError):
    """A wrong setting of a channel. ``key`` is its key, empty if none is at fault."""

    def __init__(self, message: str, key: str = "", *, hint: str = "") -> None:
        """``message`` names the channel type and the key."""
        super().__init__(message, hint=hint)
        self.key = key


class SecretFileError(ChannelSettingError):
    """A secret file cannot be read, perhaps because it exists on another machine."""


def accept(channel: str, settings: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises ConfigError for an unknown key. Every text may be given as ``<key>_file``."""
    keys = {*known, "timeout", "type"}
    allowed = keys | {f"{key}_file" for key in keys - _WITHOUT_FILE}
    unknown = sorted(set(settings) - allowed)
    if unknown:
        raise ChannelSettingError(f"the {channel} channel has no setting {unknown[0]!r}{near(unknown[0], keys)}")


def wrong(channel: str, key: str, expected: str, *, hint: str = "") -> ChannelSettingError:
    """The error of a key: ``expected`` completes "must be"."""
    return ChannelSettingError(f"{key} of the {channel} channel must be {expected}", key, hint=hint)


def required(channel: str, settings: Mapping[str, Any], key: str) -> str:
    """A required text."""
    value = optional(channel, settings, key)
    if not value:
        hint = f"give it as {key} or {key}_file"
        raise ChannelSettingError(f"the {channel} channel needs {key}", key, hint=hint)
    return value


def optional(channel: str, settings: Mapping[str, Any], key: str) -> str:
    """A text, empty if it is not given. A number is one, too."""
    if settings.get(f"{key}_file"):
        return _file_text(channel, settings, key)
    value = settings.get(key)
    if value is None:
        return ""
    if not isinstance(value, str | int) or isinstance(value, bool):
        raise wrong(channel, key, "text", hint=_IN_QUOTES)
    return str(value)


def number(channel: str, settings: Mapping[str, Any], key: str) -> str:
    """A phone number or the name of a sender, empty if it is not given.

    YAML reads one without quotes as a number, which loses the + or a leading zero.
    """
    if isinstance(settings.get(key), int):
        raise wrong(channel, key, "text", hint='write it in quotes, such as "+8613800000000"')
    return optional(channel, settings, key)


def _file_text(channel: str, settings: Mapping[str, Any], key: str) -> str:
    name = f"{key}_file"
    try:
        return Path(str(settings[name])).read_text(encoding="utf-8").strip()
    except OSError as error:
        text = f"{name} of the {channel} channel cannot be read: {error.strerror}"
        raise SecretFileError(text, name) from error
    except UnicodeDecodeError as error:
        raise wrong(channel, name, "a file of UTF-8 text") from error


def url(channel: str, settings: Mapping[str, Any], default: str = "") -> str:
    """The URL, http or https. ``default`` is that of the vendor; without one the setting is required."""
    result = optional(channel, settings, "url") or default or required(channel, settings, "url")
    try:
        parts = urlsplit(result)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        usable = False
    if not usable or not result.isprintable() or " " in result:
        raise wrong(channel, "url", "a URL that starts with https:// or http:// and names a host")
    return result


def texts(channel: str, settings: Mapping[str, Any], key: str, *, needed: bool = False) -> tuple[str, ...]:
    """A list of texts; one text is a list of one, and a file has one a line. ``needed``: at least one."""
    value = settings.get(key) or ()
    listed = (value,) if isinstance(value, str) else value
    if not isinstance(listed, list | tuple):
        raise wrong(channel, key, "a list of texts", hint=_IN_QUOTES)
    if not all(isinstance(item, str) for item in listed):
        raise wrong(channel, key, "a list of texts", hint="write each in quotes")
    named = _file_text(channel, settings, key).splitlines() if settings.get(f"{key}_file") else ()
    result = (*(line.strip() for line in named if line.strip()), *listed)
    if needed and not result:
        hint = f"give one or a list, or {key}_file"
        raise ChannelSettingError(f"the {channel} channel needs {key}", key, hint=hint)
    return result


def phones(channel: str, settings: Mapping[str, Any], *, international: bool = False) -> tuple[str, ...]:
    """The numbers of ``to``. ``international``: each must start with + and the country code."""
    numbers = texts(channel, settings, "to", needed=True)
    for one in numbers:
        digits = one.removeprefix("+")
        if not (digits.isascii() and digits.isdigit() and 5 <= len(digits) <= 20):
            raise wrong(channel, "to", "phone numbers", hint="write digits only")
        if international and not one.startswith("+"):
            hint = 'write numbers as "+8613800000000"'
            raise wrong(channel, "to", "numbers with + and the country code", hint=hint)
    return numbers


def headers(channel: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """The ``headers`` of requests."""
    value = settings.get("headers") or {}
    if not isinstance(value, Mapping):
        raise wrong(channel, "headers", "a map from name to text")
    for name, text in value.items():
        if not isinstance(name, str) or not _HEADER_NAME.fullmatch(name):
            raise wrong(channel, "headers", "a map from name to text", hint="a name has letters, digits and hyphens")
        if not isinstance(text, str) or not _HEADER_VALUE.fullmatch(text):
            hint = "write each in quotes, in one line of ASCII characters"
            raise wrong(channel, "headers", "a map from name to text", hint=hint)
    return dict(value)


def whole(channel: str, settings: Mapping[str, Any], key: str, default: int, lowest: int, highest: int) -> int:
    """A whole number within a range."""
    value = settings.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise wrong(channel, key, f"a number from {lowest} to {highest}")
    return value


def timeout(channel: str, settings: Mapping[str, Any]) -> timedelta:
    """Timeout of one delivery, 10 s by default."""
    return duration(channel, settings, "timeout", TIMEOUT)


def duration(channel: str, settings: Mapping[str, Any], key: str, default: timedelta) -> timedelta:
    """A duration above zero."""
    value = settings.get(key)
    if value is None:
        return default
    try:
        result = value if isinstance(value, timedelta) else parse_duration(str(value))
    except UsageError as error:
        raise ChannelSettingError(f"{key} of the {channel} channel: {error.message}", key, hint=error.hint) from error
    if result <= timedelta(0):
        raise wrong(channel, key, "longer than zero")
    return result
