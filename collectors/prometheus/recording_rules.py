"""Every signal as a recording rule, for sites that let Prometheus compute and store them. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from collectors.mapping import registry
from collectors.prometheus.query_builder import Dialect, literal, queries
from outrider.model import SignalKey, SignalKind
from outrider.vocabulary import catalog


def rules(
    adapters: Sequence[str], *, window: str = "5m", jobs: Mapping[str, Sequence[str]] | None = None
) -> tuple[dict[str, Any], dict[str, dict[str, str]]]:
    """A rules file as a document, one group per adapter; and by adapter the unsupported signals with the reason.

    ``jobs`` names the jobs of an adapter, required if its metrics have no name of their own (MindIE, NIM). A rule is
    called ``outrider:<signal>``, with the label ``quantile`` or the suffix ``:mean`` for distributions.
    """
    groups, left_out = [], dict[str, dict[str, str]]()
    for name in adapters:
        known = "|".join(map(literal, (jobs or {}).get(name, ())))
        supported, missing = queries(registry.adapter(name), Dialect(window, f'job=~"{known}"' if known else ""))
        rows = [{**_record(query.key), "expr": query.text, **_labels(name, query.key)} for query in supported]
        groups.append({"name": f"outrider_{name}", "rules": rows})
        if missing:
            left_out[name] = missing
    return {"groups": groups}, left_out


def _record(key: SignalKey) -> dict[str, str]:
    is_mean = key.quantile is None and catalog.signal(key.name).kind is SignalKind.HISTOGRAM
    return {"record": f"outrider:{key.name}" + (":mean" if is_mean else "")}


def _labels(adapter: str, key: SignalKey) -> dict[str, dict[str, str]]:
    quantile = {} if key.quantile is None else {"quantile": f"{key.quantile:g}"}
    return {"labels": {"adapter": adapter, **quantile}}
