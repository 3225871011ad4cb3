"""The metrics page of a vLLM 0.32 server, one per replica."""

from __future__ import annotations

from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import yaml

from outrider.model import Floats
from simulator.counters import HISTOGRAMS, PLAIN
from simulator.fleet import Fleet
from simulator.pages.text import Template
from simulator.pods import Pod

OPEN_FILES_IDLE = 32.0
_OTHER = (
    "zero",
    "one",
    "running",
    "waiting",
    "kv_used_ratio",
    "computed_tokens",
    "gc_0",
    "gc_1",
    "gc_2",
    "virtual_memory",
    "resident_memory",
    "start_time",
    "cpu_seconds",
    "open_files",
    "max_files",
    "http_received",
)
_SCALARS = {name: column for column, name in enumerate((*_OTHER, *PLAIN))}


@cache
def _families() -> list[dict[str, Any]]:
    text = resources.files("simulator.pages").joinpath("vllm_0_32.yaml").read_text(encoding="utf-8")
    found: list[dict[str, Any]] = yaml.safe_load(text)["families"]
    return found


@cache
def _histogram_columns() -> dict[str, int]:
    """First column of each histogram: cumulated buckets, then count, then sum."""
    first, columns = len(_SCALARS), {}
    for name, bounds in HISTOGRAMS.items():
        columns[name] = first
        first += len(bounds) + 3
    return columns


class VllmPages:
    """Writes the page of any slot. One matrix of all numbers serves every page of an instant."""

    def __init__(self) -> None:
        self._templates: dict[tuple[str, int, float], Template] = {}
        self._at: float | None = None
        self._rows: list[list[float]] = []

    def page(self, fleet: Fleet, pod: Pod) -> bytes:
        """The page of a pod that serves."""
        if self._at != fleet.at:
            self._rows = _matrix(fleet).tolist()
            self._at = fleet.at
        key = (pod.name, pod.generation, pod.ready_at or 0.0)
        if key not in self._templates:
            self._templates = {known: kept for known, kept in self._templates.items() if known[0] != pod.name}
            self._templates[key] = _template(pod)
        return self._templates[key].render(self._rows[pod.slot])


def _matrix(fleet: Fleet) -> Floats:
    """Every number of every replica's page, shape (slots, columns)."""
    bank, counters = fleet.bank, fleet.bank.counters
    started = np.array([pod.started_at for pod in fleet.pods.pods])
    collections = np.floor(fleet.cpu_seconds / 40.0)
    scalars: dict[str, Floats | float] = {
        "zero": 0.0,
        "one": 1.0,
        "running": bank.running,
        "waiting": bank.waiting,
        "kv_used_ratio": np.round(bank.kv_used_ratio, 12),
        "computed_tokens": counters.plain["prompt_tokens"] - counters.plain["cached_tokens"],
        "gc_0": collections * 10,
        "gc_1": collections,
        "gc_2": np.floor(collections / 10),
        "virtual_memory": 5.4e10,
        "resident_memory": np.round(6.2e9 + 2.0e5 * bank.in_flight),
        "start_time": np.round(started, 2),
        "cpu_seconds": np.round(fleet.cpu_seconds, 2),
        "open_files": OPEN_FILES_IDLE + bank.in_flight,
        "max_files": 1048576.0,
        "http_received": counters.sums["prompt_length"] * 4.0,
        **counters.plain,
    }
    columns = [np.broadcast_to(np.asarray(scalars[name], dtype=np.float64), bank.size)[:, None] for name in _SCALARS]
    for name in HISTOGRAMS:
        cumulated = np.cumsum(counters.buckets[name], axis=1)
        columns += [cumulated, cumulated[:, -1:], np.round(counters.sums[name], 9)[:, None]]
    return np.concatenate(columns, axis=1)


def _template(pod: Pod) -> Template:
    engine = pod.service.engine
    base = {"engine": "0", "model_name": engine.model}
    kv_tokens = engine.kv_blocks * engine.block_size
    kinds: dict[str, dict[str, str]] = {
        "base": base,
        "model": {"model_name": engine.model},
        "none": {},
        "config": {
            "engine": "0",
            "block_size": str(engine.block_size),
            "effective_attention_block_size": str(engine.block_size),
            "gpu_memory_utilization": f"{engine.memory_reserved_ratio:g}",
            "kv_cache_max_concurrency": f"{kv_tokens / engine.max_model_length:.2f}",
            "kv_cache_size_tokens": str(kv_tokens),
            "num_gpu_blocks": str(engine.kv_blocks),
        },
    }
    page = Template(python=True)
    for family in _families():
        fixed = {**kinds[family.get("labels", "base")], **family.get("extra", {})}
        _family(page, family, fixed, (pod.ready_at or 0.0) - 20.0, engine.max_model_length)
    return page


def _family(page: Template, family: dict[str, Any], fixed: dict[str, str], created: float, longest: int) -> None:
    name, kind = family["name"], family["type"]
    page.family(name, kind, family["help"])
    children: list[dict[str, str]] = [fixed]
    if "histogram" in family:
        _histogram(page, name, family["histogram"], fixed, longest)
    elif "summary" in family:
        for suffix, key in zip(("_count", "_sum"), family["summary"], strict=True):
            page.sample(name + suffix, _sorted(fixed), _SCALARS[key])
    elif "by" in family:
        ((label, values),) = family["by"].items()
        children = [{**fixed, label: value} for value in values]
        for child, key in zip(children, values.values(), strict=True):
            page.sample(name, _sorted(child), _SCALARS[key])
    else:
        page.sample(name, _sorted(fixed), _SCALARS[family["value"]])
    if kind != "gauge" and family.get("created", True):
        stem = name.removesuffix("_total") if kind == "counter" else name
        page.family(f"{stem}_created", "gauge", family["help"])
        for number, child in enumerate(children):
            page.fixed(f"{stem}_created", _sorted(child), created + 1e-5 * number)


def _histogram(page: Template, name: str, key: str, fixed: dict[str, str], longest: int) -> None:
    bounds, first = HISTOGRAMS[key], _histogram_columns()[key]
    for number, bound in enumerate(bounds):
        # vLLM ends its 1-2-5 ladder of lengths at the longest context.
        if key.endswith("_length") and bound > longest:
            continue
        page.sample(f"{name}_bucket", _sorted({**fixed, "le": repr(float(bound))}), first + number)
    page.sample(f"{name}_bucket", _sorted({**fixed, "le": "+Inf"}), first + len(bounds))
    page.sample(f"{name}_count", _sorted(fixed), first + len(bounds) + 1)
    page.sample(f"{name}_sum", _sorted(fixed), first + len(bounds) + 2)


def _sorted(pairs: dict[str, str]) -> dict[str, str]:
    return dict(sorted(pairs.items()))
