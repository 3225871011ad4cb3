"""Wall-clock times in the configuration: times of day, dates with times, days of the week."""

from __future__ import annotations

from datetime import date, datetime, time
from typing import Annotated, Any

from pydantic import BeforeValidator

_DAY_MINUTES = 24 * 60
_EXPECTED = "expected a time of day such as 22:00, or a date and time such as 2026-12-24 18:00"


def wall_time(value: Any) -> time | datetime:
    """Reads a wall-clock time. YAML reads 22:00 as the number 1320, and some dates as dates."""
    if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= _DAY_MINUTES:
        return time(value % _DAY_MINUTES // 60, value % 60)
    if isinstance(value, str):
        value = _parsed(value.strip())
    if isinstance(value, date) and not isinstance(value, datetime):
        value = datetime.combine(value, time())
    if not isinstance(value, time | datetime):
        raise ValueError(_EXPECTED)  # noqa: TRY004 - pydantic reads ValueError
    if value.tzinfo is not None:
        raise ValueError("expected a time without an offset; timezone names the zone")
    return value


def _parsed(text: str) -> time | datetime:
    try:
        if text == "24:00":
            return time()
        return time.fromisoformat(text) if "-" not in text else datetime.fromisoformat(text)
    except ValueError as error:
        raise ValueError(f"{_EXPECTED}, not {text!r}") from error


def _time_of_day(value: Any) -> time:
    read = wall_time(value)
    if isinstance(read, datetime):
        raise ValueError("expected a time of day such as 09:00")  # noqa: TRY004 - pydantic reads ValueError
    return read


def _date_and_time(value: Any) -> datetime:
    read = wall_time(value)
    if isinstance(read, time):
        raise ValueError("expected a date and time such as 2026-12-24 18:00")  # noqa: TRY004 - pydantic reads ValueError
    return read


WallTime = Annotated[time | datetime, BeforeValidator(wall_time)]
TimeOfDay = Annotated[time, BeforeValidator(_time_of_day)]
DateAndTime = Annotated[datetime, BeforeValidator(_date_and_time)]
