"""A page as an outline with gaps for numbers, and a sheet that rewrites only changed numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from outrider.model import Floats
from simulator.exporters.numbers import Number
from simulator.exporters.text import header, labels


class Outline:
    """A page without its numbers. ``family`` and ``sample`` build it; sheets share it."""

    def __init__(self, number: Number, gap: str = "") -> None:
        """``number`` formats a number; ``gap`` separates families."""
        self.number = number
        self._gap = gap
        self._open: list[str] = []
        self._pieces: list[str] = []
        self._columns: list[int] = []

    def family(self, name: str, kind: str, text: str) -> None:
        """Adds the HELP and TYPE lines of a family."""
        if self._pieces or self._open:
            self._open.append(self._gap)
        self._open.append(header(name, kind, text))

    def sample(self, name: str, pairs: Mapping[str, str], column: int) -> None:
        """Adds a line whose number is in ``column`` of a sheet's row."""
        self._pieces.append("".join([*self._open, name, labels(pairs), " "]))
        self._columns.append(column)
        self._open = ["\n"]

    def parts(self) -> list[str]:
        """Returns the page in parts; those with odd indices are empty, for numbers."""
        parts = [""] * (2 * len(self._pieces) + 1)
        parts[0::2] = [*self._pieces, "".join([*self._open, self._gap])]
        return parts

    def places(self, columns: int) -> list[list[int]]:
        """Returns, for each of ``columns`` columns, the indices of its parts."""
        result: list[list[int]] = [[] for _ in range(columns)]
        for number, column in enumerate(self._columns):
            result[column].append(2 * number + 1)
        return result


class Sheet:
    """The page of one server. A number is rewritten only if it has changed."""

    def __init__(self, outline: Outline, places: list[list[int]]) -> None:
        """``places`` is the result of ``outline.places``; sheets of one outline share it."""
        self._number = outline.number
        self._parts = outline.parts()
        self._places = places
        self._row = np.full(len(places), np.nan)
        self._body = b""

    def render(self, row: Floats) -> bytes:
        """Returns the page with the numbers of ``row``, shape (columns,)."""
        moved = np.flatnonzero(row != self._row)
        if moved.size == 0:
            return self._body
        parts, places, number = self._parts, self._places, self._number
        for column, value in zip(moved.tolist(), row[moved].tolist(), strict=True):
            shown = places[column]
            if shown:
                text = number(value)
                for place in shown:
                    parts[place] = text
        self._row = row.copy()
        self._body = "".join(parts).encode()
        return self._body
