"""Names of OpenTelemetry metrics, units and attributes as Prometheus spells them. Pure.

The rules are those of the OpenTelemetry specification, "Prometheus and OpenMetrics Compatibility": units
end names, monotonic sums end in ``_total``, a gauge of unit 1 in ``_ratio``, other characters become "_".
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable
from functools import lru_cache
from typing import Any

_WORD = re.compile(r"[^a-zA-Z0-9:]+")
_NOT_A_LABEL = re.compile(r"[^a-zA-Z0-9_]")
_BRACES = re.compile(r"\{[^}]*\}")
_UNITS = {
    "d": "days", "h": "hours", "min": "minutes", "s": "seconds", "ms": "milliseconds", "us": "microseconds",
    "ns": "nanoseconds", "By": "bytes", "KiBy": "kibibytes", "MiBy": "mebibytes", "GiBy": "gibibytes",
    "TiBy": "tibibytes", "KBy": "kilobytes", "MBy": "megabytes", "GBy": "gigabytes", "TBy": "terabytes",
    "m": "meters", "V": "volts", "A": "amperes", "J": "joules", "W": "watts", "g": "grams", "Cel": "celsius",
    "Hz": "hertz", "1": "", "%": "percent",
}  # fmt: skip
_PER = {"s": "second", "m": "minute", "min": "minute", "h": "hour", "d": "day", "w": "week", "mo": "month", "y": "year"}


@lru_cache(maxsize=20_000)
def metric_name(name: str, unit: str, *, monotonic_sum: bool, gauge: bool) -> str:
    """``http.server.duration`` in ``s`` is ``http_server_duration_seconds``."""
    words = [word for word in _WORD.split(name) if word]
    unit = _BRACES.sub("", unit).strip()
    main, _, per = unit.partition("/")
    main, per = main.strip(), per.strip()
    ending = _UNITS.get(main, _NOT_A_LABEL.sub("_", main).strip("_"))
    if ending and ending not in words:
        words.append(ending)
    if per:
        rate = _PER.get(per, _NOT_A_LABEL.sub("_", per).strip("_"))
        if rate and rate not in words:
            words += ["per", rate]
    if monotonic_sum:
        words = [*(word for word in words if word != "total"), "total"]
    if gauge and unit == "1" and "ratio" not in words:
        words.append("ratio")
    spelled = "_".join(words)
    return f"_{spelled}" if spelled[:1].isdigit() else spelled


@lru_cache(maxsize=20_000)
def label_name(name: str) -> str:
    """``k8s.pod.name`` is ``k8s_pod_name``; a name that would be reserved or begin with a digit gets ``key_``."""
    spelled = _NOT_A_LABEL.sub("_", name)
    if spelled[:1].isdigit():
        return f"key_{spelled}"
    return f"key{spelled}" if spelled.startswith("_") and not spelled.startswith("__") else spelled


def labels(attributes: Iterable[Any]) -> dict[str, str]:
    """Attributes (``KeyValue`` messages) as labels; empty ones are none. Names that meet are joined by ";"."""
    found: dict[str, list[tuple[str, str]]] = {}
    for attribute in attributes:
        text = value_text(attribute.value)
        if text:
            found.setdefault(label_name(attribute.key), []).append((attribute.key, text))
    return {name: ";".join(text for _, text in sorted(values)) for name, values in found.items()}


def value_text(value: Any) -> str:
    """An attribute's value as text: numbers and truth values as JSON spells them, bytes in base64."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return str(value.string_value)
    found = _plain(value)
    return "" if found is None else found if isinstance(found, str) else json.dumps(found, ensure_ascii=False)


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_plain(one) for one in value.array_value.values]
    if kind == "kvlist_value":
        return {one.key: _plain(one.value) for one in value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, kind)
