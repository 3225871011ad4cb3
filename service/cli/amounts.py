"""Options that are amounts: a number, or a number with its unit."""

from __future__ import annotations

from typing import Any

import typer

from outrider.errors import UnitMismatchError, UsageError
from outrider.units import read_quantity


def amount(option: str, unit: str, told: str) -> Any:
    """An option in ``unit``, which may be written behind the number: ``40/min`` is converted, ``40 tokens`` refused."""

    def read(text: str | float) -> float:
        try:
            return read_quantity(text, unit)
        except UsageError as error:
            kind = UnitMismatchError if isinstance(error, UnitMismatchError) else UsageError
            raise kind(f"{option}: {error.message}", hint=error.hint) from error

    read.__name__ = "NUMBER"
    return typer.Option(option, help=f"{told} ({unit})", parser=read, metavar="NUMBER")
