"""Two replicas of any engine kind, and readers of their pages for tests."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime, timedelta

from simulator.exporters import ENGINE_PAGES
from simulator.fleet import Fleet
from simulator.spec.fleets import PoolSpec, default_spec

START = datetime(2026, 11, 18, 12, tzinfo=UTC)
STEP = timedelta(seconds=15)
KINDS = tuple(ENGINE_PAGES)


class Bent:
    """Sets effects of slots or services until it is removed."""

    def __init__(self, fleet: Fleet, *effects: tuple[str, str, int, float]) -> None:
        self.effects = effects
        fleet.injections.append(self)

    def advance(self, fleet: Fleet) -> bool:
        for group, effects, index, value in self.effects:
            fleet.effects.adjust(group, effects)[index] = value
        return False


class Engines:
    """Two replicas of one engine kind, with the writer of their pages."""

    def __init__(self, kind: str, seed: int = 4) -> None:
        spec = default_spec()
        service = replace(spec.services[1], engine_kind=kind, replicas=2, ceiling=3)
        pool = PoolSpec("h100", spec.pools[0].gpu_type, 1)
        self.fleet = Fleet(
            replace(spec, pools=(pool,), services=(service,), slice_seconds=2.5, tick_seconds=5.0), seed, START
        )
        self.pages = ENGINE_PAGES[kind]()

    def page(self, slot: int = 0) -> str:
        return self.pages.page(self.fleet, self.fleet.pods.pods[slot]).decode()

    def step(self, times: int = 1) -> str:
        for _ in range(times):
            self.fleet.step(STEP)
        return self.page()


def values(page: str) -> dict[str, float]:
    """Returns the number of every sample line."""
    result = {}
    for line in page.splitlines():
        if line and not line.startswith("#"):
            series, number = line.rsplit(" ", 1)
            assert series not in result, series
            result[series] = float(number)
    return result


def total(page: str, name: str, **labels: str) -> float:
    """Returns the sum of a metric's samples with these labels."""
    return sum(
        number
        for series, number in values(page).items()
        if series.split("{")[0] == name and all(f'{label}="{value}"' in series for label, value in labels.items())
    )


def described(page: str) -> dict[str, dict[str, object]]:
    """Returns the families of a page: type, label names, bounds, quantiles."""
    result: dict[str, dict[str, object]] = {}
    bounds: dict[str, dict[float, None]] = {}
    family = ""
    for line in page.splitlines():
        if line.startswith("# TYPE "):
            _, _, family, kind = line.split(" ")
            result[family] = {"type": kind}
        elif line and not line.startswith("#"):
            labels = dict(re.findall(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"', line))
            known = result[family]
            if "le" in labels:
                bounds.setdefault(family, {})[float(labels.pop("le"))] = None
            if "quantile" in labels:
                known.setdefault("quantiles", {})[labels.pop("quantile")] = None
            known.setdefault("labels", set()).update(labels)
    for name, ladder in bounds.items():
        result[name]["bounds"] = tuple(bound for bound in ladder if bound != float("inf"))
    return result
