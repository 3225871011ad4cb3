"""Quantities with units: parsing, formatting, and rejection of incompatible units."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import timedelta
from math import isfinite

from outrider.errors import UnitMismatchError, UsageError

_DURATION = re.compile(r"(\d+(?:\.\d+)?)(ms|s|m|h|d|w)")
_SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0, "w": 604800.0}
_AMOUNT = re.compile(r"([+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?)(?![\d.])(.*)")
_WORDS = {
    "request": ("req", "reqs", "request", "requests"),
    "token": ("tok", "toks", "token", "tokens"),
    "sequence": ("seq", "seqs", "sequence", "sequences", "slot", "slots"),
    "replica": ("replica", "replicas"),
    "gpu": ("gpu", "gpus"),
    "byte": ("b", "byte", "bytes"),
}
_SPELT = {spelling: word for word, spellings in _WORDS.items() for spelling in spellings}
_BYTES = {
    **{f"{sign}b": 1000.0**power for power, sign in enumerate("kmgtp", 1)},
    **{f"{sign}ib": 1024.0**power for power, sign in enumerate("kmgtp", 1)},
    **{f"{sign}{word}": 1000.0**power / 8 for power, sign in enumerate(("", *"kmgtp")) for word in ("bit", "bits")},
}
_SMALL_B = re.compile(r"(?<![A-Za-z])[KkMmGgTtPp]i?b(?:ps)?(?![A-Za-z])")
_TIMES = {
    **dict.fromkeys(("us", "µs", "μs", "microsecond", "microseconds"), 1e-6),
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "secs", "second", "seconds"), 1.0),
    **dict.fromkeys(("min", "mins", "minute", "minutes"), 60.0),
    **dict.fromkeys(("h", "hr", "hour", "hours"), 3600.0),
    **dict.fromkeys(("d", "day", "days"), 86400.0),
}
_SHORT = {"rps": "request/second", "qps": "request/second", "rpm": "request/minute", "tps": "token/second"}
_NO_MARKS = str.maketrans("", "", " ()")
_BINARY = ("B", "KiB", "MiB", "GiB", "TiB", "PiB")


@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with a unit as exponents of base words, such as ``{"token": 1, "second": -1}``.

    Everything after the first ``/`` divides, with or without parentheses.
    """

    value: float
    unit: tuple[tuple[str, int], ...] = ()

    @staticmethod
    def of(value: float, unit: str = "") -> Quantity:
        """Parses a unit such as ``token/request`` or ``sequence/replica``; ``""`` is a pure number."""
        if not unit:
            return Quantity(value)
        above, _, below = unit.partition("/")
        powers: dict[str, int] = {}
        for words, sign in ((above, 1), (below, -1)):
            for word in filter(None, words.strip("() ").replace("1", "").split("*")):
                powers[word.strip()] = powers.get(word.strip(), 0) + sign
        return Quantity(value, _normal(powers))

    @property
    def unit_text(self) -> str:
        """The unit as text, such as ``token/(second*sequence)``; ``1`` for a pure number."""
        above = "*".join(word for word, power in self.unit for _ in range(power))
        below = "*".join(word for word, power in self.unit for _ in range(-power))
        return (above or "1") + (f"/({below})" if "*" in below else f"/{below}" if below else "")

    def __mul__(self, other: Quantity) -> Quantity:
        """Multiply numbers and units."""
        return Quantity(self.value * other.value, _merge(self.unit, other.unit, 1))

    def __truediv__(self, other: Quantity) -> Quantity:
        """Divide numbers and units."""
        return Quantity(self.value / other.value, _merge(self.unit, other.unit, -1))

    def expect(self, unit: str) -> float:
        """The number, if the unit is ``unit``. Raises UnitMismatchError naming both units."""
        wanted = Quantity.of(1.0, unit)
        if wanted.unit != self.unit:
            raise UnitMismatchError(
                f"the result is in {self.unit_text}, expected {wanted.unit_text}",
                hint="check that each input has the unit in its name",
            )
        return self.value


def _merge(
    left: tuple[tuple[str, int], ...], right: tuple[tuple[str, int], ...], sign: int
) -> tuple[tuple[str, int], ...]:
    powers = dict(left)
    for word, power in right:
        powers[word] = powers.get(word, 0) + sign * power
    return _normal(powers)


def _normal(powers: dict[str, int]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((word, power) for word, power in powers.items() if power))


