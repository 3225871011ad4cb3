"""Options that are amounts: a number, or a number with its unit."""

from __future__ import annotations

from math import nan
from typing import Any

import typer

from outrider.errors import UnitMismatchError, UsageError
from outrider.vocabulary.units import read_quantity


def amount(option: str, unit: str, told: str, *, doubted_from: float | None = None) -> Any:
    """An option in ``unit``, which may be written behind the number: ``40/min`` is converted, ``40 tokens`` refused.

    A number alone that is ``doubted_from`` seconds or longer is refused as well: it was meant in milliseconds, or its
    unit says that it was not.
    """

    def read(text: str | float) -> float:
        try:
            value = read_quantity(text, unit)
        except UsageError as error:
            kind = UnitMismatchError if isinstance(error, UnitMismatchError) else UsageError
            raise kind(f"{option}: {error.message}", hint=error.hint) from error
        if doubted_from is not None and value >= doubted_from and _alone(text):
            raise UsageError(
                f"{option}: a number alone is in seconds, and {value:g} s are too long to be meant",
                hint=f"did you mean {value:g}ms? where it is seconds, write {value:g}s",
            )
        return value

    read.__name__ = "NUMBER"
    return typer.Option(option, help=f"{told} ({unit})", parser=read, metavar="NUMBER")


def _alone(text: str | float) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


def one_of(option: str, told: str, known: tuple[float, ...]) -> Any:
    """An option that is one of a few numbers. Raises UsageError naming them for any other."""
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
    return typer.Option(option, help=f"{told}: {names}", parser=read, metavar="NUMBER")
