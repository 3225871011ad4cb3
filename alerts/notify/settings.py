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
            raise ConfigError(f"{key}_file of the {channel} channel cannot be read: {error.strerror}") from error
    value = settings.get(key)
    return "" if value is None else str(value)


def url(channel: str, settings: Mapping[str, Any]) -> str:
    """The URL, http or https."""
    result = required(channel, settings, "url")
    if not result.startswith(("http://", "https://")):
        raise ConfigError(f"url of the {channel} channel must start with https:// or http://")
    return result


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
