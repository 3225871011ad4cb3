"""OpenTelemetry names of metrics, units and attributes in Prometheus spelling. Pure.

Rules of the OpenTelemetry specification, "Prometheus and OpenMetrics Compatibility": units end names, monotonic sums
end in ``_total``, a gauge of unit 1 in ``_ratio``, other characters become "_".
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
    """``http.server.duration`` in ``s`` becomes ``http_server_duration_seconds``."""
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
    """``k8s.pod.name`` becomes ``k8s_pod_name``; a reserved name or one starting with a digit is prefixed ``key_``."""
    spelled = _NOT_A_LABEL.sub("_", name)
    if spelled[:1].isdigit():
        return f"key_{spelled}"
    return f"key{spelled}" if spelled.startswith("_") and not spelled.startswith("__") else spelled


def labels(attributes: Iterable[Any]) -> dict[str, str]:
    """Attributes (``KeyValue`` messages) as labels without empty ones. Values of colliding names are joined by ";"."""
    values_by_label: dict[str, list[tuple[str, str]]] = {}
    for attribute in attributes:
        text = value_text(attribute.value)
        if text:
            values_by_label.setdefault(label_name(attribute.key), []).append((attribute.key, text))
    return {name: ";".join(text for _, text in sorted(values)) for name, values in values_by_label.items()}


def value_text(value: Any) -> str:
    """An attribute's value as text: numbers and booleans as in JSON, bytes in base64."""
    kind = value.WhichOneof("value")
    if kind == "string_value":
        return str(value.string_value)
    plain = _plain(value)
    return "" if plain is None else plain if isinstance(plain, str) else json.dumps(plain, ensure_ascii=False)


def _plain(value: Any) -> Any:
    kind = value.WhichOneof("value")
    if kind is None:
        return None
    if kind == "array_value":
        return [_plain(item) for item in value.array_value.values]
    if kind == "kvlist_value":
        return {item.key: _plain(item.value) for item in value.kvlist_value.values}
    if kind == "bytes_value":
        return base64.b64encode(value.bytes_value).decode()
    return getattr(value, kind)
