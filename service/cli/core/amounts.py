"""Options with units: a number, or a number followed by its unit."""

from __future__ import annotations

from math import nan
from typing import Any

import typer

from outrider.errors import UnitMismatchError, UsageError
from outrider.vocabulary.units import read_quantity


def amount(option: str, unit: str, description: str, *, doubted_from: float | None = None) -> Any:
    """Option in ``unit``. A unit after the number is converted (``40/min``) or rejected (``40 tokens``).

    A bare number of seconds of at least ``doubted_from`` is rejected: it probably is in milliseconds.
    """

    def read(text: str | float) -> float:
        try:
            value = read_quantity(text, unit)
        except UsageError as error:
            kind = UnitMismatchError if isinstance(error, UnitMismatchError) else UsageError
            raise kind(f"{option}: {error.message}", hint=error.hint) from error
        if doubted_from is not None and value >= doubted_from and _alone(text):
            raise UsageError(
                f"{option}: a bare number is in seconds, and {value:g} s is implausibly long",
                hint=f"did you mean {value:g}ms? for seconds, write {value:g}s",
            )
        return value

    read.__name__ = "NUMBER"
    return typer.Option(option, help=f"{description} ({unit})", parser=read, metavar="NUMBER")


def _alone(text: str | float) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def one_of(option: str, description: str, known: tuple[float, ...]) -> Any:
    """Option that accepts a few numbers only. Raises UsageError that lists them."""
    names = ", ".join(f"{number:g}" for number in known)

    def read(text: str | float) -> float:
        try:
            value = float(text)
        except ValueError:
            value = nan
        if value not in known:
            raise UsageError(f"{option} must be one of {names}, not {text}", hint=f"give {option} {known[0]:g}")
        return value

    read.__name__ = "NUMBER"
    return typer.Option(option, help=f"{description}: {names}", parser=read, metavar="NUMBER")
