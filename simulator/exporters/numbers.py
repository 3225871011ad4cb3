"""Number formats of the engines' metrics libraries."""

from __future__ import annotations

import math
from collections.abc import Callable

from simulator.exporters.text import python_number as _python_number

Number = Callable[[float], str]


def python_number(value: float) -> str:
    """Formats as prometheus_client for Python: ``15.0``, ``1.795e+09``, ``NaN``."""
    return _python_number(value) if math.isfinite(value) else _special(value, "NaN")


def rust_number(value: float) -> str:
    """Formats as the metrics-exporter-prometheus crate: shortest exact digits, no exponent."""
    if not math.isfinite(value):
        return _special(value, "NaN")
    text = repr(value)
    if "e" in text:
        text = f"{value:.24f}".rstrip("0") if abs(value) < 1.0 else f"{value:.1f}"
    return text.removesuffix(".0")


def cpp_number(value: float) -> str:
    """Formats as prometheus-cpp: sixteen digits, ``15``, ``16106127360``, ``Nan``."""
    return f"{value:.16g}" if math.isfinite(value) else _special(value, "Nan")


def _special(value: float, none: str) -> str:
    if math.isnan(value):
        return none
    return "+Inf" if value > 0 else "-Inf"