def read_quantity(given: str | float, unit: str) -> float:
    """The number of ``given`` in ``unit``, if ``given`` may have a unit of its own: ``40/min``, ``25 tok/s``.

    Times, bytes and bits are converted (``50 GB/s``, ``400 Gbit/s``); counted things may be left out (``40/min`` of
    requests); ``%`` and ``ratio`` are pure numbers. Raises UsageError for text without a number or an ambiguous ``b``
    (bits or bytes), UnitMismatchError that names both units otherwise.
    """
    if isinstance(given, (int, float)) and not isinstance(given, bool):
        return float(given)
    result = _AMOUNT.fullmatch(str(given).strip())
    if result is None:
        raise UsageError(f"{given!r} is not a number", hint=f"give a number, with or without its unit {unit}")
    number, stated = float(result.group(1)), result.group(2).strip().lower()
    if stated.startswith(","):
        raise UsageError(
            f"{given!r} has a comma: it may be a thousands separator or a decimal mark",
            hint="write no thousands separator, and a decimal point, such as 1000 or 0.5",
        )
    if _SMALL_B.search(result.group(2)):
        raise UsageError(
            f"{given!r} has a small b: it may be bits or bytes",
            hint="write bytes as GB/s and bits as Gbit/s; eight bits are a byte",
        )
    wanted = Quantity.of(1.0, "" if unit == "ratio" else unit)
    if not stated:
        return number
    if stated in ("%", "ratio", "x"):
        amount = Quantity(number / 100.0 if stated == "%" else number)
    else:
        amount = _amount(number, _SHORT.get(stated, stated))
    if amount.unit != wanted.unit and not _counted_apart(amount.unit, wanted.unit):
        raise UnitMismatchError(
            f"{given!r} is in {amount.unit_text}, expected {unit}", hint=f"give it in {unit}, or as a number alone"
        )
    return amount.value


def _amount(number: float, unit: str) -> Quantity:
    """A number with a unit; unknown words stay, so that a message can name them."""
    above, _, below = unit.replace("per", "/").translate(_NO_MARKS).partition("/")
    powers: dict[str, int] = {}
    for words, sign in ((above, 1), (below, -1)):
        for word in filter(None, re.split(r"[*·/]", words)):
            number *= _TIMES.get(word, 1.0) ** sign
            number *= _BYTES.get(word, 1.0) ** sign
            base = "second" if word in _TIMES else "byte" if word in _BYTES else _SPELT.get(word, word)
            powers[base] = powers.get(base, 0) + sign
    return Quantity(number, _normal(powers))


def _counted_apart(given: tuple[tuple[str, int], ...], wanted: tuple[tuple[str, int], ...]) -> bool:
    """True if they differ only in counted things that ``given`` leaves out: 40/min means 40 requests/min."""
    stated, meant = dict(given), dict(wanted)
    if not stated:
        return False
    left_out = [word for word in meant if word not in stated]
    same = all(meant.get(word) == power for word, power in stated.items())
    return same and all(word in _WORDS for word in left_out)


def parse_duration(text: str) -> timedelta:
    """Parses ``15s``, ``5m``, ``1h30m``, ``250ms``, ``7d``. Raises UsageError on anything else."""
    compact = text.strip().replace(" ", "")
    parts = _DURATION.findall(compact)
    if not parts or "".join(number + unit for number, unit in parts) != compact:
        raise UsageError(f"{text!r} is not a duration", hint="write it as 15s, 5m, 1h30m or 7d")
    try:
        return timedelta(seconds=sum(float(number) * _SECONDS[unit] for number, unit in parts))
    except OverflowError as error:
        raise UsageError(f"{text!r} exceeds the maximum duration", hint="write it as 15s, 5m or 7d") from error


def format_duration(duration: timedelta | float) -> str:
    """The two largest units: ``1h 30m``, ``5m``, ``15s``, ``250ms``, ``0s``."""
    seconds = duration.total_seconds() if isinstance(duration, timedelta) else duration
    if 0.001 <= abs(seconds) < 0.9995:
        return f"{seconds * 1000:.0f}ms"
    sign, left = ("-" if seconds < 0 else ""), abs(round(seconds))
    parts = []
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, size)
        if count:
            parts.append(f"{count}{unit}")
    return sign + (" ".join(parts[:2]) or "0s")


def exact_duration(seconds: float) -> str:
    """A duration of whole seconds in the largest unit that divides it: ``90m``, ``1h``, ``61s``."""
    whole = round(seconds)
    unit, size = next(
        (unit, size) for unit, size in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)) if whole % size == 0
    )
    return f"{whole // size}{unit}" if whole else "0s"


def format_value(value: float | None, unit: str) -> str:
    """A value with its catalog unit for display: ``99.2 %``, ``1.4 s``, ``71.3 GiB``."""
    if value is None or not isfinite(value):
        return "-"
    if unit == "ratio":
        return f"{value * 100:.4g} %"
    if unit == "bytes":
        return _binary(value)
    if unit == "bytes_per_second":
        return _binary(value) + "/s"
    if unit == "seconds":
        return f"{value * 1000:.3g} ms" if 0 < abs(value) < 1 else f"{value:.3g} s"
    suffix = {
        "celsius": " °C",
        "watts": " W",
        "hertz": " Hz",
        "joules": " J",
        "per_second": "/s",
        "tokens_per_second": " tokens/s",
        "tokens": " tokens",
    }.get(unit, "")
    return f"{value:,.4g}{suffix}" if abs(value) < 10000 else f"{value:,.0f}{suffix}"


def _binary(value: float) -> str:
    size, index = float(value), 0
    while abs(size) >= 1024 and index < len(_BINARY) - 1:
        size, index = size / 1024, index + 1
    return f"{size:.3g} {_BINARY[index]}"
