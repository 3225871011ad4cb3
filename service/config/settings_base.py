"""Building blocks of the configuration: strict sections, durations, ratios."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import timedelta
from ipaddress import ip_address
from typing import Annotated, Any
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from collectors.net.dns_client import NameServer
from outrider.errors import ConfigProblem, UsageError
from outrider.text import yaml_file
from outrider.vocabulary.units import parse_duration, read_quantity

LOOPBACK_NAMES = ("127.0.0.1", "localhost", "[::1]")


def _duration(value: Any) -> timedelta:
    if isinstance(value, timedelta):
        return value
    if not isinstance(value, str):
        raise ValueError("expected a duration such as 15s, 5m, 1h30m or 7d")  # noqa: TRY004 - pydantic reads ValueError
    try:
        return parse_duration(value)
    except UsageError as error:
        raise ValueError(f"expected a duration such as 15s, 5m, 1h30m or 7d, not {value!r}") from error


def amount_in(unit: str) -> BeforeValidator:
    """Returns a validator of a number with an optional unit; the error for another unit names both."""

    def read(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        try:
            return read_quantity(value, unit)
        except UsageError as error:
            raise ValueError(error.message) from error

    return BeforeValidator(read)


def _name_servers(value: list[str]) -> list[str]:
    for server in value:
        try:
            NameServer.parse(server)
        except ValueError as error:
            raise ValueError(f"expected an IP address such as 10.0.0.10 or 10.0.0.10:5353, not {server!r}") from error
    return value


def _time_zone(value: str) -> str:
    try:
        ZoneInfo(value)
    except (ZoneInfoNotFoundError, ValueError) as error:
        raise ValueError(f"{value!r} is not a time zone; expected one such as Asia/Shanghai") from error
    return value


def duplicate_names(
    names: Iterable[str], path: yaml_file.Path_, document: yaml_file.Document
) -> Iterator[ConfigProblem]:
    """A problem for each entry of a list that has the name of an earlier one. ``path`` is that of the list."""
    seen: set[str] = set()
    for index, name in enumerate(names):
        if name in seen:
            yield document.problem((*path, index, "name"), f"duplicate name {name!r}")
        seen.add(name)


def is_loopback(host: str) -> bool:
    """True for names and addresses that only this machine reaches."""
    if host in LOOPBACK_NAMES:
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def is_loopback_url(text: str) -> bool:
    """True for a URL that only this host can open."""
    try:
        return is_loopback(urlsplit(text).hostname or "")
    except ValueError:
        return False


def is_web_url(text: str) -> bool:
    """True for a URL of http or https with a host."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _web_url(value: str) -> str:
    if not is_web_url(value):
        raise ValueError("expected a URL that starts with https:// or http:// and names a host")
    return value


WebUrl = Annotated[str, AfterValidator(_web_url)]
Duration = Annotated[timedelta, BeforeValidator(_duration)]
PositiveDuration = Annotated[Duration, Field(gt=timedelta(0))]
Ratio = Annotated[float, Field(ge=0, le=1)]
NameServers = Annotated[list[str], AfterValidator(_name_servers)]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """A section of the file. Unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)
