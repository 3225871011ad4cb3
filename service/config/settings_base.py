"""Building blocks of the configuration: strict sections, durations, ratios."""

from __future__ import annotations

from datetime import date, datetime, time, timedelta
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field

from collectors.net.dns_client import NameServer
from outrider.errors import UsageError
from outrider.vocabulary.units import parse_duration, read_quantity

_EXPECTED_TIME = "expected a time of day such as 22:00, or a date and time such as 2026-12-24 18:00"
_DAY_MINUTES = 24 * 60


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


def is_web_url(text: str) -> bool:
    """True for a URL of http or https with a host."""
    try:
        parts = urlsplit(text)
    except ValueError:
        return False
    return parts.scheme in ("http", "https") and bool(parts.hostname)


def _wall_time(value: Any) -> time | datetime:
    """Reads a wall-clock time. YAML reads 22:00 as the number 1320, and some dates as dates."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _DAY_MINUTES:
        return time(value % _DAY_MINUTES // 60, value % 60)
    if isinstance(value, str):
        value = _parsed(value.strip())
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, time | datetime):
        raise ValueError(_EXPECTED_TIME)  # noqa: TRY004 - pydantic reads ValueError
    if value.tzinfo is not None:
        raise ValueError("expected a time without an offset; timezone names the zone")
    return value


def _parsed(text: str) -> time | datetime:
    try:
        if text == "24:00":
            return time()
        return time.fromisoformat(text) if "-" not in text else datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{_EXPECTED_TIME}, not {text!r}") from error


Duration = Annotated[timedelta, BeforeValidator(_duration)]
Day = Literal["mon", "tue", "wed", "thu", "fri", "sat", "sun"]
WallTime = Annotated[time | datetime, BeforeValidator(_wall_time)]
Ratio = Annotated[float, Field(ge=0, le=1)]
NameServers = Annotated[list[str], AfterValidator(_name_servers)]
TimeZone = Annotated[str, AfterValidator(_time_zone)]
Port = Annotated[int, Field(ge=0, le=65535)]


class Section(BaseModel):
    """A section of the file. Unknown keys are rejected."""

    model_config = ConfigDict(extra="forbid", frozen=True)
