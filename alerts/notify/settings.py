"""Reads the settings of a channel. Errors name keys, never values, which may be secrets."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from datetime import timedelta
from pathlib import Path
from typing import Any

from outrider.errors import ConfigError, UsageError
from outrider.text.yaml_file import near
from outrider.vocabulary.units import parse_duration

TIMEOUT = timedelta(seconds=10)


class SecretFileError(ConfigError):
    """A secret file cannot be read, perhaps because it exists on another machine."""


def accept(channel: str, settings: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raises ConfigError for an unknown key. Every secret may be given as ``<key>_file``."""
    keys = {*known, "timeout", "type"}
    allowed = keys | {f"{key}_file" for key in keys}
    unknown = sorted(set(settings) - allowed)
    if unknown:
        raise ConfigError(f"the {channel} channel has no setting {unknown[0]!r}{near(unknown[0], keys)}")


def required(channel: str, settings: Mapping[str, Any], key: str) -> str:
    """A required text."""
    value = optional(channel, settings, key)
    if not value:
        raise ConfigError(f"the {channel} channel needs {key}", hint=f"give it as {key} or {key}_file")
    return value


def optional(channel: str, settings: Mapping[str, Any], key: str) -> str:
    """A text, empty if it is not given."""
    named = settings.get(f"{key}_file")
    if named:
        try:
            return Path(str(named)).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise SecretFileError(f"{key}_file of the {channel} channel cannot be read: {error.strerror}") from error
    value = settings.get(key)
    return "" if value is None else str(value)


def url(channel: str, settings: Mapping[str, Any], default: str = "") -> str:
    """The URL, http or https. ``default`` is that of the vendor; without one the setting is required."""
    result = optional(channel, settings, "url") or default or required(channel, settings, "url")
    if not result.startswith(("http://", "https://")):
        raise ConfigError(f"url of the {channel} channel must start with https:// or http://")
    return result


def texts(channel: str, settings: Mapping[str, Any], key: str, *, needed: bool = False) -> tuple[str, ...]:
    """A list of texts; one text is a list of one. ``needed``: at least one."""
    value = settings.get(key) or ()
    if isinstance(value, Mapping):
        raise ConfigError(f"{key} of the {channel} channel must be a list")
    result = (value,) if isinstance(value, str) else tuple(str(item) for item in value)
    if needed and not result:
        raise ConfigError(f"the {channel} channel needs {key}", hint="give one or a list")
    return result


def phones(channel: str, settings: Mapping[str, Any], *, international: bool = False) -> tuple[str, ...]:
    """The numbers of ``to``. ``international``: each must start with + and the country code."""
    numbers = texts(channel, settings, "to", needed=True)
    for number in numbers:
        digits = number.removeprefix("+")
        if not (digits.isascii() and digits.isdigit() and 5 <= len(digits) <= 20):
            raise ConfigError(f"to of the {channel} channel must be phone numbers", hint="write digits only")
        if international and not number.startswith("+"):
            hint = "write numbers as +8613800000000"
            raise ConfigError(f"to of the {channel} channel must start with + and the country code", hint=hint)
    return numbers


def whole(channel: str, settings: Mapping[str, Any], key: str, default: int, lowest: int, highest: int) -> int:
    """A whole number within a range."""
    value = settings.get(key, default)
    if not isinstance(value, int) or isinstance(value, bool) or not lowest <= value <= highest:
        raise ConfigError(f"{key} of the {channel} channel must be {lowest} to {highest}")
    return value


def timeout(channel: str, settings: Mapping[str, Any]) -> timedelta:
    """Timeout of one delivery, 10 s by default."""
    value = settings.get("timeout")
    if value is None:
        return TIMEOUT
    if isinstance(value, timedelta):
        return value
    try:
        return parse_duration(str(value))
    except UsageError as error:
        raise ConfigError(f"timeout of the {channel} channel: {error.message}", hint=error.hint) from error
