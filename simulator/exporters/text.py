"""Fast exposition text: the constant parts of a page are joined once, numbers are inserted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import resources

import yaml

_E_NOTATION_FROM = 1e6


def labels(pairs: Mapping[str, str]) -> str:
    """Returns ``{a="b",c="d"}`` in the given order; empty without labels."""
    if not pairs:
        return ""
    escaped = (f'{name}="{_escape(value)}"' for name, value in pairs.items())
    return "{" + ",".join(escaped) + "}"


def python_number(value: float) -> str:
    """Formats a float as prometheus_client does: ``15.0``, ``1.795e+09``."""
    if -_E_NOTATION_FROM < value < _E_NOTATION_FROM:
        return repr(value)
    return _scientific(value)


def go_number(value: float) -> str:
    """Formats a float as Go exporters do: ``15``, ``0.25``, ``1.795e+09``."""
    if -_E_NOTATION_FROM < value < _E_NOTATION_FROM:
        whole = int(value)
        return str(whole) if whole == value else repr(value)
    return _scientific(value)


def _scientific(value: float) -> str:
    text = repr(value)
    dot = text.find(".")
    if dot < 0 or "e" in text:
        return text
    sign, digits = ("-", text[1:]) if text[0] == "-" else ("", text)
    dot -= len(sign)
    mantissa = f"{digits[0]}.{digits[1:dot]}{digits[dot + 1 :]}".rstrip("0").rstrip(".")
    return f"{sign}{mantissa}e+{dot - 1:02d}"


def _escape(value: str) -> str:
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


class Template:
    """A page with gaps for numbers. Build it with ``family``, ``sample`` and ``fixed``; then ``render``."""

    def __init__(self, *, python: bool = False) -> None:
        """``python`` writes numbers as prometheus_client does, else as Go does."""
        self._number = python_number if python else go_number
        self._pieces: list[str] = []
        self._columns: list[int] = []
        self._open: list[str] = []

    def family(self, name: str, kind: str, text: str) -> None:
        """Adds the HELP and TYPE lines of a family."""
        self._open.append(header(name, kind, text))

    def sample(self, name: str, pairs: Mapping[str, str], column: int) -> None:
        """Adds a line whose number is ``values[column]``."""
        self._open.append(f"{name}{labels(pairs)} ")
        self._pieces.append("".join(self._open))
        self._columns.append(column)
        self._open = ["\n"]

    def fixed(self, name: str, pairs: Mapping[str, str], value: float) -> None:
        """Adds a line with a constant number."""
        self._open.append(f"{name}{labels(pairs)} {self._number(value)}\n")

    def render(self, values: Sequence[float]) -> bytes:
        """Returns the page. ``values`` are Python floats."""
        number = self._number
        parts = [""] * (2 * len(self._columns) + 1)
        parts[0::2] = [*self._pieces, "".join(self._open)]
        parts[1::2] = [number(values[column]) for column in self._columns]
        return "".join(parts).encode()


@dataclass(frozen=True, slots=True)
class Family:
    """One metric family of a page's table. ``value`` names its numbers; ``needs`` are required features."""

    name: str
    kind: str
    text: str
    value: str
    needs: tuple[str, ...] = ()

    @property
    def header(self) -> str:
        """Its HELP and TYPE lines."""
        return header(self.name, self.kind, self.text)


@cache
def families(file: str) -> tuple[Family, ...]:
    """Reads the families of a YAML file of this package, in page order."""
    text = resources.files("simulator.exporters").joinpath(file).read_text(encoding="utf-8")
    return tuple(
        Family(one["name"], one["type"], one["help"], one["value"], tuple(one.get("needs", ())))
        for one in yaml.safe_load(text)["families"]
    )


def header(name: str, kind: str, text: str) -> str:
    """Returns the HELP and TYPE lines of a family; without a help text only TYPE, as Envoy does."""
    help_line = f"# HELP {name} {text}\n" if text else ""
    return f"{help_line}# TYPE {name} {kind}\n"


def grid(
    heads: Sequence[tuple[str, str]], rows: Sequence[str], values: Sequence[Sequence[float]], end: str = ""
) -> str:
    """Returns families with the same rows: ``heads`` are (name, header), ``rows`` are label texts.

    ``values`` are Python floats, one list per family with one number per row; ``end`` follows each number (a
    timestamp). No template is kept, so ten thousand devices need no memory.
    """
    number = go_number
    parts: list[str] = []
    for (name, head), numbers in zip(heads, values, strict=True):
        parts.append(head)
        parts += [f"{name}{row} {number(value)}{end}\n" for row, value in zip(rows, numbers, strict=True)]
    return "".join(parts)


def stamp(at: float) -> str:
    """Returns an explicit timestamp in milliseconds, to append to a number."""
    return f" {round(at * 1000)}"
